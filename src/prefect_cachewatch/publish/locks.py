"""Locks of the store: flock on a descriptor, so that they end with the process that holds them.

The text in a lock file is for people; only the kernel decides whether the lock is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from prefect_cachewatch.common.parked import park
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.supervise.filelocks import (
    LockHolder,
    describe_holders,
    find_holders,
    has_exclusive_holder,
    is_reader_only,
    take_exclusive,
)

_RETRY_S = 0.02
_writers: weakref.WeakSet[HeldLock] = weakref.WeakSet()
_fork_hook: list[bool] = []


class HeldLock:
    """A lock that is held until `release`, the end of the `with` block, or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor that holds the lock; a child that inherits it holds the lock too."""
        return self._fd

    def park(self) -> Self:
        """Hold the lock by a parked descriptor, which a child closes without waiting (see `common.parked`)."""
        self._fd = park(self._fd)
        return self

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def hold_exclusive(
    directory_fd: int,
    name: str,
    purpose: str,
    *,
    past_readers: bool = True,
    wait_s: float = 0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HeldLock:
    """Take an exclusive lock.

    A child made with fork does not keep it, since the lock would then outlive its holder.

    Args:
        directory_fd: descriptor of the lock file's directory; the file is created if missing and never removed.
        name: the lock file's name.
        purpose: what the holder does, shown to another process that finds it held.
        past_readers: whether to take it despite shared locks, since only foreign programs take them; the file is then
            private to its owner. False for a lock that our own readers take too.
        wait_s: how long to wait for another holder.
        clock: monotonic seconds.
        sleep: waits between two tries.

    Returns:
        The lock.

    Raises:
        StoreBusy: another process holds it; the message says which one and since when.
        StoreError: the file system has no locks, or the lock file is a link.
    """
    lock = _hold(
        directory_fd,
        name,
        lambda fd: take_exclusive(fd, past_readers=past_readers),
        os.O_RDWR | os.O_CREAT,
        purpose,
        wait_s,
        clock,
        sleep,
        mode=0o600 if past_readers else 0o644,
    )
    _forget_in_forks(lock)
    if past_readers:
        # On a local disk a user who may read a file may lock it, even exclusively.
        with contextlib.suppress(OSError):
            os.fchmod(lock.fileno(), 0o600)
    note = {"host": socket.gethostname(), "pid": os.getpid(), "purpose": purpose}
    note["since"] = datetime.now(UTC).isoformat(timespec="seconds")
    data = json.dumps(note).encode("ascii") + b"\n"
    # Best effort, for people: a full disk must not stop a roll-back.
    with contextlib.suppress(OSError):
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), data, 0)
    return lock.park()


def hold_shared(directory_fd: int, name: str) -> HeldLock:
    """Take a shared lock; needs no write permission.

    Args:
        directory_fd: descriptor of the lock file's directory; the file must exist.
        name: the lock file's name.

    Returns:
        The lock.

    Raises:
        StoreBusy: a writer holds it.
        FileNotFoundError: there is no lock file.
    """
    # A process that lists builds holds the pin for a moment, to test whether it is free.
    return _hold(
        directory_fd, name, is_reader_only, os.O_RDONLY, "read", 1.0, time.monotonic, time.sleep, mode=0
    ).park()


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
        return any(holder.exclusive for holder in _kernel_holders(directory_fd, name))
    except OSError:
        return False
    try:
        if not by_readers:
            return has_exclusive_holder(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def describe_holder(directory_fd: int, name: str) -> str:
    """Describe a lock's holder for a message, from the kernel and from what the holder wrote into the file.

    Args:
        directory_fd: descriptor of the directory of the lock file.
        name: the lock file's name.

    Returns:
        For example `pid 4711 on node-3, publish 'llama' since 2026-01-31T23:59:59+00:00`; or, if the process that wrote
        this no longer holds it, `pid 815: tar -c /store`.
    """
    holders = _kernel_holders(directory_fd, name)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
        with os.fdopen(fd, "rb") as file:
            note = json.loads(file.read(4096))
        pid, host = int(note["pid"]), str(note["host"])
        noted = for_terminal(f"pid {pid} on {host}, {note['purpose']} since {note['since']}", 200)
    except (OSError, ValueError, TypeError, KeyError):
        return describe_holders(holders) if holders else "another process"
    if host != socket.gethostname() or any(holder.pid == pid for holder in holders):
        return noted
    if holders:
        return describe_holders(holders)
    if os.path.exists(f"/proc/{pid}"):
        return noted
    return "a process that cannot be seen from here (another user's, in a container, or on another host)"


def _kernel_holders(directory_fd: int, name: str) -> list[LockHolder]:
    try:
        return find_holders(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))
    except OSError:
        return []


def _hold(
    directory_fd: int,
    name: str,
    take: Callable[[int], bool],
    flags: int,
    purpose: str,
    wait_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    mode: int,
) -> HeldLock:
    deadline = clock() + wait_s
    while True:
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=directory_fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"the lock file '{for_terminal(name)}' is a symbolic link: remove it") from None
            raise
        try:
            if take(fd) and _is_still(directory_fd, name, fd):
                return HeldLock(fd)
        except OSError as error:
            os.close(fd)
            raise StoreError(
                f"the file system of the store cannot lock files ({os.strerror(error.errno or 0)}): "
                "use a local disk, or NFS with its lock service"
            ) from None
        os.close(fd)
        if clock() >= deadline:
            holder = describe_holder(directory_fd, name)
            raise StoreBusy(f"cannot {purpose}: the lock is held by {holder}; wait for it or stop it", holder=holder)
        sleep(_RETRY_S)


def _is_still(directory_fd: int, name: str, fd: int) -> bool:
    # Another process removed or replaced the file between our open and the lock: then our lock protects nothing.
    try:
        there = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _forget_in_forks(lock: HeldLock) -> None:
    if not _fork_hook:
        _fork_hook.append(True)
        os.register_at_fork(after_in_child=_close_in_child)
    _writers.add(lock)


def _close_in_child() -> None:
    # Closing the descriptor leaves the parent's lock alone; LOCK_UN would release it for the parent too.
    for lock in list(_writers):
        lock.release()
