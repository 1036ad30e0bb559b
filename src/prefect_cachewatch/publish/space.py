"""Is there room for another build? Asked before the first byte, with what the last one took."""

from __future__ import annotations

import os
from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import NotEnoughSpace

__all__ = ["FreeSpace", "read_free_space", "require_space"]


@dataclass(frozen=True)
class FreeSpace:
    """What an unprivileged process may still write; `inodes` is None where the file system has no fixed number."""

    size_bytes: int
    inodes: int | None


def read_free_space(directory_fd: int) -> FreeSpace:
    """Read the free space of the file system that a directory is on.

    Args:
        directory_fd: descriptor of the directory.

    Returns:
        Free bytes and inodes.
    """
    status = os.fstatvfs(directory_fd)
    return FreeSpace(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None)


def require_space(free: FreeSpace, path: str, *, needed_bytes: int, needed_inodes: int, why: str) -> None:
    """Refuse to begin what cannot end.

    Args:
        free: as it was read.
        path: the store, for the message.
        needed_bytes: bytes that must be free.
        needed_inodes: inodes that must be free.
        why: where the numbers come from, for the message.

    Raises:
        NotEnoughSpace: if either is short; nothing was written.

    Example:
        >>> require_space(FreeSpace(10**9, None), "/s", needed_bytes=10**8, needed_inodes=5, why="the last build")
    """
    shown = for_terminal(path, 1000)
    if free.size_bytes < needed_bytes:
        raise NotEnoughSpace(
            f"{shown} has {format_bytes(free.size_bytes)} free, and {format_bytes(needed_bytes)} are needed ({why}): "
            "free some, for example with cachewatch store gc",
            path=path,
            free_bytes=free.size_bytes,
            needed_bytes=needed_bytes,
        )
    if free.inodes is not None and free.inodes < needed_inodes:
        raise NotEnoughSpace(
            f"{shown} has {free.inodes} free inodes, and {needed_inodes} are needed ({why}): "
            "free some, for example with cachewatch store gc",
            path=path,
            free_inodes=free.inodes,
            needed_inodes=needed_inodes,
        )
