"""A build that is being written: retries, checks, digests, manifest; the writer's lock is held to the end.

It starts no process and does not switch `current` (see `store`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from prefect_cachewatch import __version__
from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.removal import empty_directory, make_stamp, open_below
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.checks import (
    Finding,
    Suspect,
    check_content,
    check_parts,
    check_tree,
    check_unwritten,
    find_empty,
    find_suspects,
    list_paths,
)
from prefect_cachewatch.store.contents import inspect_build
from prefect_cachewatch.store.files import (
    empty_trash,
    exists,
    move_to_trash,
    refusing,
    remove_file,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.store.folder import LOCK, PUBLISH_WAIT_S, CacheFolder, hold_switch, open_build
from prefect_cachewatch.store.holes import describe_unwritten, find_unwritten
from prefect_cachewatch.store.locks import HeldLock, hold_shared
from prefect_cachewatch.store.manifest import FileEntry, LinkEntry, Manifest, encode_manifest
from prefect_cachewatch.store.names import cache_key_digest
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.records import (
    BEGUN,
    MANIFEST,
    Begun,
    end_beat,
    note_growth,
    read_begun,
    read_growth,
    write_bad,
    write_begun,
)
from prefect_cachewatch.store.removed import Removed, find_unreplaced
from prefect_cachewatch.store.sets import find_missing
from prefect_cachewatch.store.tree import BuildTree, scan_build
from prefect_cachewatch.store.verification import digest_build


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


class StagedBuild(Closing):
    """The one build of a cache that is being written; its path stays the same when it is published.

    `close` releases the writer's lock; an unfinished build stays, for a retry to resume.
    """

    def __init__(
        self,
        folder: CacheFolder,
        resources: contextlib.ExitStack,
        build_id: str,
        recipe: BuildRecipe,
        begun: Begun,
        *,
        lock: HeldLock,
        directory_fd: int,
        adopted: bool,
        last_bytes: int | None,
    ) -> None:
        self.name, self.build_id, self.path, self.recipe = folder.name, build_id, folder.build_path(build_id), recipe
        self.adopted = adopted
        self.record = self.path + BEGUN
        """Path of its record: touched by whoever shows that this writer lives, and marked by the scan process."""
        self.checked: BuildTree | None = None
        """The contents of the build when it was last checked."""
        self.notes: list[str] = []
        """Sentences for the user about what was found and removed."""
        self._folder, self._resources, self._begun, self._last_bytes = folder, resources, begun, last_bytes
        self._lock, self._directory_fd = lock, directory_fd
        self._content: tuple[BuildTree, PublishPolicy, list[Finding]] | None = None
        self._done = False

    @property
    def removed(self) -> dict[str, Removed]:
        """What was removed before attempts at this build, by its path in the build."""
        return {path: Removed(size, at_ns) for path, size, at_ns in self._begun.removed}

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
            known = read_growth(self._folder, self.build_id, fd)
            recorded = read_begun(self._folder, self.build_id) or Begun()
            suspects = find_suspects(
                tree.files,
                empty={tree.leads.get(name, name) for name in find_empty(tree, policy.allow_empty_files)},
                grew_after_ns=known if isinstance(known, int) else None,
                window_s=window_s,
                reported={*reported, *recorded.reported},
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
                lost = self.removed | {suspect.path: Removed(suspect.size_bytes, at_ns) for suspect in suspects}
                self._note(removed=tuple((path, was.size_bytes, was.at_ns) for path, was in lost.items()))
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
            note_growth(self._folder, self.build_id)

    def _note(self, **changes: Any) -> None:
        self._begun = replace(self._begun, **changes)
        with refusing("write", self.record):
            write_begun(self._folder, self.build_id, self._begun)

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
            found = [*check_tree(tree, policy, self._last_bytes), *extra]
            if lost := find_unreplaced(self.removed, tree.files):
                # The generator has used the path that it was given, before.
                found = [*lost, *(finding for finding in found if finding.category != "empty_cache")]
            if policy.on_broken_content != "ignore" and not tree.unreadable:
                if self._content is None or self._content[:2] != (tree, policy):  # unchanged files are read once
                    looked = inspect_build(fd, policy.ignore, policy.allow_empty_files)
                    content = check_content(looked, policy.on_broken_content)
                    content += check_parts(find_missing(fd, tree, policy.ignore), policy.on_broken_content)
                    self._content = tree, policy, content
                found += self._content[2]
            if not tree.unreadable:
                holes = find_unwritten(fd, [*policy.ignore, *policy.allow_sparse])
                found += check_unwritten(describe_unwritten(holes, {file.path: file.size_bytes for file in tree.files}))
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
                files, _ = digest_build(fd, ignore=policy.ignore, sync=True, threads=threads)
                # The digests took a while: the build must still be what was checked.
                if scan_build(fd) != self.checked:
                    raise StoreError(
                        f"something wrote into {self.path} while it was published: stop it, then publish again",
                        path=self.path,
                    )
            manifest = self._manifest(policy, files, findings, growth)
            with hold_switch(self._folder, "publish a build", wait_s=PUBLISH_WAIT_S):
                self.require_writer()
                if exists(builds_fd, name):
                    raise StoreError(f"another process has published {self.path}: use that one", path=self.path)
                # In one step: the manifest makes the build whole.
                write_durably(builds_fd, name, encode_manifest(manifest))
                # Held until this object is closed, which is after the activation: a clean-up in between would take
                # the build for unused.
                self._resources.callback(hold_shared(builds_fd, name).release)
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
            write_bad(self._folder, self.build_id, "refused", message, time.time(), key=self.recipe.key, findings=told)
        self._done = True
        return self.path

    def clean(self) -> None:
        """Empty the directory but keep it, since the watch holds it open."""
        self._require_open()
        with refusing("empty", self.path), open_build(self._folder, self.build_id) as fd:
            self._require_mine(fd)
            done = empty_directory(fd)
            sync_directory(fd)
        self._note(removed=())
        if done.failed:
            raise StoreError(
                f"cannot remove {for_terminal(f'{self.path}/{done.problems[0]}', 1000)}: see to it by hand"
            )

    def discard(self) -> None:
        """Remove the build, in which no generator has written."""
        self._require_open()
        with refusing("remove", self.path), hold_switch(self._folder, "discard a build"):
            move_to_trash(self._folder.builds_fd, self.build_id)
            remove_file(self._folder.builds_fd, self.build_id + BEGUN)
        with refusing("remove", self.path):
            empty_trash(self._folder.builds_fd)
        self._done = True

    def close(self) -> None:
        """Release the writer's lock."""
        if not self._done:
            self._done = True
            end_beat(self._folder, self.build_id)
        self._resources.close()

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
        files: tuple[FileEntry, ...],
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
            started_at=_iso(self._begun.started_s),
            finished_at=_iso(time.time()),
            files=files,
            links=tuple(LinkEntry(path, target) for path, target in self.checked.links),
            growth=growth,
            warnings=tuple(finding.message for finding in findings),
            ignore=tuple(policy.ignore),
        )


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


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
