"""When failures stop a fleet, and how it ends: rules over counts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.fleet.jobs import FleetPolicy
from prefect_cachewatch.fleet.rows import JobRow, by_need

__all__ = ["FleetEnd", "Tally", "count_rows", "fleet_end", "what_now"]


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
        Completed if every cache is there; PartlyFailed if some are; FleetFailed if none is.

    Example:
        >>> fleet_end("nightly", [JobRow("a", "Cached", "done"), JobRow("b", "Stalled", "failed", cause="no write")]).message
        "Fleet 'nightly': 1 of 2 caches are there; 1 failed. First: b is Stalled (no write)"
    """
    tally = count_rows(rows)
    found = Counter(row.state for row in rows if row.kind == "done")
    had = found["Cached"] + found["Skipped"]
    lead = f"Fleet '{for_terminal(name)}': {tally.done} of {tally.total} caches are there"
    if had and had < tally.done:
        lead += f", {had} of them from before"
    if tally.done == tally.total:
        return FleetEnd("Completed", lead + (", all from before." if had == tally.total else "."))
    rest = [
        (tally.failed, "failed"),
        (tally.cancelled, "cancelled"),
        (tally.not_started + tally.waiting, "not started"),
    ]
    counts = ", ".join(f"{count} {what}" for count, what in rest if count)
    first = by_need(row for row in rows if row.kind != "done")[0]
    cause = f" ({for_terminal(first.cause.rstrip('.'), 300)})" if first.cause else ""
    message = f"{lead}; {counts}. First: {for_terminal(first.name, 100)} is {for_terminal(first.state)}{cause}"
    return FleetEnd("PartlyFailed" if tally.done else "FleetFailed", message)
