"""Which files may a failed attempt have cut? A rule over a listing; the caller removes them.

A generator that skips files which exist would keep a truncated one for ever, so a retry that
resumes takes these away first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefect_cachewatch.publish.names import matches_any
from prefect_cachewatch.publish.tree import ScannedFile

__all__ = ["Suspect", "find_suspects"]

# Parallel writers that freeze together stop within a moment of each other, and some file systems
# keep whole seconds only.
_TOGETHER_S = 1.0


@dataclass(frozen=True)
class Suspect:
    """A file that may be cut, and why: temporary, empty, last_modified, grew_in_window or reported."""

    path: str
    reason: str
    size_bytes: int


def find_suspects(
    files: Sequence[ScannedFile],
    *,
    temporary: Sequence[str],
    allow_empty: Sequence[str] = (),
    ended_at_s: float | None = None,
    window_s: float = 0,
    reported: Collection[str] = (),
) -> list[Suspect]:
    """Find the files that a killed attempt may have left incomplete.

    Args:
        files: what is in the staging build.
        temporary: globs of temporary files.
        allow_empty: globs of files that may be empty.
        ended_at_s: wall time at which the attempt ended, on the clock of the file system; None where nobody knows,
            then the last modification stands for it.
        window_s: whatever was modified this long before the end is suspect.
        reported: paths that the watch saw growing at the end.

    Returns:
        The suspects in order of path, each with the first reason that holds.

    Example:
        >>> files = [ScannedFile("a", 9, 10 * 10**9, 1, 1), ScannedFile("b", 9, 99 * 10**9, 2, 1)]
        >>> find_suspects(files, temporary=["*.tmp"], ended_at_s=100, window_s=5)
        [Suspect(path='b', reason='last_modified', size_bytes=9)]
    """
    if not files:
        return []
    newest_s = max(file.mtime_ns for file in files) / 1e9
    ended_s = newest_s if ended_at_s is None else ended_at_s
    found: list[Suspect] = []
    for file in files:
        modified_s = file.mtime_ns / 1e9
        if matches_any(file.path, temporary):
            reason = "temporary"
        elif file.size_bytes == 0 and not matches_any(file.path, allow_empty):
            reason = "empty"
        elif modified_s >= newest_s - _TOGETHER_S:
            reason = "last_modified"
        elif modified_s >= ended_s - window_s:
            reason = "grew_in_window"
        elif file.path in reported:
            reason = "reported"
        else:
            continue
        found.append(Suspect(file.path, reason, file.size_bytes))
    return sorted(found, key=lambda suspect: suspect.path)
