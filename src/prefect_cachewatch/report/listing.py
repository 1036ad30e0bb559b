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
        size, allocated = entry["size_bytes"], entry["allocated_bytes"]
        temporary = is_temporary(entry["path"].rpartition("/")[2])
        flags: list[Flag] = []
        # Any file written in the last scan that saw growth may have been cut.
        if not finished and (
            temporary or entry["path"] in open_paths or (entry["grown_scan"] == last_scan and last_scan > 0)
        ):
            flags.append("suspect_partial")
        if temporary:
            flags.append("temporary")
        if size == 0:
            flags.append("empty")
        if allocated < size * 0.9 and size - allocated > 65536:
            flags.append("sparse")
        if entry["grown_scan"] >= max(1, grown_since_scan):
            flags.append("grew_in_window")
        modified_s = entry["modified_ns"] / 1e9
        entries.append(
            ListingEntry(
                path=entry["path"],
                size_bytes=size,
                allocated_bytes=allocated,
                modified_at=_timestamp(modified_s),
                age_s=round(now_s - modified_s, 3),
                flags=flags,
            )
        )
    # Of the suspects, too, what grew last stays first.
    entries.sort(key=lambda entry: "suspect_partial" not in entry.flags)
    rest = [DirectoryTotal(path=path, files=files, bytes=size) for path, files, size in raw["rest"]]
    return Listing(
        total_files=raw["total_files"],
        total_bytes=raw["total_bytes"],
        truncated=len(entries) < raw["total_files"],
        entries=entries,
        rest=rest,
    )


def _timestamp(seconds: float) -> str:
    try:
        return format_moment(seconds)
    except (OverflowError, ValueError, OSError):  # a generator may stamp its files with anything
        return f"{seconds:.0f}"
