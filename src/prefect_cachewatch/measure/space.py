"""What a file system has left: space, inodes, a user's quota, and whether it may be written at all.

Standard library only, as its callers are. Each call may hang with the file system: make it where that does no harm.
"""

from __future__ import annotations

import os
import struct
import time

from prefect_cachewatch.common.mounts import mount_of, read_mounts

TYPE_CHECKING = False  # type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_Q_GETQUOTA, _USRQUOTA = 0x800007, 0
_QUOTA_OPTIONS = ("quota", "usrquota", "uquota", "usrjquota", "prjquota", "pquota", "grpquota")


def quota_source(options: Sequence[str], source: str) -> str:
    """Return the device that quotactl(2) is asked about; empty if the mount options name no quota."""
    return source if any(option.split("=")[0] in _QUOTA_OPTIONS for option in options) else ""


def read_space(path: str, source: str, uid: int) -> dict[str, Any]:
    """Ask statvfs(3) and, where quotas are on, quotactl(2).

    Args:
        path: a directory.
        source: from `quota_source`.
        uid: the user whose quota is asked for.

    Returns:
        `free_bytes`, `total_bytes`, `free_inodes`, `total_inodes`, `block_bytes`, and with a limit `quota_limit_bytes`
        and `quota_used_bytes`.

    Raises:
        OSError: it cannot be asked.

    Example:
        >>> read_space("/", "", 0)["total_bytes"] > 0
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
        **(_quota(source, uid) if source else {}),
    }


def look_at_storage(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Look at the storage below directories, as this user.

    Args:
        paths: absolute.

    Returns:
        For each what `read_space` returns, and `read_only`, `root_bytes` (free for root), `is_root`; or `error` alone.
    """
    mounts, uid, found = read_mounts(), os.geteuid(), []
    for path in paths:
        try:
            space = os.statvfs(path)
            more = {"read_only": bool(space.f_flag & os.ST_RDONLY), "root_bytes": space.f_bfree * space.f_frsize}
            mount = mount_of(path, mounts)
            source = quota_source(mount.options, mount.source) if mount is not None else ""
            found.append({"is_root": uid == 0, **more, **read_space(path, source, uid)})
        except OSError as error:
            found.append({"error": error.strerror or str(error)})
    return found


def _quota(source: str, uid: int) -> dict[str, Any]:
    import ctypes  # noqa: PLC0415 - 10 ms, and only where quotas are on

    block = ctypes.create_string_buffer(72)  # struct if_dqblk of linux/quota.h
    command = (_Q_GETQUOTA << 8 | _USRQUOTA) & 0xFFFFFFFF
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.quotactl(ctypes.c_int(command - (1 << 32)), os.fsencode(source), uid, block):
        return {}
    return limit_of(block.raw, time.time())


def limit_of(block: bytes, at: float) -> dict[str, int]:
    """Read the limit that is in force, and how much of it is used, from a `struct if_dqblk`; nothing without a limit.

    Args:
        block: what quotactl(2) has filled in.
        at: wall time.
    """
    hard, soft, used, *_, grace_ends_at = struct.unpack_from("=7Q", block)
    # Beyond the soft limit writes succeed until the time of grace is over.
    limit = soft if soft and 0 < grace_ends_at <= at else hard
    # Limits count in blocks of 1 KiB, use in bytes; a limit of 0 is none.
    return {"quota_limit_bytes": limit * 1024, "quota_used_bytes": used} if limit else {}
