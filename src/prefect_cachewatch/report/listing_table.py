"""The listing as rows for people: a table of a bounded size, the totals in its first row. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from os.path import dirname

from prefect_cachewatch.common.text import for_cell
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.report.listing import Listing, ListingEntry
from prefect_cachewatch.report.report import Report

#: Prefect's UI at `/` draws each cell of each row as Markdown: a thousand files took it many seconds.
FILES_MAX = 200
_DIRECTORIES_MAX = 20
# Both UIs make the first column as wide as its longest name: longer ones would push flags and age off a phone's screen.
_NAME_MAX, _NAME_END = 36, 23
_HEADS = ("file", "flags", "age", "size", "on disk", "whole name")


def listing_rows(report: Report) -> list[dict[str, str]]:
    """Write the listing as rows of a table.

    Args:
        report: the attempt's report.

    Returns:
        The totals, then at most 200 files in the order of the listing, then by directory at most 20 totals of the files
        that have no row. Long names are cut in the middle; then a last column has them whole. No cell has control characters
        or makes a link.
    """
    listing = report.listing
    if listing is None:
        return _rows([("no listing", "; ".join(for_cell(note, 300) for note in report.notes))])
    directories = {dirname(entry.path) for entry in listing.entries} | {each.path.rstrip("/") for each in listing.rest}
    count = format_count(len(directories), "directory", "directories")
    suspects = sum("suspect_partial" in entry.flags for entry in listing.entries)
    total = f"total: {format_count(listing.total_files, 'file')} in {count}"
    marks = f"{suspects:,} suspect_partial" if suspects else ""
    rows = [
        (total, marks, "", format_bytes(listing.total_bytes)),
        *(_file(one, report) for one in listing.entries[:FILES_MAX]),
    ]
    left = sorted(_left_out(listing).items(), key=lambda item: -item[1][1])
    more = [(files, size, for_cell(_below(path, report))) for path, (files, size) in left[:_DIRECTORIES_MAX]]
    if others := left[_DIRECTORIES_MAX:]:
        files, size = (sum(counts[index] for _, counts in others) for index in (0, 1))
        more.append((files, size, f"{len(others):,} other directories"))
    rows += [
        (f"{format_count(files, 'file')} more in {where}", "", "", format_bytes(size)) for files, size, where in more
    ]
    return _rows(rows)


def _rows(rows: Sequence[tuple[str, ...]]) -> list[dict[str, str]]:
    """Name the cells; the last column is left out where no name is cut."""
    heads = _HEADS if any(len(row) == len(_HEADS) for row in rows) else _HEADS[:-1]
    return [dict(zip_longest(heads, row, fillvalue="")) for row in rows]


def _file(entry: ListingEntry, report: Report) -> tuple[str, ...]:
    name = _below(entry.path, report)
    short = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - _NAME_END - 1]}…{name[-_NAME_END:]}"
    cells = (for_cell(short), ", ".join(entry.flags), format_duration(max(0.0, entry.age_s)),
             format_bytes(entry.size_bytes), format_bytes(entry.allocated_bytes))  # fmt: skip
    return (*cells, for_cell(name)) if short != name else cells


def _left_out(listing: Listing) -> dict[str, tuple[int, int]]:
    """Return files and bytes of what has no row of its own, by directory."""
    left = {total.path.rstrip("/") + "/": (total.files, total.bytes) for total in listing.rest}
    for entry in listing.entries[FILES_MAX:]:
        directory = dirname(entry.path).rstrip("/") + "/"
        files, size = left.get(directory, (0, 0))
        left[directory] = files + 1, size + entry.size_bytes
    return left


def _below(path: str, report: Report) -> str:
    if len(report.cache_dirs) == 1:
        return path.removeprefix(report.cache_dirs[0].rstrip("/") + "/") or "."
    return path
