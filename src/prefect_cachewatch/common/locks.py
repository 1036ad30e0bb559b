"""Takes a lock by flock(2) without waiting. Standard library only."""

from __future__ import annotations

import fcntl

# The byte by which our locks are told from others': far behind any content, where no other program locks.
OUR_BYTE = 1 << 40


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock a file or a directory until its last descriptor is closed; false if another one has it.

    Args:
        fd: descriptor of it.
        shared: whether others may share it.

    Raises:
        OSError: the file system has no such locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
