"""The writer of a cache, from the lock to the manifest: begin, resume, check, digest, look again, publish.

One process writes a cache, among those of this host and of others. A lock of another host may not be seen from here, or stay
when its host is gone. So each writer touches its `.begun`, and whoever comes looks at the others' as well as at the lock. It
starts no process and does not switch `current` (see `store`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from prefect_cachewatch import __version__
from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.files import LOCK_FILE, write_entry
from prefect_cachewatch.common.removal import empty_directory, make_stamp, open_below
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_moment
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.store import layout, records
from prefect_cachewatch.store.builds import beats_elsewhere, build_ids, is_finished, list_builds, newest
from prefect_cachewatch.store.checks import (
    Finding,
    Suspect,
    check_tree,
    find_empty,
    find_suspects,
    find_unreplaced,
    judge,
    list_paths,
)
from prefect_cachewatch.store.contents import Inside, Rules
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.layout import BAD, BEGUN, LOCK, MANIFEST, CacheFolder, exists, open_build, refusing
from prefect_cachewatch.store.locks import (
    PUBLISH_WAIT_S,
    HeldLock,
    boot_id,
    hold_exclusive,
    hold_shared,
    hold_switch,
    is_held_here,
    is_locked,
)
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.records import BEAT_S, Begun, LinkEntry, Manifest, end_beat, is_fresh, read_beat
from prefect_cachewatch.store.tree import BuildTree, scan_build
from prefect_cachewatch.store.verify import digest_tree
from prefect_cachewatch.supervise.filelocks import find_holders, has_exclusive_holder
from prefect_cachewatch.supervise.tending import wake

# -- alone


def _purpose(folder: CacheFolder) -> str:
    return f"publish '{for_terminal(folder.name)}'"


def _busy(folder: CacheFolder, holder: str, key: str | None, build_id: str | None) -> StoreBusy:
    told = f"cannot {_purpose(folder)}: {holder}; wait for it or stop it"
    return StoreBusy(told, holder=holder, key=key, build=build_id)


def _take_lock(folder: CacheFolder, key: str) -> HeldLock:
    """Take the writer's lock; from a writer that is gone with its host too."""
    try:
        # Wait a second: a process that lists the store tests this lock for a moment.
        return hold_exclusive(folder.fd, LOCK, _purpose(folder), wait_s=1.0, key=key)
    except StoreBusy as error:
        note = error.data["note"]
        told = {"holder": error.data["holder"], "key": note.get("key"), "build": note.get("build")}
        busy = StoreBusy(error.message, **told)
    # Without a boot, or with a holder that is seen from here, the note is of an earlier holder.
    if note.get("boot") in (None, boot_id()) or is_held_here(folder.fd, LOCK):
        raise busy
    silent = _find_silent(folder, busy, with_lock=True)
    with hold_switch(folder, "take over from a writer whose host is gone"):
        if _signs(folder, with_lock=True) != silent:  # it lives, or another process has taken over meanwhile
            raise busy
        for build_id in silent:
            end_beat(folder, build_id)
        # Nobody who has the old one open takes it for the lock any more.
        write_entry(folder.fd, LOCK, b"", mode=0o600)
        return hold_exclusive(folder.fd, LOCK, _purpose(folder), key=key)


def _require_alone(folder: CacheFolder, but: Collection[str] = ()) -> None:
    """Refuse if a writer on another host is at work, whose lock is not seen from here; raises StoreBusy."""
    for build_id in _find_silent(folder, None, but):
        end_beat(folder, build_id)  # the next run need not wait for it


def _find_silent(
    folder: CacheFolder, busy: StoreBusy | None, but: Collection[str] = (), *, with_lock: bool = False
) -> dict[str, int]:
    """Return the last signs of writers on other hosts that show none any more; raises StoreBusy if one does.

    Who is silent is looked at again after a beat of this host's clock, since the file server's may have been set.
    """
    before = _signs(folder, but, with_lock=with_lock)
    living = [name for name, sign_ns in before.items() if is_fresh(folder, sign_ns)]
    if before and not living:
        time.sleep(BEAT_S)
        after = _signs(folder, but, with_lock=with_lock)
        living = [name for name, sign_ns in after.items() if before.get(name) != sign_ns]
    if living:
        begun = records.read_begun(folder, living[0]) or Begun()
        holder = f"a process on {for_terminal(begun.host) or 'another host'}, which writes build {living[0]}"
        raise busy or _busy(folder, holder, begun.key or None, living[0])
    return before


def _signs(folder: CacheFolder, but: Collection[str] = (), *, with_lock: bool = False) -> dict[str, int]:
    return ({LOCK: read_beat(folder.fd, LOCK)} if with_lock else {}) | beats_elsewhere(folder, but)


# -- begin


def begin_build(
    folder: CacheFolder, resources: contextlib.ExitStack, recipe: BuildRecipe, *, adopt: bool
) -> StagedBuild:
    """Become the one writer of a cache; see `CacheStore.begin`.

    Args:
        folder: the open cache.
        resources: what closes the folder; the build takes it over.
        recipe: the inputs of the build.
        adopt: go on with the build that a dead writer of the key left.
    """
    with refusing("begin a build in", folder.path):
        lock = resources.enter_context(_take_lock(folder, recipe.key))
        _require_alone(folder)
        with hold_switch(folder, "begin a build"):
            if not lock.is_still(folder.fd, LOCK):
                raise _busy(folder, "another process, which has taken over", None, None)
            # An entry that cannot be removed has lost its name and blocks nothing; clean-up reports it.
            for fd in (folder.fd, folder.builds_fd):
                layout.empty_trash(fd, new=True)
            found = _find_own(folder, recipe.key) if adopt else None
            now_s = time.time()
            build_id, begun = found or (layout.make_build_id(now_s, os.urandom(4)), Begun.now(recipe.key, now_s))
            if found is None:
                _require_free(folder, build_id)
            try:
                if found is None:
                    # Before the directory exists, which could otherwise be taken for somebody else's.
                    records.write_begun(folder, build_id, begun)
                    os.mkdir(build_id, 0o755, dir_fd=folder.builds_fd)
                    layout.sync_directory(folder.builds_fd)
                else:  # a beat: it has a writer again
                    os.utime(build_id + BEGUN, dir_fd=folder.builds_fd, follow_symlinks=False)
                directory_fd = resources.enter_context(open_build(folder, build_id))
                # It tells that its writer lives, even if the lock file is removed.
                record = folder.builds_fd, build_id + BEGUN
                resources.enter_context(hold_exclusive(*record, _purpose(folder), past_readers=False, wait_s=1.0))
            except BaseException:
                end_beat(folder, build_id)
                raise
        lock.tell(key=recipe.key, build=build_id)
        build = StagedBuild(folder, build_id, recipe, begun, lock, directory_fd, adopted=found is not None)
        try:
            # Each of two that begin at once on two hosts has written its record before it looks again.
            _require_alone(folder, {build_id})
        except StoreBusy:
            end_beat(folder, build_id)
            if not build.adopted:
                build.discard()
            raise
    build.resources = resources.pop_all()
    return build


def _require_free(folder: CacheFolder, build_id: str) -> None:
    """Refuse a place that somebody else has taken: what is there was begun by no run of this store."""
    for path in (folder.build_path(build_id) + ending for ending in ("", BEGUN, MANIFEST, BAD)):
        if os.path.lexists(path):
            raise StoreError(f"{for_terminal(path, 1000)} was put there by something else: move it away", path=path)


def find_abandoned(folder: CacheFolder, key: str) -> Iterator[tuple[str, Begun]]:
    """Find the unfinished builds of a key that a writer of this host left, the newest first."""
    current = None
    with contextlib.suppress(StoreError):
        current = layout.read_current(folder)
    trusted = (os.geteuid(), os.fstat(folder.fd).st_uid)  # its files are removed and used
    for build_id in build_ids(folder):
        begun = records.read_begun(folder, build_id)
        # What another host left may still be written by it, once it is reached again. A build that was current has lost its
        # manifest, and its files are what readers have.
        if begun is None or (begun.key, begun.boot) != (key, boot_id()) or begun.left_ns or build_id == current:
            continue
        with contextlib.suppress(FileNotFoundError):
            names = (build_id, build_id + BEGUN)
            owners = [os.stat(name, dir_fd=folder.builds_fd, follow_symlinks=False).st_uid for name in names]
            if not is_finished(folder, build_id) and all(owner in trusted for owner in owners):
                yield build_id, begun


def _find_own(folder: CacheFolder, key: str) -> tuple[str, Begun] | None:
    """Find the build of a key to go on with; raises StoreBusy while its writer lives, or what it left is being stopped."""
    for build_id, begun in find_abandoned(folder, key):
        try:
            with open_build(folder, build_id) as fd:
                # The guard of a run that was killed holds the directory until the generator is gone.
                held = has_exclusive_holder(fd) or is_locked(fd, LOCK_FILE, by_readers=False)
                if held:
                    wake(found.pid for found in find_holders(os.fstat(fd)))  # a guard that somebody stopped
        except StoreError:
            continue
        if held or is_locked(folder.builds_fd, build_id + BEGUN, by_readers=False):
            holder = "the generator of a run that died, being stopped" if held else "a run that still lives"
            raise _busy(folder, f"build {build_id} is written by {holder}", key, build_id)
        return build_id, begun
    return None


# -- the build


class StagedBuild(Closing):
    """The one build of a cache that is being written; its path stays the same when it is published.

    `close` releases the writer's lock; an unfinished build stays, for a retry to resume.
    """

    def __init__(
        self,
        folder: CacheFolder,
        build_id: str,
        recipe: BuildRecipe,
        begun: Begun,
        lock: HeldLock,
        directory_fd: int,
        *,
        adopted: bool,
    ) -> None:
        self.name, self.build_id, self.path, self.recipe = folder.name, build_id, folder.build_path(build_id), recipe
        self.adopted = adopted
        self.record = self.path + BEGUN
        """Path of its record: touched by whoever shows that this writer lives, and marked by the scan process."""
        self.checked: BuildTree | None = None
        """The contents of the build when it was last checked."""
        self.resources = contextlib.ExitStack()
        """What is held until this object is closed: the lock and the open directories."""
        self._folder, self._begun, self._lock, self._directory_fd = folder, begun, lock, directory_fd
        self._done = False

    @property
    def removed(self) -> list[str]:
        """What was removed before attempts at this build: paths in the build."""
        return [path for path, _, _ in self._begun.removed]

    def prepare_resume(
        self, policy: PublishPolicy, *, window_s: float, reported: Collection[str] = (), broken: Collection[str] = ()
    ) -> tuple[list[Suspect], list[str]]:
        """Remove the files that a killed attempt may have cut, so that the next one writes them again.

        If it is unknown which files are whole (the directory was copied, its clock was set back, its file system lets
        programs set change times), all of them are removed.

        Args:
            policy: tells which files may be empty.
            window_s: the stall window.
            reported: paths in the build that the watch saw growing, or open for writing, at the end; those recorded at
                the end of an earlier run count too.
            broken: paths in the build of files that contradict their own format.

        Returns:
            The files that were removed, and sentences for the user about what was found.

        Raises:
            StoreError: a file cannot be removed; then no file counts as whole, and the next call tries again.
        """
        notes: list[str] = []
        with refusing("resume", self.path), self._open() as fd:
            tree = scan_build(fd)
            known = records.read_growth(self._folder, self.build_id, fd)
            suspects = find_suspects(
                tree.files,
                empty={tree.leads.get(name, name) for name in find_empty(tree, policy.allow_empty_files)},
                grew_after_ns=known if isinstance(known, int) else None,
                window_s=window_s,
                reported={*reported, *self._begun.reported},
                broken=broken,
            )
            if suspects and isinstance(known, str):
                shown = len(tree.files) - len(suspects)
                notes.append(
                    f"{shown or 'none'} of the {len(tree.files):,} files of an earlier attempt can be shown to be whole: {known}"
                )
            gone = {suspect.path for suspect in suspects}
            links = sorted(link for link, path in tree.leads.items() if path in gone)
            if suspects:  # noted first: a run that resumes the build after a kill has to know it too
                at_ns = make_stamp(self._folder.builds_fd).changed_ns
                before = [one for one in self._begun.removed if one[0] not in gone]
                self._note(removed=(*before, *((one.path, one.size_bytes, at_ns) for one in suspects)))
            for path in (*links, *sorted(gone)):
                _remove_below(fd, path)
            if links:
                notes.append(f"removed the links to them as well: {list_paths(links)}")
        self.note_growth()
        return suspects, notes

    def note_growth(self) -> None:
        """Record this moment of the file system's clock as the last growth; call it before a generator starts.

        Raises:
            StoreError: it cannot be written.
        """
        self._note(reported=())
        with refusing("write", self.record):
            records.note_growth(self._folder, self.build_id)

    def _note(self, **changes: Any) -> None:
        self._begun = replace(self._begun, **changes)
        with refusing("write", self.record):
            records.change_begun(self.build_id + BEGUN, self._folder.builds_fd, asdict(self._begun))

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check the generator's output: names, sizes, and whether each file can be what its format demands.

        Args:
            policy: the rules.
            extra: findings of other checks, such as the user's check command.

        Returns:
            All findings, refusals first; see `checks.check_tree`.
        """
        with refusing("check", self.path), self._open() as fd:
            self.checked = tree = scan_build(fd)
            last = newest(build for build in list_builds(self._folder) if build.is_whole)
            found = [*check_tree(tree, policy, last.total_bytes if last else None), *extra]
            if lost := find_unreplaced(self._begun.removed, tree.files):
                # The generator has used the path that it was given, before.
                found = [*lost, *(finding for finding in found if finding.category != "empty_cache")]
            if not tree.unreadable:
                looks = [*Inside(fd, tree, Rules.of(policy)).look()]
                found += judge(looks, "warn" if policy.on_broken_content == "warn" else "refuse")
        return sorted(found, key=lambda finding: finding.severity != "refuse")

    def publish(
        self,
        policy: PublishPolicy,
        *,
        findings: Sequence[Finding] = (),
        growth: Mapping[str, Any] | None = None,
        threads: int | None = None,
    ) -> Manifest:
        """Digest the build, make it durable, and write its manifest last.

        Args:
            policy: tells which files belong to the cache.
            findings: warnings for the manifest; call `check` first, and do not publish with refusals.
            growth: the watch's growth summary.
            threads: files read in parallel; default one for each core.

        Returns:
            The manifest. From now on the build is whole, and none of its files is written any more.

        Raises:
            StoreError: the build changes meanwhile, or cannot be written; it stays unfinished then.
        """
        if self.checked is None or any(finding.severity == "refuse" for finding in findings):
            raise StoreError("a build is published only after its checks, and not when they refuse it: check first")
        builds_fd, name = self._folder.builds_fd, self.build_id + MANIFEST
        with refusing("publish", self.path, "; it stays unfinished, and what is current stays so"):
            with self._open() as fd:
                listed = digest_tree(fd, self.checked, policy.ignore, threads)
                # The digests took a while: the build must still be what was checked.
                if scan_build(fd) != self.checked:
                    told = f"something wrote into {self.path} while it was published: stop it, then publish again"
                    raise StoreError(told, path=self.path)
            manifest = Manifest(
                name=self.name,
                build_id=self.build_id,
                key=self.recipe.key,
                cache_key=self.recipe.cache_key,
                argv=tuple(redact_argv(self.recipe.argv)),
                tool_versions={"prefect-cachewatch": __version__, "python": platform.python_version()},
                host={"hostname": socket.gethostname(), "kernel": platform.release(), "machine": platform.machine()},
                started_at=format_moment(self._begun.started_s),
                finished_at=format_moment(time.time()),
                files=listed,
                links=tuple(LinkEntry(path, target) for path, target in self.checked.links),
                growth=growth,
                warnings=tuple(finding.message for finding in findings),
                ignore=tuple(policy.ignore),
            )
            with hold_switch(self._folder, "publish a build", wait_s=PUBLISH_WAIT_S):
                self.require_writer()
                if exists(builds_fd, name):
                    raise StoreError(f"another process has published {self.path}: use that one", path=self.path)
                # In one step: the manifest makes the build whole.
                layout.write_durably(builds_fd, name, records.encode_manifest(manifest))
                # Held until this object is closed, which is after the activation: a clean-up in between would take
                # the build for unused.
                self.resources.callback(hold_shared(builds_fd, name).close)
        self._done = True
        return manifest

    def refuse(self, findings: Sequence[Finding], message: str) -> str:
        """Note that the checks refuse the build, with the reasons; it stays where it is and is never used.

        Args:
            findings: the reasons.
            message: the reasons in one sentence.

        Returns:
            Its path.

        Raises:
            StoreError: it cannot be noted; the build stays unfinished then.
        """
        told = [{**asdict(finding), "paths": list(finding.paths[:1000])} for finding in findings]
        with refusing("refuse", self.path), hold_switch(self._folder, "refuse a build"):
            self.require_writer()
            records.write_bad(self._folder, self.build_id, "refused", message, key=self.recipe.key, findings=told)
        self._done = True
        return self.path

    def clean(self) -> None:
        """Empty the directory but keep it, since the watch holds it open."""
        with refusing("empty", self.path), self._open() as fd:
            done = empty_directory(fd)
            layout.sync_directory(fd)
        self._note(removed=())
        if done.failed:
            first = for_terminal(f"{self.path}/{done.problems[0]}", 1000)
            raise StoreError(f"cannot remove {first}: see to it by hand")

    def discard(self) -> None:
        """Remove the build, in which no generator has written."""
        with refusing("remove", self.path):
            with hold_switch(self._folder, "discard a build"):
                layout.move_to_trash(self._folder.builds_fd, self.build_id)
                layout.remove_file(self._folder.builds_fd, self.build_id + BEGUN)
            layout.empty_trash(self._folder.builds_fd)
        self._done = True

    def close(self) -> None:
        """Release the writer's lock."""
        if not self._done:
            self._done = True
            end_beat(self._folder, self.build_id)
        self.resources.close()

    def require_writer(self) -> None:
        """Refuse if another process may be the writer by now; the caller holds the switch's lock.

        Raises:
            StoreError: the lock file or the build was moved or replaced since this process began.
        """
        with self._open():
            if not self._lock.is_still(self._folder.fd, LOCK):
                raise StoreError(
                    f"this process is no longer the writer of {self.path}: its lock file {LOCK} was removed or replaced, "
                    "and another may have taken over; generate it again",
                    path=self.path,
                )

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """Open the directory that this process began, and no other; that one is open all the time, so its inode stays."""
        with open_build(self._folder, self.build_id) as fd:
            same = os.path.sameopenfile(fd, self._directory_fd)
            if not same or not exists(self._folder.builds_fd, self.build_id + BEGUN):
                told = f"{self.path} or its {BEGUN} was moved or replaced while it was written: generate it again"
                raise StoreError(told, path=self.path)
            yield fd


def _remove_below(build_fd: int, path: str) -> None:
    """Remove a file of a build by its relative path, without following a link on the way; a missing one is no error."""
    parent, _, name = path.rpartition("/")
    with (
        refusing("remove", path, named=f"{for_terminal(path, 1000)} before the retry"),
        contextlib.suppress(FileNotFoundError),
        Opened(open_below(build_fd, parent)) as fd,
    ):
        # By its name alone: some file systems give a file another inode now and then, and nobody else writes here.
        os.unlink(name, dir_fd=fd)
