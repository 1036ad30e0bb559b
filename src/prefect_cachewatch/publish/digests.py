"""Digests of a build's files, by descriptor, several files at once, memory flat in their size.

hashlib lets go of the interpreter lock while it works, so two threads read two files on two
cores. One file is one thread's: SHA-256 cannot be split.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.durable import OPEN_DIRECTORY
from prefect_cachewatch.publish.manifest import DIGEST_ALGORITHM, FileEntry
from prefect_cachewatch.publish.names import matches_any
from prefect_cachewatch.publish.tree import BuildTree, ScannedFile, open_file, walk_build

__all__ = ["default_threads", "digest_below", "digest_build", "digest_descriptor"]

_BUFFER_BYTES = 1 << 20
# Files opened ahead of the threads: few, since each holds a descriptor.
_AHEAD = 16
_local = threading.local()


def default_threads() -> int:
    """How many files to read at once: one a core that this process may use, at most 8."""
    return max(1, min(8, len(os.sched_getaffinity(0))))


def digest_descriptor(fd: int, path: str) -> tuple[int, str]:
    """Digest what a descriptor reads, and refuse a file that changes meanwhile.

    Args:
        fd: open for reading, at its start.
        path: for messages.

    Returns:
        Bytes read and the digest in hexadecimal.

    Raises:
        BuildDamaged: if it could not be read.
        StoreError: if the file changed while it was read.

    Example:
        >>> digest_descriptor(os.open("/dev/null", os.O_RDONLY), "null")[1][:8]
        'e3b0c442'
    """
    before = os.fstat(fd)
    digest = hashlib.new(DIGEST_ALGORITHM)
    view = _buffer()
    size = 0
    try:
        while count := os.readv(fd, [view]):
            digest.update(view[:count])
            size += count
    except OSError as error:
        raise BuildDamaged(f"cannot read '{for_terminal(path)}': {os.strerror(error.errno or 0)}", path=path) from None
    after = os.fstat(fd)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise StoreError(
            f"'{for_terminal(path)}' changed while it was read: something still writes into the build; "
            "stop it, then publish again",
            path=path,
        )
    return size, digest.hexdigest()


def digest_below(build_fd: int, path: str) -> str:
    """Digest one file of a build by its relative path, following no link on the way.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.

    Returns:
        The digest in hexadecimal.

    Raises:
        StoreError: if it cannot be read or changes meanwhile.
    """
    parent, _, name = path.rpartition("/")
    with contextlib.ExitStack() as stack:
        fd = build_fd
        try:
            for part in filter(None, parent.split("/")):
                fd = os.open(part, OPEN_DIRECTORY, dir_fd=fd)
                stack.callback(os.close, fd)
        except OSError as error:
            raise StoreError(
                f"cannot read '{for_terminal(path)}': {os.strerror(error.errno or 0)}", path=path
            ) from None
        file = open_file(fd, name, path)
        stack.callback(os.close, file)
        return digest_descriptor(file, path)[1]


def digest_build(
    build_fd: int, *, ignore: Iterable[str] = (), sync: bool = False, threads: int | None = None
) -> tuple[tuple[FileEntry, ...], BuildTree]:
    """Digest every file of a build.

    Args:
        build_fd: descriptor of the build's directory.
        ignore: globs of files that are not part of the cache.
        sync: also make each file and directory durable, by the descriptor that was read.
        threads: files read at once; default one a core.

    Returns:
        The files in order of path, and the tree that holds links and what has no place.

    Raises:
        StoreError: if something cannot be read or changes meanwhile.
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
    try:
        if os.fstat(fd).st_ino != file.inode:
            raise StoreError(f"'{for_terminal(file.path)}' was replaced while it was read: is it being written?")
        size, digest = digest_descriptor(fd, file.path)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    return FileEntry(file.path, size, digest)


def _buffer() -> memoryview:
    if not hasattr(_local, "view"):
        _local.view = memoryview(bytearray(_BUFFER_BYTES))
    view: memoryview = _local.view
    return view
