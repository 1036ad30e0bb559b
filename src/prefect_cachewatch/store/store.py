"""The cache store: one object that publishers, readers and operators use.

Every method opens the cache again, and afterwards holds only what it returns.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.files import LOCK_FILE
from prefect_cachewatch.common.removal import make_stamp
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, NotEnoughSpace, StoreBusy, StoreError
from prefect_cachewatch.store.builds import (
    BuildInfo,
    build_ids,
    find_foreign_writer,
    find_silent,
    has_writer,
    is_finished,
    list_builds,
    newest,
    read_manifest,
    require_whole,
)
from prefect_cachewatch.store.collection import Collected, collect_builds, prune_refused
from prefect_cachewatch.store.contents import inspect_build
from prefect_cachewatch.store.files import (
    empty_trash,
    exists,
    find_lacking,
    move_to_trash,
    refusing,
    remove_file,
    switch_link,
    sync_directory,
)
from prefect_cachewatch.store.folder import (
    BUILDS,
    CURRENT,
    LOCK,
    CacheFolder,
    check_root,
    hold_switch,
    open_build,
    open_folder,
    read_current,
    refuse_planted_folder,
    require_current,
)
from prefect_cachewatch.store.formats import Finding
from prefect_cachewatch.store.locks import (
    HeldLock,
    boot_id,
    hold_exclusive,
    hold_shared,
    is_locked,
    kernel_holders,
    read_note,
    replace_lock_file,
    told_ns,
)
from prefect_cachewatch.store.manifest import Manifest
from prefect_cachewatch.store.names import check_build_id, make_build_id
from prefect_cachewatch.store.records import (
    BEAT_S,
    BEGUN,
    MANIFEST,
    Begun,
    beat_age_s,
    clear_bad,
    end_beat,
    read_bad,
    read_beat_ns,
    read_begun,
    release_build,
    write_bad,
    write_begun,
)
from prefect_cachewatch.store.staged import BuildRecipe, StagedBuild
from prefect_cachewatch.store.tree import scan_build
from prefect_cachewatch.store.verification import Problem, Verdict, compare_manifests
from prefect_cachewatch.supervise.filelocks import find_holders, has_exclusive_holder
from prefect_cachewatch.supervise.tending import wake

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
                if entry.is_dir(follow_symlinks=False) and (self.root / entry.name / BUILDS).is_dir()
            )

    def current_path(self, name: str) -> str:
        """The path for plain readers: the link that is switched in one step."""
        return f"{self.root}/{name}/{CURRENT}"

    def active_id(self, name: str) -> str:
        """Return the id of the current build; raises StoreError if nothing was ever activated."""
        with open_folder(self.root, name) as folder:
            return require_current(folder)

    # -- writing

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
            adopt: continue the build of the same key that a killed publisher of this host left. Then `adopted` is set, and
                `prepare_resume` must be called before the generator starts.
            now: wall seconds.
            entropy: random bytes.

        Returns:
            The build; use it in a `with` block.

        Raises:
            StoreBusy: another publisher is at work on this cache; the message says which one, and `data["key"]` which key
                it writes, None if it has not told yet.
            StoreError: the store cannot be used.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, create=True))
            with refusing("begin a build in", folder.path):
                lock = stack.enter_context(_become_writer(folder, recipe.key))
                _require_alone(folder)
                with hold_switch(folder, "begin a build"):
                    if not lock.is_still(folder.fd, LOCK):
                        raise StoreBusy(f"cannot {_purpose(name)}: another process has taken over", key=None)
                    # An entry that cannot be removed has lost its name and blocks nothing; clean-up reports it.
                    for fd in (folder.fd, folder.builds_fd):
                        empty_trash(fd, new=True)
                    found = _find_abandoned(folder, recipe.key) if adopt else None
                    build_id, begun = found or (make_build_id(now(), entropy(4)), Begun.now(recipe.key, now()))
                    try:
                        # Before the directory exists, which could otherwise be taken for somebody else's.
                        write_begun(folder, build_id, begun)
                        if found is None:
                            os.mkdir(build_id, 0o755, dir_fd=folder.builds_fd)
                            sync_directory(folder.builds_fd)
                        directory_fd = stack.enter_context(open_build(folder, build_id))
                    except BaseException:
                        end_beat(folder, build_id)
                        raise
                lock.tell(purpose=_purpose(name), key=recipe.key, build=build_id)
                try:
                    # Each of two that begin at once on two hosts has written its record before it looks again.
                    _require_alone(folder, {build_id})
                except StoreBusy:
                    _step_back(folder, build_id, made=found is None)
                    raise
            last = newest(build for build in list_builds(folder) if build.is_whole)
            return StagedBuild(
                folder, stack.pop_all(), build_id, recipe, begun, lock=lock, directory_fd=directory_fd,
                adopted=found is not None, last_bytes=last.total_bytes if last else None,
            )  # fmt: skip

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
        if not (self.root / name / BUILDS).is_dir():
            return None
        with contextlib.suppress(BuildDamaged), open_folder(self.root, name) as folder:
            read_current(folder)
            builds = [build for build in list_builds(folder) if build.key == key and build.in_order]
            for build in sorted(builds, key=lambda build: build.state != "active"):
                if not build.was_current:
                    with contextlib.suppress(BuildDamaged):
                        return build, _verify(folder, build.build_id, "quick")[0]
        return None

    def require_fit(self) -> None:
        """Refuse a file system that lacks what a store needs; raises StoreError."""
        if (lacking := find_lacking(str(self.root))) is not None:
            raise StoreError(lacking, path=str(self.root))

    def require_space(self, name: str, *, expected_bytes: int | None = None, resumes: str | None = None) -> None:
        """Refuse a generation for which there is no room or no store can be, before the first byte is written.

        Where a publisher is at work, nothing is refused: what is full may be full of what is waited for.

        Args:
            name: the cache; it need not exist.
            expected_bytes: size of the build if the job gives it; default that of the last published one.
            resumes: the key of the build that a run would go on with: what is there of it is no more to be written.

        Raises:
            NotEnoughSpace: less than 1.1 times that is free, in bytes or in inodes.
            StoreError: the file system lacks what a store needs.
        """
        last, there_already = None, (0, 0)
        if (self.root / name / BUILDS).is_dir():
            with open_folder(self.root, name) as folder:
                if has_writer(folder) or find_foreign_writer(folder):
                    return
                last = newest(build for build in list_builds(folder) if build.is_whole)
                there_already = _size_of_abandoned(folder, resumes) if resumes is not None else (0, 0)
        self.require_fit()
        size = expected_bytes if expected_bytes is not None else (last.total_bytes or 0) if last else 0
        why = "1.1 times what the job expects" if expected_bytes is not None else "1.1 times the last build"
        needed = math.ceil(size * _SPACE_FACTOR)
        inodes = math.ceil(((last.total_files or 0) if last else 0) * _SPACE_FACTOR) + 8
        with refusing("look at", str(self.root)):
            there = os.statvfs(self.root)
        free, free_inodes = there.f_bavail * there.f_frsize, there.f_favail
        if free + there_already[0] < needed:
            short, is_short = f"{format_bytes(free)} free, and {format_bytes(needed)}", True
        else:
            short, is_short = (
                f"{free_inodes} free inodes, and {inodes}",
                bool(there.f_files) and free_inodes + there_already[1] < inodes,
            )
        if is_short:
            raise NotEnoughSpace(
                f"{for_terminal(str(self.root), 1000)} has {short} are needed ({why}): "
                "free some, for example with cachewatch store gc",
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
            return _verify(folder, build_id or require_current(folder), depth)[1]

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
            build_id = build_id or require_current(folder)
            with open_build(folder, build_id) as fd:
                manifest = read_manifest(folder, build_id)
                empty = [glob.escape(file.path) for file in manifest.files if not file.size_bytes]
                found = inspect_build(fd, manifest.ignore, empty)
            broken = [f"{path} {finding.message}" for path, finding in found if finding.verdict == "broken"]
            if broken:
                try:
                    _note_damage(folder, build_id, BuildDamaged(broken[0], problems=broken))
                except StoreError as error:
                    if problems is not None:
                        problems.append(error.message)
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
                try:
                    # Clean-up holds this lock to remove a build: with it, what is there stays.
                    with contextlib.ExitStack() as stack:
                        lock = stack.enter_context(hold_shared(folder.builds_fd, build_id + MANIFEST))
                        with open_build(folder, build_id):
                            manifest, bad = read_manifest(folder, build_id), read_bad(folder, build_id)
                        stack.pop_all()
                    warning = f"the build {build_id} is {bad.sentence()}" if bad else None
                    return PinnedBuild(build_id, folder.build_path(build_id), manifest, lock, warning)
                except StoreBusy:
                    continue
                except (StoreError, FileNotFoundError) as error:
                    if require_current(folder) == build_id:
                        if isinstance(error, StoreError):
                            raise
                        raise BuildDamaged(f"the build {build_id} has no manifest: it was never finished") from None
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
        now: Callable[[], float] = time.time,
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
            now: wall seconds.

        Returns:
            The switch.

        Raises:
            BuildDamaged: the build is not whole, which is recorded; the current one stays.
            StoreError: there is no such build, or `current` was tampered with.
            StoreBusy: another process holds the switch's lock for longer than a minute.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, change=True))
            ahead = _Ahead(folder, stack)
            if (wanted := build_id or (_newest_in_order(folder) if verify == "full" else None)) is not None:
                was = read_bad(folder, check_build_id(wanted))
                if verify == "full" or (was is not None and was.status == "damaged"):
                    ahead.read(wanted)
            stack.enter_context(hold_switch(folder, "activate a build"))
            if writer is not None:
                writer.require_writer()
            skipped: list[str] = []
            if build_id is None:
                builds = list_builds(folder)
                last = newest(build for build in builds if build.in_order)
                passed = [build for build in builds if build.status and (last is None or build.age > last.age)]
                skipped = [f"the build {build.build_id} was {build.note}" for build in passed]
                if last is None:
                    why = f" in order ({'; '.join(skipped)}): name one, or" if skipped else ":"
                    raise StoreError(f"'{for_terminal(name)}' has no published build{why} generate one first")
                build_id = last.build_id
            known = read_bad(folder, check_build_id(build_id))
            deep = verify == "full" or (known is not None and known.status == "damaged")
            if known is not None and not forgive:
                raise StoreError(
                    f"the build {build_id} is not activated: {known.sentence()}; generate it again, or activate it by its id"
                )
            manifest = _require_good(folder, build_id, "full" if deep else "changed", now(), ahead)
            previous = read_current(folder)
            if previous != build_id:
                _switch(folder, previous, build_id)
            # Last: if the process dies before this, a bad build that is not current is never taken for a good one.
            if known is not None:
                with refusing(
                    "clear what is known against builds of", folder.path, f"; {build_id} is active all the same"
                ):
                    clear_bad(folder, build_id)
            return Activation(build_id, previous, folder.build_path(build_id), manifest, tuple(skipped))

    def rollback(
        self,
        name: str,
        *,
        verify: Literal["quick", "full"] = "quick",
        expected: str | None = None,
        unhealthy: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> Activation:
        """Make the newest older build that was current before current again; a second call goes back another step.

        The build that stops being current is recorded as rolled back, or as unhealthy.

        Args:
            name: the cache.
            verify: quick or full as in `activate`, before the switch; builds that are damaged or were unhealthy are passed
                over, and the result names them.
            expected: the build to go back from; if another one is current, another process has switched meanwhile.
            unhealthy: why the current build is not healthy; it is recorded even if no roll-back is possible.
            now: wall seconds.

        Returns:
            The switch.

        Raises:
            StoreError: nothing is current, or no whole build was current before; the current one stays.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(open_folder(self.root, name, change=True))
            ahead = _Ahead(folder, stack)
            if verify == "full":
                for build in _former_builds(folder, read_current(folder), by_switch=unhealthy is not None):
                    if build.state != "damaged" and build.status is None and ahead.read(build.build_id):
                        break
            stack.enter_context(hold_switch(folder, "roll back"))
            current, shown = read_current(folder), for_terminal(name)
            if current is None:
                raise StoreError(
                    f"'{shown}' has no active build to roll back from: activate one with cachewatch store activate"
                )
            if unhealthy is not None:
                write_bad(folder, expected or current, "unhealthy", unhealthy, now())
            if expected is not None and current != expected:
                raise StoreError(
                    f"'{shown}' is not rolled back from {expected}: {current} was made current meanwhile and stays so",
                    current=current,
                )
            skipped: list[str] = []
            for build in _former_builds(folder, current, by_switch=unhealthy is not None):
                if build.state == "damaged" or build.status is not None:
                    skipped.append(f"the build {build.build_id} was {build.note}")
                    continue
                try:
                    depth = "full" if verify == "full" else "changed"
                    manifest = _require_good(folder, build.build_id, depth, now(), ahead)
                except BuildDamaged as error:
                    skipped.append(error.message)
                    continue
                if unhealthy is None:
                    # Before the switch: after a kill in between, the build is generated again, which costs only time.
                    with refusing("write the record of builds of", folder.path, f"; {current} stays active"):
                        write_bad(folder, current, "rolled_back", f"to {build.build_id}", now())
                _switch(folder, current, build.build_id)
                return Activation(build.build_id, current, build.path, manifest, tuple(skipped))
            why = "; ".join(skipped) if skipped else "no build was active before it"
            raise StoreError(
                f"'{shown}' cannot be rolled back from {current}: {why}; {current} stays active",
                current=current,
                skipped=skipped,
            )

    # -- removing

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
                folder, keep=keep, keep_quarantined=keep_quarantined, grace_s=grace_s, dry_run=dry_run, now=now
            )

    def prune_quarantine(self, name: str, *, keep: int = 3) -> list[str]:
        """Remove the oldest refused builds; see `collection.prune_refused`."""
        with open_folder(self.root, name, change=True) as folder:
            return prune_refused(folder, keep=keep)


def _purpose(name: str) -> str:
    return f"publish '{for_terminal(name)}'"


def _become_writer(folder: CacheFolder, key: str) -> HeldLock:
    """Take the writer's lock; from a writer that is gone with its host too."""
    try:
        # Wait a second: a process that lists the store tests this lock for a moment.
        return hold_exclusive(folder.fd, LOCK, _purpose(folder.name), wait_s=1.0, key=key)
    except StoreBusy as busy:
        seen = _find_lost(folder)
        if seen is None:
            note = busy.data["note"]
            told = {"holder": busy.data["holder"], "key": note.get("key"), "build": note.get("build")}
            raise StoreBusy(busy.message, **told) from None
    time.sleep(BEAT_S)  # by this host's clock: the file server's may have been set
    with hold_switch(folder, "take over from a writer whose host is gone"):
        if _find_lost(folder) == seen:  # nobody else has taken over meanwhile
            replace_lock_file(folder.fd, LOCK)
            return hold_exclusive(folder.fd, LOCK, _purpose(folder.name), key=key)
    raise StoreBusy(
        f"cannot {_purpose(folder.name)}: another process takes over from a writer whose host is gone", key=key
    )


def _find_lost(folder: CacheFolder) -> tuple[str, int] | None:
    """Return the build and the last sign of the lock's holder if it is of another host and seems to be gone with it."""
    note = read_note(folder.fd, LOCK)
    build_id = str(note.get("build") or "")
    if note.get("boot") in (None, boot_id()) or find_foreign_writer(folder, {build_id}) is not None:
        return None
    if any(holder.exclusive for holder in kernel_holders(folder.fd, LOCK)):
        return None  # the note is of an earlier holder
    try:
        if build_id and exists(folder.builds_fd, check_build_id(build_id) + BEGUN):
            sign_ns, age_s = read_beat_ns(folder, build_id), beat_age_s(folder, build_id)
        else:
            sign_ns = told_ns(folder.fd, LOCK)
            age_s = (make_stamp(folder.fd).changed_ns - sign_ns) / 1e9
    except (OSError, StoreError):
        return None
    return None if 0 <= age_s <= 2 * BEAT_S else (build_id, sign_ns)


def _require_alone(folder: CacheFolder, but: Collection[str] = ()) -> None:
    """Refuse if a writer on another host is at work, whose lock is not seen from here; raises StoreBusy.

    One that is silent is looked at again after a beat of this host's clock, since the file server's may have been set.
    """
    silent = find_silent(folder, but)
    other = find_foreign_writer(folder, {*but, *silent})
    if other is None and silent:
        time.sleep(BEAT_S)
        for build_id, beat_ns in silent.items():
            with contextlib.suppress(FileNotFoundError):
                if read_beat_ns(folder, build_id) != beat_ns:
                    other = build_id, read_begun(folder, build_id) or Begun()
                else:
                    end_beat(folder, build_id)  # the next run need not wait for it
    if other is not None:
        build_id, begun = other
        holder = f"a process on {for_terminal(begun.host) or 'another host'}, which writes build {build_id}"
        said = f"cannot {_purpose(folder.name)}: {holder}; wait for it or stop it"
        raise StoreBusy(said, holder=holder, key=begun.key or None, build=build_id)


def _step_back(folder: CacheFolder, build_id: str, *, made: bool) -> None:
    """Leave a build that this process has begun to nobody, or to a later run if others began it."""
    end_beat(folder, build_id)
    if made:
        with hold_switch(folder, "step back"):
            move_to_trash(folder.builds_fd, build_id)
            remove_file(folder.builds_fd, build_id + BEGUN)
        empty_trash(folder.builds_fd)


def _abandoned_builds(folder: CacheFolder, key: str) -> Iterator[tuple[str, Begun]]:
    """Find the unfinished builds of a key that a writer of this host left, the newest first."""
    current = None
    with contextlib.suppress(StoreError):
        current = read_current(folder)
    for build_id in build_ids(folder):
        begun = read_begun(folder, build_id)
        # What another host left may still be written by it, once it is reached again. A build that was current has lost its
        # manifest, and its files are what readers have.
        if begun is None or begun.key != key or not begun.is_of_this_host or is_finished(folder, build_id):
            continue
        if build_id != current and not begun.was_current:
            yield build_id, begun


def _find_abandoned(folder: CacheFolder, key: str) -> tuple[str, Begun] | None:
    """Find the build of a key to go on with; raises StoreBusy while what its run left is still being stopped."""
    for build_id, begun in _abandoned_builds(folder, key):
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(open_build(folder, build_id))
            except StoreError:
                continue
            # The guard of a run that was killed holds the directory until the generator is gone.
            held = has_exclusive_holder(fd) or is_locked(fd, LOCK_FILE, by_readers=False)
            if held:
                wake(found.pid for found in find_holders(os.fstat(fd)))  # a guard that somebody stopped
        if held or (not begun.is_dead and 0 <= beat_age_s(folder, build_id) < 2 * BEAT_S):
            holder = "the generator of a run that died, being stopped" if held else "a run that may still live"
            said = f"cannot {_purpose(folder.name)}: build {build_id} is written by {holder}; wait for it or stop it"
            raise StoreBusy(said, holder=holder, key=key, build=build_id)
        return build_id, begun.by(Begun.now(key, begun.started_s))
    return None


def _size_of_abandoned(folder: CacheFolder, key: str) -> tuple[int, int]:
    """Return the bytes on disk and the files of the build of a key to go on with."""
    for build_id, _ in _abandoned_builds(folder, key):
        with contextlib.suppress(StoreError, OSError), open_build(folder, build_id) as fd:
            files = scan_build(fd).files
            blocks = {file.path: os.stat(file.path, dir_fd=fd, follow_symlinks=False).st_blocks for file in files}
            return sum(min(file.size_bytes, 512 * blocks[file.path]) for file in files), len(files)
    return 0, 0


def _newest_in_order(folder: CacheFolder) -> str | None:
    """Return the build that was published last and has nothing known against it."""
    last = newest(build for build in list_builds(folder) if build.in_order)
    return last.build_id if last is not None else None


def _former_builds(folder: CacheFolder, current: str | None, *, by_switch: bool) -> list[BuildInfo]:
    """List the targets of a roll-back; `by_switch`: by when they stopped being current, on the file system's clock."""
    builds = list_builds(folder)
    if not by_switch:
        return earlier_builds(builds, current)
    stopped_ns: dict[str, int] = {}
    for build in builds:
        with contextlib.suppress(OSError):
            status = os.stat(build.build_id + BEGUN, dir_fd=folder.builds_fd, follow_symlinks=False)
            stopped_ns[build.build_id] = status.st_ctime_ns
    former = [build for build in builds if build.was_current and build.build_id in stopped_ns]
    return sorted(former, key=lambda build: stopped_ns[build.build_id], reverse=True)


class _Ahead:
    """Builds that were read in full before the switch's lock was taken; their manifests are held until the end."""

    def __init__(self, folder: CacheFolder, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._found: dict[str, Manifest | BuildDamaged] = {}

    def read(self, build_id: str) -> bool:
        """Read a build, and say whether it is whole; one that cannot be held is read under the switch's lock."""
        with contextlib.suppress(StoreBusy, FileNotFoundError):
            self._stack.enter_context(hold_shared(self._folder.builds_fd, build_id + MANIFEST))
            try:
                self._found[build_id] = require_whole(self._folder, build_id, "full")[0]
                return True
            except BuildDamaged as error:
                self._found[build_id] = error
        return False

    def has_read(self, build_id: str) -> bool:
        """Say whether a build was read and its manifest is the same; raises BuildDamaged if it was not whole."""
        found = self._found.get(build_id)
        if isinstance(found, BuildDamaged):
            raise found
        return found is not None and read_manifest(self._folder, build_id) == found


def earlier_builds(builds: list[BuildInfo], current: str | None) -> list[BuildInfo]:
    """List the targets of a roll-back, first choice first: what was current before the current build, by age."""
    # Where its manifest was cut, only its id tells how old the current build is.
    ages = [build.age for build in builds if build.build_id == current and build.finished_at]
    found = [
        build
        for build in builds
        if build.was_current and (build.age < ages[0] if ages else build.build_id < (current or ""))
    ]
    return sorted(found, key=lambda build: build.age, reverse=True)


def _require_good(folder: CacheFolder, build_id: str, depth: str, now_s: float, ahead: _Ahead) -> Manifest:
    try:
        if depth == "full" and ahead.has_read(build_id):
            depth = "quick"
        return require_whole(folder, build_id, depth)[0]
    except BuildDamaged as error:
        # Best effort: a full disk must not hide the damage.
        with contextlib.suppress(OSError):
            _mark_damaged(folder, build_id, error, now_s)
        raise


def _verify(folder: CacheFolder, build_id: str, depth: str) -> tuple[Manifest, Verdict]:
    """Verify a build, and record damage if permitted."""
    try:
        return require_whole(folder, build_id, depth)
    except BuildDamaged as error:
        try:
            _note_damage(folder, build_id, error)
        except StoreError as why:  # it must not be taken for noted: the next run may call the build Cached
            raise BuildDamaged(f"{error.message}. It is not noted: {why.message}", **error.data) from None
        raise


def _note_damage(folder: CacheFolder, build_id: str, error: BuildDamaged) -> None:
    with refusing("write the record of builds of", folder.path):
        refuse_planted_folder(folder)
    with refusing("write the record of builds of", folder.path), hold_switch(folder, "note a damaged build"):
        _mark_damaged(folder, build_id, error, time.time())


def _mark_damaged(folder: CacheFolder, build_id: str, error: BuildDamaged, now_s: float) -> None:
    # A file that only this user cannot read is no damage; a build that was never finished is not damaged either, nor is one
    # that a clean-up has just removed.
    finished = exists(folder.builds_fd, build_id + MANIFEST) or build_id == read_current(folder)
    if error.data.get("kinds") != ["unreadable"] and finished and exists(folder.builds_fd, build_id):
        write_bad(folder, build_id, "damaged", "; ".join(error.data.get("problems", [error.message])[:3]), now_s)


def _switch(folder: CacheFolder, previous: str | None, build_id: str) -> None:
    link = f"{folder.path}/{CURRENT}"
    named = f"{for_terminal(link, 1000)} to {build_id}"
    with refusing("switch", folder.path, f"; {previous or 'nothing'} stays active", named=named):
        # Before the switch: if the process dies here, a reader that has just taken the old build still has the whole
        # grace time.
        if previous and exists(folder.builds_fd, previous):
            release_build(folder, previous)
        switch_link(folder.fd, CURRENT, f"{BUILDS}/{build_id}")
