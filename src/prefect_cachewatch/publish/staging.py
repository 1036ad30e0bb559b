"""A build that is being written: its directory, retries, checks, publication or quarantine.

Holds the writer's lock of the cache from beginning to end. It starts no process and does not
switch `current` (see `activation`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from prefect_cachewatch import __version__
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.builds import MANIFEST, PIN, open_build
from prefect_cachewatch.publish.checks import Finding, check_tree
from prefect_cachewatch.publish.digests import digest_build
from prefect_cachewatch.publish.durable import (
    discard_tree,
    entry_exists,
    move_entry,
    remove_leftovers,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch, open_subdirectory
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.manifest import LinkEntry, Manifest, encode_manifest
from prefect_cachewatch.publish.names import META_DIRECTORY, cache_key_digest
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.suspects import Suspect, find_suspects
from prefect_cachewatch.publish.tree import BuildTree, scan_build
from prefect_cachewatch.text import redact, redact_argv

__all__ = ["STAGING_RECORD", "BuildRecipe", "StagedBuild", "host_facts", "own_versions", "write_meta"]

STAGING_RECORD = ".staging.json"
_QUARANTINE_RECORD = "quarantine.json"


@dataclass(frozen=True)
class BuildRecipe:
    """What a build is made from; the key says whether two builds are the same cache."""

    argv: tuple[str, ...]
    cache_key: Mapping[str, str]
    tool_versions: Mapping[str, str]

    @classmethod
    def of(cls, argv: Sequence[str], policy: PublishPolicy) -> BuildRecipe:
        """Take it from a command, with `{cache_dir}` still in it, and a policy."""
        return cls(tuple(argv), dict(policy.cache_key), dict(policy.tool_versions))

    @property
    def key(self) -> str:
        """The digest over all of it."""
        return cache_key_digest(self.cache_key, self.argv, self.tool_versions)


class StagedBuild:
    """The one build of a cache that is being written; `close` gives the writer's lock up."""

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
        self._folder, self._resources, self._lock = folder, resources, lock
        self._recipe, self._started_s, self._last_bytes = recipe, started_s, last_bytes
        self._checked: BuildTree | None = None
        self._done = False
        self.build_id = build_id
        self.adopted = adopted

    @property
    def path(self) -> str:
        """Where the generator writes; absolute, and the same after publication."""
        return self._folder.build_path(self.build_id)

    @property
    def manifest_path(self) -> str:
        """Where the manifest stands once it is published."""
        return f"{self.path}/{META_DIRECTORY}/{MANIFEST}"

    @property
    def key(self) -> str:
        """The digest of what the build depends on."""
        return self._recipe.key

    def prepare_resume(
        self,
        policy: PublishPolicy,
        *,
        window_s: float,
        ended_at_s: float | None = None,
        reported: Collection[str] = (),
    ) -> list[Suspect]:
        """Remove what a killed attempt may have cut, so that the next one writes it again.

        Args:
            policy: says what is temporary, and whether suspects are kept.
            window_s: the stall window, unless the policy has one of its own.
            ended_at_s: when the attempt ended, see `filesystem_now`; None where nobody knows.
            reported: paths in the build that the watch saw growing at the end.

        Returns:
            What was removed.

        Raises:
            StoreError: if one cannot be removed.
        """
        self._require_open()
        if policy.suspects == "keep":
            return []
        with open_build(self._folder, self.build_id) as fd:
            suspects = find_suspects(
                scan_build(fd).files,
                temporary=policy.temporary,
                allow_empty=policy.allow_empty,
                ended_at_s=ended_at_s,
                window_s=window_s if policy.suspect_window_s is None else policy.suspect_window_s,
                reported=reported,
            )
            for suspect in suspects:
                _unlink_below(fd, suspect.path)
        return suspects

    def clean(self) -> None:
        """Begin again with an empty directory of the same path."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        os.mkdir(self.build_id, 0o755, dir_fd=self._folder.builds_fd)

    def filesystem_now(self) -> float:
        """Wall seconds on the clock that stamps the build's files, which on NFS is the server's."""
        probe = f".cachewatch-new-clock-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(probe, flags, 0o600, dir_fd=self._folder.fd)
        except OSError:
            return time.time()
        try:
            os.utime(fd)
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)
            os.unlink(probe, dir_fd=self._folder.fd)

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check what the generator left; nothing is changed.

        Args:
            policy: the rules.
            extra: what others found, such as the user's check command.

        Returns:
            Everything found, refusals first; see `checks.check_tree`.
        """
        self._require_open()
        with open_build(self._folder, self.build_id) as fd:
            self._checked = scan_build(fd)
        found = [*check_tree(self._checked, policy, self._last_bytes), *extra]
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
            policy: says which files belong to the cache.
            findings: warnings for the manifest; call `check` first, and do not publish with refusals.
            growth: the watch's growth summary.
            threads: files read at once; default one a core.

        Returns:
            The manifest. From now on the build may be activated, and nothing of it is written any more.

        Raises:
            StoreError: if the build changes meanwhile, or cannot be written; it stays a staging build then.
        """
        self._require_open()
        if self._checked is None or any(finding.severity == "refuse" for finding in findings):
            raise StoreError(
                "a build is published only after its checks, and not when they refuse it: check first"
            )
        try:
            with open_build(self._folder, self.build_id) as fd:
                files, _ = digest_build(fd, ignore=policy.ignore, sync=True, threads=threads)
                # The digests took a while; what was checked must still be what is there.
                if scan_build(fd) != self._checked:
                    raise StoreError(
                        f"something wrote into {self.path} while it was published: stop it, then publish again",
                        path=self.path,
                    )
                manifest = Manifest(
                    name=self._folder.name,
                    build_id=self.build_id,
                    mode="staged",
                    key=self.key,
                    cache_key=self._recipe.cache_key,
                    argv=tuple(redact_argv(self._recipe.argv)),
                    tool_versions={**own_versions(), **self._recipe.tool_versions},
                    host=host_facts(),
                    started_at=_iso(self._started_s),
                    finished_at=_iso(time.time()),
                    files=files,
                    links=tuple(LinkEntry(path, target) for path, target in self._checked.links),
                    growth=growth,
                    warnings=tuple(finding.message for finding in findings),
                    ignore=tuple(policy.ignore),
                )
                with _meta_directory(fd, self.path) as meta_fd:
                    remove_leftovers(meta_fd)
                    _create_pin(meta_fd)
                    sync_directory(fd)
                    sync_directory(self._folder.builds_fd)
                    # Last of all, and in one step: with it the build is whole, without it it is none.
                    write_durably(meta_fd, MANIFEST, encode_manifest(manifest))
            self._forget_staging()
        except OSError as error:
            raise StoreError(
                f"cannot publish {self.path}: {os.strerror(error.errno or 0)}; it stays a staging build, and current is unchanged",
                path=self.path,
            ) from None
        self._done = True
        return manifest

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Put a refused build aside, with the reasons beside it.

        Args:
            findings: why.
            message: the same in one sentence.

        Returns:
            Where it lies now.

        Raises:
            StoreError: if it cannot be moved; it stays a staging build then.
        """
        self._require_open()
        record = {
            "schema_version": 1,
            "build_id": self.build_id,
            "key": self.key,
            "message": redact(message),
            "refused_at": _iso(time.time()),
            "findings": [{**asdict(finding), "paths": list(finding.paths[:1000])} for finding in findings],
        }
        try:
            with hold_switch(self._folder, "put a build into quarantine"):
                with open_build(self._folder, self.build_id) as fd:
                    write_meta(fd, self.path, _QUARANTINE_RECORD, record)
                move_entry(self._folder.builds_fd, self.build_id, self._folder.quarantine_fd, self.build_id)
            self._forget_staging()
        except OSError as error:
            raise StoreError(
                f"cannot move {self.path} into quarantine: {os.strerror(error.errno or 0)}"
            ) from None
        self._done = True
        return self._folder.quarantine_path(self.build_id)

    def discard(self) -> None:
        """Remove the staging build."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        self._forget_staging()
        self._done = True

    def close(self) -> None:
        """Give the writer's lock up; a build that was not finished stays, for a retry to resume."""
        self._lock.release()
        self._resources.close()
        self._done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _forget_staging(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STAGING_RECORD, dir_fd=self._folder.fd)

    def _require_open(self) -> None:
        if self._done:
            raise StoreError(f"the build {self.build_id} is no staging build any more: begin a new one")


def write_meta(build_fd: int, path: str, name: str, record: Mapping[str, Any]) -> None:
    """Write a small JSON file of cachewatch's own into a build.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the build, for messages.
        name: the file's name.
        record: its contents.
    """
    with _meta_directory(build_fd, path) as meta_fd:
        write_durably(meta_fd, name, json.dumps(record, indent=1).encode("ascii") + b"\n")


def host_facts() -> dict[str, str]:
    """Where a build was made; nothing of the environment."""
    return {"hostname": socket.gethostname(), "kernel": platform.release(), "machine": platform.machine()}


def own_versions() -> dict[str, str]:
    """The tools of this process; the generator's own come from the user."""
    return {"prefect-cachewatch": __version__, "python": ".".join(map(str, sys.version_info[:3]))}


@contextlib.contextmanager
def _meta_directory(build_fd: int, path: str) -> Iterator[int]:
    if not entry_exists(build_fd, META_DIRECTORY):
        os.mkdir(META_DIRECTORY, 0o755, dir_fd=build_fd)
        sync_directory(build_fd)
    with open_subdirectory(build_fd, META_DIRECTORY, f"{path}/{META_DIRECTORY}") as fd:
        yield fd


def _create_pin(meta_fd: int) -> None:
    os.close(os.open(PIN, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=meta_fd))


def _unlink_below(build_fd: int, path: str) -> None:
    parent, _, name = path.rpartition("/")
    with contextlib.ExitStack() as stack:
        fd = build_fd
        for part in filter(None, parent.split("/")):
            fd = stack.enter_context(open_subdirectory(fd, part, path))
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(
                f"cannot remove the cut file {path}: {os.strerror(error.errno or 0)}", path=path
            ) from None


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
