"""A build in the store that is being written; the writer's lock is held from beginning to end.

It does not switch `current` (see `activation`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.builds import open_build
from prefect_cachewatch.publish.checks import Finding
from prefect_cachewatch.publish.durable import discard_tree, move_entry, sync_directory
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch
from prefect_cachewatch.publish.locks import HeldLock
from prefect_cachewatch.publish.target import BuildRecipe, BuildTarget, refusal_record, write_meta

__all__ = ["QUARANTINE_RECORD", "STAGING_RECORD", "StagedBuild"]

STAGING_RECORD = ".staging.json"
QUARANTINE_RECORD = "quarantine.json"


class StagedBuild(BuildTarget):
    """A directory of the store; its path stays the same when it is published."""

    mode = "staged"

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
        super().__init__(
            folder.name,
            build_id,
            folder.build_path(build_id),
            recipe,
            lock,
            resources,
            adopted=adopted,
            started_s=started_s,
            last_bytes=last_bytes,
        )
        self._folder = folder

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Move a refused build into quarantine, with the reasons beside it.

        Args:
            findings: why.
            message: the same in one sentence.

        Returns:
            Where it lies now.

        Raises:
            StoreError: if it cannot be moved; it stays a staging build then.
        """
        self._require_open()
        try:
            with hold_switch(self._folder, "put a build into quarantine"):
                with self._open() as fd:
                    write_meta(fd, self.path, QUARANTINE_RECORD, refusal_record(self, findings, message))
                move_entry(self._folder.builds_fd, self.build_id, self._folder.quarantine_fd, self.build_id)
            self._finished()
        except OSError as error:
            raise StoreError(
                f"cannot move {self.path} into quarantine: {os.strerror(error.errno or 0)}", path=self.path
            ) from None
        self._done = True
        return self._folder.quarantine_path(self.build_id)

    def clean(self) -> None:
        """Begin again with an empty directory of the same path."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        os.mkdir(self.build_id, 0o755, dir_fd=self._folder.builds_fd)

    def discard(self) -> None:
        """Remove the staging build."""
        self._require_open()
        discard_tree(self._folder.builds_fd, self.build_id)
        self._finished()
        self._done = True

    def _open(self) -> contextlib.AbstractContextManager[int]:
        return open_build(self._folder, self.build_id)

    @contextlib.contextmanager
    def _probe_directory(self) -> Iterator[int]:
        yield self._folder.fd

    def _write_manifest(self, build_fd: int, meta_fd: int, data: bytes) -> None:
        sync_directory(self._folder.builds_fd)
        super()._write_manifest(build_fd, meta_fd, data)

    def _finished(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(STAGING_RECORD, dir_fd=self._folder.fd)
