"""What a file system has left: space, inodes, and whether it may be written at all.

Standard library only, as its callers are. Each call may hang with the file system: make it where that does no harm.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_NO_ROOM_BYTES = 64 << 10


def read_space(path: str) -> dict[str, Any]:
    """Ask statvfs(3).

    Args:
        path: a directory.

    Returns:
        `free_bytes`, `total_bytes`, `free_inodes`, `total_inodes` and `block_bytes`.

    Raises:
        OSError: it cannot be asked.

    Example:
        >>> read_space("/")["total_bytes"] > 0
        True
    """
    space = os.statvfs(path)
    return {
        # f_bavail, not f_bfree: what is reserved for root is not there for the generator.
        "free_bytes": space.f_bavail * space.f_frsize,
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_inodes": space.f_favail if space.f_files else None,
        "total_inodes": space.f_files or None,
        "block_bytes": space.f_frsize,
    }


def look_at_storage(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Look at the storage below directories, as this user.

    Args:
        paths: absolute.

    Returns:
        For each what `read_space` returns, and `read_only`, `root_bytes` (free for root), `is_root`; or `error` alone.
    """
    found = []
    for path in paths:
        try:
            space = os.statvfs(path)
            more = {"read_only": bool(space.f_flag & os.ST_RDONLY), "root_bytes": space.f_bfree * space.f_frsize}
            found.append({"is_root": os.geteuid() == 0, **more, **read_space(path)})
        except OSError as error:
            found.append({"error": error.strerror or str(error)})
    return found


def is_full(space: Mapping[str, Any]) -> bool:
    """Say whether what `look_at_storage` has seen has no room for this user, or no inode; what cannot be asked has."""
    if not space.get("total_bytes"):
        return False
    free_bytes = space["root_bytes"] if space["is_root"] else space["free_bytes"]
    return bool(free_bytes < _NO_ROOM_BYTES or space["free_inodes"] == 0)
