"""The builds of one cache: their states, their manifests, and who is writing one."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.files import exists, read_small_file
from prefect_cachewatch.store.folder import LOCK, CacheFolder, open_build, read_current
from prefect_cachewatch.store.locks import boot_id, is_locked
from prefect_cachewatch.store.manifest import Manifest, decode_manifest
from prefect_cachewatch.store.names import BUILD_ID
from prefect_cachewatch.store.records import BAD, BEGUN, MANIFEST, is_fresh, read_bad, read_beat, read_begun
from prefect_cachewatch.store.verification import Verdict, verify_files

# 100,000 files with long names take some 30 MB.
_MAX_MANIFEST_BYTES = 1 << 30
_OURS = re.compile(rf"(?P<id>{BUILD_ID.pattern})(?:{re.escape(BEGUN)}|{re.escape(MANIFEST)}|{re.escape(BAD)})?")


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
    #: Whether it was current once, and another build was made current since.
    was_current: bool = False

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


def earlier_builds(builds: Iterable[BuildInfo], current: str | None) -> list[BuildInfo]:
    """List the targets of a roll-back, first choice first: what was current before the current build, by age."""
    builds = list(builds)
    # Where its manifest was cut, only its id tells how old the current build is.
    ages = [build.age for build in builds if build.build_id == current and build.finished_at]
    found = [
        build
        for build in builds
        if build.was_current and (build.age < ages[0] if ages else build.build_id < (current or ""))
    ]
    return sorted(found, key=lambda build: build.age, reverse=True)


def read_manifest(folder: CacheFolder, build_id: str) -> Manifest:
    """Read a build's manifest and refuse one that was copied from another build.

    Raises:
        BuildDamaged: there is none, it was cut or edited, or it belongs to another build.
        StoreError: there is a link in its place, or it cannot be read.
    """
    where = folder.build_path(build_id) + MANIFEST
    shown = for_terminal(where, 1000)
    try:
        data = read_small_file(folder.builds_fd, build_id + MANIFEST, _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise BuildDamaged(f"there is no manifest {shown}: the build was never finished", path=where) from None
    except OSError as error:
        raise StoreError(f"cannot read {shown}: {os.strerror(error.errno or 0)}", path=where) from None
    manifest = decode_manifest(data, where)
    if manifest.build_id != build_id or manifest.name != folder.name:
        raise BuildDamaged(
            f"the manifest {shown} is that of '{for_terminal(manifest.name)}' {for_terminal(manifest.build_id)}: "
            "the build cannot be trusted",
            path=folder.build_path(build_id),
        )
    return manifest


def require_whole(folder: CacheFolder, build_id: str, depth: str = "quick") -> tuple[Manifest, Verdict]:
    """Verify a build and refuse it unless it is whole.

    Args:
        folder: the open cache.
        build_id: which build.
        depth: quick: names and sizes; changed: also every byte of files that changed since publication; full: every
            byte.

    Returns:
        Its manifest and the verdict.

    Raises:
        BuildDamaged: it is not whole; the error has the differences.
    """
    with open_build(folder, build_id) as fd:
        manifest = read_manifest(folder, build_id)
        since_ns = None
        if depth == "changed":
            since_ns = os.stat(build_id + MANIFEST, dir_fd=folder.builds_fd, follow_symlinks=False).st_ctime_ns
        verdict = verify_files(fd, manifest, "full" if depth == "full" else "quick", changed_since_ns=since_ns)
    if not verdict.whole:
        raise BuildDamaged(
            f"the build {build_id} of '{for_terminal(folder.name)}' is {verdict.summary()}; "
            "roll back, or generate it again with --force",
            path=folder.build_path(build_id),
            problems=[problem.message for problem in verdict.problems[:100]],
            kinds=sorted({problem.kind for problem in verdict.problems}),
        )
    return manifest, verdict


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


def is_finished(folder: CacheFolder, build_id: str) -> bool:
    """Say whether a build is published, or refused."""
    return exists(folder.builds_fd, build_id + MANIFEST) or exists(folder.builds_fd, build_id + BAD)


def build_ids(folder: CacheFolder) -> list[str]:
    """List the ids of all builds of which something is there, the newest first."""
    return sorted(
        {found["id"] for name in os.listdir(folder.builds_fd) if (found := _OURS.fullmatch(name))}, reverse=True
    )


_OTHERS = "has no manifest, and no run of this store began it: move it away"


def list_builds(folder: CacheFolder) -> list[BuildInfo]:
    """List all builds of a cache, the newest first, refused ones last.

    A state is never guessed from a name: whole means that there is a manifest and that its own digest fits. What others have
    put among the builds is listed as damaged, for a person to look at.
    """
    try:
        active = read_current(folder)
    except StoreError:
        active = None
    writing = {build_id for build_id, beat_ns in beats_elsewhere(folder).items() if is_fresh(folder, beat_ns)}
    found = [_describe(folder, build_id, active, build_id in writing) for build_id in build_ids(folder)]
    others = [name for name in os.listdir(folder.builds_fd) if not (name.startswith(".") or _OURS.fullmatch(name))]
    found += [BuildInfo(name, "damaged", folder.build_path(name), note=_OTHERS) for name in sorted(others)]
    return sorted(found, key=lambda build: build.state == "quarantined")


def _describe(folder: CacheFolder, build_id: str, active: str | None, writing: bool) -> BuildInfo:
    path, is_directory = folder.build_path(build_id), False
    with contextlib.suppress(OSError):
        is_directory = stat.S_ISDIR(os.stat(build_id, dir_fd=folder.builds_fd, follow_symlinks=False).st_mode)
    bad, begun = read_bad(folder, build_id), read_begun(folder, build_id)
    has_manifest = exists(folder.builds_fd, build_id + MANIFEST)
    build = BuildInfo(build_id, "abandoned", path, note=bad.sentence() if bad is not None else "")
    if begun is not None:
        build = replace(build, key=begun.key or None, was_current=begun.was_current and build_id != active)
    if bad is not None and bad.status != "refused":
        build = replace(build, status=bad.status, why=bad.why, since=bad.at)
    if has_manifest and (exists(folder.builds_fd, build_id) or build_id == active):
        try:
            with open_build(folder, build_id):
                manifest = read_manifest(folder, build_id)
        except StoreError as error:
            return replace(build, state="damaged", note="; ".join(filter(None, [error.message, build.note])))
        return replace(
            build,
            state="active" if build_id == active else "damaged" if build.status == "damaged" else "published",
            key=manifest.key, total_bytes=manifest.total_bytes, total_files=manifest.total_files,
            finished_at=manifest.finished_at, pinned=is_locked(folder.builds_fd, build_id + MANIFEST, by_readers=True),
        )  # fmt: skip
    if build_id == active:
        return replace(build, state="damaged", note="active and not whole: roll back, or generate again with --force")
    if bad is not None and bad.status == "refused" and is_directory:
        return replace(build, state="quarantined", note=f"see {path}{BAD}")
    if begun is None and bad is None and not has_manifest:
        return replace(build, state="damaged", note=_OTHERS)
    if writing or is_locked(folder.builds_fd, build_id + BEGUN, by_readers=False):
        return replace(build, state="staging", note="is being written")
    left = "left by a run that ended; a retry may resume it" if is_directory else "no directory stands in its place"
    return replace(build, note=left)
