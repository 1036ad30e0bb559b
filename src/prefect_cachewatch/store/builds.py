"""The builds of one cache: their states, and who is writing one."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.layout import (
    BAD,
    BEGUN,
    BUILD_ID,
    LOCK,
    MANIFEST,
    CacheFolder,
    exists,
    open_build,
    read_current,
)
from prefect_cachewatch.store.locks import boot_id, is_locked
from prefect_cachewatch.store.records import is_fresh, read_bad, read_beat, read_begun, read_manifest

_OURS = re.compile(rf"(?P<id>{BUILD_ID.pattern})(?:{re.escape(BEGUN)}|{re.escape(MANIFEST)}|{re.escape(BAD)})?")
_OTHERS = "has no manifest, and no run of this store began it: move it away"


@dataclass(frozen=True)
class BuildInfo:
    """A build as `list` shows it; `state` is active, published, staging, abandoned, damaged or quarantined.

    `status` is the defect of a published build: damaged, unhealthy or rolled_back, with `why` and `since`.
    """

    build_id: str
    state: str
    path: str
    key: str | None = None
    total_bytes: int | None = None
    total_files: int | None = None
    finished_at: str | None = None
    pinned: bool = False
    note: str = ""
    status: str | None = None
    why: str = ""
    since: str | None = None
    #: When it stopped being current, on the file system's clock in nanoseconds; 0 if it is, or never was.
    left_ns: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it was published, and its manifest is its own."""
        return self.state in ("active", "published")

    @property
    def in_order(self) -> bool:
        """Whether it is published, whole as far as is known, and has no status against it."""
        return self.is_whole and self.status is None

    @property
    def age(self) -> tuple[str, str]:
        """What builds are sorted by: when they were finished, all in one form of UTC, and their ids."""
        return self.finished_at or "", self.build_id


def newest(builds: Iterable[BuildInfo]) -> BuildInfo | None:
    """Return the build that was finished last; None of none."""
    return max(builds, key=lambda build: build.age, default=None)


def build_ids(folder: CacheFolder) -> list[str]:
    """List the ids of all builds of which something is there, the newest first."""
    found = map(_OURS.fullmatch, os.listdir(folder.builds_fd))
    return sorted({one["id"] for one in found if one}, reverse=True)


def is_finished(folder: CacheFolder, build_id: str) -> bool:
    """Say whether a build is published, or refused."""
    return exists(folder.builds_fd, build_id + MANIFEST) or exists(folder.builds_fd, build_id + BAD)


def beats_elsewhere(folder: CacheFolder, but: Collection[str] = ()) -> dict[str, int]:
    """Find the builds that a writer on another host began and has neither finished nor left: its last sign of life.

    Its lock may not be seen from here.
    """
    found: dict[str, int] = {}
    for build_id in build_ids(folder):
        begun = None if build_id in but or is_finished(folder, build_id) else read_begun(folder, build_id)
        if begun is not None and begun.boot != boot_id() and (beat_ns := read_beat(folder.builds_fd, build_id + BEGUN)):
            found[build_id] = beat_ns
    return found


def has_writer(folder: CacheFolder) -> bool:
    """Say whether somebody is at work on this cache: by the lock as it is seen from here, or by a sign of life."""
    return is_locked(folder.fd, LOCK, by_readers=False) or any(
        is_fresh(folder, beat_ns) for beat_ns in beats_elsewhere(folder).values()
    )


def list_builds(folder: CacheFolder) -> list[BuildInfo]:
    """List all builds of a cache, the newest first, refused ones last.

    A state is never guessed from a name: whole means that there is a manifest and that its own digest fits. What others have
    put among the builds is listed as damaged, for a person to look at.
    """
    active = None
    with contextlib.suppress(StoreError):
        active = read_current(folder)
    writing = {build_id for build_id, beat_ns in beats_elsewhere(folder).items() if is_fresh(folder, beat_ns)}
    found = [_describe(folder, build_id, active, build_id in writing) for build_id in build_ids(folder)]
    others = [name for name in os.listdir(folder.builds_fd) if not (name.startswith(".") or _OURS.fullmatch(name))]
    found += [BuildInfo(name, "damaged", folder.build_path(name), note=_OTHERS) for name in sorted(others)]
    return sorted(found, key=lambda build: build.state == "quarantined")


def _describe(folder: CacheFolder, build_id: str, active: str | None, writing: bool) -> BuildInfo:
    path, is_directory, fd = folder.build_path(build_id), False, folder.builds_fd
    with contextlib.suppress(OSError):
        is_directory = stat.S_ISDIR(os.stat(build_id, dir_fd=fd, follow_symlinks=False).st_mode)
    bad, begun = read_bad(folder, build_id), read_begun(folder, build_id)
    # The lock of a host that is gone may stay: of a writer elsewhere only its signs of life count.
    is_here = begun is None or begun.boot in ("", boot_id())
    has_manifest = exists(fd, build_id + MANIFEST)
    build = BuildInfo(build_id, "abandoned", path, note=bad.sentence() if bad is not None else "")
    if begun is not None:
        build = replace(build, key=begun.key or None, left_ns=0 if build_id == active else begun.left_ns)
    if bad is not None and bad.status != "refused":
        build = replace(build, status=bad.status, why=bad.why, since=bad.at)
    if has_manifest and (exists(fd, build_id) or build_id == active):
        try:
            with open_build(folder, build_id):
                manifest = read_manifest(folder, build_id)
        except StoreError as error:
            return replace(build, state="damaged", note="; ".join(filter(None, [error.message, build.note])))
        return replace(
            build,
            state="active" if build_id == active else "damaged" if build.status == "damaged" else "published",
            key=manifest.key, total_bytes=manifest.total_bytes, total_files=manifest.total_files,
            finished_at=manifest.finished_at, pinned=is_locked(fd, build_id + MANIFEST, by_readers=True),
        )  # fmt: skip
    state, note = "abandoned", "left by a run that ended; a retry may resume it"
    if build_id == active:
        state, note = "damaged", "active and not whole: roll back, or generate again with --force"
    elif bad is not None and bad.status == "refused" and is_directory:
        state, note = "quarantined", f"see {path}{BAD}"
    elif begun is None and bad is None and not has_manifest:
        state, note = "damaged", _OTHERS
    elif writing or (is_here and is_locked(fd, build_id + BEGUN, by_readers=False)):
        state, note = "staging", "is being written"
    elif not is_directory:
        note = "no directory stands in its place"
    return replace(build, state=state, note=note)
