"""Writes what is told of an attempt for a terminal; every text is escaped here. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.report.report import Listing
from prefect_cachewatch.report.sections import Lines, Section, Verdict

_MOST_ROWS, _MOST_LINES = 10, 10


def write_terminal(verdict: Verdict, told: Iterable[Section], width: int = 80) -> Iterator[str]:
    """Write a verdict and the sections that have a short label.

    Args:
        verdict: begins the text.
        told: the sections; of long ones the beginning, of logs the end.
        width: columns.

    Yields:
        Lines without line ends, safe for a terminal.
    """
    outcome, *tags = map(for_terminal, verdict.tags)
    yield f"{outcome}: {tags[0]} ({tags[-1]})" if tags else outcome
    yield ""
    for label, text in verdict.rows:
        yield from _wrapped("cause" if label.startswith("Cause") else label.lower(), text, width)
    for section in told:
        label = section.label
        for part in section.parts if label else ():
            if isinstance(part, Listing):
                yield from _rows(part, width)
            lines: tuple[str, ...] = (part,) if isinstance(part, str) else ()
            if isinstance(part, Lines) and part.kind in ("list", "pre"):
                lines = part.lines if part.kind == "list" else part.lines[-_MOST_LINES:]
            for line in lines:
                yield from _wrapped(label, line, width)
                label = ""


def _rows(listing: Listing, width: int) -> Iterator[str]:
    for file in listing.entries[:_MOST_ROWS]:
        head, flags = (
            f"{format_bytes(file.size_bytes):>10}  {format_duration(max(0.0, file.age_s)):>11}  ",
            " ".join(file.flags),
        )
        short = for_terminal(file.path.rpartition("/")[2], max(20, width - len(head) - len(flags) - 2))
        yield f"{head}{short}  {flags}".rstrip()
    if len(listing.entries) > _MOST_ROWS:
        yield f"{'':>10}  and more in listing.jsonl.gz"


def _wrapped(label: str, text: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        for_terminal(text, 1000), max(40, width), initial_indent=f"{label:<8}", subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )  # fmt: skip
