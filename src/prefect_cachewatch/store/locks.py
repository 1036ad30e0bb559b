"""Locks of the store: flock on a descriptor, so that they end with the process that holds them.

Only the kernel decides whether a lock is held. The note in a lock file tells who holds it, for people and for writers on
other hosts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import time
import weakref
from collections.abc import Callable
from typing import Any

from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.parked import park, taken
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.store.layout import SWITCH, CacheFolder, read_small_file
from prefect_cachewatch.supervise.filelocks import (
    LockHolder,
    describe_holders,
    find_holders,
    has_exclusive_holder,
    is_reader_only,
    take_exclusive,
)

#: A writer waits this long for the switch: what it has written took hours, and a switch that reads all takes minutes.
PUBLISH_WAIT_S = 3600.0
_SWITCH_WAIT_S = 60.0
_RETRY_S, _RETRY_MAX_S = 0.02, 0.2
_NOTE_MAX = 4096


class HeldLock(Closing):
    """A lock that is held until `close`, the end of the `with` block, or the end of the process."""

    _fd = -1

    def __init__(self, fd: int) -> None:
        # Parked: a child closes it without waiting for its file system.
        self._fd = park(fd)

    def fileno(self) -> int:
        """Return the descriptor that holds the lock; a child that inherits it holds the lock too."""
        return self._fd

    def tell(self, **note: Any) -> None:
        """Write into the lock file who holds it; a full disk must not stop a roll-back, so a failure is ignored."""
        note |= {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}
        with contextlib.suppress(OSError), Opened(taken(self._fd)) as fd:
            os.ftruncate(fd, 0)  # first: a write that fails must not leave the note of an earlier holder
            os.pwrite(fd, json.dumps(note).encode("ascii") + b"\n", 0)

    def is_still(self, directory_fd: int, name: str) -> bool:
        """Say whether the name still leads to the locked file; raises OSError."""
        with Opened(taken(self._fd)) as fd:
            return _is_still(directory_fd, name, fd)

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    __del__ = close


_writers: weakref.WeakSet[HeldLock] = weakref.WeakSet()


def _close_in_child() -> None:
    # Closing the descriptor leaves the parent's lock alone; LOCK_UN would release it for the parent too.
    for lock in list(_writers):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


def boot_id() -> str:
    """Return what tells this running kernel from any other: locks of one kernel are seen by all of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def hold_exclusive(
    directory_fd: int, name: str, purpose: str, *, past_readers: bool = True, wait_s: float = 0, **note: Any
) -> HeldLock:
    """Take an exclusive lock.

    A child made with fork does not keep it, since the lock would then outlive its holder.

    Args:
        directory_fd: descriptor of the lock file's directory.
        name: the lock file's name.
        purpose: what the caller wants to do, for the message.
        past_readers: whether to take it despite shared locks, since only foreign programs take them; the file is then
            created if missing, never removed, and gets the note. False for a record, which our own readers lock too.
        wait_s: how long to wait for another holder.
        note: what to write into the lock file, beside who holds it.

    Raises:
        StoreBusy: another process holds it; `data` has the `holder`, and what it has noted as `note`.
        StoreError: the file system has no locks, or somebody else put the lock file there.
    """
    flags = os.O_RDWR | os.O_CREAT if past_readers else os.O_RDWR
    lock = _hold(
        directory_fd, name, purpose, flags, lambda fd: take_exclusive(fd, past_readers=past_readers), wait_s=wait_s
    )
    _writers.add(lock)
    if past_readers:
        lock.tell(**note)
    return lock


def hold_shared(directory_fd: int, name: str) -> HeldLock:
    """Take a shared lock; needs no write permission.

    Raises:
        StoreBusy: a writer holds it.
        FileNotFoundError: there is no such file.
    """
    # A process that lists builds holds the lock for a moment, to test whether it is free.
    return _hold(directory_fd, name, "read", os.O_RDONLY, is_reader_only, wait_s=1.0)


def hold_switch(folder: CacheFolder, purpose: str, *, wait_s: float = _SWITCH_WAIT_S) -> HeldLock:
    """Keep other processes from switching, adopting or removing builds, and from writing records, for a moment.

    Raises:
        StoreBusy: another process holds the lock for longer than a minute, or than `wait_s`.
    """
    return hold_exclusive(folder.fd, SWITCH, purpose, wait_s=wait_s)


def is_locked(directory_fd: int, name: str, *, by_readers: bool) -> bool:
    """Say whether any process holds a lock, without changing its file; False also if there is none.

    Args:
        directory_fd: descriptor of the directory of the lock file.
        name: the lock file's name.
        by_readers: whether shared holders count, or only an exclusive one.
    """
    try:
        # NFS gives an exclusive lock only with write permission. That is right for a process that may remove builds;
        # the list of a mere reader then shows no pins.
        mode = os.O_RDWR if by_readers and os.access(name, os.W_OK, dir_fd=directory_fd) else os.O_RDONLY
        fd = os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except PermissionError:
        return is_held_here(directory_fd, name)
    except OSError:
        return False
    with Opened(fd):
        if not by_readers:
            return has_exclusive_holder(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False


def is_held_here(directory_fd: int, name: str) -> bool:
    """Say whether a process of this host is seen to hold a lock exclusively."""
    return any(holder.exclusive for holder in _holders(directory_fd, name))


def _holders(directory_fd: int, name: str) -> list[LockHolder]:
    """Find the processes that hold a lock; those of another host or pid namespace are not seen."""
    try:
        return find_holders(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))
    except OSError:
        return []


def _find_holder(directory_fd: int, name: str) -> tuple[str, dict[str, Any]]:
    """Find who holds a lock: who noted it in the file, unless the kernel shows that it is another process."""
    note: Any = None
    with contextlib.suppress(OSError, StoreError, ValueError, RecursionError):
        note = json.loads(read_small_file(directory_fd, name, _NOTE_MAX))
    holders = _holders(directory_fd, name)
    pid = note.get("pid") if isinstance(note, dict) else None
    if holders and not (isinstance(pid, int) and any(holder.is_process(pid) for holder in holders)):
        return describe_holders(holders), {}
    if pid is None:
        return "another process", {}
    return for_terminal(f"pid {pid} on {note.get('host')}", 200), note


def _hold(
    directory_fd: int, name: str, purpose: str, flags: int, take: Callable[[int], bool], *, wait_s: float
) -> HeldLock:
    shown = for_terminal(name)
    deadline_s, pause_s = time.monotonic() + wait_s, _RETRY_S
    while True:
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"the lock file '{shown}' is a symbolic link: remove it") from None
            raise
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, fd)
            if flags & os.O_CREAT and not _is_own(directory_fd, fd):
                raise StoreError(f"the lock file '{shown}' was put there by something else: remove it")
            try:
                if take(fd) and _is_still(directory_fd, name, fd):
                    lock = HeldLock(fd)
                    stack.pop_all()
                    return lock
            except OSError as error:
                raise StoreError(
                    f"the file system of the store cannot lock files ({os.strerror(error.errno or 0)}): "
                    "use a local disk, or NFS with its lock service"
                ) from None
        if time.monotonic() >= deadline_s:
            holder, note = _find_holder(directory_fd, name)
            told = f"cannot {purpose}: the lock is held by {holder}; wait for it or stop it"
            raise StoreBusy(told, holder=holder, note=note)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MAX_S)


def _is_own(directory_fd: int, fd: int) -> bool:
    """Say whether it is a file that no one else put in a lock file's place, since a note is written into it."""
    found = os.fstat(fd)
    trusted = (os.geteuid(), os.fstat(directory_fd).st_uid)  # the server of a share may make root another user
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1 and found.st_uid in trusted


def _is_still(directory_fd: int, name: str, fd: int) -> bool:
    # Another process removed or replaced the file since our open: then our lock protects nothing. Looked at thrice: some file
    # systems give a file another number between two looks.
    for _ in range(3):
        try:
            there = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        ours = os.fstat(fd)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return True
    return False
