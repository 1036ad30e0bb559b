"""Collects the evidence of a stall within a time budget, just before the tree is stopped.

First it reads what each thread waits in (freezing would hide that), then it freezes the tree and reads the rest. Each
part is best-effort; a missing part has its reason. `rules` judges the evidence.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.secrets import redact, redact_argv, whole_lines
from prefect_cachewatch.evidence.filesystem import Asking, FilesystemProbe, find_other_mounts, probe_file
from prefect_cachewatch.evidence.model import (
    Evidence,
    Missing,
    PressureFacts,
    ProcessFacts,
    ProcessSample,
    SocketFacts,
    ThreadFacts,
)
from prefect_cachewatch.evidence.procdetails import find_cgroup, list_sockets, read_cgroup, read_locks
from prefect_cachewatch.evidence.proctree import find_descendants, read_threads, sample_processes
from prefect_cachewatch.evidence.rules_storage import named_as_full
from prefect_cachewatch.evidence.stacks import find_py_spy, read_stacks
from prefect_cachewatch.evidence.waited_locks import read_lock_files
from prefect_cachewatch.supervise.open_files import OpenFile, list_open_files
from prefect_cachewatch.supervise.output import KEPT_BYTES
from prefect_cachewatch.supervise.proc import command_line, read_proc, read_stat, read_status
from prefect_cachewatch.supervise.turns import read_each

_MAX_STATTED = 1000
_MAX_STACKS = 8
_CAP_DAC_OVERRIDE = 1 << 1
_LOG_TAIL_BYTES = 64 * 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_EACH_S, _ALL_S = 0.1, 0.5
_DIRS_S = 0.5
_NO_ANSWER = "the process holds a lock that reading them waits for: it hangs in the kernel"
_LATE = "the time for the evidence was up; this part and later ones are incomplete"


def collect_evidence(
    roots: Sequence[int],
    cache_dirs: Sequence[Path],
    known: Evidence | None = None,
    *,
    include_roots: bool = True,
    budget_s: float = 2.0,
    before: ProcessSample | None = None,
    places: Sequence[str] = (),
    secrets: Iterable[str] = (),
    ask: Callable[[], object] = lambda: None,
) -> Evidence:
    """Collect everything that can be known about a process tree in `budget_s` seconds.

    Args:
        roots: pids whose trees are looked at.
        cache_dirs: the watched directories, absolute.
        known: what is known without a look at the tree: its growth, its output, how it ended.
        include_roots: False where the roots are guards and only what is below them counts.
        budget_s: seconds for all of it; what does not fit is reported as missing.
        before: an earlier `sample_processes` of the same tree, best from the last growth; deltas
            are since then.
        places: directories that the tree uses besides, for temporary files and the like.
        secrets: values to remove wherever they occur.
        ask: has the tree stopped (SIGSTOP), so that all readings are of one moment; called once, after
            the threads were read; it should return quickly.

    Returns:
        The evidence; parts that could not be read raise no exception.

    Example:
        >>> import os
        >>> evidence = collect_evidence([os.getpid()], [Path("/tmp")])
        >>> evidence.processes[0].pid == os.getpid(), evidence.filesystems[0].path
        (True, '/tmp')
    """
    known, started_s = known or Evidence(), time.monotonic()
    deadline_s = started_s + budget_s
    ready_s = deadline_s - min(0.25, 0.15 * budget_s)
    paths = list(dict.fromkeys(map(str, cache_dirs)))
    others = find_other_mounts([*places, *named_as_full(known.log_kept or known.log_tail)], paths)
    # Their answers are awaited last; meanwhile the other evidence is put together.
    draft = _Draft(known, paths, tuple(secrets), FilesystemProbe([*paths, *others]), before)
    _read_until(started_s + 0.4 * budget_s, draft, {"process states": lambda: draft.read_states(roots, include_roots)})
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - evidence of a tree that could not be frozen is still evidence
        draft.miss("freeze", redact(f"{type(error).__name__}: {error}", draft.secrets))
    details = {
        "pressure": draft.read_pressure,
        "processes": draft.read_processes,
        "locks": draft.read_locks,
        "lock files": lambda: draft.read_lock_files(min(ready_s, time.monotonic() + _DIRS_S)),
        "python stacks": lambda: draft.read_stacks(ready_s),
        "file systems": lambda: draft.await_answers(ready_s),
    }
    _read_until(deadline_s, draft, details)
    # Also if an earlier part hung: an answer that came meanwhile shows that the file system responds.
    filesystems, now = draft.probe.facts(), draft.sample
    kills = (now.oom_kills, before.oom_kills) if now and before else (None, None)
    return replace(
        known,
        **draft.found,
        window_s=max(0.0, started_s - before.monotonic_s) if before else 0.0,
        processes=tuple(map(draft.with_answers, list(draft.processes.values()))),
        filesystems=tuple(filesystems[path] for path in paths),
        other_filesystems=tuple(filesystems[path] for path in others),
        oom_kills_in_window=None if kills[0] is None or kills[1] is None else kills[0] - kills[1],
        process_count=len(draft.pids),
        collected_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        took_s=time.monotonic() - started_s,
        missing=tuple(draft.missing),
    )


def _read_until(deadline_s: float, draft: _Draft, parts: Mapping[str, Callable[[], None]]) -> None:
    """Read part after part in a thread that is left behind if it takes too long; see `read_each` for single processes."""
    current = next(iter(parts))

    def read() -> None:
        nonlocal current
        for current, part in parts.items():
            try:
                part()
            except Exception as error:  # noqa: BLE001 - one part that fails must not cost the others
                draft.miss(current, repr(error)[:200])

    thread = threading.Thread(target=read, name="cachewatch-evidence", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline_s - time.monotonic()))
    if thread.is_alive():
        draft.miss(current, _LATE)


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


@dataclass
class _Draft:
    """The evidence so far; the waiting thread takes what is there when the time is up."""

    known: Evidence
    paths: Sequence[str]
    secrets: Sequence[str]
    probe: FilesystemProbe
    before: ProcessSample | None
    pids: list[int] = field(default_factory=list)
    threads: dict[int, tuple[ThreadFacts, ...]] = field(default_factory=dict)
    sample: ProcessSample | None = None
    locks_text: str = ""
    processes: dict[int, ProcessFacts] = field(default_factory=dict)
    asked: Asking = field(default_factory=lambda: Asking(probe_file, {}))
    #: Fields of the evidence, as they are had.
    found: dict[str, Any] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def miss(self, part: str, why: str) -> None:
        self.missing.append(Missing(part, why))

    def read_states(self, roots: Sequence[int], include_roots: bool) -> None:
        self.pids = find_descendants(roots, include_roots)
        self.locks_text = os.fsdecode(read_proc("/proc/locks"))
        self.sample = sample_processes(roots, include_roots)
        self.threads.update(read_each(self.pids, read_threads, each_s=_EACH_S, total_s=_ALL_S))
        for pid in self.pids:
            if pid not in self.threads:
                self.threads[pid] = read_threads(pid, with_calls=False)
                self.miss(f"system calls of {pid}", _NO_ANSWER)
        asleep = [thread for threads in self.threads.values() for thread in threads if thread.state not in "RZX"]
        if any(not thread.syscall and not thread.wait_channel for thread in asleep):
            self.miss("system calls", "the kernel does not show those of every thread to this user")
        if asleep and not any(thread.kernel_stack for thread in asleep):
            self.miss("kernel stacks", "need CAP_SYS_ADMIN")

    def read_pressure(self) -> None:
        for resource in ("cpu", "io", "memory"):
            lines = read_proc(f"/proc/pressure/{resource}").decode().splitlines()
            # some avg10=0.12 avg60=0.05 avg300=0.01 total=123
            shares = [float(pair.partition("=")[2]) for line in lines for pair in line.split()[1:2]]
            if shares:
                self.found["pressure"] = (*self.found.get("pressure", ()), PressureFacts(resource, *shares))

    def read_processes(self) -> None:
        for pid in self.pids:
            self._read_totals(pid)
        tables: dict[str, Mapping[int, SocketFacts]] = {}
        whole = read_each(list(self.processes), lambda pid: self._read_holdings(pid, tables), each_s=_EACH_S)
        for pid, process in self.processes.items():
            if pid not in whole:
                self.miss(f"command line and open files of {pid}", _NO_ANSWER)
            elif process.file_count is None:
                self.miss(f"open files of {pid}", "this user may not read them")
        # Files outside the caches first: if a cache's file system hangs, only its own files lack an answer.
        asked = [
            (f.in_cache, pid, f.fd)
            for pid, one in self.processes.items()
            for f in one.files
            if f.kind in ("file", "device")
        ]
        self.asked = Asking(
            probe_file, {f"{pid}:{fd}": f"/proc/{pid}/fd/{fd}" for _, pid, fd in sorted(asked)[:_MAX_STATTED]}
        )
        groups = dict.fromkeys(process.cgroup for process in self.processes.values() if process.cgroup)
        self.found["cgroups"] = tuple(map(read_cgroup, groups))

    def _read_totals(self, pid: int) -> None:
        """Read what does not wait for a process that hangs."""
        status, started = read_status(f"/proc/{pid}/status"), read_stat(pid)
        if not status or started is None:  # it has just ended
            return
        resident, swap, uids = (status.get(key, b"").split() for key in (b"VmRSS", b"VmSwap", b"Uid"))
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started.start_ticks / _TICKS_PER_S
        now = self.sample.readings.get(pid) if self.sample else None
        since = now.since(self.before.readings.get(pid)) if now and self.before else None
        threads = self.threads.get(pid, ())
        self.processes[pid] = ProcessFacts(
            pid=pid,
            parent_pid=started.parent,
            name=redact(os.fsdecode(status[b"Name"]), self.secrets),
            age_s=max(0.0, age_s) if started.start_ticks >= 0 else 0.0,  # it hung before its start time was read
            cpu_s=now.cpu_s if now else 0.0,
            cpu_in_window_s=since.cpu_s if since else None,
            runnable_in_window_s=since.runnable_s if since else None,
            turns_in_window=since.turns if since else None,
            resident_bytes=int(resident[0]) * 1024 if resident else 0,
            swap_bytes=int(swap[0]) * 1024 if swap else None,
            uid=int(uids[1]) if len(uids) > 1 else -1,
            may_override_permissions=bool(int(status.get(b"CapEff", b"0"), 16) & _CAP_DAC_OVERRIDE),
            tracer_pid=int(status.get(b"TracerPid", b"0")),
            major_faults_in_window=since.major_faults if since else None,
            state=threads[0].state if threads else "?",
            threads=threads,
            thread_count=int(status[b"Threads"]),
            io=now.io if now else None,
            io_in_window=since.io if since else None,
            cgroup=find_cgroup(pid),
        )

    def _read_holdings(self, pid: int, tables: dict[str, Mapping[int, SocketFacts]]) -> None:
        """Read what may wait for the process: its open files, then its working directory and its command line."""
        files, count = list_open_files(pid, self.paths)
        sockets = tuple(list_sockets(pid, files, tables))
        self.processes[pid] = replace(self.processes[pid], files=files, file_count=count, sockets=sockets)
        with contextlib.suppress(OSError):  # it belongs to another user
            self.processes[pid] = replace(self.processes[pid], cwd=os.readlink(f"/proc/{pid}/cwd"))
        argv, name = command_line(pid), self.processes[pid].name
        if argv and os.path.basename(argv[0]).startswith(name):
            name = redact(os.path.basename(argv[0]), self.secrets)  # the kernel keeps 15 bytes of it
        argv = redact_argv(argv, self.secrets)[:256]
        self.processes[pid] = replace(self.processes[pid], argv=tuple(argv), name=name)

    def with_answers(self, process: ProcessFacts) -> ProcessFacts:
        """Add what the file systems said of its open files; from here on its working directory is for people."""
        files: list[OpenFile] = []
        for file in process.files:
            answer = dict(self.asked.answers.get(f"{process.pid}:{file.fd}", {}))
            if file.kind == "device":  # what lies under /dev stays one, whatever serves it (a FIFO or a FUSE file)
                answer.pop("kind", None)
            files.append(replace(file, **answer))
        return replace(process, files=tuple(files), cwd=redact(process.cwd, self.secrets))

    def await_answers(self, deadline_s: float) -> None:
        self.probe.wait(deadline_s)
        self.asked.wait(deadline_s)

    def read_locks(self) -> None:
        self.found["locks"] = read_locks(self.locks_text, self.processes, self.secrets)

    def read_lock_files(self, deadline_s: float) -> None:
        self.probe.wait(deadline_s)
        answered = self.probe.facts()
        self.found["lock_files"] = read_lock_files(
            self.known, [answered[path] for path in self.paths], self.processes, self.locks_text
        )

    def read_stacks(self, deadline_s: float) -> None:
        python = [one for one in self.processes.values() if one.argv and _runs_python(one)]
        executable = find_py_spy()
        if python and executable is None:
            self.miss("python stacks", "py-spy is not installed: pip install 'prefect-cachewatch[stacks]'")
        if not python or executable is None:
            return
        # Running processes first, then the deepest: the others wait for the leaves.
        python.sort(key=lambda one: (not any(each.state in "RD" for each in one.threads), -self.pids.index(one.pid)))
        stacks, failed = read_stacks(executable, [process.pid for process in python[:_MAX_STACKS]], deadline_s)
        for pid, threads in stacks.items():
            self.processes[pid] = replace(self.processes[pid], python_threads=threads)
        for pid, why in failed.items():
            self.miss(f"python stack of {pid}", why)
        if len(python) > _MAX_STACKS:
            self.miss("python stacks", f"only {_MAX_STACKS} of {len(python)} processes were looked at")


def _runs_python(process: ProcessFacts) -> bool:
    return process.name.startswith(("python", "pypy")) or os.path.basename(process.argv[0]).startswith(
        ("python", "pypy")
    )
