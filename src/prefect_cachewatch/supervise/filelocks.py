"""Locks on files and directories that a mere reader cannot keep from us, and the kernel's list of their holders.

flock(2) gives a shared lock, and on a local disk an exclusive one too, to every process that may open a file for
reading: a backup program, another user. So our writers also exclude each other by a lock of the open file description,
which only a process with write permission can get. The caller decides when to wait and what a held lock means.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from dataclasses import dataclass

from prefect_cachewatch.common.locks import OUR_BYTE, try_lock
from prefect_cachewatch.common.proc_locks import LockLine, parse_locks
from prefect_cachewatch.common.text import show_argv
from prefect_cachewatch.supervise.proc import read_proc, read_stat, read_status
from prefect_cachewatch.supervise.reading import argv_within

# struct flock of fcntl(2): type, whence, start, length, pid.
_RANGE = struct.Struct("@hhqqi4x")
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF)
_SHOWN_MAX = 120
_SHOWN_HOLDERS = 3


@dataclass(frozen=True)
class LockHolder:
    """A process that has a descriptor which holds a lock, or that took it; `argv` is empty if it cannot be read."""

    pid: int
    exclusive: bool
    argv: tuple[str, ...]
    engine: int | None = None
    """The process that holds it for this one, where this one is the command of an engine."""

    def is_process(self, pid: int) -> bool:
        """Say whether a process is this holder, or holds the lock for it."""
        return pid in (self.pid, self.engine)


def take_exclusive(fd: int, *, past_readers: bool) -> bool:
    """Take an exclusive lock without waiting; it ends with the last copy of the descriptor.

    Args:
        fd: open for reading and writing.
        past_readers: whether to take it despite shared locks of others; true if our own readers take none.

    Returns:
        Whether it was taken. If not, close the descriptor, which releases any part that was taken.

    Raises:
        OSError: the file system has no locks.
    """
    ranged = past_readers and _take_range(fd)
    if ranged is None:
        return False
    # Writers of earlier versions hold it exclusively; a shared lock succeeds only beside readers.
    return try_lock(fd) or (bool(ranged) and is_reader_only(fd))


def is_reader_only(fd: int) -> bool:
    """Try to take a shared lock; success means that no exclusive one is held.

    Args:
        fd: the descriptor; it keeps the shared lock.

    Returns:
        Whether it was taken.
    """
    return try_lock(fd, shared=True)


def has_exclusive_holder(fd: int) -> bool:
    """Say whether another process holds a lock of `take_exclusive`; read permission is enough to ask.

    Args:
        fd: open for reading; close it afterwards, since it may hold a shared lock.

    Returns:
        True if so; False also if the file system has no locks.
    """
    with contextlib.suppress(OSError):
        wanted = _RANGE.pack(fcntl.F_RDLCK, os.SEEK_SET, OUR_BYTE, 1, 0)
        if _RANGE.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK:
            return True
    try:
        return not is_reader_only(fd)
    except OSError:
        return False


def mark_as_ours(fd: int) -> None:
    """Show that a lock is a job's: a program that locks a directory by flock(2) alone has no such mark.

    Args:
        fd: of a directory, with the lock; the mark ends with it.
    """
    with contextlib.suppress(OSError):  # the file system has no such locks
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_RDLCK, os.SEEK_SET, OUR_BYTE, 1, 0))


def is_ours(fd: int) -> bool:
    """Say whether another descriptor of a directory carries our mark; true also if that cannot be known.

    Args:
        fd: open for reading.
    """
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, OUR_BYTE, 1, 0))
    except OSError:
        return True
    return bool(_RANGE.unpack(found)[0] != fcntl.F_UNLCK)


def find_holders(status: os.stat_result, budget_s: float = 1.0) -> list[LockHolder]:
    """Find the holders of locks on a file, from the kernel: processes that took one or have a copy of the descriptor.

    Args:
        status: of the file.
        budget_s: the longest time to search, in seconds; holders not reached by then are missing.

    Returns:
        Holders, exclusive ones first, including this process if it is one. Another user's process is found only if it
        took a lock itself.
    """
    end_s = time.monotonic() + budget_s
    mark = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found: dict[int, bool] = {}
    for lock in _marked(read_proc("/proc/locks"), mark):
        if _lives(lock.pid):  # the process that took it may have ended, and a child holds it
            found[lock.pid] = found.get(lock.pid, False) or lock.exclusive
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
            for lock in _marked(text, mark) if b"lock:" in text else ():
                found[int(name)] = found.get(int(name), False) or lock.exclusive
    holders = [LockHolder(pid, exclusive, tuple(argv_within(pid))) for pid, exclusive in found.items()]
    holders = [_front_of(holder) for holder in holders]
    return sorted(holders, key=lambda holder: (not holder.exclusive, holder.pid))


def _front_of(holder: LockHolder) -> LockHolder:
    """The command in place of its engine: that is the process that people have started."""
    if not (holder.argv and holder.argv[-1].startswith("cachewatch: engine")):
        return holder
    found = read_stat(holder.pid)
    argv = tuple(argv_within(found.parent)) if found is not None and found.parent > 1 else ()
    if found is None or not argv:  # it has outlived its command
        return LockHolder(holder.pid, holder.exclusive, holder.argv[-1:])
    return LockHolder(found.parent, holder.exclusive, argv, holder.pid)


def describe_holders(holders: list[LockHolder]) -> str:
    """Name holders in a message.

    Args:
        holders: at least one.

    Returns:
        For example `pid 4711: tar -c /store`; at most three.
    """
    shown = []
    for holder in holders[:_SHOWN_HOLDERS]:
        argv = show_argv(holder.argv, _SHOWN_MAX)
        shown.append(f"pid {holder.pid}: {argv}" if argv else f"pid {holder.pid}")
    return ", ".join(shown)


def _lives(pid: int) -> bool:
    """Whether a process has a thread that has not ended; asks no file that blocks while a process hangs."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    states = (read_status(f"/proc/{pid}/task/{thread}/status").get(b"State", b"X") for thread in threads)
    return any(state[:1] not in (b"X", b"Z") for state in states)


def _take_range(fd: int) -> bool | None:
    """Lock a byte for this file description: True; None if another writer has it; False if there are no such locks."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, OUR_BYTE, 1, 0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        if error.errno in _NOT_OFFERED:
            return False
        raise
    return True


def _marked(text: bytes, mark: str) -> list[LockLine]:
    """The locks on one file, without those who wait."""
    locks = parse_locks(text.decode("ascii", "replace"))
    return [lock for lock in locks if lock.mark == mark and not lock.waits]
