"""The process tree as /proc shows it: who is there, what it used, what its threads wait in.

Only reads /proc, which touches no file system that may hang; what waits for a lock of the process (`stat`, `io`, system
calls) is read with a deadline. A process that ends while it is read is left out: that is normal. Open files are `supervise.open_files`, sockets and limits `procdetails`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from prefect_cachewatch.postmortem.readings import IoCounters, ProcessReading, ProcessSample, ThreadFacts
from prefect_cachewatch.postmortem.syscalls import BlockedCall, decode_syscall
from prefect_cachewatch.supervise.proc import children, read_proc, read_status, stat_fields
from prefect_cachewatch.supervise.reading import read_each

__all__ = ["find_descendants", "read_threads", "sample_processes"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_THREADS = 256
_SAMPLE_S = 1.0


def find_descendants(roots: Iterable[int], include_roots: bool = True) -> list[int]:
    """List a process tree, parents before their children.

    Args:
        roots: pids whose trees are wanted.
        include_roots: whether the roots themselves belong to it.

    Returns:
        Pids, each once.

    Example:
        >>> import os
        >>> os.getpid() in find_descendants([os.getpid()])
        True
    """
    seen: dict[int, None] = {}
    queue = list(roots)
    chosen = set(queue) if not include_roots else set()
    for pid in queue:
        if pid in seen:
            continue
        seen[pid] = None
        queue.extend(children(pid))
    return [pid for pid in seen if pid not in chosen and os.path.exists(f"/proc/{pid}")]


def sample_processes(
    roots: int | Sequence[int], include_roots: bool = True, clock: Callable[[], float] = time.monotonic
) -> ProcessSample:
    """Note CPU, faults and I/O of every process of a tree, cheap enough for each poll.

    About 0.1 ms a process; nothing but /proc is read.

    Args:
        roots: one pid or several; with `include_roots=False` only what is below them.
        include_roots: whether the roots belong to the tree (a guard does not).
        clock: monotonic seconds.

    Returns:
        The sample, to be given to `collect_evidence` as `before`.

    Example:
        >>> import os
        >>> sample_processes(os.getpid()).readings[os.getpid()].cpu_s > 0
        True
    """
    pids = find_descendants([roots] if isinstance(roots, int) else roots, include_roots)
    # One that hangs while it replaces its program says neither what it has used nor (before Linux 6.18) what it has read.
    found = read_each(pids, _read_totals, total_s=_SAMPLE_S)
    io = read_each(found, _read_io, total_s=_SAMPLE_S)
    readings = {pid: replace(reading, io=io.get(pid)) for pid in pids if (reading := found.get(pid))}
    return ProcessSample(clock(), readings, _machine_oom_kills())


def read_threads(pid: int, with_calls: bool = True) -> tuple[ThreadFacts, ...]:
    """Read what each thread of a process does just now; a living one first, at most 256.

    To be called before the tree is frozen: a stopped thread shows `do_signal_stop` instead.

    Args:
        pid: the process.
        with_calls: read system calls, wait channels and kernel stacks too, which may block (see `reading`).

    Returns:
        The threads; system calls only where the kernel lets this process see them.
    """
    try:
        tids = sorted(int(tid) for tid in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return ()
    found = [facts for tid in tids[:_MAX_THREADS] if (facts := _read_thread(pid, tid, with_calls))]
    # The first one stands for the process: where the main thread has ended, one that has not.
    return tuple(sorted(found, key=lambda thread: thread.state in "ZX"))


def _read_totals(pid: int) -> ProcessReading | None:
    fields = stat_fields(f"/proc/{pid}/stat")
    if len(fields) < 20:
        return None
    # utime and stime of the process; what waited-for children used is the children's own.
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return ProcessReading(pid, int(fields[19]), cpu_s, int(fields[9]), None, _read_runnable(pid))


def _read_runnable(pid: int) -> float | None:
    # Time on a CPU and time in the run queue, in nanoseconds (Documentation/scheduler/sched-stats.rst): on a busy
    # machine a computing process is told from an idle one by what it waits for, not by what it gets.
    try:
        tids = os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]
    except OSError:
        return None
    readings = [read_proc(f"/proc/{pid}/task/{tid}/schedstat").split() for tid in tids]
    known = [int(words[0]) + int(words[1]) for words in readings if len(words) >= 2]
    return sum(known) / 1e9 if known else None


def _read_io(pid: int) -> IoCounters | None:
    values = dict(line.split(b": ", 1) for line in read_proc(f"/proc/{pid}/io").splitlines() if b": " in line)
    if not values:
        return None
    return IoCounters(
        int(values.get(b"rchar", 0)),
        int(values.get(b"wchar", 0)),
        int(values.get(b"read_bytes", 0)),
        int(values.get(b"write_bytes", 0)),
    )


def _machine_oom_kills() -> int | None:
    for line in read_proc("/proc/vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return None


def _read_thread(pid: int, tid: int, with_calls: bool) -> ThreadFacts | None:
    here = f"/proc/{pid}/task/{tid}"
    status = read_status(f"{here}/status")
    if not status:
        return None
    name, state = os.fsdecode(status[b"Name"]), status[b"State"][:1].decode()
    call = BlockedCall()
    channel = ""
    stack: tuple[str, ...] = ()
    if state not in "RZX" and with_calls:
        channel = os.fsdecode(read_proc(f"{here}/wchan")).strip()
        channel = "" if channel == "0" else channel
        call = decode_syscall(
            os.fsdecode(read_proc(f"{here}/syscall")),
            lambda address, size: _read_memory(pid, address, size),
            lambda fd: _epoll_targets(pid, fd),
        )
        stack = tuple(
            line.partition("] ")[2] for line in os.fsdecode(read_proc(f"{here}/stack", 8192)).splitlines()[:24]
        )
    return ThreadFacts(
        tid, name, state, channel, call.name, call.fds, call.timed, call.path, tuple(filter(None, stack))
    )


def _read_memory(pid: int, address: int, size: int) -> bytes:
    # Only for the arguments of a system call: descriptor numbers of a poll, the path of an open.
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # A path may end near the end of its page; what lies behind it need not be mapped.
        return os.pread(fd, min(size, 4096 - address % 4096) if size == 4096 else size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _epoll_targets(pid: int, fd: int) -> tuple[int, ...]:
    lines = read_proc(f"/proc/{pid}/fdinfo/{fd}").splitlines()
    return tuple(int(line.split()[1]) for line in lines if line.startswith(b"tfd:"))[:64]
