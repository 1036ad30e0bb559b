"""What the clean-up before an attempt removed from a build, and which of it nothing wrote again: rules over a listing.

A generator that finds some files often takes them for the whole cache. The record outlives a run that is killed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.store.checks import Finding, name_files
from prefect_cachewatch.store.tree import ScannedFile

# `b.bin` of `b.bin.tmp.4711` and of `b.bin.incomplete`.
_UNFINISHED = re.compile(r"(?:~|\.(?:tmp[.-][^/]*|[^./]+))$")
# What differs from one process to the next: numbers of processes, times, random names; but not `layer-00007`.
_PASSING = re.compile(r"(?<![0-9a-zA-Z])(?:[1-9]\d{3,}|(?=[0-9a-f]*\d)[0-9a-f]{8,})(?![0-9a-zA-Z])")


@dataclass(frozen=True)
class Removed:
    """A file that was removed: its size, and the moment, on the clock that stamps the files."""

    size_bytes: int
    at_ns: int


def find_unreplaced(removed: Mapping[str, Removed], files: Sequence[ScannedFile]) -> list[Finding]:
    """Find what was removed and not written again.

    A file is there again by its name. An unfinished file is also there again under its final name, or if as much was written
    under other names: their names are often random.

    Args:
        removed: by relative path.
        files: what is in the build now.

    Returns:
        At most one finding; a refusal if less was written since than was removed.

    Example:
        >>> find_unreplaced({"a.bin.part": Removed(9, 5)}, [ScannedFile("b.bin", 9, 0, 1, 1, changed_ns=1)])[0].message
        'removed before this attempt, since it may have been cut, and not written again: a.bin.part'
    """
    there = {file.path for file in files}
    alike = {_PASSING.sub("*", path) for path in there}
    again: set[str] = set()
    named: dict[str, Removed] = {}
    unfinished: dict[str, Removed] = {}
    for path, was in removed.items():
        final = _UNFINISHED.sub("", path) if is_temporary(path) else None
        if path in there or final in there:
            again.update(one for one in (path, final) if one is not None)
        elif final is not None:
            unfinished[path] = was
        elif _PASSING.sub("*", path) not in alike:
            named[path] = was
    lost = {**named, **unfinished}
    if not lost:
        return []
    since_ns = min(was.at_ns for was in lost.values())
    new = [file for file in files if file.changed_ns >= since_ns and file.path not in again]
    fewer = not new or sum(file.size_bytes for file in new) < sum(was.size_bytes for was in lost.values())
    paths = sorted(lost if fewer else (path for path, was in named.items() if was.size_bytes))
    if not paths:
        return []
    what = "removed before this attempt, since it may have been cut, and not written again"
    found = name_files("not_written_again", what, paths)
    return [Finding(found.category, found.message, "refuse" if fewer else "warn", found.paths)]
