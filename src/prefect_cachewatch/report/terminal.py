"""Writes what is told of an attempt for a terminal; every text is escaped here. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.report.sections import Lines, Pre, Section, Table, Verdict

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
            lines: Iterable[str] = ()
            if isinstance(part, str):
                lines = [part]
            elif isinstance(part, Lines):
                lines = part.lines
            elif isinstance(part, Pre) and not part.command:
                lines = part.lines[-_MOST_LINES:]
            elif isinstance(part, Table):
                yield from _rows(part, width)
            for line in lines:
                yield from _wrapped(label, line, width)
                label = ""


def _rows(table: Table, width: int) -> Iterator[str]:
    for name, flags, age, size, _ in table.rows[:_MOST_ROWS]:
        head, marks = f"{size.text:>10}  {age.text:>11}  ", for_terminal(" ".join(flags.tags))
        short = for_terminal(name.text.rpartition("/")[2], max(20, width - len(head) - len(marks) - 2))
        yield f"{head}{short}  {marks}".rstrip()
    if len(table.rows) > _MOST_ROWS:
        yield f"{'':>10}  and more in listing.jsonl.gz"


def _wrapped(label: str, text: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(
        for_terminal(text, 1000), max(40, width), initial_indent=f"{label:<8}", subsequent_indent=" " * 8,
        break_on_hyphens=False,
    )  # fmt: skip
