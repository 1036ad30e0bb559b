"""Finds files of their whole size of which a part was never written: reserved, and then the writer died or went on.

Such a part reads as zeros and has no data on the disk: lseek(2) with SEEK_HOLE finds it. Where the file system compresses,
makes holes of zeros that were written, or belongs to another machine, holes prove nothing and none is reported. Standard
library only; it may hang with the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping

from prefect_cachewatch.common.mounts import Mount, is_network_type, mount_of, read_mounts
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.tree import BuildTree, ScannedFile, open_file, walk_build

_UNPROVABLE = (
    "apfs",
    "bcachefs",
    "btrfs",
    "cramfs",
    "erofs",
    "f2fs",
    "jffs2",
    "ntfs",
    "reiser4",
    "squashfs",
    "ubifs",
    "zfs",
)
_EXTENTS_MAX = 10_000


def find_unwritten(build_fd: int, ignore: Iterable[str] = (), since_ns: int = 0) -> dict[str, int]:
    """Find files with a part that was never written.

    Args:
        build_fd: descriptor of the cache's directory.
        ignore: globs of files that may have such parts, or are not part of the cache.
        since_ns: only files that changed after this moment of the file system's clock.

    Returns:
        How many bytes of each were never written, by relative path; nothing where holes prove nothing.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
    """
    globs = list(ignore)
    if not proves_by_holes(os.path.realpath(f"/proc/self/fd/{build_fd}"), read_mounts()):
        return {}
    found: dict[str, int] = {}

    def visit(directory_fd: int, file: ScannedFile, name: str) -> None:
        if not file.size_bytes or file.changed_ns < since_ns or matches_any(file.path, globs):
            return
        fd = open_file(directory_fd, name, file.path)
        try:
            if holes := count_holes(fd, file.size_bytes):
                found[file.path] = holes
        finally:
            os.close(fd)

    walk_build(build_fd, BuildTree(), visit)
    return found


def count_holes(fd: int, size_bytes: int) -> int:
    """Return how many bytes of a file are holes; 0 where the file system does not tell.

    Args:
        fd: descriptor of the file; its position changes.
        size_bytes: of the file.
    """
    at = holes = 0
    with contextlib.suppress(OSError):
        for _ in range(_EXTENTS_MAX):
            begin = os.lseek(fd, at, os.SEEK_HOLE)
            if begin >= size_bytes:
                break
            try:
                at = min(os.lseek(fd, begin, os.SEEK_DATA), size_bytes)
            except OSError as error:
                if error.errno != errno.ENXIO:  # no data behind it: the hole reaches to the end
                    break
                at = size_bytes
            holes += at - begin
            if at >= size_bytes:
                break
    return holes


def proves_by_holes(path: str, mounts: Iterable[Mount]) -> bool:
    """Say whether a hole in a file below a path means that nothing was written there.

    Args:
        path: absolute, without symbolic links.
        mounts: the mount table.

    Example:
        >>> proves_by_holes("/a/b", [Mount("1", "/", "ext4", "", ()), Mount("2", "/a", "zfs", "", ())])
        False
    """
    table = list(mounts)
    mount = mount_of(path, table)
    for _ in range(3):
        upper = _upper_directory(mount) if mount is not None and mount.type == "overlay" else None
        if upper is None:
            break
        mount = mount_of(upper, table)
    return mount is not None and not mount.type.startswith(_UNPROVABLE) and not is_network_type(mount.type)


def _upper_directory(mount: Mount) -> str | None:
    """Where an overlay keeps what is written; None where that is not said, or is not seen from here."""
    options: dict[str, str] = {name: value for name, _, value in (option.partition("=") for option in mount.options)}
    upper = options.get("upperdir")
    return upper if upper and os.path.isdir(upper) else None


def describe_unwritten(found: Mapping[str, int], sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """Say of each file how much of it was never written; path and sentence without its subject.

    Args:
        found: from `find_unwritten`.
        sizes: of the files.

    Example:
        >>> describe_unwritten({"a": 1024}, {"a": 4096})
        [('a', 'has 4.00 KiB, and 1.00 KiB of them were never written')]
    """
    return [
        (path, f"has {format_bytes(sizes.get(path, 0))}, and {format_bytes(holes)} of them were never written")
        for path, holes in sorted(found.items())
    ]
