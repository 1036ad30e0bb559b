"""Inspects the files of a build, each by its format: what a manifest cannot tell, since it lists what was written."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Collection, Iterable
from typing import BinaryIO

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import open_below
from prefect_cachewatch.common.temporary import MARKERS
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.durable import refusing
from prefect_cachewatch.publish.formats import Finding, inspect
from prefect_cachewatch.publish.formats.weights_complete import judge_marker, read_marker
from prefect_cachewatch.publish.holes import find_unwritten
from prefect_cachewatch.publish.names import matches_any
from prefect_cachewatch.publish.tree import BuildTree, ScannedFile, open_file, walk_build

_MARKER = MARKERS[0]


def inspect_build(build_fd: int, ignore: Iterable[str] = ()) -> list[tuple[str, Finding]]:
    """Inspect every file of a build.

    Args:
        build_fd: descriptor of the build's directory.
        ignore: globs of files that are not part of the cache.

    Returns:
        Path and finding of each, in order of path.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
    """
    globs = list(ignore)
    found: list[tuple[str, Finding]] = []
    listed: dict[str, list[str]] = {}
    present: set[str] = set()

    def visit(directory_fd: int, file: ScannedFile, name: str) -> None:
        present.add(file.path)
        if matches_any(file.path, globs):
            return
        fd = open_file(directory_fd, name, file.path)
        with open(fd, "rb") as opened, refusing("read", file.path, named=f"'{for_terminal(file.path)}'"):
            seen = _inspect_one(opened, file.path)
        if isinstance(seen, Finding):
            found.append((file.path, seen))
        else:
            listed[file.path] = seen

    tree = BuildTree()
    walk_build(build_fd, tree, visit)
    present.update(path for path, _ in tree.links)
    found += [(path, judge_marker(path, names, present)) for path, names in listed.items()]
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
    present = {file.path for file in tree.files} | {path for path, _ in tree.links} | {*tree.escapes}
    found: list[tuple[str, Finding]] = []
    for path in sorted(paths):
        if time.monotonic() > until_s:
            break
        with contextlib.suppress(OSError, StoreError), Opened(open_below(build_fd, posixpath.dirname(path))) as fd:
            with open(open_file(fd, posixpath.basename(path), path), "rb") as file:
                seen = _inspect_one(file, path)
            found.append((path, judge_marker(path, seen, present) if isinstance(seen, list) else seen))
    return found


def _inspect_one(file: BinaryIO, path: str) -> Finding | list[str]:
    name = posixpath.basename(path)
    return read_marker(file) if name.startswith(_MARKER) else inspect(file, name)


def find_broken(path: str, ignore: Iterable[str] = (), sparse: Iterable[str] = (), contents: bool = True) -> set[str]:
    """List the files of a build that contradict their own format, or of which a part was never written; may hang.

    Args:
        path: of the build.
        ignore: globs of files that are not part of the cache.
        sparse: globs of files that may have parts that were never written.
        contents: whether the formats are looked at.

    Returns:
        Paths relative to it.

    Raises:
        StoreError: a file cannot be read or vanishes meanwhile.
        OSError: the directory cannot be opened.
    """
    with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
        unwritten = set(find_unwritten(fd, [*ignore, *sparse]))
        found = inspect_build(fd, ignore) if contents else []
        return unwritten | {name for name, seen in found if seen.verdict == "broken"}
