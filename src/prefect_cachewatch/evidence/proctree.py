"""The process tree from /proc: its processes, what they used, and what their threads wait in.

It only reads /proc, which touches no file system that may hang. Files of it that wait for a lock of the process
(`stat`, `io`, system calls) are read with a deadline. A process that ends while it is read is left out: that is
normal. Open files are in `supervise.open_files`, sockets and limits in `procdetails`.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from prefect_cachewatch.evidence.readings import IoCounters, ProcessReading, ProcessSample, ThreadFacts
from prefect_cachewatch.supervise.proc import children, read_proc, read_status, stat_fields
from prefect_cachewatch.supervise.turns import read_each

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_THREADS = 256
_SAMPLE_S = 1.0


_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
    17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select", 34: "pause", 35: "nanosleep",
    40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    56: "clone", 58: "vfork", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 78: "getdents",
    82: "rename", 83: "mkdir", 87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 137: "statfs",
    138: "fstatfs", 162: "sync", 202: "futex", 208: "io_getevents", 217: "getdents64", 219: "restart_syscall",
    230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 270: "pselect6", 271: "ppoll", 275: "splice", 281: "epoll_pwait", 285: "fallocate",
    288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg", 306: "syncfs", 307: "sendmmsg",
    316: "renameat2", 326: "copy_file_range", 332: "statx", 426: "io_uring_enter", 437: "openat2",
    435: "clone3", 441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
_GENERIC = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 38: "renameat",
    43: "statfs", 44: "fstatfs", 46: "ftruncate", 47: "fallocate", 56: "openat", 57: "close", 61: "getdents64",
    63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev",
    71: "sendfile", 72: "pselect6", 73: "ppoll", 76: "splice", 79: "newfstatat", 80: "fstat", 81: "sync",
    82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
    128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 202: "accept", 203: "connect",
    206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 220: "clone", 242: "accept4", 243: "recvmmsg", 260: "wait4",
    267: "syncfs", 269: "sendmmsg", 276: "renameat2", 285: "copy_file_range", 291: "statx", 426: "io_uring_enter",
    435: "clone3", 437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}
_FUTEX_PRIVATE = 128
_MINUS_ONE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_FD_FIRST = frozenset((
    "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "ioctl", "connect", "accept", "accept4",
    "sendto", "recvfrom", "sendmsg", "recvmsg", "recvmmsg", "sendmmsg", "fcntl", "flock", "fsync", "fdatasync", "ftruncate",
    "fallocate", "fstat", "fstatfs", "getdents", "getdents64", "close", "syncfs",
))  # fmt: skip
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
    call = decode_syscall(
        line, lambda address, size: read_memory(pid, address, size), lambda fd: _epoll_targets(pid, fd)
    )
    frames = tuple(filter(None, (frame.partition("] ")[2] for frame in stack.splitlines()[:24])))
    return replace(
        thread,
        wait_channel=channel.strip().removeprefix("0"),
        syscall=call.name,
        waits_on=call.fds,
        timed=call.timed,
        path=call.path,
        kernel_stack=frames,
        private=call.private,
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


@dataclass(frozen=True)
class BlockedCall:
    """A decoded system call: its name, the descriptors waited for, whether it ends by itself, a path."""

    name: str = ""
    fds: tuple[int, ...] = ()
    timed: bool | None = None
    path: str = ""
    private: bool | None = None


def decode_syscall(
    line: str,
    read_memory: ReadMemory = lambda address, size: b"",
    epoll_targets: EpollTargets = lambda fd: (),
    machine: str = "",
) -> BlockedCall:
    """Read one line of /proc/PID/task/TID/syscall.

    Args:
        line: `NUMBER ARG1 .. ARG6 SP PC`, `running`, or `-1 SP PC`.
        read_memory: (address, bytes) -> memory of that process, used for the descriptors of
            poll and select and for a path being opened, nothing else.
        epoll_targets: descriptor -> the descriptors that it watches.
        machine: as `os.uname().machine`, default this machine's.

    Returns:
        The call; an empty name for a running thread, an unknown call or machine.

    Example:
        >>> decode_syscall("202 0x7f 0x80 0x2 0x0 0x0 0x0 0x7ffe 0x7fdc", machine="x86_64")
        BlockedCall(name='futex', fds=(), timed=False, path='', private=True)
    """
    words = line.split()
    if not words or words[0] == "running":
        return BlockedCall()
    if words[0] == "-1":
        return BlockedCall("fault")
    name = call_name(int(words[0]), machine)
    args = [int(word, 16) for word in words[1:7]]
    if not name or len(args) < 6:
        return BlockedCall(name)
    fd = args[0] & 0xFFFFFFFF
    match name:
        case "fcntl" if args[1] not in _F_SETLKW:
            return BlockedCall(name, (fd,))
        case "futex":
            return BlockedCall(name, (), args[3] != 0, private=bool(args[1] & _FUTEX_PRIVATE))
        case "futex_waitv" | "futex_wait":
            return BlockedCall(name, (), args[3 if name == "futex_waitv" else 4] != 0)
        case "poll" | "ppoll":
            timed = args[2] != 0 if name == "ppoll" else args[2] not in _MINUS_ONE
            return BlockedCall(name, _polled(read_memory, args[0], args[1]), timed)
        case "select" | "pselect6":
            return BlockedCall(name, _selected(read_memory, args[0], args[1:4]), args[4] != 0)
        case "epoll_wait" | "epoll_pwait" | "epoll_pwait2":
            forever = (0,) if name == "epoll_pwait2" else _MINUS_ONE
            return BlockedCall(name, epoll_targets(fd), args[3] not in forever)
        case "open" | "openat" | "openat2":
            path = read_memory(args[0 if name == "open" else 1], 4096).partition(b"\0")[0]
            return BlockedCall(name, (), False, os.fsdecode(path))
    return BlockedCall(name, (fd,), False) if name in _FD_FIRST else BlockedCall(name, (), name in _TIMED)


def call_name(number: int, machine: str = "") -> str:
    """Name a system call of a machine (as `os.uname().machine`, default this one's); empty if it is not known.

    Example:
        >>> call_name(202, "x86_64"), call_name(98, "aarch64"), call_name(1, "s390x")
        ('futex', 'futex', '')
    """
    return _TABLES.get(machine or os.uname().machine, {}).get(number, "")


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
