"""A build that is being written, from the lock to the manifest: begin, resume, check, digest, look again, publish.

One process writes a cache, among those of this host and of others. A lock of another host may not be seen from here, or stay
when its host is gone. So each writer touches its `.begun`, and whoever comes looks at the others' as well as at the lock. It
starts no process and does not switch `current` (see `store`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prefect_cachewatch import __version__
from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.files import LOCK_FILE
from prefect_cachewatch.common.removal import empty_directory, make_stamp, open_below
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_moment
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.store import files, locks, records
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
from prefect_cachewatch.store.files import exists, refusing
from prefect_cachewatch.store.folder import (
    LOCK,
    PUBLISH_WAIT_S,
    CacheFolder,
    hold_switch,
    open_build,
    read_current,
)
from prefect_cachewatch.store.manifest import FileEntry, LinkEntry, Manifest, encode_manifest
from prefect_cachewatch.store.names import cache_key_digest, make_build_id
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.records import BAD, BEAT_S, BEGUN, MANIFEST, Begun, end_beat, is_fresh
from prefect_cachewatch.store.tree import BuildTree, scan_build
from prefect_cachewatch.store.verification import digest_build
from prefect_cachewatch.supervise.filelocks import find_holders, has_exclusive_holder
from prefect_cachewatch.supervise.tending import wake


@dataclass(frozen=True)
class BuildRecipe:
    """The inputs of a build; the key decides whether two builds are the same cache."""

    argv: tuple[str, ...]
    cache_key: Mapping[str, str]

    @classmethod
    def of(cls, argv: Sequence[str], policy: PublishPolicy) -> BuildRecipe:
        """Make it from a command that still contains `{cache_dir}`, and a policy."""
        return cls(tuple(argv), dict(policy.cache_key))

    @property
    def key(self) -> str:
        """The digest of all inputs."""
        return cache_key_digest(self.cache_key, self.argv)


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
                raise _busy(folder, "another process, which has taken over")
            # An entry that cannot be removed has lost its name and blocks nothing; clean-up reports it.
            for fd in (folder.fd, folder.builds_fd):
                files.empty_trash(fd, new=True)
            found = _find_abandoned(folder, recipe.key) if adopt else None
            now_s = time.time()
            build_id, begun = found or (make_build_id(now_s, os.urandom(4)), Begun.now(recipe.key, now_s))
            if found is None:
                _require_free(folder, build_id)
            try:
                # Before the directory exists, which could otherwise be taken for somebody else's.
                records.write_begun(folder, build_id, begun)
                if found is None:
                    os.mkdir(build_id, 0o755, dir_fd=folder.builds_fd)
                    files.sync_directory(folder.builds_fd)
                directory_fd = resources.enter_context(open_build(folder, build_id))
                # It tells that its writer lives, even if the lock file is removed.
                named = folder.builds_fd, build_id + BEGUN
                resources.enter_context(locks.hold_exclusive(*named, _purpose(folder), past_readers=False))
            except BaseException:
                end_beat(folder, build_id)
                raise
        lock.tell(purpose=_purpose(folder), key=recipe.key, build=build_id)
        build = StagedBuild(
            folder, build_id, recipe, begun, lock=lock, directory_fd=directory_fd, adopted=found is not None
        )
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


def size_of_abandoned(folder: CacheFolder, key: str) -> tuple[int, int]:
    """Return the bytes on disk and the files of the build of a key to go on with."""
    for build_id, _ in _abandoned_builds(folder, key):
        with contextlib.suppress(StoreError, OSError), open_build(folder, build_id) as fd:
            listed = scan_build(fd).files
            blocks = {file.path: os.stat(file.path, dir_fd=fd, follow_symlinks=False).st_blocks for file in listed}
            return sum(min(file.size_bytes, 512 * blocks[file.path]) for file in listed), len(listed)
    return 0, 0


def _purpose(folder: CacheFolder) -> str:
    return f"publish '{for_terminal(folder.name)}'"


def _busy(folder: CacheFolder, holder: str, **data: Any) -> StoreBusy:
    data = {"key": None} | data
    return StoreBusy(f"cannot {_purpose(folder)}: {holder}; wait for it or stop it", holder=holder, **data)


def _take_lock(folder: CacheFolder, key: str) -> locks.HeldLock:
    """Take the writer's lock; from a writer that is gone with its host too."""
    try:
        # Wait a second: a process that lists the store tests this lock for a moment.
        return locks.hold_exclusive(folder.fd, LOCK, _purpose(folder), wait_s=1.0, key=key)
    except StoreBusy as error:
        note = error.data["note"]
        told = {"holder": error.data["holder"], "key": note.get("key"), "build": note.get("build")}
        busy = StoreBusy(error.message, **told)
    # Without a boot, or with a holder that is seen from here, the note is of an earlier holder.
    if note.get("boot") in (None, locks.boot_id()) or any(
        holder.exclusive for holder in locks.kernel_holders(folder.fd, LOCK)
    ):
        raise busy
    signs = _signs(folder)
    if any(is_fresh(folder, sign_ns) for sign_ns in signs.values()):
        raise busy
    time.sleep(BEAT_S)  # by this host's clock: the file server's may have been set
    with hold_switch(folder, "take over from a writer whose host is gone"):
        if _signs(folder) != signs:  # it lives, or another process has taken over meanwhile
            raise busy
        for build_id in beats_elsewhere(folder):
            end_beat(folder, build_id)
        locks.replace_lock_file(folder.fd, LOCK)
        return locks.hold_exclusive(folder.fd, LOCK, _purpose(folder), key=key)


def _signs(folder: CacheFolder) -> dict[str, int]:
    return {LOCK: records.read_beat(folder.fd, LOCK), **beats_elsewhere(folder)}


def _require_alone(folder: CacheFolder, but: Collection[str] = ()) -> None:
    """Refuse if a writer on another host is at work, whose lock is not seen from here; raises StoreBusy.

    One that is silent is looked at again after a beat of this host's clock, since the file server's may have been set.
    """
    signs = beats_elsewhere(folder, but)
    living = [build_id for build_id, sign_ns in signs.items() if is_fresh(folder, sign_ns)]
    if signs and not living:
        time.sleep(BEAT_S)
        again = beats_elsewhere(folder, but)
        living = [build_id for build_id, sign_ns in again.items() if signs.get(build_id) != sign_ns]
        for build_id in signs.keys() - {*living}:
            end_beat(folder, build_id)  # the next run need not wait for it
    if living:
        begun = records.read_begun(folder, living[0]) or Begun()
        holder = f"a process on {for_terminal(begun.host) or 'another host'}, which writes build {living[0]}"
        raise _busy(folder, holder, key=begun.key or None, build=living[0])


def _require_free(folder: CacheFolder, build_id: str) -> None:
    """Refuse a place that somebody else has taken: what is there was begun by no run of this store."""
    for ending in ("", BEGUN, MANIFEST, BAD):
        if exists(folder.builds_fd, build_id + ending):
            path = folder.build_path(build_id) + ending
            raise StoreError(f"{for_terminal(path, 1000)} was put there by something else: move it away", path=path)


def _abandoned_builds(folder: CacheFolder, key: str) -> Iterator[tuple[str, Begun]]:
    """Find the unfinished builds of a key that a writer of this host left, the newest first."""
    current = None
    with contextlib.suppress(StoreError):
        current = read_current(folder)
    for build_id in build_ids(folder):
        begun = records.read_begun(folder, build_id)
        # What another host left may still be written by it, once it is reached again. A build that was current has lost its
        # manifest, and its files are what readers have.
        if begun is None or begun.key != key or not begun.is_of_this_host or is_finished(folder, build_id):
            continue
        if build_id != current and not begun.was_current and _is_ours(folder, build_id):
            yield build_id, begun


def _is_ours(folder: CacheFolder, build_id: str) -> bool:
    """Say whether a build and its record belong to this user, or to whom the cache belongs: its files are removed and used."""
    trusted = (os.geteuid(), os.fstat(folder.fd).st_uid)
    with contextlib.suppress(FileNotFoundError):
        names = (build_id, build_id + BEGUN)
        return all(os.stat(name, dir_fd=folder.builds_fd, follow_symlinks=False).st_uid in trusted for name in names)
    return False


def _find_abandoned(folder: CacheFolder, key: str) -> tuple[str, Begun] | None:
    """Find the build of a key to go on with; raises StoreBusy while its writer lives, or what it left is being stopped."""
    for build_id, begun in _abandoned_builds(folder, key):
        try:
            with open_build(folder, build_id) as fd:
                # The guard of a run that was killed holds the directory until the generator is gone.
                held = has_exclusive_holder(fd) or locks.is_locked(fd, LOCK_FILE, by_readers=False)
                if held:
                    wake(found.pid for found in find_holders(os.fstat(fd)))  # a guard that somebody stopped
        except StoreError:
            continue
        if held or locks.is_locked(folder.builds_fd, build_id + BEGUN, by_readers=False):
            holder = "the generator of a run that died, being stopped" if held else "a run that still lives"
            raise _busy(folder, f"build {build_id} is written by {holder}", key=key, build=build_id)
        return build_id, begun.by(Begun.now(key, begun.started_s))
    return None


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
        *,
        lock: locks.HeldLock,
        directory_fd: int,
        adopted: bool,
    ) -> None:
        self.name, self.build_id, self.path, self.recipe = folder.name, build_id, folder.build_path(build_id), recipe
        self.adopted = adopted
        self.record = self.path + BEGUN
        """Path of its record: touched by whoever shows that this writer lives, and marked by the scan process."""
        self.checked: BuildTree | None = None
        """The contents of the build when it was last checked."""
        self.notes: list[str] = []
        """Sentences for the user about what was found and removed."""
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
    ) -> list[Suspect]:
        """Remove the files that a killed attempt may have cut, so that the next one writes them again.

        If it is unknown which files are whole (the directory was copied, its clock was set back, its file system lets
        programs set change times), all of them are removed, and `notes` says why.

        Args:
            policy: tells which files may be empty.
            window_s: the stall window.
            reported: paths in the build that the watch saw growing, or open for writing, at the end; those recorded at
                the end of an earlier run count too.
            broken: paths in the build of files that contradict their own format.

        Returns:
            The files that were removed.

        Raises:
            StoreError: a file cannot be removed; then no file counts as whole, and the next call tries again.
        """
        self._require_open()
        with refusing("resume", self.path), open_build(self._folder, self.build_id) as fd:
            self._require_mine(fd)
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
                self.notes.append(
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
                self.notes.append(f"removed the links to them as well: {list_paths(links)}")
        self.note_growth()
        return suspects

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
            records.write_begun(self._folder, self.build_id, self._begun)

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check the generator's output: names, sizes, and whether each file can be what its format demands.

        Args:
            policy: the rules.
            extra: findings of other checks, such as the user's check command.

        Returns:
            All findings, refusals first; see `checks.check_tree`.
        """
        self._require_open()
        with open_build(self._folder, self.build_id) as fd:
            self._require_mine(fd)
            self.checked = tree = scan_build(fd)
            last = newest(build for build in list_builds(self._folder) if build.is_whole)
            found = [*check_tree(tree, policy, last.total_bytes if last else None), *extra]
            if lost := find_unreplaced(self._begun.removed, tree.files):
                # The generator has used the path that it was given, before.
                found = [*lost, *(finding for finding in found if finding.category != "empty_cache")]
            if not tree.unreadable:
                looks = [*Inside(fd, tree, rules_of(policy)).look()]
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
        self._require_open()
        refused = [finding.message for finding in findings if finding.severity == "refuse"]
        if self.checked is None or refused:
            why = f" ({'; '.join(refused)})" if refused else ""
            raise StoreError(
                f"a build is published only after its checks, and not when they refuse it{why}: check first"
            )
        builds_fd, name = self._folder.builds_fd, self.build_id + MANIFEST
        with refusing("publish", self.path, "; it stays unfinished, and what is current stays so"):
            with open_build(self._folder, self.build_id) as fd:
                self._require_mine(fd)
                listed, _ = digest_build(fd, ignore=policy.ignore, sync=True, threads=threads)
                # The digests took a while: the build must still be what was checked.
                if scan_build(fd) != self.checked:
                    raise StoreError(
                        f"something wrote into {self.path} while it was published: stop it, then publish again",
                        path=self.path,
                    )
            manifest = self._manifest(policy, listed, findings, growth)
            with hold_switch(self._folder, "publish a build", wait_s=PUBLISH_WAIT_S):
                self.require_writer()
                if exists(builds_fd, name):
                    raise StoreError(f"another process has published {self.path}: use that one", path=self.path)
                # In one step: the manifest makes the build whole.
                files.write_durably(builds_fd, name, encode_manifest(manifest))
                # Held until this object is closed, which is after the activation: a clean-up in between would take
                # the build for unused.
                self.resources.callback(locks.hold_shared(builds_fd, name).release)
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
        self._require_open()
        told = [{**asdict(finding), "paths": list(finding.paths[:1000])} for finding in findings]
        with refusing("refuse", self.path), hold_switch(self._folder, "refuse a build"):
            self.require_writer()
            records.write_bad(self._folder, self.build_id, "refused", message, key=self.recipe.key, findings=told)
        self._done = True
        return self.path

    def clean(self) -> None:
        """Empty the directory but keep it, since the watch holds it open."""
        self._require_open()
        with refusing("empty", self.path), open_build(self._folder, self.build_id) as fd:
            self._require_mine(fd)
            done = empty_directory(fd)
            files.sync_directory(fd)
        self._note(removed=())
        if done.failed:
            raise StoreError(
                f"cannot remove {for_terminal(f'{self.path}/{done.problems[0]}', 1000)}: see to it by hand"
            )

    def discard(self) -> None:
        """Remove the build, in which no generator has written."""
        self._require_open()
        with refusing("remove", self.path), hold_switch(self._folder, "discard a build"):
            files.move_to_trash(self._folder.builds_fd, self.build_id)
            files.remove_file(self._folder.builds_fd, self.build_id + BEGUN)
        with refusing("remove", self.path):
            files.empty_trash(self._folder.builds_fd)
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
        with open_build(self._folder, self.build_id) as fd:
            self._require_mine(fd)
        if not self._lock.is_still(self._folder.fd, LOCK):
            raise StoreError(
                f"this process is no longer the writer of {self.path}: its lock file {LOCK} was removed or replaced, "
                "and another may have taken over; generate it again",
                path=self.path,
            )

    def _require_mine(self, build_fd: int) -> None:
        """Refuse a directory that is not the one that this process began; the one is open all the time, so its inode stays."""
        there, ours = os.fstat(build_fd), os.fstat(self._directory_fd)
        same = (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
        if not same or not exists(self._folder.builds_fd, self.build_id + BEGUN):
            raise StoreError(
                f"{self.path} or its {BEGUN} was moved or replaced while it was written: generate it again",
                path=self.path,
            )

    def _require_open(self) -> None:
        if self._done:
            raise StoreError(f"the build {self.build_id} is finished or closed: begin a new one")

    def _manifest(
        self,
        policy: PublishPolicy,
        listed: tuple[FileEntry, ...],
        findings: Sequence[Finding],
        growth: Mapping[str, Any] | None,
    ) -> Manifest:
        assert self.checked is not None
        return Manifest(
            name=self.name,
            build_id=self.build_id,
            key=self.recipe.key,
            cache_key=self.recipe.cache_key,
            argv=tuple(redact_argv(self.recipe.argv)),
            tool_versions={"prefect-cachewatch": __version__, "python": ".".join(map(str, sys.version_info[:3]))},
            host={"hostname": socket.gethostname(), "kernel": platform.release(), "machine": platform.machine()},
            started_at=format_moment(self._begun.started_s),
            finished_at=format_moment(time.time()),
            files=listed,
            links=tuple(LinkEntry(path, target) for path, target in self.checked.links),
            growth=growth,
            warnings=tuple(finding.message for finding in findings),
            ignore=tuple(policy.ignore),
        )


def rules_of(policy: PublishPolicy) -> Rules:
    """Which files of a build are looked into, and for what."""
    contents = policy.on_broken_content != "ignore"
    return Rules(policy.ignore, policy.allow_empty_files, policy.allow_sparse, contents)


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
