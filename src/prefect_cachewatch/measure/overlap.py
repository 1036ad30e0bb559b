"""Finds out whether another run holds a directory above or below ours, from the kernel's list of locks.

A run locks its cache directories themselves, so two runs conflict on the same directory. But if one run locks a
directory and another one a directory below it, neither notices. The kernel's list names every lock by device and inode,
for every holder, and needs no file of ours. Ours are told from other programs' by the byte that they lock. The list
omits locks that are held on another host or in another pid namespace.
Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.files import LOCK_FILE
from prefect_cachewatch.common.locks import OUR_BYTE
from prefect_cachewatch.common.proc_locks import parse_locks
from prefect_cachewatch.common.removal import walk

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any


def find_overlap(paths: Sequence[str], budget_s: float) -> dict[str, Any]:
    """Look for a locked directory above or below this run's own locked directories.

    Args:
        paths: resolved absolute paths of directories that this run has locked.
        budget_s: the longest time for the directories below; those not reached by then are not found.

    Returns:
        `path`, one of ours, with `above` or `below`, the directory that another run has locked; empty if there is none.
    """
    own, locked = [os.stat(path) for path in paths], _locked()
    marks = {status.st_dev: _marks(status, locked) for status in own}
    # A job's own directories may be nested, and each one's lock file is its own too.
    ours = {
        (status.st_dev, inode) for path, status in zip(paths, own, strict=True) for inode in _inodes_of(path, status)
    }
    locked -= {(mark, inode) for device, inode in ours for mark in marks[device]}
    for path in paths:
        for directory in _parents(path):
            if _is_locked(directory, locked):
                return {"path": path, "above": directory}
    end_s = time.monotonic() + budget_s
    for path, status in zip(paths, own, strict=True):
        near = {inode for mark, inode in locked if mark in marks[status.st_dev]}
        if near and (below := _find_below(path, near, end_s)) is not None:
            return {"path": path, "below": below}
    return {}


def _inodes_of(path: str, status: os.stat_result) -> list[int]:
    try:
        return [status.st_ino, os.lstat(os.path.join(path, LOCK_FILE)).st_ino]
    except OSError:
        return [status.st_ino]


def _find_below(path: str, inodes: set[int], end_s: float) -> str | None:
    with Opened(os.open(path, OPEN_DIRECTORY)) as top_fd:
        for fd, below, entry in walk(top_fd):
            if time.monotonic() > end_s:
                return None
            if below and (entry.inode in inodes or _inode(LOCK_FILE, fd) in inodes):
                return os.path.join(path, below.rstrip("/"))
    return None


def _locked() -> set[tuple[str, int]]:
    """Return device, as the kernel shows it, and inode of what a run of ours has locked."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            locks = [lock for lock in parse_locks(file.read()) if lock.kind == "OFDLCK" and lock.start == OUR_BYTE]
    except OSError:
        return set()
    return {(lock.mark.rpartition(":")[0], lock.inode) for lock in locks if not lock.waits}


def _marks(status: os.stat_result, locked: set[tuple[str, int]]) -> set[str]:
    """Return how the kernel shows a device, as our own lock reveals it: on btrfs and overlay not as stat(2) does."""
    plain = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return {plain, *(mark for mark, inode in locked if inode == status.st_ino)}


def _is_locked(directory: str, locked: set[tuple[str, int]]) -> bool:
    for name in (directory, os.path.join(directory, LOCK_FILE)):
        try:
            status = os.stat(name, follow_symlinks=False)
        except OSError:
            continue
        if (f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", status.st_ino) in locked:
            return True
    return False


def _parents(path: str) -> list[str]:
    found = []
    while (above := os.path.dirname(path)) != path:
        found.append(above)
        path = above
    return found


def _inode(name: str, directory_fd: int) -> int | None:
    try:
        return os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_ino
    except OSError:
        return None
