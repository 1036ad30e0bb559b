"""A staging build in the store, if there is room for it; the writer's lock is held from beginning to end.

It does not switch `current` (see `activation`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import empty_directory
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import NotEnoughSpace, StoreError
from prefect_cachewatch.publish.builds import MANIFEST, PIN, UNFINISHED, open_build, pin_build, read_unfinished
from prefect_cachewatch.publish.checks import Finding
from prefect_cachewatch.publish.durable import (
    discard_tree,
    entry_exists,
    is_leftover,
    move_entry,
    refusing,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.names import META_DIRECTORY
from prefect_cachewatch.publish.target import BuildRecipe, BuildTarget, refusal_record, write_meta

STAGING_RECORD = ".staging.json"
QUARANTINE_RECORD = "quarantine.json"
# Our own files in a published build's directory; a generator that starts from a copy of a build copies them too.
_COPIED = frozenset({MANIFEST, PIN, QUARANTINE_RECORD})


class StagedBuild(BuildTarget):
    """A directory of the store; its path stays the same when it is published."""

    mode = "staged"

    def __init__(
        self,
        folder: CacheFolder,
        resources: contextlib.ExitStack,
        lock: HeldLock,
        build_id: str,
        recipe: BuildRecipe,
        *,
        adopted: bool,
        started_s: float,
        last_bytes: int | None,
    ) -> None:
        super().__init__(
            folder.name,
            build_id,
            folder.build_path(build_id),
            recipe,
            lock,
            resources,
            adopted=adopted,
            started_s=started_s,
            last_bytes=last_bytes,
        )
        self._folder = folder

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Move a refused build into quarantine, with the reasons beside it.

        Args:
            findings: the reasons.
            message: the reasons in one sentence.

        Returns:
            Its new path.

        Raises:
            StoreError: it cannot be moved; it stays a staging build then.
        """
        self._require_open()
        with refusing("move", self.path, named=f"{for_terminal(self.path, 1000)} into quarantine"):
            with hold_switch(self._folder, "put a build into quarantine"):
                # First: if anything fails after this, the next run of the key begins with a new build and does not meet
                # the same failure.
                self._forget()
                with self._open() as fd:
                    set_aside_meta(fd)
                    write_meta(fd, self.path, QUARANTINE_RECORD, refusal_record(self, findings, message))
                move_entry(self._folder.builds_fd, self.build_id, self._folder.quarantine_fd, self.build_id)
            self._finished()
        self._done = True
        return self._folder.quarantine_path(self.build_id)

    def clean(self) -> None:
        """Empty the directory but keep it, since the watch holds it open."""
        self._require_open()
        with self._open() as fd:
            done = empty_directory(fd)
            sync_directory(fd)
        if done.failed:
            raise StoreError(
                f"cannot remove {for_terminal(f'{self.path}/{done.problems[0]}', 1000)}: see to it by hand"
            )

    def discard(self) -> None:
        """Remove the staging build."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        self._finished()
        self._done = True

    def _open(self) -> contextlib.AbstractContextManager[int]:
        return open_build(self._folder, self.build_id)

    @property
    def _record_path(self) -> str:
        return f"{self._folder.path}/"

    @contextlib.contextmanager
    def _probe_directory(self) -> Iterator[int]:
        yield self._folder.fd

    def _write_manifest(self, build_fd: int, meta_fd: int, data: bytes) -> None:
        sync_directory(self._folder.builds_fd)
        super()._write_manifest(build_fd, meta_fd, data)
        # Held until this object is closed, which is after the activation: a clean-up in between would take the build
        # for unused.
        self._resources.callback(pin_build(build_fd).release)

    def _check_meta(self, build_fd: int) -> list[Finding]:
        found = _foreign_meta(build_fd)
        if found is None:
            return []
        message = (
            f"{META_DIRECTORY} is cachewatch's own name in a build, and here it is {found}: have it written elsewhere"
        )
        return [Finding("reserved_name", message, paths=(META_DIRECTORY,))]

    def _before_manifest(self, build_fd: int) -> None:
        # Nothing of ours is there yet: a directory of that name was copied from another build.
        if entry_exists(build_fd, META_DIRECTORY):
            # Into the store's trash: after a kill, remains in the build would pass for the generator's files.
            discard_tree(build_fd, META_DIRECTORY, self._folder.builds_fd)

    def _finished(self) -> None:
        self._forget()
        note_finished(self._folder, self.build_id)

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STAGING_RECORD, dir_fd=self._folder.fd)
            sync_directory(self._folder.fd)


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


def set_aside_meta(build_fd: int) -> None:
    """Rename what a generator put in the place of cachewatch's own directory in a build.

    Args:
        build_fd: descriptor of the build's directory.
    """
    if _foreign_meta(build_fd) is not None:
        os.rename(
            META_DIRECTORY,
            f"{META_DIRECTORY}-of-generator-{secrets.token_hex(4)}",
            src_dir_fd=build_fd,
            dst_dir_fd=build_fd,
        )


def _write_unfinished(folder: CacheFolder, builds: frozenset[str] | set[str]) -> None:
    body = {"schema_version": 1, "builds": sorted(builds)}
    write_durably(folder.fd, UNFINISHED, json.dumps(body).encode("ascii") + b"\n")


def _foreign_meta(build_fd: int) -> str | None:
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
