"""What a blocked thread waits in, read from /proc/PID/task/TID/syscall; changes nothing in the thread.

The numbers are those of the kernel's tables arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (arm64, riscv64); only calls that block are named.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["BlockedCall", "decode_syscall"]

_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
    17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select", 34: "pause", 35: "nanosleep",
    40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate", 78: "getdents",
    82: "rename", 83: "mkdir", 87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 137: "statfs",
    138: "fstatfs", 162: "sync", 202: "futex", 208: "io_getevents", 217: "getdents64", 219: "restart_syscall",
    230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 270: "pselect6", 271: "ppoll", 275: "splice", 281: "epoll_pwait", 285: "fallocate",
    288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg", 306: "syncfs", 307: "sendmmsg",
    316: "renameat2", 326: "copy_file_range", 332: "statx", 426: "io_uring_enter", 437: "openat2",
    441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
_GENERIC = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 38: "renameat",
    43: "statfs", 44: "fstatfs", 46: "ftruncate", 47: "fallocate", 56: "openat", 57: "close", 61: "getdents64",
    63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev",
    71: "sendfile", 72: "pselect6", 73: "ppoll", 76: "splice", 79: "newfstatat", 80: "fstat", 81: "sync",
    82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
    128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 202: "accept", 203: "connect",
    206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 243: "recvmmsg", 260: "wait4",
    267: "syncfs", 269: "sendmmsg", 276: "renameat2", 285: "copy_file_range", 291: "statx", 426: "io_uring_enter",
    437: "openat2", 441: "epoll_pwait2", 449: "futex_waitv", 455: "futex_wait",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}
_MINUS_ONE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_FD_FIRST = frozenset(
    [
        "read",
        "write",
        "pread64",
        "pwrite64",
        "readv",
        "writev",
        "preadv",
        "pwritev",
        "ioctl",
        "connect",
        "accept",
        "accept4",
        "sendto",
        "recvfrom",
        "sendmsg",
        "recvmsg",
        "recvmmsg",
        "sendmmsg",
        "fcntl",
        "flock",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "fstat",
        "fstatfs",
        "getdents",
        "getdents64",
        "close",
        "syncfs",
    ]
)
_F_SETLKW = (7, 38)  # F_SETLKW and F_OFD_SETLKW
_MAX_POLLED = 64

ReadMemory = Callable[[int, int], bytes]
EpollTargets = Callable[[int], tuple[int, ...]]


@dataclass(frozen=True)
class BlockedCall:
    """A decoded system call: its name, the descriptors waited for, whether it ends by itself, a path."""

    name: str = ""
    fds: tuple[int, ...] = ()
    timed: bool | None = None
    path: str = ""


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
        BlockedCall(name='futex', fds=(), timed=False, path='')
    """
    words = line.split()
    if not words or words[0] == "running":
        return BlockedCall()
    if words[0] == "-1":
        return BlockedCall("fault")
    name = _TABLES.get(machine or os.uname().machine, {}).get(int(words[0]), "")
    args = [int(word, 16) for word in words[1:7]]
    if not name or len(args) < 6:
        return BlockedCall(name)
    if name in ("fcntl",) and args[1] not in _F_SETLKW:
        return BlockedCall(name, (args[0] & 0xFFFFFFFF,))
    if name in _FD_FIRST:
        return BlockedCall(name, (args[0] & 0xFFFFFFFF,), False)
    if name in ("futex", "futex_waitv"):
        return BlockedCall(name, (), args[3] != 0)
    if name == "futex_wait":
        return BlockedCall(name, (), args[4] != 0)
    if name in ("poll", "ppoll"):
        timed = args[2] != 0 if name == "ppoll" else args[2] not in _MINUS_ONE
        return BlockedCall(name, _polled(read_memory, args[0], args[1]), timed)
    if name in ("select", "pselect6"):
        return BlockedCall(name, _selected(read_memory, args[0], args[1:4]), args[4] != 0)
    if name in ("epoll_wait", "epoll_pwait"):
        return BlockedCall(name, epoll_targets(args[0] & 0xFFFFFFFF), args[3] not in _MINUS_ONE)
    if name == "epoll_pwait2":
        return BlockedCall(name, epoll_targets(args[0] & 0xFFFFFFFF), args[3] != 0)
    if name in ("open", "openat", "openat2"):
        return BlockedCall(name, (), False, _text(read_memory(args[0 if name == "open" else 1], 4096)))
    return BlockedCall(name, (), name in ("nanosleep", "clock_nanosleep", "restart_syscall", "rt_sigtimedwait"))


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


def _text(raw: bytes) -> str:
    return os.fsdecode(raw.partition(b"\0")[0])
