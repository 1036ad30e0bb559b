"""The cache store: one object that publishers, readers and operators use.

Every method opens the cache again, and afterwards holds only what it returns.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, NotEnoughSpace, StoreBusy, StoreError
from prefect_cachewatch.store import layout
from prefect_cachewatch.store.builds import BuildInfo, has_writer, list_builds, newest
from prefect_cachewatch.store.collection import Collected, collect_builds
from prefect_cachewatch.store.contents import Inside, Rules
from prefect_cachewatch.store.formats import Content
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.layout import (
    BAD,
    BUILDS,
    CURRENT,
    MANIFEST,
    CacheFolder,
    exists,
    open_build,
    open_folder,
    read_current,
    refusing,
    require_current,
)
from prefect_cachewatch.store.locks import HeldLock, hold_shared, hold_switch
from prefect_cachewatch.store.records import Manifest, leave_current, read_bad, read_manifest, write_bad
from prefect_cachewatch.store.tree import ScannedFile, scan_build
from prefect_cachewatch.store.verify import Problem, Verdict, compare_manifests, require_whole
from prefect_cachewatch.store.writer import StagedBuild, begin_build, find_abandoned

_SPACE_FACTOR = 1.1
_RESOLVE_TRIES = 100


@dataclass(frozen=True)
class Activation:
    """A switch of `current`: from which build, to which, and which builds were passed over."""

    build_id: str
    previous: str | None
    path: str
    manifest: Manifest
    skipped: tuple[str, ...] = ()


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
        self._lock.close()


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
        self.root = layout.check_root(root)

    def names(self) -> list[str]:
        """List the caches of the store."""
        with os.scandir(self.root) as entries:
            return sorted(
                entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and self._has(entry.name)
            )

    def _has(self, name: str) -> bool:
        return os.path.isdir(self.root / name / BUILDS)  # false also where this user may not look

    def current_path(self, name: str) -> str:
        """The path for plain readers: the link that is switched in one step."""
        return f"{self.root}/{name}/{CURRENT}"

    def active_id(self, name: str) -> str:
        """Return the id of the current build; raises StoreError if nothing was ever activated."""
        with open_folder(self.root, name) as folder:
            return require_current(folder)

    # -- writing

    def begin(self, name: str, recipe: BuildRecipe, *, adopt: bool = True) -> StagedBuild:
        """Become the one publisher of a cache and return a directory to write to.

        Args:
            name: the cache; created if it is new.
            recipe: the inputs of the build.
            adopt: continue the build of the same key that a killed publisher of this host left. Then `adopted` is set, and
                `prepare_resume` must be called before the generator starts.

        Returns:
            The build; use it in a `with` block.

        Raises:
            StoreBusy: another publisher is at work on this cache; the message says which one, and `data["key"]` which key
                it writes, None if it has not told yet.
            StoreError: the store cannot be used.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, create=True))
            return begin_build(folder, stack, recipe, adopt=adopt)

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
        if not self._has(name):
            return None
        with open_folder(self.root, name) as folder:
            read_current(folder)
            builds = [
                build for build in list_builds(folder) if build.key == key and build.in_order and not build.left_ns
            ]
            for build in sorted(builds, key=lambda build: build.state != "active"):
                with contextlib.suppress(BuildDamaged):
                    return build, self._require_whole(folder, build.build_id)[0]
        return None

    def require_fit(self) -> None:
        """Refuse a file system that lacks what a store needs; raises StoreError."""
        if (lacking := layout.find_lacking(str(self.root))) is not None:
            raise StoreError(lacking, path=str(self.root))

    def require_space(self, name: str, *, expected_bytes: int | None = None, resumes: str | None = None) -> None:
        """Refuse a generation for which there is no room or no store can be, before the first byte is written.

        Where a publisher is at work, nothing is refused: what is full may be full of what is waited for.

        Args:
            name: the cache; it need not exist.
            expected_bytes: size of the build if the job gives it; default that of the last published one.
            resumes: the key of the build that a run would go on with: what is there of it is no more to be written.

        Raises:
            NotEnoughSpace: less than 1.1 times that is free.
            StoreError: the file system lacks what a store needs.
        """
        size, why, there_bytes = 0, "the last build", 0
        if self._has(name):
            with open_folder(self.root, name) as folder:
                if has_writer(folder):
                    return
                last = newest(build for build in list_builds(folder) if build.is_whole)
                size = (last.total_bytes or 0) if last else 0
                for build_id, _ in find_abandoned(folder, resumes) if resumes is not None else ():
                    with contextlib.suppress(StoreError, OSError), open_build(folder, build_id) as fd:
                        there_bytes = sum(_on_disk(fd, file) for file in scan_build(fd).files)
                    break
        self.require_fit()
        if expected_bytes is not None:
            size, why = expected_bytes, "what the job expects"
        needed = math.ceil(size * _SPACE_FACTOR)
        with refusing("look at", str(self.root)):
            there = os.statvfs(self.root)
        free = there.f_bavail * there.f_frsize
        if free + there_bytes < needed:
            raise NotEnoughSpace(
                f"{for_terminal(str(self.root), 1000)} has {format_bytes(free)} free, and {format_bytes(needed)} are needed "
                f"(1.1 times {why}): free some, for example with cachewatch store gc",
                path=str(self.root), needed_bytes=needed, free_bytes=free,
            )  # fmt: skip

    # -- looking

    def list_builds(self, name: str) -> list[BuildInfo]:
        """List the builds of a cache, newest first, refused ones last."""
        with open_folder(self.root, name) as folder:
            return list_builds(folder)

    def manifest(self, name: str, build_id: str | None = None) -> Manifest:
        """Read the manifest of one build, default the active one; raises as `verify` does."""
        with open_folder(self.root, name) as folder:
            build_id = build_id or require_current(folder)
            with open_build(folder, build_id):
                return read_manifest(folder, build_id)

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
            return self._require_whole(folder, build_id or require_current(folder), depth)[1]

    def inspect(self, name: str, build_id: str | None = None) -> list[tuple[str, Content]]:
        """Inspect the files of one build, each by its format: whether its sizes and offsets can be right.

        It finds a file that was published with wrong content, which agrees with its manifest. A build with a broken file
        is recorded as damaged.

        Args:
            name: the cache.
            build_id: which build; default the active one.

        Returns:
            Path and finding of each file, in order of path; a format that is not known is no fault.

        Raises:
            BuildDamaged: the manifest was cut or edited; or a broken file cannot be recorded.
            StoreError: there is no such build, or a file of it cannot be read.
        """
        with open_folder(self.root, name) as folder:
            build_id = build_id or require_current(folder)
            with open_build(folder, build_id) as fd:
                manifest = read_manifest(folder, build_id)
                empty = [glob.escape(file.path) for file in manifest.files if not file.size_bytes]
                found = Inside(fd, scan_build(fd), Rules(manifest.ignore, empty)).contents()
            broken = [
                f"{for_terminal(path)} {content.message}" for path, content in found if content.verdict == "broken"
            ]
            if broken:
                self._note_damage(folder, build_id, BuildDamaged(broken[0], problems=broken))
            return found

    def compare(self, name: str, build_id: str | None, against: str) -> list[Problem]:
        """Compare what the manifests of two builds list; no file is read. Raises as `verify` does.

        Args:
            name: the cache.
            build_id: which build; None for the active one.
            against: the other one.

        Returns:
            How the build differs from the other one, in order of path.
        """
        return compare_manifests(self.manifest(name, build_id), self.manifest(name, against))

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
                build_id = require_current(folder)
                # Clean-up holds this lock to remove a build: with it, what is there stays.
                with contextlib.ExitStack() as stack:
                    try:
                        lock = stack.enter_context(hold_shared(folder.builds_fd, build_id + MANIFEST))
                        with open_build(folder, build_id):
                            manifest, bad = read_manifest(folder, build_id), read_bad(folder, build_id)
                    except StoreBusy:
                        continue
                    except (StoreError, FileNotFoundError):
                        if require_current(folder) == build_id:
                            read_manifest(folder, build_id)  # tells why there is none
                            raise
                        continue
                    stack.pop_all()
                warning = f"the build {build_id} is {bad.sentence()}" if bad else None
                return PinnedBuild(build_id, folder.build_path(build_id), manifest, lock, warning)
            raise StoreBusy(f"'{for_terminal(name)}' is switched faster than it can be opened: try again")

    # -- changing what is current

    def activate(
        self,
        name: str,
        build_id: str | None = None,
        *,
        verify: Literal["quick", "full"] = "quick",
        forgive: bool = True,
        writer: StagedBuild | None = None,
    ) -> Activation:
        """Make a whole build the current one, in one step, and take back what is known against it.

        Args:
            name: the cache.
            build_id: which build, also one that was damaged, unhealthy or rolled back from, if it is whole; default the
                last published one that was none of these, and the result names those that it passes over.
            verify: quick (names, sizes, and every byte of files that changed since publication) or full, before the switch;
                a build that was found damaged before is always read in full.
            forgive: false for a run, which takes nothing back: a build is refused that something is known against.
            writer: whose build it is; refused if another process may be its writer by now.

        Returns:
            The switch.

        Raises:
            BuildDamaged: the build is not whole, which is recorded; the current one stays.
            StoreError: there is no such build, or `current` was tampered with.
            StoreBusy: another process holds the switch's lock for longer than a minute, or has judged the build meanwhile.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, change=True))
            is_named, skipped = build_id is not None, list[str]()
            if build_id is None:
                build_id, skipped = _last_in_order(folder)
            known = read_bad(folder, layout.check_build_id(build_id))
            if known is not None and not forgive:
                raise StoreError(
                    f"the build {build_id} is not activated: {known.sentence()}; generate it again, or activate it by its id"
                )
            deep = verify == "full" or (known is not None and known.status == "damaged")
            manifest = self._hold_whole(folder, stack, build_id, "full" if deep else "changed")
            stack.enter_context(hold_switch(folder, "activate a build"))
            if writer is not None:
                writer.require_writer()
            if read_bad(folder, build_id) != known or not (is_named or _last_in_order(folder)[0] == build_id):
                raise StoreBusy(
                    f"cannot activate {build_id}: another process has judged or published one meanwhile; try again"
                )
            if (previous := read_current(folder)) != build_id:
                _switch(folder, previous, build_id)
            # Last: if the process dies before this, a bad build that is not current is never taken for a good one.
            if known is not None:
                then = f"; {build_id} is active all the same"
                with refusing("clear what is known against builds of", folder.path, then):
                    layout.remove_file(folder.builds_fd, build_id + BAD)
                    layout.sync_directory(folder.builds_fd)
            return Activation(build_id, previous, folder.build_path(build_id), manifest, tuple(skipped))

    def rollback(
        self,
        name: str,
        *,
        verify: Literal["quick", "full"] = "quick",
        expected: str | None = None,
        unhealthy: str | None = None,
    ) -> Activation:
        """Make the build current again that was so before the current one; a second call goes back another step.

        The build that stops being current is recorded as rolled back, or as unhealthy.

        Args:
            name: the cache.
            verify: quick or full as in `activate`, before the switch; builds that are damaged or were unhealthy are passed
                over, and the result names them.
            expected: the build to go back from; if another one is current, another process has switched meanwhile.
            unhealthy: why the current build is not healthy; it is recorded even if no roll-back is possible.

        Returns:
            The switch.

        Raises:
            StoreError: nothing is current, or no whole build was current before; the current one stays.
        """
        with open_folder(self.root, name, change=True) as folder:
            with hold_switch(folder, "roll back"):
                current = require_current(folder)
                if unhealthy is not None:
                    write_bad(folder, expected or current, "unhealthy", unhealthy)
                _refuse_other(folder, expected or current)
            former = [build for build in list_builds(folder) if build.left_ns and build.status != "rolled_back"]
            skipped: list[str] = []
            for build in sorted(former, key=lambda build: build.left_ns, reverse=True):
                if not build.in_order:
                    skipped.append(f"the build {build.build_id} was {build.note}")
                    continue
                with contextlib.ExitStack() as stack:
                    try:
                        depth = "full" if verify == "full" else "changed"
                        manifest = self._hold_whole(folder, stack, build.build_id, depth)
                    except BuildDamaged as error:
                        skipped.append(error.message)
                        continue
                    stack.enter_context(hold_switch(folder, "roll back"))
                    _refuse_other(folder, current)
                    if (bad := read_bad(folder, build.build_id)) is not None:
                        skipped.append(f"the build {build.build_id} was {bad.sentence()}")
                        continue
                    if unhealthy is None:
                        # Before the switch: after a kill in between, the build is generated again, which costs only time.
                        with refusing("write the record of builds of", folder.path, f"; {current} stays active"):
                            write_bad(folder, current, "rolled_back", f"to {build.build_id}")
                    _switch(folder, current, build.build_id)
                    return Activation(build.build_id, current, build.path, manifest, tuple(skipped))
            why = "; ".join(skipped) if skipped else "no build was active before it"
            raise StoreError(
                f"'{for_terminal(name)}' cannot be rolled back from {current}: {why}; {current} stays active",
                current=current,
                skipped=skipped,
            )

    def _hold_whole(self, folder: CacheFolder, stack: contextlib.ExitStack, build_id: str, depth: str) -> Manifest:
        """Hold a build, so that no clean-up takes it, and read it: before the switch's lock, since that may take minutes."""
        with contextlib.suppress(FileNotFoundError):
            stack.enter_context(hold_shared(folder.builds_fd, build_id + MANIFEST))
        return self._require_whole(folder, build_id, depth)[0]

    def _require_whole(self, folder: CacheFolder, build_id: str, depth: str = "quick") -> tuple[Manifest, Verdict]:
        """Verify a build, and record damage if permitted."""
        try:
            return require_whole(folder, build_id, depth)
        except BuildDamaged as error:
            self._note_damage(folder, build_id, error)
            raise

    def _note_damage(self, folder: CacheFolder, build_id: str, error: BuildDamaged) -> None:
        """Record damage; if that fails it is said, since the next run may call the build Cached."""
        try:
            with (
                open_folder(self.root, folder.name, change=True),
                refusing("write the record of builds of", folder.path),
                hold_switch(folder, "note a damaged build"),
            ):
                # A file that only this user cannot read is no damage; a build that was never finished is not damaged either,
                # nor is one that a clean-up has just removed.
                finished = exists(folder.builds_fd, build_id + MANIFEST) or build_id == read_current(folder)
                if error.data.get("kinds") != ["unreadable"] and finished and exists(folder.builds_fd, build_id):
                    write_bad(folder, build_id, "damaged", "; ".join(error.data.get("problems", [error.message])[:3]))
        except StoreError as why:
            raise BuildDamaged(f"{error.message}. It is not noted: {why.message}", **error.data) from None

    # -- removing

    def gc(
        self,
        name: str,
        *,
        keep: int = 3,
        keep_quarantined: int = 3,
        grace_s: float = 3600,
        dry_run: bool = False,
    ) -> Collected:
        """Remove surplus builds; see `collection.collect_builds`."""
        if keep < 1:
            raise StoreError("--keep must be at least 1: the active build always stays")
        with open_folder(self.root, name, change=True) as folder:
            return collect_builds(
                folder, keep=keep, keep_quarantined=keep_quarantined, grace_s=grace_s, dry_run=dry_run
            )

    def prune_quarantine(self, name: str, *, keep: int = 3) -> list[str]:
        """Remove the oldest refused builds but the newest, so that repeated refusals do not fill the disk.

        Args:
            name: the cache.
            keep: how many stay; the newest always does.

        Returns:
            What could not be removed, each with path and reason.
        """
        with open_folder(self.root, name, change=True) as folder:
            return [*collect_builds(folder, keep=None, keep_quarantined=max(1, keep), grace_s=0).problems]


def _refuse_other(folder: CacheFolder, expected: str) -> None:
    if (current := read_current(folder)) != expected:
        told = f"'{for_terminal(folder.name)}' is not rolled back from {expected}: {current} was made current meanwhile"
        raise StoreError(f"{told} and stays so", current=current)


def _last_in_order(folder: CacheFolder) -> tuple[str, list[str]]:
    """Return the build that was published last and has nothing known against it, and what is passed over for it."""
    builds = list_builds(folder)
    last = newest(build for build in builds if build.in_order)
    passed = [build for build in builds if build.status and (last is None or build.age > last.age)]
    skipped = [f"the build {build.build_id} was {build.note}" for build in passed]
    if last is None:
        why = f" in order ({'; '.join(skipped)}): name one, or" if skipped else ":"
        raise StoreError(f"'{for_terminal(folder.name)}' has no published build{why} generate one first")
    return last.build_id, skipped


def _switch(folder: CacheFolder, previous: str | None, build_id: str) -> None:
    named = f"{for_terminal(folder.path, 1000)}/{CURRENT} to {build_id}"
    with refusing("switch", folder.path, f"; {previous or 'nothing'} stays active", named=named):
        # Before the switch: if the process dies here, a reader that has just taken the old build still has the whole
        # grace time.
        if previous and exists(folder.builds_fd, previous):
            leave_current(folder, previous)
        layout.switch_link(folder.fd, CURRENT, f"{BUILDS}/{build_id}")


def _on_disk(build_fd: int, file: ScannedFile) -> int:
    """What of a file takes room: a reserved one may have its size and no block."""
    blocks = os.stat(file.path, dir_fd=build_fd, follow_symlinks=False).st_blocks
    return min(file.size_bytes, 512 * blocks)
