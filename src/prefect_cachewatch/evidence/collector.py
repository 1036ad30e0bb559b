"""Collects the evidence of a stall within a time budget, just before the tree is stopped.

First it reads what each thread waits in (freezing would hide that), then it freezes the tree and reads the rest. Each
part is best-effort; a missing part has its reason. `diagnosis` judges the evidence.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.secrets import redact, redact_argv, whole_lines
from prefect_cachewatch.evidence.filesystem import FilesystemProbe, find_other_mounts
from prefect_cachewatch.evidence.model import (
    Evidence,
    GrowthFacts,
    Missing,
    PressureFacts,
    ProcessFacts,
    PythonThread,
)
from prefect_cachewatch.evidence.procdetails import find_cgroup, list_sockets, read_cgroup, read_locks
from prefect_cachewatch.evidence.proctree import find_descendants, read_threads, sample_processes
from prefect_cachewatch.evidence.readings import (
    CgroupFacts,
    EndedProcess,
    LockWait,
    ProcessReading,
    ProcessSample,
    SocketFacts,
    ThreadFacts,
)
from prefect_cachewatch.evidence.rules_storage import named_as_full
from prefect_cachewatch.evidence.stacks import find_py_spy, read_stacks, runs_python
from prefect_cachewatch.evidence.waited_locks import read_lock_files
from prefect_cachewatch.supervise.lockfiles import LockFile
from prefect_cachewatch.supervise.open_files import OpenFile, list_open_files
from prefect_cachewatch.supervise.output import KEPT_BYTES
from prefect_cachewatch.supervise.proc import read_memory_file, read_proc, read_stat, read_status
from prefect_cachewatch.supervise.turns import read_each

_MAX_FILES = 4000
_MAX_STATTED = 1000
_MAX_STACKS = 8
_CAP_DAC_OVERRIDE = 1 << 1
_LOG_TAIL_BYTES = 64 * 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EACH_S, _ALL_S = 0.1, 0.5
_DIRS_S = 0.5
# Sent by other programs to tell something, or by timers and descriptors.
_WAKING = (
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
_NO_ANSWER = "the process holds a lock that reading them waits for: it hangs in the kernel"


@dataclass
class _Draft:
    """The evidence so far; the waiting thread reads it when the time is up."""

    pids: list[int] = field(default_factory=list)
    threads: dict[int, tuple[ThreadFacts, ...]] = field(default_factory=dict)
    sample: ProcessSample | None = None
    locks_text: str = ""
    facts: dict[int, ProcessFacts] = field(default_factory=dict)
    files: dict[int, tuple[OpenFile, ...]] = field(default_factory=dict)
    file_counts: dict[int, int | None] = field(default_factory=dict)
    sockets: dict[int, tuple[SocketFacts, ...]] = field(default_factory=dict)
    locks: tuple[LockWait, ...] = ()
    lock_files: tuple[LockFile, ...] = ()
    cgroups: dict[str, CgroupFacts] = field(default_factory=dict)
    pressure: tuple[PressureFacts, ...] = ()
    stacks: dict[int, tuple[PythonThread, ...]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


def collect_evidence(
    roots: Sequence[int],
    cache_dirs: Sequence[Path],
    *,
    include_roots: bool = True,
    budget_s: float = 2.0,
    before: ProcessSample | None = None,
    growth: GrowthFacts | None = None,
    log_tail: bytes = b"",
    log_kept: bytes = b"",
    ended: Sequence[EndedProcess] = (),
    places: Sequence[str] = (),
    exit_code: int | None = None,
    exit_signal: int | None = None,
    out_of_memory: str = "",
    secrets: Iterable[str] = (),
    freeze: Callable[[], object] | None = None,
    python_stacks: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Evidence:
    """Collect everything that can be known about a process tree in `budget_s` seconds.

    Args:
        roots: pids whose trees are looked at.
        cache_dirs: the watched directories, absolute.
        include_roots: False where the roots are guards and only what is below them counts.
        budget_s: seconds for all of it; what does not fit is reported as missing.
        before: an earlier `sample_processes` of the same tree, best from the last growth; deltas
            are since then.
        growth: what the watch measured.
        log_tail: the end of the generator's output.
        log_kept: all of it that is kept.
        ended: processes of the tree that have ended.
        places: directories that the tree uses besides, for temporary files and the like.
        exit_code: the generator's exit code, if it ended by itself.
        exit_signal: the signal that ended it, if one did.
        out_of_memory: which memory its container went beyond, if an engine says so.
        secrets: values to remove wherever they occur.
        freeze: stops the tree (SIGSTOP) so that all readings are of one moment; called once, after
            the threads were read; it should return quickly.
        python_stacks: whether py-spy is run, if it is there.
        clock: monotonic seconds.

    Returns:
        The evidence; parts that could not be read raise no exception.

    Example:
        >>> import os
        >>> evidence = collect_evidence([os.getpid()], [Path("/tmp")], python_stacks=False)
        >>> evidence.processes[0].pid == os.getpid(), evidence.filesystems[0].path
        (True, '/tmp')
    """
    started = clock()
    deadline = started + budget_s
    draft = _Draft()
    hidden = list(secrets)
    paths = [str(path) for path in cache_dirs]
    tail, kept = log_text(log_tail, hidden), kept_text(log_kept, hidden)
    others = find_other_mounts([*places, *named_as_full(kept or tail)], paths)
    probe = FilesystemProbe([*paths, *others])
    probe.start()  # their answers are awaited last; meanwhile the other evidence is put together

    _run_until(started + 0.4 * budget_s, clock, lambda: _read_states(draft, roots, include_roots), draft)
    if freeze is not None:
        try:
            freeze()
        except Exception as error:  # noqa: BLE001 - evidence of a tree that could not be frozen is still evidence
            draft.missing.append(Missing("freeze", redact(f"{type(error).__name__}: {error}", hidden)))
    ready_by = deadline - min(0.25, 0.15 * budget_s)

    def details() -> None:
        _read_details(draft, paths, hidden)
        probe.start_files(_files_to_stat(draft.files))
        draft.steps.append("lock files")
        probe.wait_dirs(min(ready_by, clock() + _DIRS_S), clock)
        last_path = growth.last_path if growth is not None else ""
        answered = probe.facts()
        tops = [answered[path] for path in dict.fromkeys(paths)]
        draft.lock_files = read_lock_files(tail, tops, draft.files, draft.locks_text, last_path)
        if python_stacks:
            _read_stacks(draft, ready_by, clock)
        draft.steps.append("file systems")
        probe.wait(ready_by, clock)

    _run_until(deadline, clock, details, draft)
    # Also if an earlier part hung: an answer that came meanwhile shows that the file system responds.
    known, answers = probe.facts(), probe.answers()
    filesystems = tuple(known[path] for path in dict.fromkeys(paths))
    window_s = max(0.0, started - before.monotonic_s) if before else 0.0
    return Evidence(
        window_s=window_s,
        growth=growth or GrowthFacts(),
        processes=tuple(_join(pid, draft, before, answers, hidden) for pid in list(draft.facts)),
        filesystems=filesystems,
        other_filesystems=tuple(known[path] for path in others),
        locks=draft.locks,
        lock_files=draft.lock_files,
        cgroups=tuple(dict(draft.cgroups).values()),
        pressure=draft.pressure,
        oom_kills_in_window=_difference(draft.sample, before),
        exit_code=exit_code,
        exit_signal=exit_signal,
        out_of_memory=out_of_memory,
        log_tail=tail,
        log_kept=kept,
        ended=tuple(replace(one, name=redact(one.name, hidden)) for one in ended),
        process_count=len(draft.pids),
        collected_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        took_s=clock() - started,
        missing=tuple(draft.missing),
    )


def _run_until(deadline: float, clock: Callable[[], float], work: Callable[[], None], draft: _Draft) -> None:
    # In a thread that can be left behind if it takes too long; readings that may hang by themselves use `read_each`.
    def guarded() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - one part that fails must not cost the others
            draft.missing.append(Missing(draft.steps[-1] if draft.steps else "evidence", repr(error)[:200]))

    thread = threading.Thread(target=guarded, name="cachewatch-evidence", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - clock()))
    if thread.is_alive():
        part = draft.steps[-1] if draft.steps else "evidence"
        draft.missing.append(Missing(part, "the time for the evidence was up; this part and later ones are incomplete"))


def _read_states(draft: _Draft, roots: Sequence[int], include_roots: bool) -> None:
    draft.steps.append("process states")
    draft.pids = find_descendants(roots, include_roots)
    draft.locks_text = os.fsdecode(read_proc("/proc/locks"))
    draft.threads.update(read_each(draft.pids, read_threads, each_s=_EACH_S, total_s=_ALL_S))
    for pid in draft.pids:
        if pid not in draft.threads:
            draft.threads[pid] = read_threads(pid, with_calls=False)
            draft.missing.append(Missing(f"system calls of {pid}", _NO_ANSWER))
    draft.sample = sample_processes(roots, include_roots)


def log_text(tail: bytes, secrets: Iterable[str]) -> str:
    """Return the end of an output as text, from its first whole line on and without secrets.

    Args:
        tail: the end of the output.
        secrets: values to remove wherever they occur.

    Example:
        >>> log_text(b"Authorization: Bearer sesame-77777777", ())
        'Authorization: ***'
    """
    whole = tail if len(tail) < _LOG_TAIL_BYTES else whole_lines(tail, _LOG_TAIL_BYTES)
    return redact(whole.decode(errors="surrogateescape"), secrets)


def kept_text(kept: bytes, secrets: Iterable[str]) -> str:
    """Return all of a kept output as text, without secrets and with each kind of line once: digits make no other kind.

    Args:
        kept: the end of the output.
        secrets: values to remove wherever they occur.

    Example:
        >>> kept_text(b"boom\\nwaiting 1 s\\nwaiting 2 s\\n", ())
        'boom\\nwaiting 1 s\\n'
    """
    lines = kept.splitlines(keepends=True)
    if len(kept) >= KEPT_BYTES:  # the rest of a cut line may be the rest of a secret
        del lines[:1]
    kinds: dict[bytes, bytes] = {}
    for line in lines:
        kinds.setdefault(line.translate(None, b"0123456789"), line)
    text = b"".join(kinds.values())[-2 * _LOG_TAIL_BYTES :]
    return redact(text.decode(errors="surrogateescape"), secrets)


def _read_details(draft: _Draft, paths: Sequence[str], secrets: Sequence[str]) -> None:
    draft.steps.append("pressure")
    draft.pressure = _read_pressure()
    draft.steps.append("processes")
    words = read_each(draft.pids, _read_words, each_s=_EACH_S, total_s=_ALL_S)
    for pid in list(draft.pids):
        reading = draft.sample.readings.get(pid) if draft.sample else None
        if facts := _read_process(pid, words.get(pid), draft.threads.get(pid, ()), reading, secrets):
            draft.facts[pid] = facts
            if pid not in words:
                draft.missing.append(Missing(f"command line of {pid}", _NO_ANSWER))
    draft.steps.append("open files")
    left, denied = _MAX_FILES, 0
    tables: dict[str, Mapping[int, SocketFacts]] = {}

    def read_files(pid: int) -> None:
        nonlocal left, denied
        files, count = list_open_files(pid, paths, min(256, left))
        draft.file_counts[pid], draft.files[pid] = count, files
        denied += count is None
        left -= len(files)
        draft.sockets[pid] = tuple(list_sockets(pid, files, tables))

    read_each(draft.facts, read_files, each_s=_EACH_S)
    if left <= 0:
        draft.missing.append(Missing("open files", f"only the first {_MAX_FILES} of the tree are listed"))
    if denied:
        draft.missing.append(Missing("open files", f"{denied} processes may not be read by this user"))
    asleep = [t for ts in draft.threads.values() for t in ts if t.state not in "RZX"]
    if any(not t.syscall and not t.wait_channel for t in asleep):
        draft.missing.append(Missing("system calls", "the kernel does not show those of every thread to this user"))
    if asleep and not any(t.kernel_stack for t in asleep):
        draft.missing.append(Missing("kernel stacks", "need CAP_SYS_ADMIN"))
    draft.steps.append("locks")
    draft.locks = read_locks(
        draft.locks_text, draft.files, {pid: facts.name for pid, facts in draft.facts.items()}, secrets
    )
    draft.steps.append("control groups")
    for directory in dict.fromkeys(facts.cgroup for facts in draft.facts.values()):
        if directory:
            draft.cgroups[directory] = read_cgroup(directory)


def _read_words(pid: int) -> tuple[list[str], str]:
    """A process's argv and working directory, which may block."""
    argv, cwd = [b""], ""
    with contextlib.suppress(OSError):
        argv = read_memory_file(pid, "cmdline", 1 << 16).split(b"\0")
    with contextlib.suppress(OSError):
        cwd = os.readlink(f"/proc/{pid}/cwd")
    return [os.fsdecode(word) for word in (argv if argv[-1] else argv[:-1])], cwd


def _read_process(
    pid: int,
    words: tuple[list[str], str] | None,
    threads: tuple[ThreadFacts, ...],
    reading: ProcessReading | None,
    secrets: Sequence[str],
) -> ProcessFacts | None:
    status, started = read_status(f"/proc/{pid}/status"), read_stat(pid)
    if not status or started is None:
        return None
    name = os.fsdecode(status[b"Name"])
    argv, cwd = words if words is not None else ([f"[{name}]"], "")
    if argv and os.path.basename(argv[0]).startswith(name):
        name = os.path.basename(argv[0])  # the kernel keeps 15 bytes of it
    resident, swap, uids = (status.get(key, b"").split() for key in (b"VmRSS", b"VmSwap", b"Uid"))
    nice = 0
    with contextlib.suppress(OSError):  # it has just ended
        nice = os.getpriority(os.PRIO_PROCESS, pid)
    return ProcessFacts(
        pid=pid,
        parent_pid=started.parent,
        name=redact(name, secrets),
        argv=tuple(redact_argv(argv, secrets)[:256]),
        state=threads[0].state if threads else "?",
        age_s=_age_s(started.start_ticks),
        cpu_s=reading.cpu_s if reading else 0.0,
        resident_bytes=int(resident[0]) * 1024 if resident else 0,
        swap_bytes=int(swap[0]) * 1024 if swap else None,
        nice=nice,
        uid=int(uids[1]) if len(uids) > 1 else -1,
        may_override_permissions=bool(int(status.get(b"CapEff", b"0"), 16) & _CAP_DAC_OVERRIDE),
        tracer_pid=int(status.get(b"TracerPid", b"0")),
        can_be_woken=_can_be_woken(pid, status),
        threads=threads,
        thread_count=int(status[b"Threads"]),
        cwd=redact(cwd, secrets),
        cgroup=find_cgroup(pid),
    )


def _can_be_woken(pid: int, status: Mapping[bytes, bytes]) -> bool | None:
    if b"SigCgt" not in status or not os.path.exists(f"/proc/{pid}/timers"):
        return None
    handled = int(status[b"SigCgt"], 16)
    # The C library's own two come before the first that programs may use.
    waking = any(handled >> (number - 1) & 1 for number in _WAKING) or bool(handled >> (signal.SIGRTMIN - 1))
    return waking or bool(read_proc(f"/proc/{pid}/timers").strip())


def _age_s(start_ticks: int) -> float:
    if start_ticks < 0:
        return 0.0  # it hung before its start time was read
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / _TICKS_PER_S)


def _read_stacks(draft: _Draft, deadline: float, clock: Callable[[], float]) -> None:
    draft.steps.append("python stacks")
    found = read_each(draft.facts, runs_python, each_s=_EACH_S, total_s=_ALL_S)
    pids = [pid for pid in draft.facts if found.get(pid)]
    if not pids:
        return
    executable = find_py_spy()
    if executable is None:
        draft.missing.append(
            Missing("python stacks", "py-spy is not installed: pip install 'prefect-cachewatch[stacks]'")
        )
        return
    # Running processes first, then the deepest: the others wait for the leaves.
    running = {pid for pid in pids if any(t.state in "RD" for t in draft.threads.get(pid, ()))}
    order = sorted(pids, key=lambda pid: (pid not in running, -draft.pids.index(pid)))
    draft.stacks, failed = read_stacks(executable, order[:_MAX_STACKS], deadline, clock)
    draft.missing.extend(Missing(f"python stack of {pid}", why) for pid, why in failed.items())
    if len(order) > _MAX_STACKS:
        draft.missing.append(Missing("python stacks", f"only {_MAX_STACKS} of {len(order)} processes were looked at"))


def _read_pressure() -> tuple[PressureFacts, ...]:
    found = []
    for resource in ("cpu", "io", "memory"):
        values: dict[str, float] = {}
        for line in read_proc(f"/proc/pressure/{resource}").decode().splitlines():
            kind, *pairs = line.split()
            values.update({f"{kind}_{pair.split('=')[0]}": float(pair.split("=")[1]) for pair in pairs})
        if values:
            known = ("some_avg10", "some_avg60", "full_avg10", "full_avg60")
            found.append(PressureFacts(resource, *(values.get(key, 0.0) for key in known)))
    return tuple(found)


def _files_to_stat(files: Mapping[int, Sequence[OpenFile]]) -> dict[str, str]:
    # Files outside the caches first: if a cache's file system hangs, only its own files lack an answer.
    wanted = [(f.in_cache, pid, f.fd) for pid, fs in files.items() for f in fs if f.kind in ("file", "device")]
    return {f"{pid}:{fd}": f"/proc/{pid}/fd/{fd}" for _, pid, fd in sorted(wanted)[:_MAX_STATTED]}


def _join(
    pid: int,
    draft: _Draft,
    before: ProcessSample | None,
    answers: Mapping[str, Mapping[str, Any]],
    secrets: Sequence[str],
) -> ProcessFacts:
    facts = draft.facts[pid]
    now = draft.sample.readings.get(pid) if draft.sample else None
    earlier = before.readings.get(pid) if before else None
    if now and earlier and now.start_ticks != earlier.start_ticks:
        earlier = None  # the pid was given to another process meanwhile
    if now and before and earlier is None:
        # It began in the window: all of it counts.
        earlier = replace(
            now, cpu_s=0.0, turns=0, major_faults=0, io=type(now.io)() if now.io else None, runnable_s=0.0
        )
    return replace(
        facts,
        cpu_in_window_s=now.cpu_s - earlier.cpu_s if now and earlier else None,
        runnable_in_window_s=_runnable_in_window(now, earlier),
        turns_in_window=now.turns - earlier.turns if now and earlier else None,
        major_faults_in_window=now.major_faults - earlier.major_faults if now and earlier else None,
        io=now.io if now else None,
        io_in_window=now.io.since(earlier.io) if now and earlier and now.io and earlier.io else None,
        files=tuple(_with_answer(f, answers.get(f"{pid}:{f.fd}")) for f in draft.files.get(pid, ())),
        file_count=draft.file_counts.get(pid),
        sockets=draft.sockets.get(pid, ()),
        python_threads=draft.stacks.get(pid, ()),
    )


def _runnable_in_window(now: ProcessReading | None, earlier: ProcessReading | None) -> float | None:
    if not now or not earlier or now.runnable_s is None or earlier.runnable_s is None:
        return None
    # Threads that ended took their share with them; what was used is never more than what was wanted.
    return max(now.runnable_s - earlier.runnable_s, now.cpu_s - earlier.cpu_s)


def _with_answer(file: OpenFile, answer: Mapping[str, Any] | None) -> OpenFile:
    if not answer or "kind" not in answer:
        return file
    return replace(
        file,
        # What lies under /dev stays a device, whatever serves it (a FIFO or a FUSE file stands in for one).
        kind=file.kind if file.kind == "device" else answer["kind"],
        size_bytes=answer["size_bytes"],
        changed_age_s=max(0.0, time.time() - answer["changed_at"]),
    )


def _difference(now: ProcessSample | None, before: ProcessSample | None) -> int | None:
    if now is None or before is None or now.oom_kills is None or before.oom_kills is None:
        return None
    return now.oom_kills - before.oom_kills
