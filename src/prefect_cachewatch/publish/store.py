"""The cache store: one object that publishers, readers and operators use.

    ROOT/NAME/builds/BUILD-ID/    staging and finished builds
    ROOT/NAME/current             the active one
    ROOT/NAME/quarantine/         builds that the checks refused

Every method opens the cache again, and afterwards holds only what it returns.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreBusy, StoreError
from prefect_cachewatch.publish.activation import (
    Activation,
    activate_build,
    note_damage,
    read_history,
    roll_back,
    verify_build,
)
from prefect_cachewatch.publish.builds import (
    BuildInfo,
    has_own_manifest,
    list_builds,
    open_build,
    pin_build,
    read_own_manifest,
)
from prefect_cachewatch.publish.collection import Collected, collect_builds, prune_quarantine
from prefect_cachewatch.publish.contents import inspect_build
from prefect_cachewatch.publish.durable import read_note, refusing, remove_leftovers, sync_directory, write_durably
from prefect_cachewatch.publish.formats import Finding
from prefect_cachewatch.publish.layout import (
    CURRENT,
    CacheFolder,
    check_root,
    has_writer,
    hold_switch,
    hold_writer,
    open_folder,
    read_current,
)
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.names import check_build_id, make_build_id
from prefect_cachewatch.publish.staging import (
    STAGING_RECORD,
    note_unfinished,
    read_free_space,
    require_space,
)
from prefect_cachewatch.publish.statuses import read_statuses
from prefect_cachewatch.publish.target import BuildRecipe, StagedBuild
from prefect_cachewatch.publish.verification import Problem, Verdict, compare_manifests

_SPACE_FACTOR = 1.1
_RESOLVE_TRIES = 100


@dataclass
class PinnedBuild(Closing):
    """The active build as a reader holds it: it stays on disk until `close`, even if another one is activated."""

    build_id: str
    path: str
    manifest: Manifest
    _lock: HeldLock
    #: What is known against the build, in one sentence; None if nothing is. It stays current until another one is made.
    warning: str | None = None

    def fileno(self) -> int:
        """Return the descriptor that pins the build; a child that inherits it (`pass_fds`) pins it too."""
        return self._lock.fileno()

    def close(self) -> None:
        """Release the build."""
        self._lock.release()


class CacheStore:
    """A directory of named caches; each has whole builds, one of which is current.

    Args:
        root: an existing directory on a local disk or NFS.

    Raises:
        StoreError: it cannot be a store.

    Example:
        >>> import tempfile
        >>> CacheStore(tempfile.mkdtemp()).names()
        []
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = check_root(root)

    def names(self) -> list[str]:
        """List the caches of the store."""
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and (self.root / entry.name / "builds").is_dir()
            )

    def current_path(self, name: str) -> str:
        """The path for plain readers: the link that is switched in one step."""
        return f"{self.root}/{name}/{CURRENT}"

    def active_id(self, name: str) -> str:
        """Return the id of the current build.

        Raises:
            StoreError: nothing was ever activated, or the store was tampered with.
        """
        with open_folder(self.root, name) as folder:
            return _active(folder)

    def begin(
        self,
        name: str,
        recipe: BuildRecipe,
        *,
        adopt: bool = True,
        now: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> StagedBuild:
        """Become the one publisher of a cache and return a directory to write to.

        Args:
            name: the cache; created if it is new.
            recipe: the inputs of the build.
            adopt: continue the staging build of the same key that a killed publisher left. Then `adopted` is set, and
                `prepare_resume` must be called before the generator starts.
            now: wall seconds.
            entropy: random bytes.

        Returns:
            The staging build; use it in a `with` block.

        Raises:
            StoreBusy: another publisher is at work on this cache; the message says which one.
            StoreError: the store cannot be used.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, create=True))
            with refusing("begin a build in", folder.path):
                lock = stack.enter_context(hold_writer(folder, f"publish '{for_terminal(name)}'"))
                with hold_switch(folder, "begin a build"):
                    for fd in (folder.fd, folder.builds_fd, folder.quarantine_fd):
                        # An entry that cannot be removed has lost its name and blocks nothing; clean-up reports it.
                        with contextlib.suppress(StoreError):
                            remove_leftovers(fd)
                    build_id, started_s = _find_abandoned(folder, recipe.key) if adopt else (None, 0.0)
                    adopted = build_id is not None
                    if build_id is None:
                        started_s = now()
                        build_id = make_build_id(started_s, entropy(4))
                        # Before the directory exists, which could otherwise be taken for a foreign build.
                        note_unfinished(folder, build_id)
                        os.mkdir(build_id, 0o755, dir_fd=folder.builds_fd)
                        sync_directory(folder.builds_fd)
                        record = {
                            "schema_version": 1,
                            "build_id": build_id,
                            "key": recipe.key,
                            "started_s": started_s,
                        }
                        write_durably(folder.fd, STAGING_RECORD, json.dumps(record).encode("ascii") + b"\n")
            last = _last_published(folder)
            return StagedBuild(
                folder,
                stack.pop_all(),
                lock,
                build_id,
                recipe,
                adopted=adopted,
                started_s=started_s,
                last_bytes=last.total_bytes if last else None,
            )

    def find_whole(self, name: str, key: str) -> tuple[BuildInfo, Manifest] | None:
        """Find a build of this key that is whole by names and sizes, so that no generation is needed.

        It takes the current build, else the newest one that was published and never current: its publisher died before
        the switch, or was told not to switch. A former current build is not taken, since it is old or was rolled back
        from; nor is one that was found damaged or unhealthy. Damage that is found here is recorded.

        Args:
            name: the cache; it need not exist.
            key: `BuildRecipe.key`.

        Returns:
            The build and its manifest, or None.

        Raises:
            StoreError: the store was tampered with.
        """
        if not (self.root / name).is_dir():
            return None
        try:
            with open_folder(self.root, name) as folder:
                current = read_current(folder)
                history = read_history(folder)
                used = {*history.entries, *dict(history.released)} - {current}
                builds = [build for build in list_builds(folder, _writing(folder)) if build.key == key]
                for build in sorted(builds, key=lambda build: build.state != "active"):
                    if build.in_order and build.build_id not in used:
                        with contextlib.suppress(BuildDamaged):
                            return build, verify_build(folder, build.build_id, "quick")[0]
        except BuildDamaged:
            pass
        return None

    def list_builds(self, name: str) -> list[BuildInfo]:
        """List the builds of a cache, newest first, refused ones last."""
        with open_folder(self.root, name) as folder:
            return list_builds(folder, _writing(folder))

    def verify(self, name: str, build_id: str | None = None, *, depth: Literal["quick", "full"] = "full") -> Verdict:
        """Verify one build against its manifest.

        Args:
            name: the cache.
            build_id: which build; default the active one.
            depth: quick for names and sizes, full for every digest.

        Returns:
            The verdict, which says that it is whole.

        Raises:
            BuildDamaged: it is not whole; the error has the differences. This is recorded, and the build is not used
                again.
            StoreError: there is no such build.
        """
        with open_folder(self.root, name) as folder:
            return verify_build(folder, build_id or _active(folder), depth)[1]

    def inspect(
        self, name: str, build_id: str | None = None, *, problems: list[str] | None = None
    ) -> list[tuple[str, Finding]]:
        """Inspect the files of one build, each by its format: whether its sizes and offsets can be right.

        It finds a file that was published with wrong content, which agrees with its manifest. A build with a broken file
        is recorded as damaged.

        Args:
            name: the cache.
            build_id: which build; default the active one.
            problems: gets the reason if a broken file could not be recorded.

        Returns:
            Path and finding of each file, in order of path; a format that is not known is no fault.

        Raises:
            BuildDamaged: the manifest was cut or edited.
            StoreError: there is no such build, or a file of it cannot be read.
        """
        with open_folder(self.root, name) as folder:
            build_id = build_id or _active(folder)
            with open_build(folder, build_id) as fd:
                manifest = read_own_manifest(folder, build_id, fd)
                empty = [glob.escape(file.path) for file in manifest.files if not file.size_bytes]
                found = inspect_build(fd, manifest.ignore, empty)
            broken = [f"{path} {finding.message}" for path, finding in found if finding.verdict == "broken"]
            if broken:
                try:
                    note_damage(folder, build_id, BuildDamaged(broken[0], problems=broken))
                except StoreError as error:
                    if problems is not None:
                        problems.append(error.message)
            return found

    def compare(self, name: str, build_id: str | None, against: str) -> list[Problem]:
        """Compare what the manifests of two builds list; no file is read.

        Args:
            name: the cache.
            build_id: which build; None for the active one.
            against: the other one.

        Returns:
            How the build differs from the other one, in order of path.

        Raises:
            BuildDamaged: one was never published, or its manifest was cut or edited.
            StoreError: there is no such build.
        """
        return compare_manifests(self.manifest(name, build_id), self.manifest(name, against))

    def manifest(self, name: str, build_id: str | None = None) -> Manifest:
        """Read the manifest of one build; raises as `verify` does.

        Args:
            name: the cache.
            build_id: which build; default the active one.
        """
        with open_folder(self.root, name) as folder:
            build_id = build_id or _active(folder)
            with open_build(folder, build_id) as fd:
                return read_own_manifest(folder, build_id, fd)

    def activate(
        self, name: str, build_id: str | None = None, *, verify: Literal["quick", "full"] = "quick"
    ) -> Activation:
        """Make a whole build current; see `activation.activate_build`.

        Args:
            name: the cache.
            build_id: which build, also one that was damaged, unhealthy or rolled back from, if it is whole; default the
                last published one that was none of these, and the result names those that it passes over.
            verify: depth of the verification before the switch.
        """
        with open_folder(self.root, name, change=True) as folder:
            skipped: list[str] = []
            if build_id is None:
                builds = list_builds(folder, _writing(folder))
                last = _newest(build for build in builds if build.in_order)
                passed = [build for build in builds if build.status and (last is None or _age(build) > _age(last))]
                skipped = [f"the build {build.build_id} was {build.note}" for build in passed]
                if last is None:
                    why = f" in order ({'; '.join(skipped)}): name one, or" if skipped else ":"
                    raise StoreError(f"'{for_terminal(name)}' has no published build{why} generate one first")
                build_id = last.build_id
            done = activate_build(folder, check_build_id(build_id), verify=verify)
            return replace(done, skipped=tuple(skipped))

    def rollback(
        self,
        name: str,
        *,
        verify: Literal["quick", "full"] = "quick",
        expected: str | None = None,
        unhealthy: str | None = None,
    ) -> Activation:
        """Make the previous build current again; see `activation.roll_back`."""
        with open_folder(self.root, name, change=True) as folder:
            return roll_back(folder, verify=verify, expected=expected, unhealthy=unhealthy)

    def gc(
        self,
        name: str,
        *,
        keep: int = 3,
        keep_quarantined: int = 3,
        grace_s: float = 3600,
        dry_run: bool = False,
        now: Callable[[], float] = time.time,
    ) -> Collected:
        """Remove surplus builds; see `collection.collect_builds`."""
        if keep < 1:
            raise StoreError("--keep must be at least 1: the active build always stays")
        with open_folder(self.root, name, change=True) as folder:
            return collect_builds(
                folder,
                lambda: _writing(folder),
                keep=keep,
                keep_quarantined=keep_quarantined,
                grace_s=grace_s,
                dry_run=dry_run,
                now=now,
            )

    def prune_quarantine(self, name: str, *, keep: int = 3) -> list[str]:
        """Remove the oldest refused builds; see `collection.prune_quarantine`."""
        with open_folder(self.root, name, change=True) as folder:
            return prune_quarantine(folder, keep=keep)

    def open_current(self, name: str) -> PinnedBuild:
        """Open the active build for reading: it stays on disk until it is closed or the process ends.

        Args:
            name: the cache.

        Returns:
            The build; use its `path` and not `current`, which may be switched meanwhile.

        Raises:
            StoreError: nothing was ever activated, or the store was tampered with.
            BuildDamaged: its manifest was cut or edited.
        """
        with open_folder(self.root, name) as folder:
            for _ in range(_RESOLVE_TRIES):
                build_id = _active(folder)
                try:
                    with open_build(folder, build_id) as fd:
                        manifest = read_own_manifest(folder, build_id, fd)
                        lock = pin_build(fd)
                        # Clean-up may have moved it between reading the link and pinning; then another build is
                        # current.
                        if _is_at(folder, build_id, fd):
                            warning = _known_against(folder, build_id)
                            return PinnedBuild(build_id, folder.build_path(build_id), manifest, lock, warning)
                        lock.release()
                except StoreBusy:
                    continue
                except StoreError:
                    if _active(folder) == build_id:
                        raise
            raise StoreBusy(f"'{for_terminal(name)}' is switched faster than it can be opened: try again")

    def require_space(self, name: str, *, expected_bytes: int | None = None) -> None:
        """Refuse a generation for which there is no room, before the first byte is written.

        Args:
            name: the cache; it need not exist.
            expected_bytes: size of the build if the job gives it; default that of the last published one.

        Raises:
            NotEnoughSpace: less than 1.1 times that is free, in bytes or in inodes.
        """
        last = None
        if (self.root / name).is_dir():
            with open_folder(self.root, name) as folder:
                last = _last_published(folder)
        size = expected_bytes if expected_bytes is not None else (last.total_bytes or 0) if last else 0
        files = (last.total_files or 0) if last else 0
        why = "1.1 times what the job expects" if expected_bytes is not None else "1.1 times the last build"
        with Opened(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
            require_space(
                read_free_space(fd),
                str(self.root),
                needed_bytes=math.ceil(size * _SPACE_FACTOR),
                needed_inodes=math.ceil(files * _SPACE_FACTOR) + 8,
                why=why,
            )


def _active(folder: CacheFolder) -> str:
    build_id = read_current(folder)
    if build_id is None:
        raise StoreError(
            f"'{for_terminal(folder.name)}' has no active build: activate one with cachewatch store activate"
        )
    return build_id


def _known_against(folder: CacheFolder, build_id: str) -> str | None:
    try:
        status = read_statuses(folder).get(build_id)
    except StoreError as error:
        return error.message  # a reader goes on with what is current
    return f"the build {build_id} is {status.sentence()}" if status else None


def _is_at(folder: CacheFolder, build_id: str, build_fd: int) -> bool:
    try:
        there = os.stat(build_id, dir_fd=folder.builds_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(build_fd)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _read_staging(folder: CacheFolder) -> dict[str, Any]:
    # A record that was cut or edited only prevents a resume; no build is lost.
    return read_note(folder.fd, STAGING_RECORD, 65536, _decode_staging) or {}


def _decode_staging(record: Any) -> dict[str, Any]:
    build_id, key = check_build_id(str(record["build_id"])), str(record["key"])
    return {"build_id": build_id, "key": key, "started_s": float(record["started_s"])}


def _writing(folder: CacheFolder) -> str | None:
    return _read_staging(folder).get("build_id") if has_writer(folder) else None


def _find_abandoned(folder: CacheFolder, key: str) -> tuple[str | None, float]:
    record = _read_staging(folder)
    if record.get("key") != key:
        return None, 0.0
    try:
        with open_build(folder, record["build_id"]) as fd:
            if not has_own_manifest(folder, record["build_id"], fd):
                return record["build_id"], record["started_s"]
    except StoreError:
        pass  # gone, or not a directory any more: a new one is begun
    return None, 0.0


def _last_published(folder: CacheFolder) -> BuildInfo | None:
    return _newest(build for build in list_builds(folder, _writing(folder)) if build.state in ("active", "published"))


def _newest(builds: Iterable[BuildInfo]) -> BuildInfo | None:
    return max(builds, key=_age, default=None)


def _age(build: BuildInfo) -> tuple[datetime, str]:
    try:
        finished = datetime.fromisoformat(build.finished_at or "")
        return finished if finished.tzinfo else finished.replace(tzinfo=UTC), build.build_id
    except ValueError:
        return datetime.fromtimestamp(0, UTC), build.build_id
