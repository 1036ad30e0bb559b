"""Verifies a build against its manifest: names and sizes, or every digest; changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import open_below
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.files import refusing, sync_directory
from prefect_cachewatch.store.manifest import DIGEST_ALGORITHM, FileEntry, Manifest
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.tree import BuildTree, open_file, scan_build

_NAMED = 3
_BUFFER_BYTES = 1 << 20
_local = threading.local()


@dataclass(frozen=True)
class Problem:
    """A difference between build and manifest; kinds: missing, size, digest, unexpected, link, special, unreadable."""

    kind: str
    path: str
    message: str


@dataclass(frozen=True)
class Verdict:
    """Whether a build is whole, how deeply it was checked, and every difference."""

    depth: Literal["quick", "full"]
    problems: tuple[Problem, ...]
    files: int
    size_bytes: int

    @property
    def whole(self) -> bool:
        """True if build and manifest agree."""
        return not self.problems

    def summary(self) -> str:
        """Summarize it in one line."""
        if self.whole:
            how = "names and sizes agree" if self.depth == "quick" else "every digest agrees"
            count = "1 file" if self.files == 1 else f"{self.files} files"
            return f"whole: {format_bytes(self.size_bytes)} in {count}, {how} with the manifest"
        named = "; ".join(problem.message for problem in self.problems[:_NAMED])
        more = f"; and {len(self.problems) - _NAMED} more" if len(self.problems) > _NAMED else ""
        return f"not whole: {named}{more}"


def verify_files(
    build_fd: int,
    manifest: Manifest,
    depth: Literal["quick", "full"] = "quick",
    changed_since_ns: int | None = None,
) -> Verdict:
    """Compare a build with its manifest.

    Args:
        build_fd: descriptor of the build's directory.
        manifest: as it was read.
        depth: quick reads names and sizes only, full every byte.
        changed_since_ns: when quick, files that changed after this moment of the file system's clock are digested too.

    Returns:
        The verdict. A file that matches the manifest's ignore globs is no difference.

    Raises:
        StoreError: a file cannot be read or changes meanwhile.
    """
    tree = scan_build(build_fd)
    found, digests = {file.path: file.size_bytes for file in tree.files}, dict[str, str]()
    changed = {file.path for file in tree.files if changed_since_ns is not None and file.changed_ns > changed_since_ns}
    if depth == "full":
        entries, tree = digest_build(build_fd, ignore=manifest.ignore)
        found |= {entry.path: entry.size_bytes for entry in entries}
        digests = {entry.path: entry.digest for entry in entries}
    for entry in manifest.files:
        if found.get(entry.path) != entry.size_bytes:
            # A size, or an absence, may come from the memory of an NFS client: whoever opens a file asks its server.
            with contextlib.suppress(StoreError), Opened(open_file(build_fd, entry.path)) as fd:
                found[entry.path] = os.fstat(fd).st_size
                changed.add(entry.path)
        if found.get(entry.path) == entry.size_bytes and entry.path not in digests:
            # A file without a change since publication has the same contents: nothing can set a change time back.
            read = depth == "full" or (changed_since_ns is not None and entry.path in changed)
            digests[entry.path] = digest_file(build_fd, entry.path).digest if read else entry.digest
    problems = compare_files(manifest, found, dict(tree.links), digests, ignore=manifest.ignore)
    problems += [Problem("special", p, f"{for_terminal(p)} is no regular file") for p in tree.others]
    problems += [
        Problem("link", p, f"{for_terminal(p)} is a link that leads out of the build or nowhere") for p in tree.escapes
    ]
    problems += [
        Problem("unreadable", path, f"{for_terminal(path)} cannot be read ({why})")
        for path, why in tree.unreadable
        if not matches_any(path, manifest.ignore)
    ]
    return Verdict(depth, tuple(problems), manifest.total_files, manifest.total_bytes)


def compare_files(
    manifest: Manifest,
    sizes: Mapping[str, int],
    links: Mapping[str, str],
    digests: Mapping[str, str],
    *,
    ignore: Sequence[str] = (),
    by: str = "the manifest",
) -> list[Problem]:
    """Compare the listed contents of a build with a manifest.

    Args:
        manifest: the list.
        sizes: bytes of every regular file, by path.
        links: target of every link, by path.
        digests: digest of every file, by path.
        ignore: globs of files that may be there without being listed.
        by: what the manifest is called in a message.

    Returns:
        The differences, in order of path.
    """
    found: list[tuple[str, str, str]] = []
    for entry in manifest.files:
        size = sizes.get(entry.path)
        if size is None:
            found.append(("missing", entry.path, "is missing"))
        elif size != entry.size_bytes:
            found.append(("size", entry.path, f"has {size} bytes, and {by} says {entry.size_bytes}"))
        elif digests.get(entry.path) != entry.digest:
            found.append(("digest", entry.path, f"has other contents than {by} says"))
    listed = {link.path: link.target for link in manifest.links}
    found += [
        ("link", path, "is a link that is missing or leads elsewhere")
        for path, target in listed.items()
        if links.get(path) != target
    ]
    known = listed.keys() | {entry.path for entry in manifest.files}
    found += [
        ("unexpected", path, f"is not in {by}") for path in {*sizes, *links} - known if not matches_any(path, ignore)
    ]
    # Names are made harmless only here: for 10,000 good files it would cost more than all the rest.
    return sorted(
        (Problem(kind, path, f"{for_terminal(path)} {said}") for kind, path, said in found),
        key=lambda problem: (problem.path, problem.kind),
    )


def compare_manifests(build: Manifest, other: Manifest) -> list[Problem]:
    """Compare what two builds hold, by their manifests.

    Args:
        build: the one that is judged.
        other: the one that it is measured by.

    Returns:
        The differences, in order of path; kinds: missing, unexpected, size, digest, link.

    Example:
        >>> one = Manifest("c", "b1", "k", {}, (), {}, {}, "", "", (FileEntry("a", 1, "0" * 64),))
        >>> two = Manifest("c", "b2", "k", {}, (), {}, {}, "", "", (FileEntry("a", 1, "1" * 64),))
        >>> [problem.message for problem in compare_manifests(one, two)]
        ['a has other contents than b2 says']
    """
    return compare_files(
        other,
        {entry.path: entry.size_bytes for entry in build.files},
        {link.path: link.target for link in build.links},
        {entry.path: entry.digest for entry in build.files},
        by=other.build_id,
    )


def default_threads() -> int:
    """Return how many files to read in parallel: one for each core that this process may use, at most 8."""
    return max(1, min(8, len(os.sched_getaffinity(0))))


def digest_file(build_fd: int, path: str, *, sync: bool = False) -> FileEntry:
    """Digest one file of a build, and refuse one that changes meanwhile.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.
        sync: also make it durable, by the descriptor that was read.

    Returns:
        Its entry in a manifest.

    Raises:
        BuildDamaged: it could not be read.
        StoreError: it vanished, or changed while it was read.
    """
    digest, size, view = hashlib.new(DIGEST_ALGORITHM), 0, _buffer()
    with Opened(open_file(build_fd, path)) as fd:
        before = os.fstat(fd)
        with refusing("read", path, kind=BuildDamaged, named=f"'{for_terminal(path)}'"):
            while count := os.readv(fd, [view]):
                digest.update(view[:count])
                size += count
        after = os.fstat(fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
            raise StoreError(
                f"'{for_terminal(path)}' changed while it was read: something still writes into the build; "
                "stop it, then publish again",
                path=path,
            )
        if sync:
            os.fsync(fd)
    return FileEntry(path, size, digest.hexdigest())


def digest_build(
    build_fd: int, *, ignore: Iterable[str] = (), sync: bool = False, threads: int | None = None
) -> tuple[tuple[FileEntry, ...], BuildTree]:
    """Digest every file of a build, several in parallel; memory use does not depend on their size.

    hashlib releases the interpreter lock while it works, so two threads read two files on two cores. One thread digests
    a whole file, since SHA-256 cannot be split.

    Args:
        build_fd: descriptor of the build's directory.
        ignore: globs of files that are not part of the cache.
        sync: also make each file and directory durable.
        threads: files read in parallel; default one for each core.

    Returns:
        The files in order of path, and what else is there.

    Raises:
        StoreError: a file cannot be read or changes meanwhile.
    """
    tree, globs = scan_build(build_fd), list(ignore)
    paths = [file.path for file in tree.files if not matches_any(file.path, globs)]
    with ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="digest") as pool:
        entries = tuple(pool.map(partial(digest_file, build_fd, sync=sync), paths))
    for path in reversed(tree.directories) if sync else ():
        with Opened(open_below(build_fd, path)) as fd:
            sync_directory(fd)
    return entries, tree


def _buffer() -> memoryview:
    if not hasattr(_local, "view"):
        _local.view = memoryview(bytearray(_BUFFER_BYTES))
    view: memoryview = _local.view
    return view
