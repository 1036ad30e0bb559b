"""Inspects the files of a build, each by its format: what a manifest cannot tell, since it lists what was written."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Collection, Iterable, Sequence
from typing import BinaryIO

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import open_below
from prefect_cachewatch.common.temporary import MARKERS, is_absent
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.files import refusing
from prefect_cachewatch.store.formats import Finding, inspect
from prefect_cachewatch.store.formats.weights_complete import judge_marker, read_marker
from prefect_cachewatch.store.holes import find_unwritten
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.tree import BuildTree, ScannedFile, open_file, scan_build, walk_build

_MARKER = MARKERS[0]


def inspect_build(
    build_fd: int, ignore: Iterable[str] = (), may_be_empty: Iterable[str] = ()
) -> list[tuple[str, Finding]]:
    """Inspect every file of a build.

    Args:
        build_fd: descriptor of the build's directory.
        ignore: globs of files that are not part of the cache.
        may_be_empty: globs of files of which nothing is said if they are empty, though their names tell a format.

    Returns:
        Path and finding of each, in order of path.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
    """
    globs, empty = list(ignore), list(may_be_empty)
    tree = scan_build(build_fd)
    names, present = tree.names_of(), _present(tree)
    found: list[tuple[str, Finding]] = []

    def visit(directory_fd: int, file: ScannedFile, name: str) -> None:
        if is_absent(file.path) or matches_any(file.path, globs):
            return
        if not file.size_bytes and matches_any(file.path, empty):
            return
        fd = open_file(directory_fd, name, file.path)
        with open(fd, "rb") as opened, refusing("read", file.path, named=f"'{for_terminal(file.path)}'"):
            found.append((file.path, _inspect_one(opened, file.path, names.get(file.path, []), present)))

    walk_build(build_fd, BuildTree(), visit)
    return sorted(found, key=lambda each: each[0])


def inspect_files(build_fd: int, tree: BuildTree, paths: Collection[str], until_s: float) -> list[tuple[str, Finding]]:
    """Inspect some files of a cache, until a moment of the monotonic clock.

    Args:
        build_fd: descriptor of the cache's directory.
        tree: what is in it.
        paths: of the files.
        until_s: when to stop.

    Returns:
        Path and finding of each that was reached and can be read.
    """
    names, present = tree.names_of(), _present(tree) | {*tree.escapes}
    found: list[tuple[str, Finding]] = []
    for path in sorted(path for path in paths if not is_absent(path)):
        if time.monotonic() > until_s:
            break
        with (
            contextlib.suppress(OSError, StoreError),
            Opened(open_below(build_fd, posixpath.dirname(path))) as fd,
            open(open_file(fd, posixpath.basename(path), path), "rb") as file,
        ):
            found.append((path, _inspect_one(file, path, names.get(path, []), present)))
    return found


def _present(tree: BuildTree) -> set[str]:
    return {file.path for file in tree.files} | {path for path, _ in tree.links}


def _inspect_one(file: BinaryIO, path: str, names: Sequence[str], present: Collection[str]) -> Finding:
    """Inspect a file by the first of its names that tells its format."""
    found: Finding | None = None
    for name in (path, *names):
        base = posixpath.basename(name)
        if base.startswith(_MARKER):
            seen = read_marker(file)
            return judge_marker(name, seen, present) if isinstance(seen, list) else seen
        found = inspect(file, base)
        if found.format is not None:
            break
    assert found is not None  # the path at least is a name
    return found


def find_broken(
    path: str,
    ignore: Iterable[str] = (),
    sparse: Iterable[str] = (),
    contents: bool = True,
    may_be_empty: Iterable[str] = (),
) -> set[str]:
    """List the files of a build that contradict their own format, or of which a part was never written; may hang.

    Args:
        path: of the build.
        ignore: globs of files that are not part of the cache.
        sparse: globs of files that may have parts that were never written.
        contents: whether the formats are looked at.
        may_be_empty: globs of files that may be empty.

    Returns:
        Paths relative to it.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
        OSError: the directory cannot be opened.
    """
    with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
        unwritten = set(find_unwritten(fd, [*ignore, *sparse]))
        found = inspect_build(fd, ignore, may_be_empty) if contents else []
        return unwritten | {name for name, seen in found if seen.verdict == "broken"}
