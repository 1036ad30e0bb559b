"""The process tree from /proc: its processes, what they used, what their threads wait in, and how those ended that did.

It only reads /proc, which touches no file system that may hang. Files of it that wait for a lock of the process
(`stat`, `io`, system calls) are read with a deadline. A process that ends while it is read is left out: that is
normal. Open files are in `supervise.open_files`, sockets and limits in `procdetails`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from prefect_cachewatch.evidence.model import EndedProcess, IoCounters, ProcessReading, ProcessSample, ThreadFacts
from prefect_cachewatch.supervise.proc import children, read_proc, read_status, stat_fields
from prefect_cachewatch.supervise.turns import read_each

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_THREADS = 256
_SAMPLE_S = 1.0
_OPEN_MAX = 256
_ENDED_MAX = 50
_TOLD = 5
# struct pidfd_info of linux/pidfd.h: mask, cgroup, eleven numbers, exit code.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO, _WITH_EXIT = 0xC040FF0B, 1 << 3
_EXIT_CODE = 49  # of the fields of /proc/PID/stat from the state on
# Name, with a star if its first argument is a descriptor; number on x86-64; number on arm64 and riscv64.
_CALLS = """
read* 0 63, write* 1 64, open 2 -, close* 3 57, stat 4 -, fstat* 5 80, lstat 6 -, poll 7 -, ioctl* 16 29,
pread64* 17 67, pwrite64* 18 68, readv* 19 65, writev* 20 66, select 23 -, pause 34 -, nanosleep 35 101,
sendfile 40 71, connect* 42 203, accept* 43 202, sendto* 44 206, recvfrom* 45 207, sendmsg* 46 211, recvmsg* 47 212,
clone 56 220, vfork 58 -, wait4 61 260, fcntl* 72 25, flock* 73 32, fsync* 74 82, fdatasync* 75 83, ftruncate* 77 46,
getdents* 78 -, rename 82 -, mkdir 83 -, unlink 87 -, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, statfs 137 43,
fstatfs* 138 44, sync 162 81, futex 202 98, io_getevents 208 -, getdents64* 217 61, restart_syscall 219 128,
clock_nanosleep 230 115, epoll_wait 232 -, waitid 247 95, openat 257 56, newfstatat 262 79, unlinkat 263 35,
renameat 264 38, pselect6 270 72, ppoll 271 73, splice 275 76, epoll_pwait 281 22, fallocate* 285 47,
accept4* 288 242, preadv* 295 69, pwritev* 296 70, recvmmsg* 299 243, syncfs* 306 267, sendmmsg* 307 269,
renameat2 316 276, copy_file_range 326 285, statx 332 291, io_uring_enter 426 426, openat2 437 437, clone3 435 435,
epoll_pwait2 441 441, futex_waitv 449 449, futex_wait 455 455, mkdirat - 34
"""
_COLUMNS = {"x86_64": 1, "aarch64": 2, "riscv64": 2}
_MINUS_ONE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_NAMES = {column: {call.split()[column]: call.split()[0] for call in _CALLS.split(",")} for column in (1, 2)}
_TIMED = ("nanosleep", "clock_nanosleep", "restart_syscall", "rt_sigtimedwait")
_F_SETLKW = (7, 38)  # F_SETLKW and F_OFD_SETLKW
_MAX_POLLED = 64

ReadMemory = Callable[[int, int], bytes]
EpollTargets = Callable[[int], tuple[int, ...]]


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


def sample_processes(roots: int | Sequence[int], include_roots: bool = True) -> ProcessSample:
    """Note CPU, faults and I/O of every process of a tree, cheap enough for each poll.

    About 0.1 ms a process; nothing but /proc is read.

    Args:
        roots: one pid or several; with `include_roots=False` only what is below them.
        include_roots: whether the roots belong to the tree (a guard does not).

    Returns:
        The sample, to be given to `collect_evidence` as `before`.

    Example:
        >>> import os
        >>> sample_processes(os.getpid()).readings[os.getpid()].cpu_s > 0
        True
    """
    pids = find_descendants([roots] if isinstance(roots, int) else roots, include_roots)
    # A process that hangs while it replaces its program gives neither its usage nor (before Linux 6.18) its bytes read.
    found = read_each(pids, _read_totals, total_s=_SAMPLE_S)
    io = read_each(found, _read_io, total_s=_SAMPLE_S)
    readings = {pid: replace(reading, io=io.get(pid)) for pid in pids if (reading := found.get(pid))}
    kills = next((line for line in read_proc("/proc/vmstat").splitlines() if line.startswith(b"oom_kill ")), None)
    return ProcessSample(time.monotonic(), readings, int(kills.split()[1]) if kills else None)


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
    # The first one stands for the process: if the main thread has ended, another one does.
    return tuple(sorted(found, key=lambda thread: thread.state in "ZX"))


def _read_totals(pid: int) -> ProcessReading | None:
    fields = stat_fields(f"/proc/{pid}/stat")
    if len(fields) < 20:
        return None
    # utime and stime of the process; what waited-for children used is the children's own.
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    runnable_s, turns = _read_runnable(pid)
    return ProcessReading(pid, int(fields[19]), cpu_s, int(fields[9]), None, runnable_s, turns, os.fsdecode(fields[0]))


def _read_runnable(pid: int) -> tuple[float | None, int]:
    # Time on a CPU and time in the run queue, in nanoseconds, and turns on a CPU (Documentation/scheduler/sched-stats.rst): on a busy
    # machine a computing process is told from an idle one by what it waits for, not by what it gets.
    try:
        tids = os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]
    except OSError:
        return None, 0
    readings = [read_proc(f"/proc/{pid}/task/{tid}/schedstat").split() for tid in tids]
    known = [(int(words[0]) + int(words[1]), int(words[2])) for words in readings if len(words) >= 3]
    runnable_s = sum(ns for ns, _ in known) / 1e9 if known else None
    return runnable_s, sum(turns for _, turns in known)


def _read_io(pid: int) -> IoCounters | None:
    values = dict(line.split(b": ", 1) for line in read_proc(f"/proc/{pid}/io").splitlines() if b": " in line)
    names = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
    return IoCounters(*(int(values.get(name, 0)) for name in names)) if values else None


def _read_thread(pid: int, tid: int, with_calls: bool) -> ThreadFacts | None:
    here = f"/proc/{pid}/task/{tid}"
    status = read_status(f"{here}/status")
    if not status:
        return None
    thread = ThreadFacts(tid, os.fsdecode(status[b"Name"]), status[b"State"][:1].decode())
    if thread.state in "RZX" or not with_calls:
        return thread
    channel, line, stack = (os.fsdecode(read_proc(f"{here}/{name}", 8192)) for name in ("wchan", "syscall", "stack"))
    frames = tuple(filter(None, (frame.partition("] ")[2] for frame in stack.splitlines()[:24])))
    thread = replace(thread, wait_channel=channel.strip().removeprefix("0"), kernel_stack=frames)
    return decode_syscall(
        thread, line, lambda address, size: read_memory(pid, address, size), lambda fd: _epoll_targets(pid, fd)
    )


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read arguments of a system call from a process's memory: descriptors of a poll, the path of an open. May block."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # A path may end near the end of its page; the next page need not be mapped.
        return os.pread(fd, min(size, 4096 - address % 4096) if size == 4096 else size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def _epoll_targets(pid: int, fd: int) -> tuple[int, ...]:
    lines = read_proc(f"/proc/{pid}/fdinfo/{fd}").splitlines()
    return tuple(int(line.split()[1]) for line in lines if line.startswith(b"tfd:"))[:64]


def decode_syscall(
    thread: ThreadFacts,
    line: str,
    read_memory: ReadMemory = lambda address, size: b"",
    epoll_targets: EpollTargets = lambda fd: (),
    machine: str = "",
) -> ThreadFacts:
    """Add what a line of /proc/PID/task/TID/syscall says to what is known of a thread.

    Args:
        thread: the thread.
        line: `NUMBER ARG1 .. ARG6 SP PC`, `running`, or `-1 SP PC`.
        read_memory: (address, bytes) -> memory of that process, used for the descriptors of
            poll and select and for a path being opened, nothing else.
        epoll_targets: descriptor -> the descriptors that it watches.
        machine: as `os.uname().machine`, default this machine's.

    Returns:
        The thread; without a call if it runs, or if the call or the machine is not known.

    Example:
        >>> decode_syscall(ThreadFacts(7), "202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7ffe 0x7fdc", machine="x86_64").syscall
        'futex'
    """
    words = line.split()
    if not words or words[0] == "running":
        return thread
    if words[0] == "-1":
        return replace(thread, syscall="fault")
    column = _COLUMNS.get(machine or os.uname().machine, 0)
    known = _NAMES.get(column, {}).get(words[0], "")
    name, args = known.rstrip("*"), [int(word, 16) for word in words[1:7]]

    def waits(fds: tuple[int, ...] = (), timed: bool | None = False, path: str = "") -> ThreadFacts:
        return replace(thread, syscall=name, waits_on=fds, timed=timed, path=path)

    if not name or len(args) < 6:
        return waits(timed=None)
    fd = args[0] & 0xFFFFFFFF
    match name:
        case "fcntl" if args[1] not in _F_SETLKW:
            return waits((fd,), None)
        case "futex" | "futex_waitv" | "futex_wait":
            return waits(timed=args[4 if name == "futex_wait" else 3] != 0)
        case "poll" | "ppoll":
            timed = args[2] != 0 if name == "ppoll" else args[2] not in _MINUS_ONE
            return waits(_polled(read_memory, args[0], args[1]), timed)
        case "select" | "pselect6":
            return waits(_selected(read_memory, args[0], args[1:4]), args[4] != 0)
        case "epoll_wait" | "epoll_pwait" | "epoll_pwait2":
            forever = (0,) if name == "epoll_pwait2" else _MINUS_ONE
            return waits(epoll_targets(fd), args[3] not in forever)
        case "open" | "openat" | "openat2":
            path = read_memory(args[0 if name == "open" else 1], 4096).partition(b"\0")[0]
            return waits(path=os.fsdecode(path))
    return waits((fd,)) if known.endswith("*") else waits(timed=name in _TIMED)


def _polled(read_memory: ReadMemory, address: int, count: int) -> tuple[int, ...]:
    count = min(count & 0xFFFFFFFF, _MAX_POLLED)
    if not count:
        return ()
    raw = read_memory(address, 8 * count)
    return tuple(fd for fd, _, _ in struct.iter_unpack("=ihh", raw[: len(raw) // 8 * 8]) if fd >= 0)


def _selected(read_memory: ReadMemory, highest: int, addresses: list[int]) -> tuple[int, ...]:
    size = (min(highest, 1024) + 63) // 64 * 8
    chosen: set[int] = set()
    # The kernel has its own copy of the sets and writes the result to the caller's only on return.
    for address in filter(None, addresses):
        raw = read_memory(address, size)
        chosen.update(bit for bit in range(len(raw) * 8) if raw[bit // 8] >> bit % 8 & 1)
    return tuple(sorted(chosen))[:_MAX_POLLED]


class EndedProcesses:
    """Follows the processes of one attempt from sample to sample; each by its pid and start time."""

    def __init__(self) -> None:
        self._alive: dict[tuple[int, int], tuple[str, float, int]] = {}  # name, since when, pidfd or -1
        self._ended: dict[tuple[int, int], EndedProcess] = {}  # `ago_s` is its moment until it is told

    def note(self, sample: ProcessSample) -> None:
        """Take in a sample.

        Args:
            sample: of the whole tree.
        """
        here = {(pid, reading.start_ticks): reading.state for pid, reading in sample.readings.items()}
        for key in [key for key in self._alive if key not in here]:
            self._end(key, sample.monotonic_s, _exit_info(self._alive[key][2]))
        for key in [key for key in here if key not in self._ended]:
            pid, fd = key[0], -1
            if key not in self._alive:
                name = os.fsdecode(read_proc(f"/proc/{pid}/comm")).strip()
                with contextlib.suppress(OSError):  # it has ended
                    fd = os.pidfd_open(pid) if len(self._alive) < _OPEN_MAX else -1
                self._alive[key] = name, sample.monotonic_s, fd
            if here[key] == "Z":
                fields = stat_fields(f"/proc/{pid}/stat")
                self._end(key, sample.monotonic_s, int(fields[_EXIT_CODE]) if len(fields) > _EXIT_CODE else None)

    def told(self, now_s: float) -> tuple[EndedProcess, ...]:
        """Return the last ones that are worth telling: those that ended badly, and those that had lived for a while.

        Args:
            now_s: monotonic time.

        Returns:
            The latest first.
        """
        found = [one for one in reversed(self._ended.values()) if one.lived_s > 0 or one.status]
        return tuple(replace(one, ago_s=max(0.0, now_s - one.ago_s)) for one in found[:_TOLD])

    def close(self) -> None:
        """Let go of the processes."""
        for _, _, fd in self._alive.values():
            _close(fd)
        self._alive.clear()

    def _end(self, key: tuple[int, int], now_s: float, status: int | None) -> None:
        name, since_s, fd = self._alive.pop(key)
        _close(fd)
        self._ended[key] = EndedProcess(key[0], name, now_s, now_s - since_s, status)
        while len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]


def _exit_info(fd: int) -> int | None:
    """The wait status of an ended process that was reaped, which Linux 6.15 and later tell by its pidfd."""
    buffer = bytearray(_INFO.size)
    _INFO.pack_into(buffer, 0, _WITH_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(fd, _GET_INFO, buffer)
    except (OSError, ValueError):
        return None
    mask, *_, status = _INFO.unpack(buffer)
    return int(status) if mask & _WITH_EXIT else None


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
