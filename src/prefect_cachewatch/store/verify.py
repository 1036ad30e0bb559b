"""Verifies a build against its manifest: names and sizes, or every digest; changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import open_below
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.layout import MANIFEST, CacheFolder, open_build, refusing, sync_directory
from prefect_cachewatch.store.records import DIGEST_ALGORITHM, FileEntry, Manifest, read_manifest
from prefect_cachewatch.store.tree import BuildTree, matches_any, open_file, scan_build

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
            return (
                f"whole: {format_bytes(self.size_bytes)} in {format_count(self.files, 'file')}, {how} with the manifest"
            )
        named = "; ".join(problem.message for problem in self.problems[:_NAMED])
        more = f"; and {len(self.problems) - _NAMED} more" if len(self.problems) > _NAMED else ""
        return f"not whole: {named}{more}"


def require_whole(folder: CacheFolder, build_id: str, depth: str = "quick") -> tuple[Manifest, Verdict]:
    """Compare a build with its manifest, and refuse it unless it is whole.

    Args:
        folder: the open cache.
        build_id: which build.
        depth: quick: names and sizes; changed: also every byte of files that changed since publication; full: every
            byte.

    Raises:
        BuildDamaged: it is not whole; the error has the differences.
        StoreError: a file changes meanwhile.
    """
    with open_build(folder, build_id) as fd:
        manifest = read_manifest(folder, build_id)
        # A file without a change since publication has the same contents: nothing can set a change time back.
        since_ns = 0 if depth == "full" else 1 << 63
        if depth == "changed":
            since_ns = os.stat(build_id + MANIFEST, dir_fd=folder.builds_fd, follow_symlinks=False).st_ctime_ns
        problems = _find_problems(fd, manifest, since_ns)
    verdict = Verdict(
        "full" if depth == "full" else "quick", tuple(problems), manifest.total_files, manifest.total_bytes
    )
    if not verdict.whole:
        raise BuildDamaged(
            f"the build {build_id} of '{for_terminal(folder.name)}' is {verdict.summary()}; "
            "roll back, or generate it again with --force",
            path=folder.build_path(build_id),
            problems=[problem.message for problem in problems[:100]],
            kinds=sorted({problem.kind for problem in problems}),
        )
    return manifest, verdict


def _find_problems(build_fd: int, manifest: Manifest, since_ns: int) -> list[Problem]:
    """Compare a build with its manifest; files that changed after a moment of the file system's clock are read."""
    tree = scan_build(build_fd)
    sizes = {file.path: file.size_bytes for file in tree.files}
    read = {file.path for file in tree.files if file.changed_ns > since_ns}
    for entry in manifest.files:
        if sizes.get(entry.path) != entry.size_bytes:
            # A size, or an absence, may come from the memory of an NFS client: whoever opens a file asks its server.
            with contextlib.suppress(StoreError), Opened(open_file(build_fd, entry.path)) as fd:
                sizes[entry.path] = os.fstat(fd).st_size
                read.add(entry.path)
    digests = {entry.path: entry.digest for entry in manifest.files}
    again = [one.path for one in manifest.files if one.path in read and sizes[one.path] == one.size_bytes]
    if since_ns < 1 << 63:
        digests |= {entry.path: entry.digest for entry in digest_files(build_fd, again)}
    told = [
        *(("special", path, "is no regular file") for path in tree.others),
        *(("link", path, "is a link that leads out of the build or nowhere") for path in tree.escapes),
        *(("unreadable", path, f"cannot be read ({why})") for path, why in tree.unreadable),
    ]
    return compare(manifest, sizes, dict(tree.links), digests) + [
        Problem(kind, path, f"{for_terminal(path)} {message}")
        for kind, path, message in told
        if kind != "unreadable" or not matches_any(path, manifest.ignore)
    ]


def compare(
    manifest: Manifest,
    sizes: Mapping[str, int],
    links: Mapping[str, str],
    digests: Mapping[str, str],
    by: str = "the manifest",
) -> list[Problem]:
    """Compare the listed contents of a build with a manifest.

    Args:
        manifest: the list; what its globs ignore may be there without being listed.
        sizes: bytes of every regular file, by path.
        links: target of every link, by path.
        digests: digest of every file, by path.
        by: what the manifest is called in a message.

    Returns:
        The differences, in order of path.
    """
    found: list[tuple[str, str, str]] = []
    for entry in manifest.files:
        size = sizes.get(entry.path)
        if size is None:
            found.append((entry.path, "missing", "is missing"))
        elif size != entry.size_bytes:
            found.append((entry.path, "size", f"has {size} bytes, and {by} says {entry.size_bytes}"))
        elif digests.get(entry.path) != entry.digest:
            found.append((entry.path, "digest", f"has other contents than {by} says"))
    listed = {link.path: link.target for link in manifest.links}
    for path in (path for path, target in listed.items() if links.get(path) != target):
        found.append((path, "link", "is a link that is missing or leads elsewhere"))
    known = listed.keys() | {entry.path for entry in manifest.files}
    for path in (path for path in {*sizes, *links} - known if not matches_any(path, manifest.ignore)):
        found.append((path, "unexpected", f"is not in {by}"))
    # Names are made harmless only here: for 10,000 good files it would cost more than all the rest.
    return [Problem(kind, path, f"{for_terminal(path)} {said}") for path, kind, said in sorted(found)]


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
    sizes = {entry.path: entry.size_bytes for entry in build.files}
    links = {link.path: link.target for link in build.links}
    return compare(other, sizes, links, {entry.path: entry.digest for entry in build.files}, other.build_id)


def digest_file(build_fd: int, path: str, *, sync: bool = False) -> FileEntry:
    """Digest one file of a build, and refuse one that changes meanwhile.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.
        sync: also make it durable, by the descriptor that was read.

    Raises:
        BuildDamaged: it could not be read.
        StoreError: it vanished, or changed while it was read.
    """
    if not hasattr(_local, "view"):
        _local.view = memoryview(bytearray(_BUFFER_BYTES))
    digest, size, view = hashlib.new(DIGEST_ALGORITHM), 0, _local.view
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


def digest_files(
    build_fd: int, paths: Sequence[str], *, sync: bool = False, threads: int | None = None
) -> tuple[FileEntry, ...]:
    """Digest files of a build, several in parallel; memory use does not depend on their size.

    hashlib releases the interpreter lock while it works, so two threads read two files on two cores. One thread digests
    a whole file, since SHA-256 cannot be split.

    Args:
        build_fd: descriptor of the build's directory.
        paths: of the files.
        sync: also make each file durable.
        threads: files read in parallel; default one for each core, at most 8.

    Raises:
        StoreError: a file cannot be read or changes meanwhile.
    """
    threads = threads or max(1, min(8, len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(threads, thread_name_prefix="digest") as pool:
        return tuple(pool.map(partial(digest_file, build_fd, sync=sync), paths))


def digest_tree(
    build_fd: int, tree: BuildTree, ignore: Sequence[str], threads: int | None = None
) -> tuple[FileEntry, ...]:
    """Digest every file of a build that is not ignored, and make all of it durable; raises as `digest_files` does."""
    paths = [file.path for file in tree.files if not matches_any(file.path, ignore)]
    entries = digest_files(build_fd, paths, sync=True, threads=threads)
    for path in tree.directories:
        with Opened(open_below(build_fd, path)) as fd:
            sync_directory(fd)
    return entries
