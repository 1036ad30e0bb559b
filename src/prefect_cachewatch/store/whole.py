"""Looks over a cache that was generated where it is used: what of it is not whole, as far as names and numbers tell.

It refuses nothing, since nothing is published; a build in a store is judged by `checks`. It may hang with the file system.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.checks import (
    Finding,
    check_content,
    check_parts,
    check_unwritten,
    find_empty,
    name_files,
)
from prefect_cachewatch.store.contents import inspect_files
from prefect_cachewatch.store.holes import describe_unwritten, find_unwritten
from prefect_cachewatch.store.names import matches_any
from prefect_cachewatch.store.sets import find_missing
from prefect_cachewatch.store.tree import scan_build

_CONTENT_S = 5.0


def look_over(paths: Sequence[str], since_ns: int, ignore: Sequence[str] = ()) -> list[Finding]:
    """Find what of a cache is not whole.

    Sets, and links that lead to nothing, are looked for in all of it; of single files only those that changed of late.

    Args:
        paths: of the cache directories, absolute.
        since_ns: the start of the generation, as the file system's clock has it.
        ignore: globs of files that are not part of the cache.

    Returns:
        Warnings; of a directory that cannot be read, or changes meanwhile, none.
    """
    found: list[Finding] = []
    for path in paths:
        try:
            with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
                found += _look(fd, path, since_ns, ignore)
        except (OSError, StoreError):
            continue
    return found


def _look(fd: int, path: str, since_ns: int, ignore: Sequence[str]) -> list[Finding]:
    tree = scan_build(fd)
    new = [file for file in tree.files if file.changed_ns >= since_ns and not matches_any(file.path, ignore)]
    nowhere = [
        link for link in tree.escapes if not os.path.exists(os.path.join(path, link)) and not matches_any(link, ignore)
    ]
    unfinished = [file.path for file in new if is_temporary(file.path)]
    judged = {file.path for file in new} - {*unfinished}
    found: list[Finding] = []
    if nowhere:
        found.append(name_files("dangling_link", "a symbolic link leads to nothing", nowhere))
    if unfinished:
        found.append(name_files("temporary_file", "a temporary file was left behind", unfinished))
    if empty := [name for name in find_empty(tree, ignore) if tree.leads.get(name, name) in judged]:
        found.append(name_files("empty_file", "an empty file was left behind", empty))
    parts = [part for part in find_missing(fd, tree, ignore, outward=True) if part.category != "unused_index"]
    found += check_parts(parts, "warn")
    contents = inspect_files(fd, tree, judged, time.monotonic() + _CONTENT_S)
    found += [one for one in check_content(contents, "warn") if one.category == "broken_content"]
    holes = {name: size for name, size in find_unwritten(fd, ignore, since_ns).items() if name in judged}
    found += check_unwritten(describe_unwritten(holes, {file.path: file.size_bytes for file in tree.files}), "warn")
    return found
