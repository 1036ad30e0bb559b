"""A build that is being written in the store: retries, checks, digests, manifest; the writer's lock is held to the end.

It starts no process and does not switch `current` (see `activation`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from prefect_cachewatch import __version__
from prefect_cachewatch.common.closing import Closing, Opened
from prefect_cachewatch.common.removal import empty_directory, look, make_stamp, open_below, remove_entry
from prefect_cachewatch.common.secrets import redact, redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.measure.growth_mark import MARK_BYTES, read_mark, write_mark
from prefect_cachewatch.publish.builds import MANIFEST, PIN, QUARANTINE_RECORD, open_build, pin_build
from prefect_cachewatch.publish.checks import (
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
from prefect_cachewatch.publish.contents import inspect_build
from prefect_cachewatch.publish.durable import (
    discard_tree,
    entry_exists,
    holds_change_times,
    move_entry,
    read_note,
    read_small_file,
    refusing,
    remove_leftovers,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.publish.holes import describe_unwritten, find_unwritten
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.manifest import LinkEntry, Manifest, encode_manifest
from prefect_cachewatch.publish.names import META_DIRECTORY, cache_key_digest
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.removed import Removed, find_unreplaced
from prefect_cachewatch.publish.sets import find_missing
from prefect_cachewatch.publish.staging import (
    STAGING_RECORD,
    foreign_meta,
    meta_directory,
    note_finished,
    set_aside_meta,
    write_meta,
)
from prefect_cachewatch.publish.tree import BuildTree, scan_build
from prefect_cachewatch.publish.verification import digest_build

GROWTH_MARK = ".grew.json"
REPORTED = ".reported.json"
REMOVED = ".removed.json"


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

    `close` releases the writer's lock.
    """

    def __init__(
        self,
        folder: CacheFolder,
        resources: contextlib.ExitStack,
        lock: HeldLock,
        build_id: str,
        recipe: BuildRecipe,
        *,
        adopted: bool,
        started_s: float,
        last_bytes: int | None,
    ) -> None:
        self.name, self.build_id, self.path, self.recipe = folder.name, build_id, folder.build_path(build_id), recipe
        self.adopted = adopted
        self._folder, self._lock, self._resources = folder, lock, resources
        self._started_s, self._last_bytes = started_s, last_bytes
        self._checked: BuildTree | None = None
        self._content: tuple[BuildTree, PublishPolicy, list[Finding]] | None = None
        self._done = False
        self.notes: list[str] = []
        """Sentences for the user about what was found and removed."""

    @property
    def key(self) -> str:
        """The digest of the build's inputs."""
        return self.recipe.key

    @property
    def checked(self) -> BuildTree | None:
        """The contents of the build when it was last checked."""
        return self._checked

    def prepare_resume(
        self,
        policy: PublishPolicy,
        *,
        window_s: float,
        reported: Collection[str] = (),
        broken: Collection[str] = (),
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
        with self._open() as fd:
            tree = scan_build(fd)
            files = tree.files
            known = self._read_growth(fd)
            suspects = find_suspects(
                files,
                empty={tree.leads.get(name, name) for name in find_empty(tree, policy.allow_empty_files)},
                grew_after_ns=known if isinstance(known, int) else None,
                window_s=window_s,
                reported={*reported, *self._read_reported()},
                broken=broken,
            )
            if suspects and isinstance(known, str):
                shown = len(files) - len(suspects)
                self.notes.append(
                    f"{shown or 'none'} of the {len(files):,} files of an earlier attempt can be shown to be whole: {known}"
                )
            links = links_to(self.path, tree.links, [suspect.path for suspect in suspects])
            if suspects:
                self._note_removed(suspects)  # first: a run that resumes the build after a kill has to know it too
            for path in (*links, *(suspect.path for suspect in suspects)):
                remove_below(fd, path)
            if links:
                self.notes.append(f"removed the links to them as well: {list_paths(links)}")
        self.note_growth()
        return suspects

    @property
    def removed(self) -> dict[str, Removed]:
        """What was removed before attempts at this build, by its path in the build."""
        found = read_note(self._folder.fd, REMOVED, 1 << 26, self._decode_removed)
        return found or {}

    def _decode_removed(self, note: Any) -> dict[str, Removed]:
        if note["build_id"] != self.build_id:
            return {}
        return {str(path): Removed(int(size), int(at_ns)) for path, size, at_ns in note["files"]}

    def _note_removed(self, suspects: Sequence[Suspect]) -> None:
        known = self.removed
        with refusing("write", f"{self._folder.path}/{REMOVED}"):
            at_ns = make_stamp(self._folder.fd).changed_ns
            known |= {suspect.path: Removed(suspect.size_bytes, at_ns) for suspect in suspects}
            files = [[path, was.size_bytes, was.at_ns] for path, was in known.items()]
            body = json.dumps({"build_id": self.build_id, "files": files})
            write_durably(self._folder.fd, REMOVED, body.encode("ascii") + b"\n")

    @property
    def growth_mark(self) -> str:
        """Path of the mark that the scan process renews while the build is written; see `measure.growth_mark`."""
        return f"{self._folder.path}/{GROWTH_MARK}"

    @property
    def reported_record(self) -> str:
        """Path of the record of files that a run saw open or growing at its end: JSON, from `reported_json`."""
        return f"{self._folder.path}/{REPORTED}"

    def reported_json(self, paths: Collection[str]) -> str:
        """Make the contents of `reported_record`.

        Args:
            paths: absolute; those below the build count.
        """
        prefix = self.path + "/"
        below = sorted(path.removeprefix(prefix) for path in paths if path.startswith(prefix))
        return json.dumps({"build_id": self.build_id, "paths": below})

    def note_growth(self) -> None:
        """Record this moment of the file system's clock as the last growth; call it before a generator starts.

        Raises:
            StoreError: it cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        record_fd = self._folder.fd
        with refusing("write", self.growth_mark):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(REPORTED, dir_fd=record_fd)
            with Opened(os.open(GROWTH_MARK, flags, 0o644, dir_fd=record_fd)) as fd:
                write_mark(fd, self.path, make_stamp(record_fd).changed_ns)
                os.fsync(fd)
            sync_directory(record_fd)

    def _read_growth(self, build_fd: int) -> int | str:
        """Return the moment after which an earlier attempt's last growth came, or why it is unknown."""
        record_fd = self._folder.fd
        try:
            if not holds_change_times(record_fd):
                return "on its file system any program may set a file's change time"
            data = read_small_file(record_fd, GROWTH_MARK, 2 * MARK_BYTES)
            return read_mark(data, build_fd, make_stamp(record_fd).changed_ns)
        except FileNotFoundError:
            return "nothing is known about when it was written"
        except (OSError, StoreError) as error:
            why = error.message if isinstance(error, StoreError) else os.strerror(error.errno or 0)
            return f"{GROWTH_MARK} cannot be read: {why}"

    def _read_reported(self) -> list[str]:
        return read_note(self._folder.fd, REPORTED, 1 << 24, lambda found: [str(path) for path in found["paths"]]) or []

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check the generator's output: names, sizes, and whether each file can be what its format demands.

        Args:
            policy: the rules.
            extra: findings of other checks, such as the user's check command.

        Returns:
            All findings, refusals first; see `checks.check_tree`.
        """
        self._require_open()
        with self._open() as fd:
            self._checked = tree = scan_build(fd)
            found = [*self._check_meta(fd), *check_tree(tree, policy, self._last_bytes), *extra]
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
        if self._checked is None or refused:
            why = f" ({'; '.join(refused)})" if refused else ""
            raise StoreError(
                f"a build is published only after its checks, and not when they refuse it{why}: check first"
            )
        with refusing("publish", self.path, "; it stays unfinished, and what is current stays so"):
            with self._open() as fd:
                files, _ = digest_build(fd, ignore=policy.ignore, sync=True, threads=threads)
                # The digests took a while: the build must still be what was checked.
                if scan_build(fd) != self._checked:
                    raise StoreError(
                        f"something wrote into {self.path} while it was published: stop it, then publish again",
                        path=self.path,
                    )
                manifest = self._manifest(policy, files, findings, growth)
                self._before_manifest(fd)
                with meta_directory(fd, self.path) as meta_fd:
                    remove_leftovers(meta_fd)
                    self._write_manifest(fd, meta_fd, encode_manifest(manifest))
            self._finished()
        self._done = True
        return manifest

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Move a refused build into quarantine, with the reasons beside it.

        Args:
            findings: the reasons.
            message: the reasons in one sentence.

        Returns:
            Its new path.

        Raises:
            StoreError: it cannot be moved; it stays a staging build then.
        """
        self._require_open()
        with refusing("move", self.path, named=f"{for_terminal(self.path, 1000)} into quarantine"):
            with hold_switch(self._folder, "put a build into quarantine"):
                # First: if anything fails after this, the next run of the key begins with a new build and does not meet
                # the same failure.
                self._forget()
                with self._open() as fd:
                    set_aside_meta(fd)
                    write_meta(fd, self.path, QUARANTINE_RECORD, refusal_record(self, findings, message))
                move_entry(self._folder.builds_fd, self.build_id, self._folder.quarantine_fd, self.build_id)
            self._finished()
        self._done = True
        return self._folder.quarantine_path(self.build_id)

    def clean(self) -> None:
        """Empty the directory but keep it, since the watch holds it open."""
        self._require_open()
        with self._open() as fd:
            done = empty_directory(fd)
            sync_directory(fd)
        self._forget_removed()
        if done.failed:
            raise StoreError(
                f"cannot remove {for_terminal(f'{self.path}/{done.problems[0]}', 1000)}: see to it by hand"
            )

    def discard(self) -> None:
        """Remove the staging build."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        self._finished()
        self._done = True

    def _open(self) -> contextlib.AbstractContextManager[int]:
        return open_build(self._folder, self.build_id)

    def _check_meta(self, build_fd: int) -> list[Finding]:
        found = foreign_meta(build_fd)
        if found is None:
            return []
        message = (
            f"{META_DIRECTORY} is cachewatch's own name in a build, and here it is {found}: have it written elsewhere"
        )
        return [Finding("reserved_name", message, paths=(META_DIRECTORY,))]

    def _before_manifest(self, build_fd: int) -> None:
        # Nothing of ours is there yet: a directory of that name was copied from another build.
        if entry_exists(build_fd, META_DIRECTORY):
            # Into the store's trash: after a kill, remains in the build would pass for the generator's files.
            discard_tree(build_fd, META_DIRECTORY, self._folder.builds_fd)

    def _write_manifest(self, build_fd: int, meta_fd: int, data: bytes) -> None:
        sync_directory(self._folder.builds_fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(PIN, flags, 0o644, dir_fd=meta_fd))
        sync_directory(build_fd)
        # Last of all, and in one step: the manifest makes the build whole.
        write_durably(meta_fd, MANIFEST, data)
        # Held until this object is closed, which is after the activation: a clean-up in between would take the build
        # for unused.
        self._resources.callback(pin_build(build_fd).release)

    def _finished(self) -> None:
        self._forget()
        note_finished(self._folder, self.build_id)

    def _forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STAGING_RECORD, dir_fd=self._folder.fd)
            sync_directory(self._folder.fd)
        self._forget_removed()

    def _forget_removed(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(REMOVED, dir_fd=self._folder.fd)

    def close(self) -> None:
        """Release the writer's lock; an unfinished build stays, for a retry to resume."""
        self._lock.release()
        self._resources.close()
        self._done = True

    def _require_open(self) -> None:
        if self._done:
            raise StoreError(f"the build {self.build_id} is finished or closed: begin a new one")

    def _manifest(
        self,
        policy: PublishPolicy,
        files: tuple[Any, ...],
        findings: Sequence[Finding],
        growth: Mapping[str, Any] | None,
    ) -> Manifest:
        assert self._checked is not None
        python = ".".join(map(str, sys.version_info[:3]))
        return Manifest(
            name=self.name,
            build_id=self.build_id,
            key=self.key,
            cache_key=self.recipe.cache_key,
            argv=tuple(redact_argv(self.recipe.argv)),
            tool_versions={"prefect-cachewatch": __version__, "python": python},
            host={
                "hostname": socket.gethostname(),
                "kernel": platform.release(),
                "machine": platform.machine(),
            },
            started_at=_iso(self._started_s),
            finished_at=_iso(time.time()),
            files=files,
            links=tuple(LinkEntry(path, target) for path, target in self._checked.links),
            growth=growth,
            warnings=tuple(finding.message for finding in findings),
            ignore=tuple(policy.ignore),
        )


def refusal_record(target: StagedBuild, findings: Sequence[Finding], message: str) -> dict[str, Any]:
    """Return the record beside a refused build: the reason in one sentence and in detail."""
    return {
        "schema_version": 1,
        "build_id": target.build_id,
        "key": target.key,
        "message": redact(message),
        "refused_at": _iso(time.time()),
        "findings": [{**asdict(finding), "paths": list(finding.paths[:1000])} for finding in findings],
    }


def links_to(root: str, links: Sequence[tuple[str, str]], paths: Collection[str]) -> list[str]:
    """List the links in a build that lead to some of its files, directly or by other links.

    Args:
        root: path of the build.
        links: path and target of each link.
        paths: of the files, relative to the build.
    """
    real_root, gone = os.path.realpath(root), set(paths)
    return [path for path, _ in links if os.path.relpath(os.path.realpath(os.path.join(root, path)), real_root) in gone]


def remove_below(build_fd: int, path: str) -> None:
    """Remove a file of a build by its relative path, without following a link on the way.

    Args:
        build_fd: descriptor of the build's directory.
        path: relative to it.

    Raises:
        StoreError: it cannot be removed; a missing file is no error.
    """
    parent, _, name = path.rpartition("/")
    with (
        refusing("remove", path, named=f"{for_terminal(path, 1000)} before the retry"),
        contextlib.suppress(FileNotFoundError),
        Opened(open_below(build_fd, parent)) as fd,
    ):
        remove_entry(fd, name, look(fd, name))


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
