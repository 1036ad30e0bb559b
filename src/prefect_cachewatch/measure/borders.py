"""Finds the mount points below watched directories, which a walk does not cross; standard library only."""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.removal import look_path


def find_borders(roots: Sequence[str]) -> dict[str, frozenset[str]]:
    """Find the mount points below some directories.

    Args:
        roots: absolute paths.

    Returns:
        The names of the mount points, by the path of their directory with a trailing slash.

    Example:
        >>> "sys" in find_borders(["/"]).get("/", ())
        True
    """
    points = {mount.mount_point for mount in read_mounts()}
    found: dict[str, set[str]] = {}
    for root in roots:
        real, top = os.path.realpath(root).rstrip("/") + "/", root.rstrip("/") + "/"
        for point in points:
            if point.startswith(real) and point != real and _is_elsewhere(point, root):
                around, _, name = (top + point[len(real) :]).rpartition("/")
                found.setdefault(around + "/", set()).add(name)
    return {around: frozenset(names) for around, names in found.items()}


def _is_elsewhere(point: str, root: str) -> bool:
    # A mount in the table may be hidden by a later one above it: then its path now belongs to that one.
    try:
        return look_path(point).mount != look_path(root + "/.").mount
    except OSError:  # the mount point is not visible, or the walk will report the error
        return False
