"""The report of an attempt: the JSON that `--report` writes, as typed models. Schema version 1.

Within a version fields are added, never renamed or removed; `docs/reference.md` lists them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from prefect_cachewatch import __version__
from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.files import is_special, write_file
from prefect_cachewatch.common.secrets import redact_all, redact_argv
from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.common.units import format_moment
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.learned import LearnedWindow
from prefect_cachewatch.watching.leaving import describe_left_alone
from prefect_cachewatch.watching.outcomes import exit_status
from prefect_cachewatch.watching.sections import (
    Attachment,
    LoggedProgress,
    NextAttempt,
    Publication,
    Readiness,
    ReportedStall,
    Where,
)
from prefect_cachewatch.watching.stall import Suspicion

Section = TypeVar("Section", "GrowthReport", "StopSection", Suspicion)
Flag = Literal["suspect_partial", "temporary", "empty", "sparse", "grew_in_window"]


@dataclass(frozen=True)
class StallReport:
    """Why cachewatch stopped the generator; all null when it did not."""

    #: no_growth, never_started, never_ready, churning, filesystem_unresponsive, cache_directory_missing,
    #: disk_full, inodes_exhausted, read_only_filesystem, or null.
    kind: str | None = None
    #: The window that had passed.
    window_s: float | None = None
    #: The pause, or the time of blindness, at the decision.
    pause_s: float | None = None
    #: Whether that window was learned, and shorter than the configured one.
    learned: bool = False


@dataclass(frozen=True)
class SampleReport:
    """One point of the growth curve."""

    at_s: float
    bytes_written: int
    allocated_written: int
    #: What the output had told is done; null without.
    percent: float | None = None


@dataclass(frozen=True)
class GrowthReport:
    """What was written; times in seconds since the start of the attempt."""

    #: Growth of apparent sizes since the start; never falls.
    bytes_written: int
    #: Growth of allocated blocks since the start, in bytes.
    allocated_written: int
    #: Apparent bytes in the directories at the end.
    bytes_present: int
    files_present: int
    first_write_s: float | None = None
    last_growth_s: float | None = None
    #: The longest pause between two growths.
    longest_pause_s: float = 0.0
    #: Pauses that looked like a stall before the window had passed.
    suspected: list[Suspicion] = field(default_factory=list)
    #: At most 500 points, thinned evenly.
    samples: list[SampleReport] = field(default_factory=list)


@dataclass(frozen=True)
class ProcessReport:
    """One process of the generator's tree."""

    pid: int
    #: State letter of proc(5) when it was found.
    state: str
    #: Its command line, secrets redacted, at most 32 words.
    argv: list[str]


@dataclass(frozen=True)
class StopSection:
    """How the tree was stopped; null where the generator ended by itself."""

    #: From the last growth (or the start) to the decision.
    decided_after_last_growth_s: float | None
    #: From the decision to the last process gone.
    gone_after_s: float
    #: Ended after SIGTERM.
    terminated: list[ProcessReport]
    #: Needed SIGKILL after the grace period.
    killed: list[ProcessReport]
    #: Could not be killed (state D).
    survivors: list[ProcessReport]


@dataclass(frozen=True)
class ListingEntry:
    """One file."""

    #: Absolute path; undecodable bytes as surrogate escapes.
    path: str
    #: Apparent size.
    size_bytes: int
    #: Blocks on disk x 512.
    allocated_bytes: int
    #: Modification time, ISO 8601 in UTC.
    modified_at: str
    #: Seconds from the modification to the end of the attempt.
    age_s: float
    #: What is remarkable about it.
    flags: list[Flag]


@dataclass(frozen=True)
class DirectoryTotal:
    """Files of one directory that are not listed one by one."""

    path: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Listing:
    """The files of the cache directories: those that may be cut first; within each part what grew last, then what changed last."""

    #: All files, listed or not; a hard-linked file once.
    total_files: int
    #: Their apparent size.
    total_bytes: int
    #: Whether some files are only in `rest`.
    truncated: bool
    entries: list[ListingEntry]
    #: Totals per directory of the files that are not in `entries`.
    rest: list[DirectoryTotal]


@dataclass(frozen=True)
class Report:
    """One attempt."""

    #: completed, nothing_written, cached, failed, stalled, deadline_exceeded, cancelled or verification_failed; of a
    #: process that cachewatch did not start also ended (how is not known) and detached (the watch was ended before it).
    outcome: str
    stall: StallReport
    #: What was seen, in a sentence or two.
    facts: str
    #: The generator's own exit code; null if a signal ended it.
    exit_code: int | None
    #: The signal that ended the generator, or null.
    signal: int | None
    name: str
    #: The command line, secrets redacted.
    command: list[str]
    cache_dirs: list[str]
    attempt: int
    #: ISO 8601 in UTC.
    started_at: str
    duration_s: float
    growth: GrowthReport
    stop: StopSection | None = None
    #: Null if the directory could not be listed; `notes` says why.
    listing: Listing | None = None
    #: Last lines of the generator's output, secrets redacted.
    log_tail: list[str] = field(default_factory=list)
    #: What else was noticed: log cut short, scanner started again, ...
    notes: list[str] = field(default_factory=list)
    #: What speaks against an attempt that completed: category, severity and message of each; see `publication` for a build's.
    findings: list[dict[str, str]] = field(default_factory=list)
    #: The cause, as far as it can be told; null for an attempt that completed or was cancelled.
    diagnosis: Cause | None = None
    #: Directory of the post-mortem bundle; null if none was written.
    bundle: str | None = None
    #: Whether and how it is made again; null for an attempt that completed or was cancelled, and for `exec`, which makes one.
    retry: NextAttempt | None = None
    #: What became of the build; null without a store.
    publication: Publication | None = None
    #: The process that was watched, where cachewatch did not start it; null for a generation.
    attached: Attachment | None = None
    #: Null for a job that is done when it exits.
    ready: Readiness | None = None
    #: Null without `progress_log`, or if nothing matched.
    logged: LoggedProgress | None = None
    #: Where a stall was to be reported only: when the generator would have been stopped, and why.
    would_be_stops: list[ReportedStall] = field(default_factory=list)
    #: The window that was learned from earlier runs; null if the configured one held.
    learned: LearnedWindow | None = None
    #: Host, user, process, windows and log; null for a run that had nothing to do.
    where: Where | None = None
    cachewatch_version: str = __version__
    schema_version: Literal[1] = 1
    #: Of an attempt that stalled, ran out of time or failed: job, verdict, cause, for how long; else empty.
    headline: str = ""
    #: The headline and the facts.
    message: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", f"{self.headline} {self.facts}" if self.headline else self.facts)

    @property
    def told(self) -> str:
        """The cause in short, for a table: of a failure, and of stalls that were only reported."""
        failed = self.diagnosis.summary if self.diagnosis is not None else self.headline or self.facts
        parts = ["" if self.outcome == "completed" else failed.rstrip("."), describe_left_alone(self.would_be_stops)]
        return ". ".join(filter(None, parts))

    def exit_status(self, received: int | None = None) -> int:
        """Return a command's exit status after this attempt; `received` is the signal that cancelled it, if one did."""
        return exit_status(
            self.outcome, exit_code=self.exit_code, signal=self.signal, by_itself=self.stop is None, received=received
        )


def build_report(
    outcome: Outcome,
    *,
    name: str,
    command: list[str],
    log_tail: list[str],
    attempt: int = 1,
    secrets: tuple[str, ...] = (),
) -> Report:
    """Make the report of an attempt.

    Args:
        outcome: how it ended.
        name: of the job.
        command: its argv; secrets are removed here.
        log_tail: last lines of its output, redacted by the caller.
        attempt: number of the attempt, from 1.
        secrets: values that must not appear.

    Returns:
        The report.
    """
    growth, listing = outcome.growth, None
    if outcome.listing is not None:
        now_s, finished = outcome.started_at + outcome.duration_s, outcome.name == "completed"
        listing = build_listing(
            outcome.listing, now_s=now_s, finished=finished, grown_since_scan=outcome.grown_since_scan
        )
    samples = [SampleReport(round(s.at_s, 3), s.bytes_written, s.allocated_written, s.percent) for s in outcome.samples]
    grown = GrowthReport(
        growth.bytes_written, growth.allocated_written, growth.bytes_present, growth.files_present, outcome.first_write_s,
        outcome.last_growth_s, outcome.longest_pause_s, [_rounded(one) for one in outcome.suspicions], samples,
    )  # fmt: skip
    taken = ("facts", "headline", "exit_code", "signal", "ready", "learned")
    same: dict[str, Any] = {name: getattr(outcome, name) for name in taken}
    return Report(
        outcome=outcome.name,
        stall=StallReport(outcome.kind, outcome.window_s, outcome.pause_s, outcome.learned_stop is not None),
        **same,
        name=name,
        command=redact_argv(command, secrets),
        cache_dirs=list(outcome.paths),
        attempt=attempt,
        started_at=format_moment(outcome.started_at),
        duration_s=round(outcome.duration_s, 3),
        growth=_rounded(grown),
        stop=_stop_section(outcome, secrets),
        listing=listing,
        log_tail=log_tail,
        notes=list(outcome.notes),
        logged=redact_all(outcome.logged, secrets),
        would_be_stops=list(outcome.would_be_stops),
        findings=[
            {"category": one.category, "severity": one.severity, "message": one.message} for one in outcome.doubts
        ],
    )


def build_listing(
    raw: Mapping[str, Any],
    *,
    now_s: float,
    finished: bool,
    grown_since_scan: int,
) -> Listing:
    """Turn the scan process's listing into the report's.

    Args:
        raw: the answer of the scan process; with `open`, the paths of files that were open for writing.
        now_s: wall-clock time of the attempt's end.
        finished: whether the generator ended by itself with exit code 0: then no file is suspected.
        grown_since_scan: number of the first scan that lies in the last window of writing.

    Returns:
        The listing.
    """
    # A file that was open for writing may be cut, however long ago it changed.
    open_paths = frozenset(raw.get("open", ()))
    last_scan = max((entry["grown_scan"] for entry in raw["entries"]), default=-1)
    entries = []
    for entry in raw["entries"]:
        path, size, allocated, scan = (entry[key] for key in ("path", "size_bytes", "allocated_bytes", "grown_scan"))
        temporary = is_temporary(path.rpartition("/")[2])
        # Any file written in the last scan that saw growth may have been cut.
        suspect = not finished and (temporary or path in open_paths or (scan == last_scan and last_scan > 0))
        sparse = allocated < size * 0.9 and size - allocated > 65536
        marks: dict[Flag, bool] = {
            "suspect_partial": suspect,
            "temporary": temporary,
            "empty": size == 0,
            "sparse": sparse,
            "grew_in_window": scan >= max(1, grown_since_scan),
        }
        flags: list[Flag] = [flag for flag, is_set in marks.items() if is_set]
        modified_s = entry["modified_ns"] / 1e9
        age_s = round(now_s - modified_s, 3)
        entries.append(ListingEntry(path, size, allocated, _timestamp(modified_s), age_s, flags))
    # Of the suspects, too, what grew last stays first.
    entries.sort(key=lambda entry: "suspect_partial" not in entry.flags)
    rest, count = [DirectoryTotal(*total) for total in raw["rest"]], raw["total_files"]
    return Listing(count, raw["total_bytes"], len(entries) < count, entries, rest)


def _timestamp(seconds: float) -> str:
    try:
        return format_moment(seconds)
    except (OverflowError, ValueError, OSError):  # a generator may stamp its files with anything
        return f"{seconds:.0f}"


def cached_report(publication: Publication, *, name: str, command: list[str], message: str, started_s: float) -> Report:
    """Make the report of a run that had nothing to do.

    Args:
        publication: the build that is whole already.
        name: of the job.
        command: its argv, which was not run.
        message: the result in one sentence.
        started_s: wall time at which the run began to look.

    Returns:
        The report, with `attempt` 0 and nothing grown.
    """
    return Report(
        outcome="cached",
        stall=StallReport(),
        facts=message,
        exit_code=None,
        signal=None,
        name=name,
        command=redact_argv(command),
        cache_dirs=[publication.path],
        attempt=0,
        started_at=format_moment(started_s),
        duration_s=round(max(0.0, time.time() - started_s), 3),
        growth=GrowthReport(0, 0, publication.total_bytes, publication.total_files),
        publication=publication,
    )


def read_report(data: Mapping[str, Any]) -> Report:
    """Make a report of its JSON object; fields that it does not know are passed over.

    Args:
        data: the object.

    Raises:
        KeyError, TypeError: it is no report.
    """
    made: Report = _read(Report, data)
    return made


def _read(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [one.name for one in dataclasses.fields(kind) if one.init and one.name in value]
        return kind(**{name: _read(hints[name], value[name]) for name in names})  # type: ignore[operator]
    inner = get_args(kind)
    if NoneType in inner:
        return None if value is None else _read(inner[0], value)
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(_read(inner[0], one) for one in value)
    if kind in (int, float, str, bool) and not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def check_report_path(path: Path) -> None:
    """Check before the start that a report can be written.

    Args:
        path: path of the report to come.

    Raises:
        InputError: its directory is missing or not writable.
    """
    parent = path.absolute().parent
    if path.is_dir():
        raise InputError(f"report file {path} is a directory: name a file in it")
    if not parent.is_dir():
        raise InputError(f"report file {path} cannot be written: directory {parent} does not exist; create it first")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"report file {path} cannot be written: no write permission in {parent}")


def suspected_paths(report: Report) -> set[str]:
    """List the files that an attempt may have cut, by its listing.

    Args:
        report: of the attempt.

    Returns:
        Absolute paths.
    """
    entries = report.listing.entries if report.listing is not None else []
    return {entry.path for entry in entries if "suspect_partial" in entry.flags}


def report_data(report: Report) -> dict[str, Any]:
    """Return a report as the object that its JSON holds."""
    data = asdict(report)
    return {"schema_version": data.pop("schema_version"), **data}


def report_json(report: Report, indent: int | None = 1) -> str:
    """Write a report as JSON text.

    Args:
        report: the report.
        indent: of each level; None for a single line.

    Returns:
        ASCII text: a byte of a file name that is no UTF-8 stands as a lone surrogate escape, lossless.
    """
    return json.dumps(report_data(report), ensure_ascii=True, indent=indent)


def write_report(report: Report, path: Path) -> None:
    """Write a report whole or not at all, in mode 0600 unless the file exists; a device or pipe is written directly.

    Args:
        report: the report.
        path: path of the report; an older one is replaced, its mode kept.

    Raises:
        OSError: it cannot be written there.
    """
    write_file(path, report_json(report).encode("ascii") + b"\n")


def write_report_within(files: Files, report: Report, path: Path, timeout_s: float = 10.0) -> str | None:
    """Write a report as `write_report` does, in a helper process, which is left behind if it hangs.

    Args:
        files: the helper process.
        report: the report.
        path: path of the report; where it cannot be written, the report goes to the temporary directory.
        timeout_s: the longest wait.

    Returns:
        What went wrong, and where the report is instead; None without a fault.
    """
    path = path.absolute()
    try:
        # Our terminal or descriptor is not the helper's, and a write to it is bounded.
        if str(path).startswith(("/dev/", "/proc/")) or files.run(is_special, path, timeout_s=timeout_s):
            write_report(report, path)
        else:
            files.run(write_report, report, path, timeout_s=timeout_s)
    except OSError as error:
        message = f"report file {path} cannot be written: {error.strerror}"
        try:
            return f"{message}; it is in {files.run(_write_elsewhere, report, timeout_s=timeout_s)} instead"
        except OSError:
            return message
    return None


def _write_elsewhere(report: Report) -> str:
    import tempfile  # noqa: PLC0415 - seldom, and half a megabyte with what it brings along

    fd, path = tempfile.mkstemp(prefix="cachewatch-report-", suffix=".json")
    with open(fd, "wb") as file:
        file.write(report_json(report).encode("ascii") + b"\n")
    return path


def _stop_section(outcome: Outcome, secrets: tuple[str, ...]) -> StopSection | None:
    stop, decided_s = outcome.stop, outcome.decided_after_last_growth_s
    if stop is None or stop.why in ("exited", "released"):
        return None
    terminated, killed, survivors = (
        [ProcessReport(one["pid"], one["state"], redact_argv(one.get("argv", []), secrets)) for one in found]
        for found in (stop.terminated, stop.killed, stop.survivors)
    )
    return _rounded(StopSection(decided_s, stop.gone_after_s, terminated, killed, survivors))


def _rounded(section: Section) -> Section:
    """Round the times of a section to milliseconds."""
    times: dict[str, Any] = {name: round(value, 3) for name, value in vars(section).items() if isinstance(value, float)}
    return replace(section, **times)
