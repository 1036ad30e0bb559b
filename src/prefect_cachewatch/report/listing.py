"""The listing of a cache directory in a report: suspects first, then what grew last; bounded, flagged. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.common.units import format_moment

Flag = Literal["suspect_partial", "temporary", "empty", "sparse", "grew_in_window"]


@dataclass(frozen=True)
class ListingEntry:
    """One file."""

    #: Absolute path; undecodable bytes as surrogate escapes.
    path: str
    #: Apparent size.
    size_bytes: int
    #: Blocks on disk x 512.
    allocated_bytes: int
    #: Modification time, ISO 8601 in UTC.
    modified_at: str
    #: Seconds from the modification to the end of the attempt.
    age_s: float
    #: What is remarkable about it.
    flags: list[Flag]


@dataclass(frozen=True)
class DirectoryTotal:
    """Files of one directory that are not listed one by one."""

    path: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Listing:
    """The files of the cache directories: those that may be cut first; within each part what grew last, then what changed last."""

    #: All files, listed or not; a hard-linked file once.
    total_files: int
    #: Their apparent size.
    total_bytes: int
    #: Whether some files are only in `rest`.
    truncated: bool
    entries: list[ListingEntry]
    #: Totals per directory of the files that are not in `entries`.
    rest: list[DirectoryTotal]


def build_listing(
    raw: Mapping[str, Any],
    *,
    now_s: float,
    finished: bool,
    grown_since_scan: int,
) -> Listing:
    """Turn the scan process's listing into the report's.

    Args:
        raw: the answer of the scan process; with `open`, the paths of files that were open for writing.
        now_s: wall-clock time of the attempt's end.
        finished: whether the generator ended by itself with exit code 0: then no file is suspected.
        grown_since_scan: number of the first scan that lies in the last window of writing.

    Returns:
        The listing.
    """
    # A file that was open for writing may be cut, however long ago it changed.
    open_paths = frozenset(raw.get("open", ()))
    last_scan = max((entry["grown_scan"] for entry in raw["entries"]), default=-1)
    entries = []
    for entry in raw["entries"]:
        path, size, allocated, scan = (entry[key] for key in ("path", "size_bytes", "allocated_bytes", "grown_scan"))
        temporary = is_temporary(path.rpartition("/")[2])
        # Any file written in the last scan that saw growth may have been cut.
        suspect = not finished and (temporary or path in open_paths or (scan == last_scan and last_scan > 0))
        sparse = allocated < size * 0.9 and size - allocated > 65536
        marks: dict[Flag, bool] = {
            "suspect_partial": suspect,
            "temporary": temporary,
            "empty": size == 0,
            "sparse": sparse,
            "grew_in_window": scan >= max(1, grown_since_scan),
        }
        flags: list[Flag] = [flag for flag, is_set in marks.items() if is_set]
        modified_s = entry["modified_ns"] / 1e9
        age_s = round(now_s - modified_s, 3)
        entries.append(ListingEntry(path, size, allocated, _timestamp(modified_s), age_s, flags))
    # Of the suspects, too, what grew last stays first.
    entries.sort(key=lambda entry: "suspect_partial" not in entry.flags)
    rest, count = [DirectoryTotal(*total) for total in raw["rest"]], raw["total_files"]
    return Listing(count, raw["total_bytes"], len(entries) < count, entries, rest)


def _timestamp(seconds: float) -> str:
    try:
        return format_moment(seconds)
    except (OverflowError, ValueError, OSError):  # a generator may stamp its files with anything
        return f"{seconds:.0f}"
