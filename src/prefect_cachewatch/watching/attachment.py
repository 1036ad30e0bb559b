"""What the report says of a process that cachewatch watched and did not start. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Attachment", "ReportedStall"]


@dataclass(frozen=True)
class ReportedStall:
    """A stall of a process that was left alone."""

    #: Seconds from the beginning of the watch to the verdict.
    at_s: float
    #: As `stall.kind`; null where the time limit was over.
    kind: str | None
    message: str
    #: Directory of its post-mortem bundle, or null.
    bundle: str | None
    #: When it grew again; null if it did not.
    resumed_at_s: float | None = None


@dataclass(frozen=True)
class Attachment:
    """Who was watched, and which stalls were only reported."""

    #: Of the first process on this host; null for a container whose processes are not to be seen here.
    pid: int | None
    #: Its start time in clock ticks since boot, which with the pid says who it is.
    start_ticks: int | None
    #: How long it had been running when the watch began.
    running_for_s: float
    #: stop or report.
    on_stall: str
    stalls: list[ReportedStall]
    #: Identifier of the container; null for a process.
    container: str | None = None
