"""One job of a fleet at one moment: a row, the kind of its state, and the order by which jobs need a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.watching.outcomes import ENDINGS, ending_named

Kind = Literal["waiting", "running", "done", "failed", "cancelled", "not_started"]

_URGENCY = {ending.state: number for number, ending in enumerate(ENDINGS)}
_KINDS: dict[str, Kind] = {
    "SCHEDULED": "waiting",
    "PENDING": "waiting",
    "RUNNING": "running",
    "PAUSED": "running",
    "CANCELLING": "running",
    "COMPLETED": "done",
    "FAILED": "failed",
    "CRASHED": "failed",
    "CANCELLED": "cancelled",
}

# Advice for states after which the fleet is to be started again.
_ADVICE = {
    "Refused": "Correct what the sentence names and start the fleet again; caches that are whole are skipped.",
    "Cancelled": "Somebody cancelled this run; start the fleet again for what is left.",
    "NotStarted": "Start the fleet again when the failed jobs are mended; caches that are whole are skipped.",
}


@dataclass(frozen=True)
class JobRow:
    """One job at one moment; times in seconds, None if unknown."""

    name: str
    #: Name of the flow run's state; Waiting, NotStarted and Cached if there is no run.
    state: str
    kind: Kind
    bytes_present: int | None = None
    rate_bytes_per_s: float | None = None
    #: Time spent waiting for a worker and for slots of its storage.
    waited_s: float | None = None
    #: From the start of its run to its end, or until now.
    duration_s: float | None = None
    attempts: int | None = None
    #: Time since the last growth, while it runs.
    pause_s: float | None = None
    #: Why it failed, or what became of it.
    cause: str = ""
    #: What a person should do next.
    advice: str = ""
    run_id: str | None = None
    url: str = ""
    #: Whether a running job looks like a stall.
    suspected: bool = False


def kind_of(state_type: str) -> Kind:
    """Return the kind of a flow run's state.

    Args:
        state_type: Prefect's name of the type.

    Returns:
        The kind; waiting for an unknown type.

    Example:
        >>> kind_of("CRASHED"), kind_of("COMPLETED")
        ('failed', 'done')
    """
    return _KINDS.get(state_type, "waiting")


def advice_for(state: str) -> str:
    """Return advice for a job that stored none itself.

    Args:
        state: name of its final state.

    Returns:
        A sentence; empty for a state that needs no action.

    Example:
        >>> advice_for("Completed")
        ''
    """
    ending = ending_named(state)
    return _ADVICE.get(state) or (ending.advice if ending is not None else "")


def needs_order(row: JobRow) -> tuple[int, int, float, str]:
    """Return a job's place among others: first the jobs that need a person, last those that are done.

    Args:
        row: the job.

    Returns:
        A key to sort by: failed, suspected, cancelled, not started, running (the longest pause first), waiting, done.
    """
    if row.kind == "failed":
        return 0, _URGENCY.get(row.state, len(ENDINGS)), 0.0, row.name
    if row.kind == "running":
        return (1 if row.suspected else 4), 0, -(row.pause_s or 0.0), row.name
    return {"cancelled": 2, "not_started": 3, "waiting": 5, "done": 6}[row.kind], 0, 0.0, row.name


def by_need(rows: Iterable[JobRow]) -> list[JobRow]:
    """Sort jobs: those that need a person come first.

    Args:
        rows: in any order.

    Returns:
        The same rows.

    Example:
        >>> rows = [JobRow("a", "Completed", "done"), JobRow("b", "Stalled", "failed"), JobRow("c", "Refused", "failed")]
        >>> [row.name for row in by_need(rows)]
        ['c', 'b', 'a']
    """
    return sorted(rows, key=needs_order)
