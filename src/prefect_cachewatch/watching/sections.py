"""The report's sections on a build, on a server, and on a process that cachewatch watched and did not start. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.watching.servers.warmup import PhaseChange

__all__ = ["Attachment", "Publication", "Readiness", "ReportedStall"]


@dataclass(frozen=True)
class ReportedStall:
    """A stall of a process that was left alone."""

    #: Seconds from the beginning of the watch to the verdict.
    at_s: float
    #: As `stall.kind`; null if the time limit was over.
    kind: str | None
    message: str
    #: Directory of its post-mortem bundle, or null.
    bundle: str | None
    #: When it grew again; null if it did not.
    resumed_at_s: float | None = None


@dataclass(frozen=True)
class Attachment:
    """The watched process, and the stalls that were only reported."""

    #: Of the first process on this host; null for a container whose processes are not visible here.
    pid: int | None
    #: Its start time in clock ticks since boot, which together with the pid identifies it.
    start_ticks: int | None
    #: How long it had been running when the watch began.
    running_for_s: float
    #: stop or report.
    on_stall: str
    stalls: list[ReportedStall]
    #: Identifier of the container; null for a process.
    container: str | None = None


@dataclass(frozen=True)
class Readiness:
    """When the server was ready, and what became of it; null for a job that is done when it exits."""

    #: http, tcp, file or log.
    kind: str
    #: The address, port, marker or line that shows readiness.
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
    #: What the last look saw that did not find it ready; null if there was none.
    last_answer: str | None
    #: The phases in order, at most 200.
    phases: list[PhaseChange]


@dataclass(frozen=True)
class Publication:
    """What became of a build; the report has it as `publication`."""

    #: published, cached, verification_failed, or unfinished.
    status: str
    #: staged or in_place.
    mode: str
    #: The digest of everything that the cache depends on.
    key: str
    build_id: str
    #: The build's directory; for a build in quarantine, where it was written.
    path: str
    #: Its manifest; null where none was written.
    manifest: str | None = None
    #: Directory of a refused build.
    quarantine: str | None = None
    #: The path that consumers open: the link, or the cache directory in place; null if it does not lead to this build.
    current: str | None = None
    #: The build that was current before.
    previous: str | None = None
    total_bytes: int = 0
    total_files: int = 0
    #: Category, severity and message of everything the checks found.
    findings: tuple[dict[str, str], ...] = ()
