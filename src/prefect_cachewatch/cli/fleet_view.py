"""The display of a running fleet: a table that is redrawn in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from prefect_cachewatch.cli.live import LiveBlock
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.console import standard_error
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.fleet.outcome import cells_of, count_rows, describe_row
from prefect_cachewatch.fleet.rows import JobRow, by_need

_PLAIN_EVERY_S = 60.0
_NAME, _STATE, _BYTES, _RATE = 22, 15, 9, 10
_HEADER = Text(f"{'job':<{_NAME}} {'state':<{_STATE}} cause; or size, rate, pause or time", style="dim")
_STYLES = {
    "failed": "red",
    "running": "",
    "done": "green",
    "cancelled": "yellow",
    "not_started": "yellow",
    "waiting": "dim",
}


def render_fleet(name: str, rows: Sequence[JobRow], elapsed_s: float, width: int = 80, height: int = 24) -> list[Text]:
    """Lay a fleet out as lines: a head with the counts, then the jobs; jobs that need a person come first.

    Args:
        name: name of the fleet.
        rows: its jobs.
        elapsed_s: seconds since it began.
        width: columns; no line is longer.
        height: lines at most.

    Returns:
        The lines.

    Example:
        >>> rows = [JobRow("llama", "Running", "running", 2**30, 2**20, pause_s=2.0), JobRow("qwen", "Stalled", "failed")]
        >>> print(*[line.plain.rstrip() for line in render_fleet("nightly", rows, 60)], sep=chr(10))
        nightly  1 failed, 1 running  1.00 GiB  1 minute
        job                    state           cause; or size, rate, pause or time
        qwen                   Stalled
        llama                  Running         1.00 GiB   1.00 MiB/s pause 2 s
    """
    width = max(20, width)
    head = Text().append(for_terminal(name, 30), style="bold")
    total = sum(row.bytes_present or 0 for row in rows)
    head.append(f"  {count_rows(rows)}  {format_bytes(total)}  {format_duration(float(round(elapsed_s)))}")
    ordered = by_need(rows)
    heads = [head, _HEADER.copy()] if height > 3 else [head]
    room = max(1, height - len(heads))
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    lines = [*heads, *(_line(row) for row in shown)]
    if len(shown) < len(ordered):
        lines.append(
            Text(f"... and {len(ordered) - len(shown):,} more: {count_rows(ordered[len(shown) :])}", style="dim")
        )
    return fitted(lines, width)


def render_summary(rows: Sequence[JobRow], width: int) -> list[Text]:
    """Lay out how a fleet ended: one line per job; below each that failed its whole cause, what to do, and its run.

    Args:
        rows: its jobs.
        width: columns; no line is longer.

    Returns:
        The lines.
    """
    width, lines = max(20, width), [_HEADER.copy()]
    for row in by_need(rows):
        lines.append(_line(row))
        if row.kind == "failed":
            lines += _below(row, width)
    return fitted(lines, width)


def _below(row: JobRow, width: int) -> list[Text]:
    cells = cells_of(row)
    shown_whole = _NAME + _STATE + 2 + cell_len(cells["cause"]) <= width
    told = {"cause": "" if shown_whole else cells["cause"], "next": cells["next"], "run": cells["run"]}
    return [
        Text(line, style="dim")
        for label, text in told.items()
        for line in textwrap.wrap(
            f"{label}: {text}" if text else "",
            width,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    ]


def _line(row: JobRow) -> Text:
    style = "yellow" if row.suspected else _STYLES[row.kind]
    cells = cells_of(row)
    line = Text(f"{for_terminal(row.name, _NAME):<{_NAME}} ").append(
        f"{for_terminal(row.state, _STATE):<{_STATE}} ", style
    )
    if row.cause:
        return line.append(for_terminal(row.cause, 300), style)
    line.append(f"{cells['bytes']:<{_BYTES}}  {cells['rate']:<{_RATE}} ")
    if row.pause_s is not None:
        return line.append(f"pause {format_duration(float(round(row.pause_s)))}")
    return line.append(cells["time"])


def fitted(lines: list[Text], width: int) -> list[Text]:
    """Cut lines to a width."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


class TerminalView:
    """Shows a fleet on standard error.

    Args:
        quiet: show nothing while it runs.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.rows: list[JobRow] = []
        self._quiet, self._verbose = quiet, verbose
        self._live = not quiet and not verbose and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._block = LiveBlock() if self._live else None
        self._began_s = self._said_s = time.monotonic()

    def show(self, name: str, rows: Sequence[JobRow]) -> None:
        """Take in the state of the jobs."""
        self.rows = list(rows)
        now_s = time.monotonic()
        if self._block is not None:
            size = shutil.get_terminal_size((80, 24))
            lines = render_fleet(name, rows, now_s - self._began_s, size.columns - 1, max(4, size.lines - 2))
            self._block.draw(Group(*lines))
        elif not self._quiet and now_s - self._said_s >= _PLAIN_EVERY_S:
            self._said_s = now_s
            self._say(f"{for_terminal(name, 60)}: {count_rows(rows)}")

    def changed(self, row: JobRow) -> None:
        """Take in that a job has ended; a table shows it in any case."""
        if self._block is None and not self._quiet:
            self._say(describe_row(row))

    def close(self) -> None:
        """Take the table off the screen, before other output is written there."""
        if self._block is not None:
            self._block.clear()
            standard_error().flush()

    def passes(self, record: logging.LogRecord, shown_attribute: str) -> bool:
        """Say whether a log line is shown: lines that repeat the table are not, and warnings are printed above it.

        Args:
            record: the line.
            shown_attribute: attribute that marks records whose content is in the table.
        """
        if self._verbose:
            return True
        if record.levelno < logging.WARNING or getattr(record, shown_attribute, False):
            return False
        self.close()
        return True

    def _say(self, line: str) -> None:
        self._said_s = time.monotonic()
        say(line, flush=True)
