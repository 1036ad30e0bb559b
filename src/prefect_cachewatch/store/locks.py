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
from datetime import UTC, datetime
from typing import Any

from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.parked import park, taken
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.store.files import read_small_file
from prefect_cachewatch.supervise.filelocks import (
    LockHolder,
    describe_holders,
    find_holders,
    has_exclusive_holder,
    is_reader_only,
    take_exclusive,
)

_RETRY_S, _RETRY_MAX_S = 0.02, 0.2
_NOTE_MAX = 4096
_writers: weakref.WeakSet[HeldLock] = weakref.WeakSet()
_fork_hook: list[bool] = []


class HeldLock(Closing):
    """A lock that is held until `release`, the end of the `with` block, or the end of the process."""

    def __init__(self, fd: int) -> None:
        # Parked: a child closes it without waiting for its file system.
        self._fd = park(fd)

    def fileno(self) -> int:
        """Return the descriptor that holds the lock; a child that inherits it holds the lock too."""
        return self._fd

    def tell(self, **note: Any) -> None:
        """Write into the lock file who holds it and why; a full disk must not stop a roll-back, so a failure is ignored."""
        note |= {"host": socket.gethostname(), "boot": boot_id(), "pid": os.getpid()}
        note["since"] = datetime.now(UTC).isoformat(timespec="seconds")
        data = json.dumps(note).encode("ascii") + b"\n"
        with contextlib.suppress(OSError), Opened(taken(self._fd)) as fd:
            os.ftruncate(fd, 0)  # first: a write that fails must not leave the note of an earlier holder
            os.pwrite(fd, data, 0)

    def is_still(self, directory_fd: int, name: str) -> bool:
        """Say whether the name still leads to the locked file; raises OSError."""
        with Opened(taken(self._fd)) as fd:
            return _is_still(directory_fd, name, fd)

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    close = release

    def __del__(self) -> None:
        self.release()


def boot_id() -> str:
    """Return what tells this running kernel from any other: locks of one kernel are seen by all of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def hold_exclusive(
    directory_fd: int, name: str, purpose: str, *, past_readers: bool = True, wait_s: float = 0, key: str | None = None
) -> HeldLock:
    """Take an exclusive lock.

    A child made with fork does not keep it, since the lock would then outlive its holder.

    Args:
        directory_fd: descriptor of the lock file's directory; the file is created if missing and never removed.
        name: the lock file's name.
        purpose: what the holder does, shown to another process that finds it held.
        past_readers: whether to take it despite shared locks, since only foreign programs take them; the file is then
            private to its owner. False for a lock that our own readers take too: nothing is written into that file.
        wait_s: how long to wait for another holder.
        key: of the cache that is written under the lock.

    Returns:
        The lock.

    Raises:
        StoreBusy: another process holds it; the message says which one and since when.
        StoreError: the file system has no locks, or the lock file is a link.
    """
    flags, mode = (os.O_RDWR | os.O_CREAT, 0o600) if past_readers else (os.O_RDWR, 0)

    def take(fd: int) -> bool:
        return take_exclusive(fd, past_readers=past_readers)

    lock = _hold(directory_fd, name, take, flags, mode, purpose, wait_s)
    if not _fork_hook:
        _fork_hook.append(True)
        os.register_at_fork(after_in_child=_close_in_child)
    _writers.add(lock)
    if past_readers:
        # On a local disk a user who may read a file may lock it, even exclusively.
        with contextlib.suppress(OSError), Opened(taken(lock.fileno())) as fd:
            os.fchmod(fd, 0o600)
        lock.tell(purpose=purpose, key=key)
    return lock


def hold_shared(directory_fd: int, name: str) -> HeldLock:
    """Take a shared lock; needs no write permission.

    Raises:
        StoreBusy: a writer holds it.
        FileNotFoundError: there is no such file.
    """
    # A process that lists builds holds the lock for a moment, to test whether it is free.
    return _hold(directory_fd, name, is_reader_only, os.O_RDONLY, 0, "read", 1.0)


def is_locked(directory_fd: int, name: str, *, by_readers: bool) -> bool:
    """Say whether any process holds a lock, without changing its file.

    Args:
        directory_fd: descriptor of the directory of the lock file.
        name: the lock file's name.
        by_readers: whether shared holders count, or only an exclusive one.

    Returns:
        True if so; False also if there is no lock file.
    """
    try:
        # NFS gives an exclusive lock only with write permission. That is right for a process that may remove builds;
        # the list of a mere reader then shows no pins.
        mode = os.O_RDWR if by_readers and os.access(name, os.W_OK, dir_fd=directory_fd) else os.O_RDONLY
        fd = os.open(name, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except PermissionError:
        return any(holder.exclusive for holder in kernel_holders(directory_fd, name))
    except OSError:
        return False
    with Opened(fd):
        if not by_readers:
            return has_exclusive_holder(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def read_note(directory_fd: int, name: str) -> dict[str, Any]:
    """Read what a lock's holder told of itself; empty if nothing, or if it cannot be read."""
    try:
        note = json.loads(read_small_file(directory_fd, name, _NOTE_MAX))
    except (OSError, StoreError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def replace_lock_file(directory_fd: int, name: str) -> None:
    """Put a new lock file in the place of one whose holder is gone with its host; raises OSError.

    Nobody who has the old one open takes it for the lock any more. The caller holds a lock against others who do so.
    """
    write_entry(directory_fd, name, b"", mode=0o600)


def find_holder(directory_fd: int, name: str) -> tuple[str, dict[str, Any]]:
    """Find who holds a lock, from the kernel and from what the holder wrote into the file.

    Returns:
        A description for a message, such as `pid 4711 on node-3, publish 'llama' since 2026-01-31T23:59:59+00:00`; or, if the
        process that wrote this no longer holds it, `pid 815: tar -c /store`. And the holder's note; empty if it has written
        none yet.
    """
    holders = kernel_holders(directory_fd, name)
    note = read_note(directory_fd, name)
    try:
        pid, boot = int(note["pid"]), str(note["boot"])
        noted = for_terminal(f"pid {pid} on {note['host']}, {note['purpose']} since {note['since']}", 200)
    except (ValueError, TypeError, KeyError):
        return describe_holders(holders) if holders else "another process", {}
    seen = any(holder.is_process(pid) for holder in holders) if holders else os.path.exists(f"/proc/{pid}")
    if seen or boot != boot_id():
        return noted, note
    if holders:
        return describe_holders(holders), {}
    return "a process that cannot be seen from here (another user's, in a container, or on another host)", note


def kernel_holders(directory_fd: int, name: str) -> list[LockHolder]:
    """Find the processes of this host that hold a lock on a file; those of another pid namespace are not seen."""
    try:
        return find_holders(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))
    except OSError:
        return []


def _hold(
    directory_fd: int, name: str, take: Callable[[int], bool], flags: int, mode: int, purpose: str, wait_s: float
) -> HeldLock:
    deadline_s, pause_s = time.monotonic() + wait_s, _RETRY_S
    while True:
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=directory_fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"the lock file '{for_terminal(name)}' is a symbolic link: remove it") from None
            raise
        try:
            if flags & os.O_CREAT:
                _refuse_foreign(directory_fd, name, fd)
            if take(fd) and _is_still(directory_fd, name, fd):
                return HeldLock(fd)
        except StoreError:
            os.close(fd)
            raise
        except OSError as error:
            os.close(fd)
            raise StoreError(
                f"the file system of the store cannot lock files ({os.strerror(error.errno or 0)}): "
                "use a local disk, or NFS with its lock service"
            ) from None
        os.close(fd)
        if time.monotonic() >= deadline_s:
            holder, note = find_holder(directory_fd, name)
            raise StoreBusy(
                f"cannot {purpose}: the lock is held by {holder}; wait for it or stop it", holder=holder, note=note
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MAX_S)


def _refuse_foreign(directory_fd: int, name: str, fd: int) -> None:
    """Refuse a file that somebody else put in a lock file's place, since a note is written into it."""
    found = os.fstat(fd)
    trusted = (os.geteuid(), os.fstat(directory_fd).st_uid)  # the server of a share may make root another user
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in trusted:
        raise StoreError(f"the lock file '{for_terminal(name)}' was put there by something else: remove it")


def _is_still(directory_fd: int, name: str, fd: int) -> bool:
    # Another process removed or replaced the file since our open: then our lock protects nothing.
    try:
        there = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _close_in_child() -> None:
    # Closing the descriptor leaves the parent's lock alone; LOCK_UN would release it for the parent too.
    for lock in list(_writers):
        lock.release()
