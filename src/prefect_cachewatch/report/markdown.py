"""Writes what is told of an attempt for Prefect's UIs: Markdown, and the listing as a table; every text is escaped here. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from os.path import dirname

from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_cell, for_markdown, for_terminal, markdown_code
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.report.sections import Chart, Facts, Lines, Part, Section, Verdict

#: Prefect's UI at `/` draws each cell of each row as Markdown: a thousand files took it many seconds.
FILES_MAX = 200
_MOST_LINES = 30
# Both UIs make the first column as wide as its longest name: longer ones would push flags and age off a phone's screen.
_NAME_MAX, _NAME_END = 36, 23
_HEADS = ("file", "flags", "age", "size", "on disk", "whole name")


def write_markdown(verdict: Verdict, told: Iterable[Section]) -> str:
    """Write a verdict and the sections below it.

    Args:
        verdict: begins the text.
        told: the sections; the listing is left out, since it makes an artifact of its own.

    Returns:
        Markdown; text from outside is escaped.
    """
    attempt = f", {verdict.attempt}" if verdict.attempt else ""
    lines = [f"## {for_markdown(verdict.name, 100)}{attempt}: {verdict.state}", ""]
    sure = f" ({verdict.tags[1]}, {verdict.tags[-1]})" if len(verdict.tags) > 1 else ""
    for index, (label, text) in enumerate(verdict.rows):
        lead = "" if label == "What" else f"**{label}:** "
        lines += [f"{lead}{for_markdown(text, 2000)}{sure if index == 0 else ''}", ""]
    for section in told:
        parts = [line for part in section.parts for line in _write(part)]
        if parts:
            lines += [*([] if section.label == "growth" else [f"{section.title}:", ""]), *parts]
    return "\n".join(lines).rstrip() + "\n"


def _write(part: Part) -> list[str]:
    match part:
        case str():
            return [for_markdown(part, 1000), ""]
        case Chart():  # an image, since both UIs remove raw SVG from Markdown
            return [f"![Bytes written over time]({svg_data_uri(part.svg)})", ""]
        case Facts():  # no table: the UI at / breaks no line in one, and cuts it off at the edge of a phone
            return [*(f"- {label}: {markdown_code(value, 500)}" for label, value in part.rows), ""]
        case Lines(kind="list"):
            return [*(f"- {for_markdown(line, 500)}" for line in part.lines), ""]
        case Lines(kind="command"):
            return [markdown_code(part.lines[0], 1000), ""]
        case Lines(kind="pre"):
            text = "\n".join(for_terminal(line, 300) for line in part.lines[-_MOST_LINES:])
            fence = "```"
            while fence in text:
                fence += "`"
            return [f"{fence}text", text, fence, ""]
    return []


def listing_rows(report: Report) -> list[dict[str, str]]:
    """Write the listing as rows of a table.

    Args:
        report: the attempt's report.

    Returns:
        The totals, then at most 200 files in the order of the listing, then how many there are besides. Long names are cut
        in the middle; then a last column has them whole. No cell has control characters or makes a link.
    """
    if report.listing is None:
        return _rows([("no listing", "; ".join(for_cell(note, 300) for note in report.notes))])
    listing, rows = report.listing, list[tuple[str, ...]]()
    directories = {dirname(entry.path) for entry in listing.entries} | {each.path.rstrip("/") for each in listing.rest}
    count = format_count(len(directories), "directory", "directories")
    suspects = sum("suspect_partial" in entry.flags for entry in listing.entries)
    total = f"total: {format_count(listing.total_files, 'file')} in {count}"
    rows.append((total, f"{suspects:,} suspect_partial" if suspects else "", "", format_bytes(listing.total_bytes)))
    root = report.cache_dirs[0].rstrip("/") + "/" if len(report.cache_dirs) == 1 else ""
    for entry in listing.entries[:FILES_MAX]:
        name = entry.path.removeprefix(root)
        short = name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - _NAME_END - 1]}…{name[-_NAME_END:]}"
        sizes = format_bytes(entry.size_bytes), format_bytes(entry.allocated_bytes)
        cells = (for_cell(short), ", ".join(entry.flags), format_duration(max(0.0, entry.age_s)), *sizes)
        rows.append((*cells, for_cell(name)) if short != name else cells)
    if (left := listing.total_files - FILES_MAX) > 0:
        rows.append((f"{format_count(left, 'file')} more",))
    return _rows(rows)


def _rows(rows: list[tuple[str, ...]]) -> list[dict[str, str]]:
    """Name the cells; the last column is left out where no name is cut."""
    heads = _HEADS if any(len(row) == len(_HEADS) for row in rows) else _HEADS[:-1]
    return [dict(zip_longest(heads, row, fillvalue="")) for row in rows]
