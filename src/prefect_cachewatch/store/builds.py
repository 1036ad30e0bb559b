"""The builds of one cache: their states, who is writing one, their manifests, and pins that keep them from clean-up."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.files import exists, read_small_file
from prefect_cachewatch.store.folder import LOCK, CacheFolder, open_build, read_current
from prefect_cachewatch.store.locks import boot_id, is_locked, read_note
from prefect_cachewatch.store.manifest import Manifest, decode_manifest
from prefect_cachewatch.store.names import BUILD_ID
from prefect_cachewatch.store.records import (
    BAD,
    BEAT_S,
    BEGUN,
    MANIFEST,
    Begun,
    beat_age_s,
    read_bad,
    read_beat_ns,
    read_begun,
)
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
    def age(self) -> tuple[datetime, str]:
        """What builds are sorted by: when they were finished, and their ids."""
        try:
            finished = datetime.fromisoformat(self.finished_at or "")
            return finished if finished.tzinfo else finished.replace(tzinfo=UTC), self.build_id
        except ValueError:
            return datetime.fromtimestamp(0, UTC), self.build_id


def newest(builds: Iterable[BuildInfo]) -> BuildInfo | None:
    """Return the build that was finished last; None of none."""
    return max(builds, key=lambda build: build.age, default=None)


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


def has_writer(folder: CacheFolder) -> bool:
    """Say whether a publisher whose lock is seen from here is at work on this cache."""
    return is_locked(folder.fd, LOCK, by_readers=False)


def beats_elsewhere(folder: CacheFolder, build_id: str, begun: Begun) -> bool:
    """Say whether a writer on another host shows that it lives; its lock may not be seen from here."""
    if begun.boot == boot_id():
        return False
    try:
        return beat_age_s(folder, build_id) < 2 * BEAT_S
    except (FileNotFoundError, StoreError):
        return False  # gone meanwhile, or no record
    except OSError:
        return True  # two writers at once would be worse


def find_silent(folder: CacheFolder, but: Collection[str] = ()) -> dict[str, int]:
    """Find builds whose writer on another host is silent but has not said that it ended: their last signs."""
    found: dict[str, int] = {}
    for build_id in build_ids(folder):
        begun = read_begun(folder, build_id)
        if build_id in but or begun is None or begun.boot == boot_id() or is_finished(folder, build_id):
            continue
        with contextlib.suppress(OSError, StoreError):
            if (beat_ns := read_beat_ns(folder, build_id)) and not 0 <= beat_age_s(folder, build_id) < 2 * BEAT_S:
                found[build_id] = beat_ns
    return found


def find_foreign_writer(folder: CacheFolder, but: Collection[str] = ()) -> tuple[str, Begun] | None:
    """Find a build that a writer on another host is at; those of `but` are left out."""
    for build_id in build_ids(folder):
        begun = read_begun(folder, build_id)
        if (
            build_id not in but
            and begun is not None
            and not is_finished(folder, build_id)
            and beats_elsewhere(folder, build_id, begun)
        ):
            return build_id, begun
    return None


def is_finished(folder: CacheFolder, build_id: str) -> bool:
    """Say whether a build is published, or refused."""
    return exists(folder.builds_fd, build_id + MANIFEST) or exists(folder.builds_fd, build_id + BAD)


def build_ids(folder: CacheFolder) -> list[str]:
    """List the ids of all builds of which something is there, the newest first."""
    return sorted(
        {found["id"] for name in os.listdir(folder.builds_fd) if (found := _OURS.fullmatch(name))}, reverse=True
    )


def list_builds(folder: CacheFolder) -> list[BuildInfo]:
    """List all builds of a cache, the newest first, refused ones last.

    A state is never guessed from a name: whole means that there is a manifest and that its own digest fits. What others have
    put among the builds is listed as damaged, for a person to look at.
    """
    try:
        active = read_current(folder)
    except StoreError:
        active = None
    # A live writer that has not told yet which build it writes may be at any.
    held, writing = has_writer(folder), read_note(folder.fd, LOCK).get("build")
    found = [
        _describe(folder, build_id, active, writing=held and writing in (None, build_id))
        for build_id in build_ids(folder)
    ]
    others = [name for name in os.listdir(folder.builds_fd) if not (name.startswith(".") or _OURS.fullmatch(name))]
    found += [BuildInfo(name, "damaged", folder.build_path(name), note=_OTHERS) for name in sorted(others)]
    return sorted(found, key=lambda build: build.state == "quarantined")


_OTHERS = "has no manifest, and no run of this store began it: move it away"


def _describe(folder: CacheFolder, build_id: str, active: str | None, *, writing: bool) -> BuildInfo:
    path, is_directory = folder.build_path(build_id), _is_directory(folder, build_id)
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
    if writing or (begun is not None and beats_elsewhere(folder, build_id, begun)):
        return replace(build, state="staging", note="is being written")
    left = "left by a run that ended; a retry may resume it" if is_directory else "no directory stands in its place"
    return replace(build, note=left)


def _is_directory(folder: CacheFolder, build_id: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(os.stat(build_id, dir_fd=folder.builds_fd, follow_symlinks=False).st_mode)
    return False
