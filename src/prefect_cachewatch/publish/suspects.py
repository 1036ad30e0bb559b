"""Which files may a failed attempt have cut? A rule over a listing; the caller removes them.

A generator that skips files which exist would keep a truncated one for ever, so a retry that
resumes takes these away first. The rule goes by change times, which no generator can set as it can
the modification time (cp -a, unzip, tar), against the moment of the last growth on the same clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefect_cachewatch.publish.names import matches_any
from prefect_cachewatch.publish.tree import ScannedFile

__all__ = ["Suspect", "find_suspects"]


@dataclass(frozen=True)
class Suspect:
    """A file that may be cut, and why: temporary, empty, reported, changed_in_window or unprovable."""

    path: str
    reason: str
    size_bytes: int


def find_suspects(
    files: Sequence[ScannedFile],
    *,
    temporary: Sequence[str],
    allow_empty: Sequence[str] = (),
    grew_after_ns: int | None = None,
    window_s: float = 0,
    reported: Collection[str] = (),
) -> list[Suspect]:
    """Find the files that a killed attempt may have left incomplete.

    A file is taken for whole only where it is known that the attempt went on writing others for the whole window
    after this one had changed last.

    Args:
        files: what is in the staging build.
        temporary: globs of temporary files.
        allow_empty: globs of files that may be empty.
        grew_after_ns: the attempt's last growth came after this moment, on the clock that stamps the files; None where
            nobody knows, or where change times say nothing, as after a copy: then every file is suspect.
        window_s: whatever changed this long before that moment is suspect.
        reported: paths that the watch saw growing, or open for writing, at the end.

    Returns:
        The suspects in order of path, each with the first reason that holds.

    Example:
        >>> files = [ScannedFile("a", 9, 0, 1, 1, 10 * 10**9), ScannedFile("b", 9, 0, 2, 1, 99 * 10**9)]
        >>> find_suspects(files, temporary=["*.tmp"], grew_after_ns=98 * 10**9, window_s=5)
        [Suspect(path='b', reason='changed_in_window', size_bytes=9)]
    """
    if not files:
        return []
    since_ns = max(file.changed_ns for file in files)
    if grew_after_ns is not None:
        since_ns = min(since_ns, grew_after_ns - int(window_s * 1e9))
    found: list[Suspect] = []
    for file in files:
        if matches_any(file.path, temporary):
            reason = "temporary"
        elif file.size_bytes == 0 and not matches_any(file.path, allow_empty):
            reason = "empty"
        elif grew_after_ns is None:
            reason = "unprovable"
        elif file.path in reported:
            reason = "reported"
        elif file.changed_ns >= since_ns:
            reason = "changed_in_window"
        else:
            continue
        found.append(Suspect(file.path, reason, file.size_bytes))
    return sorted(found, key=lambda suspect: suspect.path)
