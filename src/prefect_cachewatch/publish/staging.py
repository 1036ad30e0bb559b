"""What a build that is being written leaves in the store: records of what is unfinished, and cachewatch's own directory.

Also whether there is room for one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import NotEnoughSpace
from prefect_cachewatch.publish.builds import MANIFEST, PIN, QUARANTINE_RECORD, UNFINISHED, read_unfinished
from prefect_cachewatch.publish.durable import entry_exists, is_leftover, sync_directory, write_durably
from prefect_cachewatch.publish.layout import CacheFolder, open_subdirectory
from prefect_cachewatch.publish.names import META_DIRECTORY

STAGING_RECORD = ".staging.json"
# Our own files in a published build's directory; a generator that starts from a copy of a build copies them too.
_COPIED = frozenset({MANIFEST, PIN, QUARANTINE_RECORD})


def note_unfinished(folder: CacheFolder, build_id: str) -> None:
    """Record that a build has begun; the caller is the one publisher.

    Args:
        folder: the open cache.
        build_id: which build.

    Raises:
        OSError: it cannot be written.
    """
    there = set(os.listdir(folder.builds_fd))
    _write_unfinished(folder, (read_unfinished(folder) & there) | {build_id})


def note_finished(folder: CacheFolder, build_id: str) -> None:
    """Record that a build is published, or is in quarantine; the caller is the one publisher."""
    if build_id in (known := read_unfinished(folder)):
        _write_unfinished(folder, known - {build_id})


def write_meta(build_fd: int, path: str, name: str, record: Mapping[str, Any]) -> None:
    """Write a small JSON file of cachewatch's own into a build.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the build, for messages.
        name: the file's name.
        record: its contents.
    """
    with meta_directory(build_fd, path) as meta_fd:
        write_durably(meta_fd, name, json.dumps(record, indent=1).encode("ascii") + b"\n")


@contextlib.contextmanager
def meta_directory(build_fd: int, path: str) -> Iterator[int]:
    """Open cachewatch's own directory in a build; create it if missing."""
    if not entry_exists(build_fd, META_DIRECTORY):
        os.mkdir(META_DIRECTORY, 0o755, dir_fd=build_fd)
        sync_directory(build_fd)
    with open_subdirectory(build_fd, META_DIRECTORY, f"{path}/{META_DIRECTORY}") as fd:
        yield fd


def set_aside_meta(build_fd: int) -> None:
    """Rename what a generator put in the place of cachewatch's own directory in a build.

    Args:
        build_fd: descriptor of the build's directory.
    """
    if foreign_meta(build_fd) is not None:
        os.rename(
            META_DIRECTORY,
            f"{META_DIRECTORY}-of-generator-{secrets.token_hex(4)}",
            src_dir_fd=build_fd,
            dst_dir_fd=build_fd,
        )


def _write_unfinished(folder: CacheFolder, builds: frozenset[str] | set[str]) -> None:
    body = {"schema_version": 1, "builds": sorted(builds)}
    write_durably(folder.fd, UNFINISHED, json.dumps(body).encode("ascii") + b"\n")


def foreign_meta(build_fd: int) -> str | None:
    """Describe what is in the place of our directory, if it is neither missing nor copied from another build."""
    try:
        status = os.stat(META_DIRECTORY, dir_fd=build_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link"
    if not stat.S_ISDIR(status.st_mode):
        return "no directory"
    if status.st_dev != os.fstat(build_fd).st_dev:
        return "another file system"
    with Opened(os.open(META_DIRECTORY, OPEN_DIRECTORY, dir_fd=build_fd)) as fd:
        for name in os.listdir(fd):
            regular = stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
            if not regular or not (name in _COPIED or is_leftover(name)):
                return f"a directory with '{for_terminal(name, 120)}' in it"
    return None


@dataclass(frozen=True)
class FreeSpace:
    """What an unprivileged process may still write; `inodes` is None if the file system has no fixed number."""

    size_bytes: int
    inodes: int | None


def read_free_space(directory_fd: int) -> FreeSpace:
    """Read the free space of a directory's file system.

    Args:
        directory_fd: descriptor of the directory.

    Returns:
        Free bytes and inodes.
    """
    status = os.fstatvfs(directory_fd)
    return FreeSpace(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None)


def require_space(free: FreeSpace, path: str, *, needed_bytes: int, needed_inodes: int, why: str) -> None:
    """Refuse to start a build for which there is no room.

    Args:
        free: from `read_free_space`.
        path: the store, for the message.
        needed_bytes: bytes that must be free.
        needed_inodes: inodes that must be free.
        why: where the numbers come from, for the message.

    Raises:
        NotEnoughSpace: either is short; nothing was written.

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
