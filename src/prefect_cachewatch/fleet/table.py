"""The table of a fleet: one row per job, at most 1,000, jobs that need a person first, then totals. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.fleet.outcome import count_rows
from prefect_cachewatch.fleet.rows import JobRow, by_need

__all__ = ["ROWS_MAX", "cells_of", "describe_row", "table_rows"]

ROWS_MAX = 1000


def table_rows(rows: Sequence[JobRow], limit: int = ROWS_MAX) -> list[dict[str, str]]:
    """Write a fleet as rows of a table artifact.

    Args:
        rows: its jobs, in any order.
        limit: the most jobs with a row of their own.

    Returns:
        One row per job, one for the jobs that were cut, and the totals; no cell has markup or control characters.

    Example:
        >>> [row["job"] for row in table_rows([JobRow("a", "Cached", "done"), JobRow("b", "Stalled", "failed")], 1)]
        ['b', '... and 1 more', 'total: 2 jobs']
    """
    ordered = by_need(rows)
    table = [cells_of(row) for row in ordered[:limit]]
    if cut := ordered[limit:]:
        table.append(_line(f"... and {len(cut):,} more", str(count_rows(cut)), _bytes(cut)))
    table.append(
        _line(
            f"total: {len(ordered):,} job{'' if len(ordered) == 1 else 's'}", str(count_rows(ordered)), _bytes(ordered)
        )
    )
    return table


def describe_row(row: JobRow) -> str:
    """Describe the state of a job in one line, for a log.

    Example:
        >>> describe_row(JobRow("llama", "Stalled", "failed", 2**30, duration_s=72, cause="no write"))
        'llama: Stalled, 1.00 GiB, 72 s: no write'
    """
    cells = cells_of(row)
    parts = ", ".join(filter(None, (for_terminal(row.state), cells["bytes"], cells["time"])))
    cause = f": {for_terminal(row.cause, 300)}" if row.cause else ""
    return f"{for_terminal(row.name, 100)}: {parts}{cause}"


def cells_of(row: JobRow) -> dict[str, str]:
    """Return a job as the cells of a table; an unknown value is an empty cell."""
    return {
        "job": for_terminal(row.name),
        "state": for_terminal(row.state) + (" (suspected)" if row.suspected else ""),
        "bytes": "" if row.bytes_present is None else format_bytes(row.bytes_present),
        "rate": "" if row.rate_bytes_per_s is None else f"{format_bytes(row.rate_bytes_per_s)}/s",
        "wait": "" if row.waited_s is None else format_duration(round(row.waited_s)),
        "time": "" if row.duration_s is None else format_duration(round(row.duration_s)),
        "attempts": "" if row.attempts is None else str(row.attempts),
        "cause": for_terminal(row.cause, 500),
        "what to do": for_terminal(row.advice, 500),
        "run": row.url or row.run_id or "",
    }


def _line(job: str, state: str, size: str) -> dict[str, str]:
    return {**dict.fromkeys(cells_of(JobRow("", "", "done")), ""), "job": job, "state": state, "bytes": size}


def _bytes(rows: Sequence[JobRow]) -> str:
    return format_bytes(sum(row.bytes_present or 0 for row in rows))
