"""The builds of one cache: their state, their manifests, and pins that keep them from clean-up.

It only reads, except for the record of build statuses; `staging`, `activation` and `collection` change builds.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.durable import read_note, read_small_file
from prefect_cachewatch.publish.layout import BUILDS, CacheFolder, open_subdirectory, read_current
from prefect_cachewatch.publish.locks import HeldLock, hold_shared, is_locked
from prefect_cachewatch.publish.manifest import Manifest, decode_manifest
from prefect_cachewatch.publish.names import META_DIRECTORY, check_build_id
from prefect_cachewatch.publish.statuses import BuildStatus, read_statuses
from prefect_cachewatch.publish.verification import Verdict, verify_files

MANIFEST = "manifest.json"
PIN = "pin"
# Names the builds that were begun and not finished. The contents of such a build prove nothing: a generator wrote all
# of it.
UNFINISHED = ".unfinished.json"
QUARANTINE_RECORD = "quarantine.json"
# 100,000 files with long names take some 30 MB.
_MAX_MANIFEST_BYTES = 1 << 30


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

    @property
    def in_order(self) -> bool:
        """Whether it is published, whole as far as is known, and has no status against it."""
        return self.state in ("active", "published") and self.status is None


@contextlib.contextmanager
def open_build(folder: CacheFolder, build_id: str) -> Iterator[int]:
    """Open a build's directory.

    Args:
        folder: the open cache.
        build_id: which build.

    Yields:
        Its descriptor.

    Raises:
        StoreError: there is none, or there is a link in its place.
    """
    check_build_id(build_id)
    try:
        os.stat(build_id, dir_fd=folder.builds_fd, follow_symlinks=False)
    except FileNotFoundError:
        raise StoreError(
            f"there is no build {build_id} of '{for_terminal(folder.name)}': see cachewatch store list",
            path=folder.build_path(build_id),
        ) from None
    with open_subdirectory(folder.builds_fd, build_id, folder.build_path(build_id)) as fd:
        if os.fstat(fd).st_dev != os.fstat(folder.fd).st_dev:
            raise StoreError(f"{folder.build_path(build_id)} lies on another file system than the store: unmount it")
        yield fd


def read_manifest(build_fd: int, path: str) -> Manifest:
    """Read and check a build's manifest.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the build, for messages.

    Returns:
        The manifest.

    Raises:
        BuildDamaged: there is none, or it was cut or edited.
        StoreError: there is a link in its place.
    """
    where = f"{path}/{META_DIRECTORY}/{MANIFEST}"
    try:
        meta_fd = os.open(META_DIRECTORY, OPEN_DIRECTORY, dir_fd=build_fd)
    except OSError:
        raise BuildDamaged(f"there is no manifest {where}: the build was never finished", path=where) from None
    try:
        data = read_small_file(meta_fd, MANIFEST, _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise BuildDamaged(f"there is no manifest {where}: the build was never finished", path=where) from None
    except OSError as error:
        raise StoreError(f"cannot read {where}: {os.strerror(error.errno or 0)}", path=where) from None
    finally:
        os.close(meta_fd)
    return decode_manifest(data, where)


def read_own_manifest(folder: CacheFolder, build_id: str, build_fd: int) -> Manifest:
    """Read a build's manifest and refuse one that was copied from another build.

    Args:
        folder: the open cache.
        build_id: which build.
        build_fd: descriptor of its directory.

    Returns:
        The manifest.

    Raises:
        BuildDamaged: there is none, it was cut or edited, or it belongs to another build.
    """
    path = folder.build_path(build_id)
    manifest = read_manifest(build_fd, path)
    if manifest.build_id != build_id or manifest.name != folder.name:
        raise BuildDamaged(
            f"the manifest of {for_terminal(path, 1000)} is that of '{for_terminal(manifest.name)}' "
            f"{for_terminal(manifest.build_id)}: the build cannot be trusted",
            path=path,
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
        manifest = read_own_manifest(folder, build_id, fd)
        since_ns = None
        if depth == "changed":
            since_ns = os.stat(f"{META_DIRECTORY}/{MANIFEST}", dir_fd=fd, follow_symlinks=False).st_ctime_ns
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


def pin_build(build_fd: int) -> HeldLock:
    """Keep a build from clean-up for as long as the lock is held.

    Raises:
        StoreBusy: it is being removed.
        StoreError: it has no pin file, so it was never published.
    """
    try:
        with open_subdirectory(build_fd, META_DIRECTORY, META_DIRECTORY) as meta_fd:
            return hold_shared(meta_fd, PIN)
    except FileNotFoundError:
        raise StoreError(f"the build has no {META_DIRECTORY}/{PIN} file: it was never published") from None


def is_pinned(build_fd: int) -> bool:
    """Say whether a reader holds a build."""
    try:
        with open_subdirectory(build_fd, META_DIRECTORY, META_DIRECTORY) as meta_fd:
            return is_locked(meta_fd, PIN, by_readers=True)
    except StoreError:
        return False


def list_builds(folder: CacheFolder, writing: str | None) -> list[BuildInfo]:
    """List all builds of a cache, the newest first, refused ones last.

    Args:
        folder: the open cache.
        writing: id of the staging build that a live publisher is writing, if any.

    Returns:
        The builds. A state is never guessed from a name: whole means that there is a manifest and that its own digest
        fits.
    """
    try:
        active = read_current(folder)
    except StoreError:
        active = None
    unfinished = read_unfinished(folder)
    statuses = read_statuses(folder)
    found = []
    for name in _build_names(folder.builds_fd):
        build = _describe(folder, name, active, writing, name in unfinished)
        found.append(_with_status(build, statuses[name]) if name in statuses else build)
    for name in quarantined_builds(folder):
        path = folder.quarantine_path(name)
        found.append(BuildInfo(name, "quarantined", path, note=f"see {path}/{META_DIRECTORY}/quarantine.json"))
    return found


def quarantined_builds(folder: CacheFolder) -> list[str]:
    """List the refused builds, the newest first; entries of other programs are left out."""
    found = []
    for name in _build_names(folder.quarantine_fd):
        # The record was written before the build was moved here.
        with contextlib.suppress(StoreError, OSError):
            os.stat(f"{check_build_id(name)}/{META_DIRECTORY}/{QUARANTINE_RECORD}", dir_fd=folder.quarantine_fd)
            found.append(name)
    return found


def _build_names(directory_fd: int) -> list[str]:
    names = [name for name in os.listdir(directory_fd) if not name.startswith(".")]
    return sorted(names, reverse=True)


def read_unfinished(folder: CacheFolder) -> frozenset[str]:
    """Read from the store's own record which builds were begun and not finished.

    Args:
        folder: the open cache.

    Returns:
        Ids; none if the record is missing or was cut: then what has no manifest may be somebody else's, and stays.
    """
    return read_note(folder.fd, UNFINISHED, 1 << 20, _decode_unfinished) or frozenset()


def _decode_unfinished(body: Any) -> frozenset[str]:
    return frozenset(check_build_id(str(build_id)) for build_id in body["builds"])


def has_own_manifest(folder: CacheFolder, build_id: str, build_fd: int) -> bool:
    """Say whether a build was published: its manifest is whole, and not a copy of another build's.

    Args:
        folder: the open cache.
        build_id: which build.
        build_fd: descriptor of its directory.

    Returns:
        True if so.
    """
    try:
        read_own_manifest(folder, build_id, build_fd)
    except StoreError:
        return False
    return True


def _with_status(build: BuildInfo, known: BuildStatus) -> BuildInfo:
    # A person has to look at a build that is known to be damaged, as at one whose manifest was cut.
    damaged = known.status == "damaged" and build.state == "published"
    note = "; ".join(filter(None, [build.note, known.sentence()]))
    state = "damaged" if damaged else build.state
    return replace(build, state=state, note=note, status=known.status, why=known.why, since=known.at)


def _describe(folder: CacheFolder, name: str, active: str | None, writing: str | None, unfinished: bool) -> BuildInfo:
    path = f"{folder.path}/{BUILDS}/{name}"
    state = "staging" if name == writing else "abandoned"
    if unfinished and name != active and not _is_directory(folder.builds_fd, name):
        note = "no directory stands in its place: the generator replaced it"
        return BuildInfo(name, state, path, note=note)
    try:
        with open_build(folder, name) as fd:
            # A generator that starts from a copy of the last build copies its manifest too.
            foreign = unfinished and name != active and not has_own_manifest(folder, name, fd)
            if name == writing or foreign or not _has_manifest(fd):
                note = "is being written" if name == writing else "left by a run that ended; a retry may resume it"
                if name == active:
                    state, note = (
                        "damaged",
                        "active without a manifest: roll back, or generate again with --force",
                    )
                elif not unfinished and name != writing:
                    state, note = "damaged", "has no manifest, and no run of this store began it: move it away"
                return BuildInfo(name, state, path, note=note)
            manifest = read_own_manifest(folder, name, fd)
            return BuildInfo(
                name,
                "active" if name == active else "published",
                path,
                manifest.key,
                manifest.total_bytes,
                manifest.total_files,
                manifest.finished_at,
                is_pinned(fd),
            )
    except StoreError as error:
        return BuildInfo(name, "damaged", path, note=error.message)


def _is_directory(directory_fd: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)
    except OSError:
        return True  # gone, or not accessible: the next open reports the error


def _has_manifest(build_fd: int) -> bool:
    try:
        os.stat(f"{META_DIRECTORY}/{MANIFEST}", dir_fd=build_fd, follow_symlinks=False)
    except OSError:
        return False
    return True
