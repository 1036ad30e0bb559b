"""What a fleet tells of its jobs, and when failures stop it: counts, a table, the end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.text import for_cell, for_markdown, for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.fleet.jobs import FleetPolicy
from prefect_cachewatch.fleet.rows import JobRow, by_need

#: Prefect's UI at `/` draws each cell as Markdown: 200 rows take it three seconds, a thousand took half a minute.
ROWS_MAX = 200
_LINKS_MAX = 10
# The jobs that a fleet's message names beside the first one.
_NAMED_MAX = 15


@dataclass(frozen=True)
class Tally:
    """How many jobs are in each kind of state."""

    waiting: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    not_started: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.waiting + self.running + self.done + self.failed + self.cancelled + self.not_started

    def __str__(self) -> str:
        parts = [(self.done, "done"), (self.failed, "failed"), (self.cancelled, "cancelled"), (self.running, "running")]
        parts += [(self.waiting, "waiting"), (self.not_started, "not started")]
        return ", ".join(f"{count} {what}" for count, what in parts if count) or "no jobs"


@dataclass(frozen=True)
class FleetEnd:
    """How a fleet ended: the final state's name, and a sentence."""

    state: Literal["Completed", "PartlyFailed", "FleetFailed"]
    message: str


def count_rows(rows: Sequence[JobRow]) -> Tally:
    """Count the jobs by kind.

    Example:
        >>> str(count_rows([JobRow("a", "Cached", "done"), JobRow("b", "Stalled", "failed")]))
        '1 done, 1 failed'
    """
    counts: dict[str, int] = Counter(row.kind for row in rows)
    return Tally(**counts)


def what_now(policy: FleetPolicy, failed: int) -> Literal["go_on", "stop_new", "fail_fast"]:
    """Say whether a fleet goes on.

    Args:
        policy: the fleet's policy.
        failed: number of failed jobs so far; jobs that a user cancelled do not count.

    Returns:
        go_on; stop_new: start no more jobs; fail_fast: stop the running ones, too.

    Example:
        >>> what_now(FleetPolicy(on_failure="stop_new", max_failures=1), 1)
        'go_on'
        >>> what_now(FleetPolicy(on_failure="stop_new", max_failures=1), 2)
        'stop_new'
    """
    if policy.on_failure == "continue" or failed <= (policy.max_failures or 0):
        return "go_on"
    return policy.on_failure


def fleet_end(name: str, rows: Sequence[JobRow]) -> FleetEnd:
    """Say how a fleet ended.

    Args:
        name: name of the fleet.
        rows: rows of all its jobs, none of them running.

    Returns:
        Completed if every cache is there; PartlyFailed if some are; FleetFailed if none is. The message names the jobs
        that failed, each with its cause, up to 16 of them.

    Example:
        >>> fleet_end("nightly", [JobRow("a", "Cached", "done"), JobRow("b", "Stalled", "failed", cause="no write")]).message
        "Fleet 'nightly': 1 of 2 caches are there; 1 failed. First: b is Stalled (no write)"
    """
    tally = count_rows(rows)
    had = sum(row.state == "Cached" for row in rows if row.kind == "done")
    lead = f"Fleet '{for_terminal(name)}': {tally.done} of {tally.total} caches are there"
    if had and had < tally.done:
        lead += f", {had} of them from before"
    stalled = sum(row.kind == "done" and bool(row.cause) for row in rows)
    told = f" {stalled} of the generations that completed would have been stopped: see their rows." if stalled else ""
    if tally.done == tally.total:
        return FleetEnd("Completed", lead + (", all from before." if had == tally.total else f".{told}"))
    rest = [
        (tally.failed, "failed"),
        (tally.cancelled, "cancelled"),
        (tally.not_started + tally.waiting, "not started"),
    ]
    counts = ", ".join(f"{count} {what}" for count, what in rest if count)
    first, *others = by_need(row for row in rows if row.kind != "done")
    message = f"{lead}; {counts}. First: {_told_of(first, 300)}"
    # A notification is this message: it names the jobs that need a person, each with its cause.
    bad = [row for row in others if row.kind == "failed"]
    message += "".join(f"; then: {_told_of(row, 150)}" for row in bad[:_NAMED_MAX])
    if len(bad) > _NAMED_MAX:
        message += f"; then: {len(bad) - _NAMED_MAX:,} more that failed"
    message += f".{told}" if told else ""
    return FleetEnd("PartlyFailed" if tally.done else "FleetFailed", message)


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
    table = [_for_ui(row) for row in ordered[:limit]]
    if cut := ordered[limit:]:
        table.append(_line(f"... and {len(cut):,} more", str(count_rows(cut)), _bytes(cut)))
    table.append(
        _line(
            f"total: {len(ordered):,} job{'' if len(ordered) == 1 else 's'}", str(count_rows(ordered)), _bytes(ordered)
        )
    )
    return table


def describe_fleet(name: str, rows: Sequence[JobRow]) -> str:
    """Describe a fleet in one line of Markdown, with links to the runs that need a person.

    Prefect's UI at `/v2` makes no link of a table's cell, but of the table's description.

    Args:
        name: name of the fleet.
        rows: its jobs, in any order.

    Returns:
        The line; at most ten runs are linked.

    Example:
        >>> describe_fleet("nightly", [JobRow("a", "Cached", "done"), JobRow("b", "Stalled", "failed", url="http://s/1")])
        'nightly: 1 done, 1 failed. Look at [b](<http://s/1>) (Stalled)'
    """
    text = f"{for_markdown(name)}: {count_rows(rows)}"
    failed = [row for row in by_need(rows) if row.kind == "failed" and row.url]
    if not failed:
        return text
    links = [f"[{for_markdown(row.name, 100)}](<{row.url}>) ({for_markdown(row.state)})" for row in failed[:_LINKS_MAX]]
    more = f" and {len(failed) - _LINKS_MAX:,} more" if len(failed) > _LINKS_MAX else ""
    return f"{text}. Look at {', '.join(links)}{more}"


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
        "run": row.url or row.run_id or "",
        "cause": for_terminal(row.cause, 500),  # long: what stands after it is out of sight in Prefect's table
        "next": for_terminal(row.advice, 500),
        "wait": "" if row.waited_s is None else format_duration(round(row.waited_s)),
        "time": "" if row.duration_s is None else format_duration(round(row.duration_s)),
        "attempts": "" if row.attempts is None else str(row.attempts),
    }


def _told_of(row: JobRow, limit: int) -> str:
    cause = f" ({for_terminal(row.cause.rstrip('.'), limit)})" if row.cause else ""
    return f"{for_terminal(row.name, 100)} is {for_terminal(row.state)}{cause}"


def _for_ui(row: JobRow) -> dict[str, str]:
    words = {"job": for_cell(row.name), "cause": for_cell(row.cause, 500), "next": for_cell(row.advice, 500)}
    return {**cells_of(row), **words}


def _line(job: str, state: str, size: str) -> dict[str, str]:
    return {**dict.fromkeys(cells_of(JobRow("", "", "done")), ""), "job": job, "state": state, "bytes": size}


def _bytes(rows: Sequence[JobRow]) -> str:
    return format_bytes(sum(row.bytes_present or 0 for row in rows))
