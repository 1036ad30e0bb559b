"""Caches whose generator bakes in its path: no staging, a marker says whether they are whole.

    CACHE_DIR/.cachewatch/manifest.json    what the last whole generation consisted of
    CACHE_DIR/.cachewatch/whole            the marker: the digest of that manifest, only while it is true

The marker goes before the first byte of a new generation and comes back last. There is no
way back to an earlier build here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.builds import MANIFEST, read_manifest
from prefect_cachewatch.publish.checks import Finding
from prefect_cachewatch.publish.durable import (
    OPEN_DIRECTORY,
    read_small_file,
    remove_leftovers,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.publish.locks import hold_exclusive
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.names import make_build_id
from prefect_cachewatch.publish.staging import QUARANTINE_RECORD
from prefect_cachewatch.publish.target import (
    BuildRecipe,
    BuildTarget,
    meta_directory,
    refusal_record,
    remove_below,
    write_meta,
)
from prefect_cachewatch.publish.tree import scan_build
from prefect_cachewatch.publish.verification import Verdict, verify_files
from prefect_cachewatch.text import for_terminal

__all__ = ["MARKER", "InPlaceBuild", "begin_in_place", "find_whole_in_place", "verify_in_place"]

MARKER = "whole"
_LOCK = "writer.lock"


class InPlaceBuild(BuildTarget):
    """A generation into the directory where the cache is used."""

    mode = "in_place"

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Leave a refused cache where it is, without its marker, with the reasons beside it.

        Args:
            findings: why.
            message: the same in one sentence.

        Returns:
            The cache directory: it cannot be moved, since its path is baked in.
        """
        self._require_open()
        with self._open() as fd:
            write_meta(fd, self.path, QUARANTINE_RECORD, refusal_record(self, findings, message))
        self._done = True
        return self.path

    def clean(self) -> None:
        """Remove every regular file and link of the cache directory; directories stay, for those who hold them."""
        self._require_open()
        with self._open() as fd:
            tree = scan_build(fd)
            for path in [
                *(file.path for file in tree.files),
                *(link for link, _ in tree.links),
                *tree.escapes,
            ]:
                remove_below(fd, path)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        with _open_directory(self.path) as fd:
            yield fd

    @contextlib.contextmanager
    def _probe_directory(self) -> Iterator[int]:
        with self._open() as fd, meta_directory(fd, self.path) as meta_fd:
            yield meta_fd

    def _write_manifest(self, build_fd: int, meta_fd: int, data: bytes) -> None:
        super()._write_manifest(build_fd, meta_fd, data)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(QUARANTINE_RECORD, dir_fd=meta_fd)
        write_durably(meta_fd, MARKER, hashlib.sha256(data).hexdigest().encode("ascii") + b"\n")


def begin_in_place(
    cache_dir: str | os.PathLike[str],
    name: str,
    recipe: BuildRecipe,
    *,
    fresh: bool = False,
    now: Callable[[], float] = time.time,
    entropy: Callable[[int], bytes] = os.urandom,
) -> InPlaceBuild:
    """Take the marker away and become the one writer of a cache directory.

    Args:
        cache_dir: an existing directory, absolute.
        name: the cache's name, for the manifest.
        recipe: what the build is made from.
        fresh: generate although a whole cache of this key is there. With it, and where the key differs, the files of
            the last manifest are removed first, since a generator that skips existing files would keep them;
            whatever else is there stays.
        now: wall seconds.
        entropy: random bytes.

    Returns:
        The build; `adopted` where there are files of an unfinished generation, and `prepare_resume` must come first.

    Raises:
        StoreBusy: if another generation writes there.
        StoreError: if the directory cannot be used.
    """
    path = str(Path(cache_dir))
    started_s = now()
    with contextlib.ExitStack() as stack, _open_directory(path) as fd:
        try:
            meta_fd = stack.enter_context(meta_directory(fd, path))
            lock = stack.enter_context(
                hold_exclusive(meta_fd, _LOCK, f"generate into {for_terminal(path, 1000)}", wait_s=1.0)
            )
            remove_leftovers(meta_fd)
            last = _last_manifest(fd, path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(MARKER, dir_fd=meta_fd)
            # Durable before the generator starts: after a power cut no marker stands over half a cache.
            sync_directory(meta_fd)
            if last is not None and (fresh or last.key != recipe.key):
                for listed in [*(file.path for file in last.files), *(link.path for link in last.links)]:
                    with contextlib.suppress(StoreError):
                        remove_below(fd, listed)
            adopted = bool(scan_build(fd).files)
        except OSError as error:
            raise StoreError(
                f"cannot begin in {for_terminal(path, 1000)}: {os.strerror(error.errno or 0)}", path=path
            ) from None
        return InPlaceBuild(
            name,
            make_build_id(started_s, entropy(4)),
            path,
            recipe,
            lock,
            stack.pop_all(),
            adopted=adopted,
            started_s=started_s,
            last_bytes=last.total_bytes if last else None,
        )


def find_whole_in_place(
    cache_dir: str | os.PathLike[str], key: str, *, verify: Literal["quick", "full"] = "quick"
) -> Manifest | None:
    """Find out whether a cache directory is whole and of this key, so that nothing need be generated.

    Args:
        cache_dir: the directory; it need not exist.
        key: `BuildRecipe.key`.
        verify: names and sizes, or all digests.

    Returns:
        Its manifest, or None.
    """
    if not Path(cache_dir).is_dir():
        return None
    try:
        manifest, verdict = verify_in_place(cache_dir, depth=verify)
    except BuildDamaged:
        return None
    return manifest if verdict.whole and manifest.key == key else None


def verify_in_place(
    cache_dir: str | os.PathLike[str], *, depth: Literal["quick", "full"] = "full"
) -> tuple[Manifest, Verdict]:
    """Verify a cache that is generated in place.

    Args:
        cache_dir: the directory.
        depth: quick for names and sizes, full for every digest.

    Returns:
        Its manifest and the verdict.

    Raises:
        BuildDamaged: if the marker is missing (a generation is under way or failed) or the manifest was changed.
    """
    path = str(Path(cache_dir))
    with _open_directory(path) as fd:
        manifest = read_manifest(fd, path)
        with meta_directory(fd, path) as meta_fd:
            try:
                marker = read_small_file(meta_fd, MARKER, 1024).strip()
            except FileNotFoundError:
                raise BuildDamaged(
                    f"{for_terminal(path, 1000)} has no marker that it is whole: a generation is under way, or the last one "
                    "failed; generate it again",
                    path=path,
                ) from None
            data = read_small_file(meta_fd, MANIFEST, 1 << 30)
        if marker != hashlib.sha256(data).hexdigest().encode("ascii"):
            raise BuildDamaged(
                f"the marker in {for_terminal(path, 1000)} belongs to another manifest: generate it again",
                path=path,
            )
        return manifest, verify_files(fd, manifest, depth)


def _last_manifest(fd: int, path: str) -> Manifest | None:
    try:
        return read_manifest(fd, path)
    except BuildDamaged:
        return None


@contextlib.contextmanager
def _open_directory(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, OPEN_DIRECTORY)
    except OSError as error:
        raise StoreError(
            f"cannot use {for_terminal(path, 1000)} as cache directory: {os.strerror(error.errno or 0)}",
            path=path,
        ) from None
    try:
        yield fd
    finally:
        os.close(fd)
