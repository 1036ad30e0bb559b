"""A build that is being written, wherever it lies: retries, checks, digests, manifest.

What staged and in-place builds have in common. It starts no process and makes nothing current.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from prefect_cachewatch import __version__
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.builds import MANIFEST, PIN
from prefect_cachewatch.publish.checks import Finding, check_tree
from prefect_cachewatch.publish.digests import digest_build
from prefect_cachewatch.publish.durable import entry_exists, remove_leftovers, sync_directory, write_durably
from prefect_cachewatch.publish.layout import open_subdirectory
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.manifest import LinkEntry, Manifest, encode_manifest
from prefect_cachewatch.publish.names import META_DIRECTORY, cache_key_digest
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.suspects import Suspect, find_suspects
from prefect_cachewatch.publish.tree import BuildTree, scan_build
from prefect_cachewatch.text import redact, redact_argv

__all__ = ["BuildRecipe", "BuildTarget", "meta_directory", "refusal_record", "remove_below", "write_meta"]


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


class BuildTarget(ABC):
    """The one build of a cache that is being written; `close` gives the writer's lock up."""

    mode: str

    def __init__(
        self,
        name: str,
        build_id: str,
        path: str,
        recipe: BuildRecipe,
        lock: HeldLock,
        resources: contextlib.ExitStack,
        *,
        adopted: bool,
        started_s: float,
        last_bytes: int | None,
    ) -> None:
        self.name, self.build_id, self.path, self.recipe = name, build_id, path, recipe
        self.adopted = adopted
        self._lock, self._resources = lock, resources
        self._started_s, self._last_bytes = started_s, last_bytes
        self._checked: BuildTree | None = None
        self._done = False

    @property
    def key(self) -> str:
        """The digest of what the build depends on."""
        return self.recipe.key

    @property
    def checked(self) -> BuildTree | None:
        """What was in the build when it was checked last."""
        return self._checked

    @property
    def manifest_path(self) -> str:
        """Where the manifest stands once it is published."""
        return f"{self.path}/{META_DIRECTORY}/{MANIFEST}"

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
        with self._open() as fd:
            suspects = find_suspects(
                scan_build(fd).files,
                temporary=policy.temporary,
                allow_empty=policy.allow_empty,
                ended_at_s=ended_at_s,
                window_s=window_s if policy.suspect_window_s is None else policy.suspect_window_s,
                reported=reported,
            )
            for suspect in suspects:
                remove_below(fd, suspect.path)
        return suspects

    def filesystem_now(self) -> float:
        """Wall seconds on the clock that stamps the build's files, which on NFS is the server's."""
        with self._probe_directory() as directory_fd:
            probe = f".cachewatch-new-clock-{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                fd = os.open(probe, flags, 0o600, dir_fd=directory_fd)
            except OSError:
                return time.time()
            try:
                return os.fstat(fd).st_mtime
            finally:
                os.close(fd)
                os.unlink(probe, dir_fd=directory_fd)

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check what the generator left; nothing is changed.

        Args:
            policy: the rules.
            extra: what others found, such as the user's check command.

        Returns:
            Everything found, refusals first; see `checks.check_tree`.
        """
        self._require_open()
        with self._open() as fd:
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
            The manifest. From now on the build is whole, and nothing of it is written any more.

        Raises:
            StoreError: if the build changes meanwhile, or cannot be written; it stays unfinished then.
        """
        self._require_open()
        if self._checked is None or any(finding.severity == "refuse" for finding in findings):
            raise StoreError("a build is published only after its checks, and not when they refuse it: check first")
        try:
            with self._open() as fd:
                files, _ = digest_build(fd, ignore=policy.ignore, sync=True, threads=threads)
                # The digests took a while; what was checked must still be what is there.
                if scan_build(fd) != self._checked:
                    raise StoreError(
                        f"something wrote into {self.path} while it was published: stop it, then publish again",
                        path=self.path,
                    )
                manifest = self._manifest(policy, files, findings, growth)
                with meta_directory(fd, self.path) as meta_fd:
                    remove_leftovers(meta_fd)
                    self._write_manifest(fd, meta_fd, encode_manifest(manifest))
            self._finished()
        except OSError as error:
            raise StoreError(
                f"cannot publish {self.path}: {os.strerror(error.errno or 0)}; it stays unfinished, "
                "and what is current stays so",
                path=self.path,
            ) from None
        self._done = True
        return manifest

    @abstractmethod
    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Put a refused build aside, with the reasons beside it; say where it lies."""

    @abstractmethod
    def clean(self) -> None:
        """Begin again with nothing of what earlier attempts wrote."""

    @abstractmethod
    def _open(self) -> contextlib.AbstractContextManager[int]: ...

    @abstractmethod
    def _probe_directory(self) -> contextlib.AbstractContextManager[int]: ...

    def _write_manifest(self, build_fd: int, meta_fd: int, data: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(PIN, flags, 0o644, dir_fd=meta_fd))
        sync_directory(build_fd)
        # Last of all, and in one step: with it the build is whole, without it it is none.
        write_durably(meta_fd, MANIFEST, data)

    def _finished(self) -> None:  # noqa: B027 - in-place builds have nothing to forget
        """Forget what only an unfinished build needs."""

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
            mode=self.mode,
            key=self.key,
            cache_key=self.recipe.cache_key,
            argv=tuple(redact_argv(self.recipe.argv)),
            tool_versions={"prefect-cachewatch": __version__, "python": python, **self.recipe.tool_versions},
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


def refusal_record(target: BuildTarget, findings: Sequence[Finding], message: str) -> dict[str, Any]:
    """What stands beside a refused build: why, in one sentence and in detail."""
    return {
        "schema_version": 1,
        "build_id": target.build_id,
        "key": target.key,
        "message": redact(message),
        "refused_at": _iso(time.time()),
        "findings": [{**asdict(finding), "paths": list(finding.paths[:1000])} for finding in findings],
    }


def write_meta(build_fd: int, path: str, name: str, record: Mapping[str, Any]) -> None:
    """Write a small JSON file of cachewatch's own into a build.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the build, for messages.
        name: the file's name.
        record: its contents.
    """
    with meta_directory(build_fd, path) as meta_fd:
        write_durably(meta_fd, name, json.dumps(record, indent=1).encode("ascii") + b"\n")


@contextlib.contextmanager
def meta_directory(build_fd: int, path: str) -> Iterator[int]:
    """Open cachewatch's own directory in a build, made if missing."""
    if not entry_exists(build_fd, META_DIRECTORY):
        os.mkdir(META_DIRECTORY, 0o755, dir_fd=build_fd)
        sync_directory(build_fd)
    with open_subdirectory(build_fd, META_DIRECTORY, f"{path}/{META_DIRECTORY}") as fd:
        yield fd


def remove_below(build_fd: int, path: str) -> None:
    """Remove a file of a build by its relative path, following no link on the way.

    Raises:
        StoreError: if it cannot be removed; one that is gone is no error.
    """
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
                f"cannot remove {path} before the retry: {os.strerror(error.errno or 0)}", path=path
            ) from None


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
