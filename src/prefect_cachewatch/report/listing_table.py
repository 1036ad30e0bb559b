"""The listing as rows for people: a table of a bounded size, the totals in its first row. Pure."""

from __future__ import annotations

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
_WHOLE = "whole name"


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
        return _needed([_row("no listing", flags="; ".join(for_cell(note, 300) for note in report.notes))])
    rows = [_row(_total(listing), flags=_suspects(listing), size=format_bytes(listing.total_bytes))]
    rows += [_file(entry, report) for entry in listing.entries[:FILES_MAX]]
    left = sorted(_left_out(listing).items(), key=lambda item: -item[1][1])
    for path, (files, size) in left[:_DIRECTORIES_MAX]:
        rows.append(
            _row(f"{format_count(files, 'file')} more in {for_cell(_below(path, report))}", size=format_bytes(size))
        )
    if others := left[_DIRECTORIES_MAX:]:
        files, size = (sum(counts[index] for _, counts in others) for index in (0, 1))
        rows.append(
            _row(f"{format_count(files, 'file')} more in {len(others):,} other directories", size=format_bytes(size))
        )
    return _needed(rows)


def _needed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    if any(row[_WHOLE] for row in rows):
        return rows
    return [{head: cell for head, cell in row.items() if head != _WHOLE} for row in rows]


def _row(
    file: str, *, flags: str = "", age: str = "", size: str = "", on_disk: str = "", whole: str = ""
) -> dict[str, str]:
    return {"file": file, "flags": flags, "age": age, "size": size, "on disk": on_disk, _WHOLE: whole}


def _file(entry: ListingEntry, report: Report) -> dict[str, str]:
    name = _below(entry.path, report)
    short = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - _NAME_END - 1]}…{name[-_NAME_END:]}"
    return _row(
        for_cell(short),
        flags=", ".join(entry.flags),
        age=format_duration(max(0.0, entry.age_s)),
        size=format_bytes(entry.size_bytes),
        on_disk=format_bytes(entry.allocated_bytes),
        whole=for_cell(name) if short != name else "",
    )


def _total(listing: Listing) -> str:
    directories = {dirname(entry.path) for entry in listing.entries} | {each.path.rstrip("/") for each in listing.rest}
    count = format_count(len(directories), "directory", "directories")
    return f"total: {format_count(listing.total_files, 'file')} in {count}"


def _suspects(listing: Listing) -> str:
    found = sum("suspect_partial" in entry.flags for entry in listing.entries)
    return f"{found:,} suspect_partial" if found else ""


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
