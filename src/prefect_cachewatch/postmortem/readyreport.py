"""The part of an attempt's report that tells of its server: when it was ready, and how it is stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_cachewatch.watching.servers.serving import Readiness

__all__ = ["PhaseReport", "ReadyReport", "ready_section"]


@dataclass(frozen=True)
class PhaseReport:
    """When a phase of a server's start began."""

    at_s: float
    #: writing or warm_up; before the first of them, nothing had been written.
    phase: str
    #: Why it began.
    why: str


@dataclass(frozen=True)
class ReadyReport:
    """When the server was ready, and what became of it; null for a job that is done when it exits."""

    #: http, tcp, file or log.
    kind: str
    #: The address, port, marker or line that says it.
    what: str
    #: leave_running or stop.
    then: str
    #: When it was ready, in seconds since the start; null if it never was.
    at_s: float | None
    #: Whether it runs on without its guard.
    left_running: bool
    #: Its first process; null if it was not left running, or is a container.
    pid: int | None
    #: Id of the container; null for a process.
    container: str | None
    #: The command that stops it; null if it was not left running.
    how_to_stop: str | None
    #: File with the record of the hand-over; null if it was not left running.
    record: str | None
    #: File that gets its output from the hand-over on, with a `.1` beside it; null if it was not left running.
    log: str | None
    #: What was seen instead of readiness at the last look that did not find it; null if there was none.
    last_answer: str | None
    #: The phases in order, at most 200.
    phases: list[PhaseReport]


def ready_section(ready: Readiness | None) -> ReadyReport | None:
    """Make the section `ready` of a report.

    Args:
        ready: of the outcome.

    Returns:
        The section; None for a job that is done when it exits.
    """
    if ready is None:
        return None
    handed_over = ready.handed_over
    record = handed_over.record if handed_over else None
    return ReadyReport(
        kind=ready.kind,
        what=ready.what,
        then=ready.then,
        at_s=None if ready.at_s is None else round(ready.at_s, 3),
        left_running=handed_over is not None,
        pid=record.pid if record else None,
        container=record.container_id if record else None,
        how_to_stop=record.stop_command if record else None,
        record=str(handed_over.path) if handed_over else None,
        log=record.log if record else None,
        last_answer=ready.last_answer,
        phases=[PhaseReport(round(change.at_s, 3), change.phase, change.why) for change in ready.phases],
    )
