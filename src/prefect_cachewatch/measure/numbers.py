"""Identifies a file by a number: its inode number, or one made from its device or its path.

Inode numbers are unique on one device. On overlayfs over two file systems, a directory's files are on other devices
than the directory, with equal numbers. Some FUSE servers number a file anew after the kernel has forgotten it: there
files are identified by path, so that a renamed one counts once more. Pure; standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from prefect_cachewatch.common.mounts import Mount, mount_of
from prefect_cachewatch.measure.folder import Seen

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from prefect_cachewatch.measure.snapshot import StatLike

_MASK = (1 << 64) - 1
_WITHOUT_NUMBERS = ("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse")
_device_of = operator.attrgetter("st_dev")


def known_by_path(roots: Iterable[str], mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Return the directories on file systems whose inode numbers do not last, with a trailing slash.

    Args:
        roots: absolute paths, resolved.
        mounts: the mount table.

    Example:
        >>> known_by_path(["/m/c"], [Mount("1", "/m", "fuse.sshfs", "host:", ())])
        ('/m/c/',)
    """
    found = ((root, mount_of(root, mounts)) for root in roots)
    return tuple(root.rstrip("/") + "/" for root, mount in found if mount and mount.type in _WITHOUT_NUMBERS)


class Numbers:
    """The numbering rule of each directory: inode numbers, unless its file system is known not to keep them.

    Args:
        by_path: directories whose files are identified by path, with a trailing slash, and all below them.
    """

    def __init__(self, by_path: tuple[str, ...] = ()) -> None:
        self.by_path = by_path
        self._mixed: set[int] = set()  # ranks whose files are on several devices
        self._devices: dict[int, int] = {}

    def notice(self, rank: int, stats: Sequence[StatLike]) -> None:
        """Note which devices the files are on."""
        devices = set(map(_device_of, stats))
        if devices != {self._devices.setdefault(rank, stats[0].st_dev)}:
            self._mixed.add(rank)

    def of(self, directory: str, rank: int, names: Iterable[str], stats: Sequence[StatLike]) -> Sequence[StatLike]:
        """Number files.

        Args:
            directory: its path with a trailing slash.
            rank: of its device within the scan.
            names: of the files.
            stats: their stat results, in the same order.

        Returns:
            The stat results, with other numbers in place of inode numbers that do not identify a file.
        """
        if self.by_path and directory.startswith(self.by_path):
            return [_with(hash(directory + name) & _MASK, 1, s) for name, s in zip(names, stats, strict=True)]
        if rank not in self._mixed:
            return stats
        usual = self._devices.get(rank)
        return [
            s if s.st_dev == usual else _with(hash((s.st_dev, s.st_ino)) & _MASK, s.st_nlink, s) for s in stats
        ]  # fmt: skip


def _with(number: int, links: int, status: StatLike) -> Seen:
    return Seen(
        number, links, status.st_size, status.st_blocks, status.st_mtime_ns, status.st_ctime_ns, status.st_atime_ns,
        status.st_dev,
    )  # fmt: skip
