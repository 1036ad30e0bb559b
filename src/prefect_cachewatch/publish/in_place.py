"""Caches whose generator stores its own path in them: no staging, and a marker shows whether they are whole.

    CACHE_DIR/.cachewatch/manifest.json    contents of the last whole generation
    CACHE_DIR/.cachewatch/whole            the marker: the digest of that manifest, present only while it is true

The marker is removed before the first byte of a new generation and comes back last. An earlier build cannot be restored
here. Only files that runs are known to have made are ever removed (see `begun`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import Entry
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.measure.creation import Creation, created_line
from prefect_cachewatch.publish.begun import (
    Begun,
    Doubt,
    Made,
    append_record,
    begin_record,
    describe_others,
    find_doubts,
    read_begun,
    write_begun,
)
from prefect_cachewatch.publish.builds import MANIFEST, read_manifest
from prefect_cachewatch.publish.checks import Finding, spare_others
from prefect_cachewatch.publish.durable import (
    read_small_file,
    refusing,
    remove_leftovers,
    sync_directory,
    write_durably,
)
from prefect_cachewatch.publish.locks import hold_exclusive
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.names import META_DIRECTORY, make_build_id, matches_any
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.staging import QUARANTINE_RECORD
from prefect_cachewatch.publish.target import (
    BuildRecipe,
    BuildTarget,
    meta_directory,
    refusal_record,
    write_meta,
)
from prefect_cachewatch.publish.tree import ScannedFile, scan_build
from prefect_cachewatch.publish.verification import Verdict, verify_files

MARKER = "whole"
_LOCK = "writer.lock"
_NAMED = 5


class InPlaceBuild(BuildTarget):
    """A generation into the directory where the cache is used; files of other programs always stay."""

    mode = "in_place"
    creation: Creation
    begun: Begun

    def require_certain(self, policy: PublishPolicy, *, window_s: float, reported: Collection[str] = ()) -> None:
        """Refuse to continue if there are files that an attempt may have cut and that no run is known to have made.

        They may be the user's, and are not removed. A generator that skips existing files would get them published.

        Args:
            policy: tells which files are the user's own, or no part of the cache.
            window_s: the stall window, unless the policy sets one.
            reported: paths that the watch saw growing, or open for writing, at the end.

        Raises:
            StoreError: there are such files; it names them.
        """
        self._require_open()
        self._record()
        with self._open() as fd, self._probe_directory() as meta_fd, contextlib.closing(Made(fd, self.path)) as made:
            _, others = made.entries()
            known = self._read_growth(meta_fd, fd)
            window_s = window_s if policy.suspect_window_s is None else policy.suspect_window_s
            grew_after_ns = known - int(window_s * 1e9) if isinstance(known, int) else 0
            named = {*reported, *self._read_reported(meta_fd)}
            doubts = (*self.begun.doubts, Doubt(self.begun.since_ns or 0, None))
            found = [
                path
                for path, entry in sorted(others.items())
                if entry.is_file
                and policy.suspects == "remove"
                and not matches_any(path, [*policy.accept, *policy.ignore])
                and any(doubt.covers(entry, 0 if path in named else grew_after_ns) for doubt in doubts)
            ]
            if found:
                raise StoreError(_describe_doubtful(self.path, found), path=self.path)
            self.begun = replace(self.begun, doubts=())

    def note_growth(self) -> None:
        """Record this moment as the last growth, and as the earliest at which the starting generator may write."""
        super().note_growth()
        with self._open() as fd, meta_directory(fd, self.path) as meta_fd:
            self.begun = write_begun(meta_fd, fd, self.begun)

    def check(self, policy: PublishPolicy, extra: Sequence[Finding] = ()) -> list[Finding]:
        """Check the contents; files of other programs do not count against the generator.

        Args:
            policy: the rules.
            extra: findings of other checks, such as the user's check command.

        Returns:
            All findings, refusals first; see `checks.check_tree`.
        """
        found = super().check(policy, extra)
        self._record()
        with self._open() as fd, contextlib.closing(Made(fd, self.path)) as made:
            entries, _ = made.entries()
        return sorted(spare_others(found, entries), key=lambda finding: finding.severity != "refuse")

    def quarantine(self, findings: Sequence[Finding], message: str) -> str:
        """Leave a refused cache where it is, without its marker, and write the reasons beside it.

        Args:
            findings: the reasons.
            message: the reasons in one sentence.

        Returns:
            The cache directory: it cannot be moved, since the cache contains its path.
        """
        self._require_open()
        with self._open() as fd:
            write_meta(fd, self.path, QUARANTINE_RECORD, refusal_record(self, findings, message))
        self._done = True
        return self.path

    def clean(self) -> None:
        """Remove the files that runs are known to have made; directories stay, since processes may hold them open."""
        self._require_open()
        self._record()
        with self._open() as fd, contextlib.closing(Made(fd, self.path)) as made:
            self.notes += _remove_made(made, "to begin with nothing")

    def close(self) -> None:
        """List the files that were made, and release the writer's lock."""
        if self._lock.fileno() >= 0:
            with contextlib.suppress(StoreError, OSError):  # a file that is not listed has no known origin, and is kept
                self._record()
                with self._open() as fd, meta_directory(fd, self.path) as meta_fd:
                    self.begun = write_begun(meta_fd, fd, self.begun, ended=True)
            self.creation.close()
        super().close()

    def _own_files(self, build_fd: int) -> tuple[list[ScannedFile], dict[str, Entry] | None]:
        self._record()
        with contextlib.closing(Made(build_fd, self.path)) as made:
            entries, _ = made.entries()
        return [file for file in scan_build(build_fd).files if file.path in entries], entries

    def _record(self) -> None:
        if self.watched:
            return
        with self._open() as fd, meta_directory(fd, self.path) as meta_fd:
            lines: list[str] = []
            top = self.creation.held[0].top
            self.creation.sight(
                lambda _, path, entry: None if entry.is_directory else lines.append(created_line(path, entry, top))
            )
            append_record(meta_fd, lines)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        with _open_directory(self.path) as fd:
            yield fd

    @property
    def _record_path(self) -> str:
        return f"{self.path}/{META_DIRECTORY}/"

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
    grace_s: float = 10.0,
    now: Callable[[], float] = time.time,
    entropy: Callable[[int], bytes] = os.urandom,
) -> InPlaceBuild:
    """Remove the marker and become the one writer of a cache directory.

    Args:
        cache_dir: an existing directory, absolute.
        name: the cache's name, for the manifest.
        recipe: the inputs of the build.
        fresh: generate even if there is a whole cache of this key. Then, and if the key differs, the files that runs
            are known to have made are removed first, since a generator that skips existing files would keep them. All
            other files stay, and `notes` says so.
        grace_s: how long the generator may still write after its run is killed, in seconds.
        now: wall seconds.
        entropy: random bytes.

    Returns:
        The build; `adopted` if there are files of an unfinished generation: then call `prepare_resume` first.

    Raises:
        StoreBusy: another generation writes there.
        StoreError: the directory cannot be used.
    """
    path = str(Path(cache_dir))
    started_s = now()
    with contextlib.ExitStack() as stack, _open_directory(path) as fd:
        with refusing("begin in", path):
            meta_fd = stack.enter_context(meta_directory(fd, path))
            lock = stack.enter_context(
                hold_exclusive(meta_fd, _LOCK, f"generate into {for_terminal(path, 1000)}", wait_s=1.0)
            )
            remove_leftovers(meta_fd)
            last, begun = _last_manifest(fd, path), read_begun(meta_fd)
            # The last build is also the last to begin, and has no marker: its publication was interrupted, and no other
            # build may be compared with it.
            broken_off = last is not None and begun is not None and last.build_id == begun.build_id
            with contextlib.suppress(FileNotFoundError):
                os.unlink(MARKER, dir_fd=meta_fd)
                broken_off = False
            # Durable before the generator starts: after a power cut no marker must remain on half a cache.
            sync_directory(meta_fd)
            doubts = find_doubts(meta_fd, fd, begun, last.build_id if last else None)
            made = stack.enter_context(contextlib.closing(Made(fd, path)))
            last_key = begun.key if begun else last.key if last else None
            notes: list[str] = []
            if last_key is not None and (fresh or last_key != recipe.key):
                why = "of the last generation" if fresh else "of the last generation, which had another key"
                notes += _remove_made(made, why)
            entries, others = made.entries()
            if others:
                notes.append(describe_others(others))
            build_id = make_build_id(started_s, entropy(4))
            # Before the record is rewritten: its change time shows how long the last run was alive.
            begun = write_begun(meta_fd, fd, Begun(recipe.key, build_id, grace_s=grace_s, doubts=doubts))
            if broken_off:
                os.unlink(MANIFEST, dir_fd=meta_fd)
            made.rewrite(meta_fd, entries)
            creation = begin_record(path)
        build = InPlaceBuild(
            name,
            build_id,
            path,
            recipe,
            lock,
            stack.pop_all(),
            adopted=bool(entries or doubts),
            started_s=started_s,
            last_bytes=last.total_bytes if last and not broken_off else None,
        )
        build.creation, build.notes, build.begun = creation, notes, begun
        return build


def find_whole_in_place(
    cache_dir: str | os.PathLike[str], key: str, *, verify: Literal["quick", "full"] = "quick"
) -> Manifest | None:
    """Find out whether a cache directory is whole and of this key, so that no generation is needed.

    Args:
        cache_dir: the directory; it need not exist.
        key: `BuildRecipe.key`.
        verify: quick for names and sizes, full for every digest.

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
        BuildDamaged: the marker is missing (a generation is under way or failed) or the manifest was changed.
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


def _remove_made(made: Made, why: str) -> list[str]:
    """Remove the files that runs have made; return a note of how many, if any. Raises StoreError."""
    done = made.remove()
    count = done.files + done.others
    if not count:
        return []
    return [f"removed {'1 file' if count == 1 else f'{count:,} files'} ({format_bytes(done.freed_bytes)}) {why}"]


def _describe_doubtful(path: str, found: Sequence[str]) -> str:
    names = ", ".join(for_terminal(f"{path}/{name}", 300) for name in found[:_NAMED])
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    one = len(found) == 1
    return (
        f"{names}{more} {'was' if one else 'were'} written while a generation ran that did not finish, so {'it' if one else 'they'} "
        f"may be cut, and {'is' if one else 'are'} not known to be the generation's, so {'it is' if one else 'they are'} not removed: "
        f"remove {'it' if one else 'them'}, or accept {'it' if one else 'them'} as whole (--accept GLOB, publish.accept)"
    )


def _last_manifest(fd: int, path: str) -> Manifest | None:
    try:
        return read_manifest(fd, path)
    except BuildDamaged:
        return None


@contextlib.contextmanager
def _open_directory(path: str) -> Iterator[int]:
    with refusing("use", path, named=f"{for_terminal(path, 1000)} as cache directory"):
        fd = os.open(path, OPEN_DIRECTORY)
    with Opened(fd):
        yield fd
