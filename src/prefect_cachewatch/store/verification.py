"""Verifies a build against its manifest: names and sizes, or every digest; changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.store.files import refusing
from prefect_cachewatch.store.manifest import DIGEST_ALGORITHM, FileEntry, Manifest
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.tree import BuildTree, ScannedFile, open_file, scan_build, walk_build

_NAMED = 3


_BUFFER_BYTES = 1 << 20
# Files opened ahead of the threads: few, since each holds a descriptor.
_AHEAD = 16
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
    digests: dict[str, str] | None = None
    if depth == "full":
        entries, tree = digest_build(build_fd, ignore=manifest.ignore)
        digests = {entry.path: entry.digest for entry in entries}
    else:
        tree = scan_build(build_fd)
        if changed_since_ns is not None:
            digests = _digest_changed(build_fd, manifest, tree, changed_since_ns)
    sizes = {file.path: file.size_bytes for file in tree.files}
    problems = compare_files(manifest, sizes, dict(tree.links), digests, ignore=manifest.ignore)
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


def _digest_changed(build_fd: int, manifest: Manifest, tree: BuildTree, since_ns: int) -> dict[str, str]:
    # A file without a change since then has the same contents: nothing can set a change time back.
    found = {entry.path: entry.digest for entry in manifest.files}
    listed = {entry.path: entry.size_bytes for entry in manifest.files}
    for file in tree.files:
        if file.changed_ns > since_ns and listed.get(file.path) == file.size_bytes:
            found[file.path] = digest_below(build_fd, file.path)
    return found


def compare_files(
    manifest: Manifest,
    sizes: Mapping[str, int],
    links: Mapping[str, str],
    digests: Mapping[str, str] | None = None,
    *,
    ignore: Sequence[str] = (),
    by: str = "the manifest",
) -> list[Problem]:
    """Compare the listed contents of a build with a manifest.

    Args:
        manifest: the list.
        sizes: bytes of every regular file, by path.
        links: target of every link, by path.
        digests: digest of every file, by path; None to compare names and sizes only.
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
        elif digests is not None and digests.get(entry.path) != entry.digest:
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


def digest_descriptor(fd: int, path: str) -> tuple[int, str]:
    """Digest a file by its descriptor, and refuse one that changes meanwhile.

    Args:
        fd: open for reading, at its start.
        path: for messages.

    Returns:
        Bytes read and the digest in hexadecimal.

    Raises:
        BuildDamaged: it could not be read.
        StoreError: the file changed while it was read.

    Example:
        >>> digest_descriptor(os.open("/dev/null", os.O_RDONLY), "null")[1][:8]
        'e3b0c442'
    """
    before = os.fstat(fd)
    digest = hashlib.new(DIGEST_ALGORITHM)
    view = _buffer()
    size = 0
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
    return size, digest.hexdigest()


def digest_below(build_fd: int, path: str) -> str:
    """Digest one file of a build by its relative path, without following a link on the way.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.

    Returns:
        The digest in hexadecimal.

    Raises:
        StoreError: it cannot be read or changes meanwhile.
    """
    parent, _, name = path.rpartition("/")
    with contextlib.ExitStack() as stack:
        fd = build_fd
        with refusing("read", path, named=f"'{for_terminal(path)}'"):
            for part in filter(None, parent.split("/")):
                fd = os.open(part, OPEN_DIRECTORY, dir_fd=fd)
                stack.callback(os.close, fd)
        file = open_file(fd, name, path)
        stack.callback(os.close, file)
        return digest_descriptor(file, path)[1]


def digest_build(
    build_fd: int, *, ignore: Iterable[str] = (), sync: bool = False, threads: int | None = None
) -> tuple[tuple[FileEntry, ...], BuildTree]:
    """Digest every file of a build, several in parallel; memory use does not depend on their size.

    hashlib releases the interpreter lock while it works, so two threads read two files on two cores. One thread digests
    a whole file, since SHA-256 cannot be split.

    Args:
        build_fd: descriptor of the build's directory.
        ignore: globs of files that are not part of the cache.
        sync: also make each file and directory durable, by the descriptor that was read.
        threads: files read in parallel; default one for each core.

    Returns:
        The files in order of path, and the tree of links and entries that do not belong.

    Raises:
        StoreError: a file cannot be read or changes meanwhile.
    """
    globs = list(ignore)
    tree = BuildTree()
    entries: list[FileEntry] = []
    pending: set[Future[FileEntry]] = set()

    with ThreadPoolExecutor(threads or default_threads(), thread_name_prefix="digest") as pool:

        def collect(down_to: int) -> None:
            nonlocal pending
            while len(pending) > down_to:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                entries.extend(future.result() for future in done)

        def visit(directory_fd: int, file: ScannedFile, name: str) -> None:
            if matches_any(file.path, globs):
                return
            collect(_AHEAD)
            fd = open_file(directory_fd, name, file.path)
            tree.files.append(file)
            pending.add(pool.submit(_digest_and_close, fd, file, sync))

        walk_build(build_fd, tree, visit, sync=sync)
        collect(0)
    tree.unreadable.sort()
    tree.files.sort(key=lambda file: file.path)
    tree.links.sort()
    return tuple(sorted(entries, key=lambda entry: entry.path)), tree


def _digest_and_close(fd: int, file: ScannedFile, sync: bool) -> FileEntry:
    with Opened(fd):
        size, digest = digest_descriptor(fd, file.path)
        if sync:
            os.fsync(fd)
    return FileEntry(file.path, size, digest)


def _buffer() -> memoryview:
    if not hasattr(_local, "view"):
        _local.view = memoryview(bytearray(_BUFFER_BYTES))
    view: memoryview = _local.view
    return view
