"""The report's sections: next attempt, stuck waits, build, server, told progress, a process only watched. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.watching.servers.warmup import PhaseChange


@dataclass(frozen=True)
class Windows:
    """The windows as they were configured, in seconds."""

    first_write_within_s: float
    stall_after_s: float
    #: Null for a job that starts no server.
    warmup_within_s: float | None = None
    #: Null without a time limit.
    max_duration_s: float | None = None


@dataclass(frozen=True)
class Where:
    """Where an attempt ran, and with which windows."""

    host: str
    #: The user that cachewatch ran as.
    user: str
    #: The process of cachewatch, not of the generator.
    pid: int
    windows: Windows
    #: How many attempts there may be at most; null where that is not known.
    attempts: int | None = None
    #: File with the generator's output; null without.
    log: str | None = None
    #: Name of the Prefect worker; null without.
    worker: str | None = None
    #: Link to the flow run in Prefect's UI; null without.
    flow_run: str | None = None


@dataclass(frozen=True)
class NextAttempt:
    """Whether an attempt is made again, and how; the report has it as `retry`."""

    again: bool
    #: The category of the cause by which it was decided; null if the cause was not asked.
    category: str | None
    #: Both in one sentence, such as `again after 30 s, because its peer may answer`.
    sentence: str
    #: The pause before it; null if there is none.
    pause_s: float | None = None


@dataclass(frozen=True)
class ReportedStall:
    """A stall that stopped nothing, since the process was to be left alone."""

    #: Seconds from the start, or the beginning of the watch, to the verdict.
    at_s: float
    #: As `stall.kind`; null if the time limit was over.
    kind: str | None
    message: str
    #: Directory of its post-mortem bundle, or null.
    bundle: str | None
    #: When it grew again, or could be measured again; null if it did not.
    resumed_at_s: float | None = None
    #: Whether it went on or completed after that, so that a stop would have been wrong; null while that is not known.
    in_vain: bool | None = None


@dataclass(frozen=True)
class Attachment:
    """The watched process, and the stalls that were only reported."""

    pid: int
    #: Its start time in clock ticks since boot, which together with the pid identifies it.
    start_ticks: int
    #: How long it had been running when the watch began.
    running_for_s: float
    #: stop or report.
    on_stall: str
    stalls: list[ReportedStall]


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
class LoggedProgress:
    """The progress that the output told of; null if the job has no `progress_log`, or nothing matched."""

    #: How many matches were progress.
    count: int
    #: When the first and the last of them were seen, in seconds since the start.
    first_at_s: float
    last_at_s: float
    #: What the last one matched, secrets redacted, at most 200 characters.
    text: str
    #: The groups `done` and `total` of the last one; null without.
    done: float | None = None
    total: float | None = None
    percent: float | None = None
    #: How long the rest takes at the pace so far; null if that is not known.
    left_s: float | None = None


@dataclass(frozen=True)
class Publication:
    """What became of a build; the report has it as `publication`."""

    #: published, cached, verification_failed, or unfinished.
    status: str
    #: The digest of everything that the cache depends on.
    key: str
    build_id: str
    #: The build's directory.
    path: str
    #: Its manifest; null where none was written.
    manifest: str | None = None
    #: Directory of a refused build.
    quarantine: str | None = None
    #: The link that consumers open; null if it does not lead to this build.
    current: str | None = None
    #: The build that was current before.
    previous: str | None = None
    total_bytes: int = 0
    total_files: int = 0
    #: Category, severity and message of everything the checks found.
    findings: tuple[dict[str, str], ...] = ()
