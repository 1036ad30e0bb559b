"""Descends through directories by descriptor, to any depth, with few of them open; standard library only.

An open directory is pinned against renames and links. Of the directories on the way down, the nearest stay open.
Another one is opened again on the way back, by `..` of the one below or by its name, and is used only if it is still
the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.removal import look_path
from prefect_cachewatch.common.tuples import NamedTuple

_KEPT_OPEN = 16


class _Level(NamedTuple):
    name: str
    identity: tuple[int, int]


class Descent:
    """The open directories from a top one down to the current position of a walk; close it at the end.

    Args:
        top_fd: descriptor of the top directory; closed with this object.
        top: its stat result.
    """

    def __init__(self, top_fd: int, top: os.stat_result) -> None:
        self._levels = [_Level("", (top.st_dev, top.st_ino))]
        self._fds: list[int | None] = [top_fd]

    @property
    def fd(self) -> int | None:
        """The lowest directory; None if it was moved meanwhile."""
        return self._fds[-1]

    def enter(self, name: str, fd: int, status: os.stat_result) -> None:
        """Add a directory that was opened in the lowest one.

        Args:
            name: in the lowest one.
            fd: its descriptor, which is closed with the level.
            status: its stat result.
        """
        self._levels.append(_Level(name, (status.st_dev, status.st_ino)))
        self._fds.append(fd)
        passed = len(self._fds) - 1 - _KEPT_OPEN
        # The top one stays open: from there each of the others can be found by name.
        if passed > 0 and (old := self._fds[passed]) is not None:
            self._fds[passed] = None
            os.close(old)

    def leave(self) -> None:
        """Go back to the directory above."""
        self._levels.pop()
        left = self._fds.pop()
        try:
            if self._fds and self._fds[-1] is None:
                self._fds[-1] = self._reopen(left)
        finally:
            if left is not None:
                os.close(left)

    def close(self) -> None:
        """Close whatever is open."""
        while self._fds:
            if (fd := self._fds.pop()) is not None:
                os.close(fd)

    def _reopen(self, below: int | None) -> int | None:
        identity = self._levels[-1].identity
        if below is not None and (fd := _open("..", below)) is not None:
            if _identity(fd) == identity:
                return fd
            os.close(fd)
        here = self._fds[0]
        assert here is not None
        for level in self._levels[1:]:
            above, found = here, _open(level.name, here)
            if above != self._fds[0]:
                os.close(above)
            if found is None:
                return None
            here = found
        if _identity(here) == identity:
            return here
        os.close(here)
        return None


def _open(name: str, above: int) -> int | None:
    try:
        return os.open(name, OPEN_DIRECTORY, dir_fd=above)
    except OSError:
        return None


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


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
