"""Locks on files and directories that a mere reader cannot keep from us, and who holds one, by the kernel's word.

flock(2) gives a shared lock, and on a local disk an exclusive one too, to whoever may open a file for reading: a
backup program, another user. Writers of ours therefore exclude each other by a lock of their description as well,
which only those get who may write. When to wait, and what a held lock means, is the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal, redact_argv
from prefect_cachewatch.supervise.proc import read_proc
from prefect_cachewatch.supervise.reading import argv_within

__all__ = ["LockHolder", "describe_holders", "find_holders", "has_exclusive_holder", "is_reader_only", "take_exclusive"]

# struct flock of fcntl(2): type, whence, start, length, pid. Far behind any content, which nobody else locks.
_RANGE = struct.Struct("@hhqqi4x")
_RANGE_START = 1 << 40
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF)
_SHOWN_MAX = 120
_SHOWN_HOLDERS = 3


@dataclass(frozen=True)
class LockHolder:
    """A process with a descriptor that holds a lock, or the one that took it; `argv` is empty where it cannot be read."""

    pid: int
    exclusive: bool
    argv: tuple[str, ...]


def take_exclusive(fd: int, *, past_readers: bool) -> bool:
    """Take a lock for oneself alone, without waiting; it ends with the last copy of the descriptor.

    Args:
        fd: open for reading and writing.
        past_readers: whether shared locks of others are no hindrance: true where readers of ours take none.

    Returns:
        Whether it was taken. If not, close the descriptor: what was taken of it is given up by that.

    Raises:
        OSError: the file system has no locks.
    """
    ranged = past_readers and _take_range(fd)
    if ranged is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        # Writers of earlier versions hold it exclusively: only readers let a shared one in beside them.
        return bool(ranged) and is_reader_only(fd)


def is_reader_only(fd: int) -> bool:
    """Take a shared lock where that is possible, which says that no exclusive one is held.

    Args:
        fd: the descriptor; it keeps the shared lock.

    Returns:
        Whether it was taken.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_exclusive_holder(fd: int) -> bool:
    """Say whether somebody holds a lock as `take_exclusive` takes it; a reader may ask.

    Args:
        fd: open for reading; it may have a shared lock afterwards, so close it.

    Returns:
        True if so; False also where the file system has no locks.
    """
    with contextlib.suppress(OSError):
        wanted = _RANGE.pack(fcntl.F_RDLCK, os.SEEK_SET, _RANGE_START, 1, 0)
        if _RANGE.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK:
            return True
    try:
        return not is_reader_only(fd)
    except OSError:
        return False


def find_holders(status: os.stat_result, budget_s: float = 1.0) -> list[LockHolder]:
    """Find who holds locks on a file, by the kernel: those who took them, and those who have a copy of the descriptor.

    Args:
        status: of the file.
        budget_s: the longest time; what was not reached in it is not found.

    Returns:
        Holders, exclusive ones first, this process among them if it is one; of another user's processes only those
        that took a lock themselves.
    """
    end_s = time.monotonic() + budget_s
    mark = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found: dict[int, bool] = {}
    for pid, exclusive in _marked(read_proc("/proc/locks"), mark):
        if os.path.exists(f"/proc/{pid}"):  # who took it may have ended since, and a child holds it
            found[pid] = found.get(pid, False) or exclusive
    for name in os.listdir("/proc"):
        if time.monotonic() > end_s:
            break
        if not name.isdigit():
            continue
        try:
            descriptors = os.listdir(f"/proc/{name}/fdinfo")
        except OSError:
            continue
        for number in descriptors:
            text = read_proc(f"/proc/{name}/fdinfo/{number}")
            for _, exclusive in _marked(text, mark) if b"lock:" in text else ():
                found[int(name)] = found.get(int(name), False) or exclusive
    holders = [LockHolder(pid, exclusive, tuple(argv_within(pid))) for pid, exclusive in found.items()]
    return sorted(holders, key=lambda holder: (not holder.exclusive, holder.pid))


def describe_holders(holders: list[LockHolder]) -> str:
    """Name holders in a message.

    Args:
        holders: at least one.

    Returns:
        For example `pid 4711: tar -c /store`; the first three.
    """
    shown = []
    for holder in holders[:_SHOWN_HOLDERS]:
        argv = for_terminal(" ".join(redact_argv(list(holder.argv))), _SHOWN_MAX)
        shown.append(f"pid {holder.pid}: {argv}" if argv else f"pid {holder.pid}")
    return ", ".join(shown)


def _take_range(fd: int) -> bool | None:
    """Lock a byte for this description: True, None where another writer has it, False where there are no such locks."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, _RANGE_START, 1, 0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        if error.errno in _NOT_OFFERED:
            return False
        raise
    return True


def _marked(text: bytes, mark: str) -> list[tuple[int, bool]]:
    """Lines of /proc/locks, or of an fdinfo, about one file: process and whether the lock is exclusive; no waiters."""
    found = []
    for line in text.decode("ascii", "replace").splitlines():
        fields = line.removeprefix("lock:").split()
        if len(fields) >= 6 and fields[5] == mark and fields[4].lstrip("-").isdigit():
            found.append((int(fields[4]), fields[3] == "WRITE"))
    return found
