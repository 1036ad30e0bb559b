"""What a person is told of an attempt: the one place that says what and in which order, the cause first. Pure.

`html`, `markdown` and `terminal` write sections; each escapes in one place, so that texts from outside stand here as they are.
The headline, which begins every message, is made here too: job, verdict, cause, for how long.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.causes import CANCELLED, Cause
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.view import UNSEEN, quoted
from prefect_cachewatch.report.chart import draw_report
from prefect_cachewatch.report.report import Listing, Report
from prefect_cachewatch.watching.leaving import describe_would_be_stops
from prefect_cachewatch.watching.outcomes import describe_growth, describe_last, ending_of
from prefect_cachewatch.watching.sections import Readiness, Where

_MAX_FILES = 2000
_MAX_PROCESSES = 300
_MAX_LOG_LINES, _SHORT_LOG = 500, 10
_SAID_LINES = 3
_VERBS = {"stalled": "stalled", "deadline_exceeded": "exceeded its time limit", "failed": "failed"}
_LONG = {
    "never_started": "Nothing was written for",
    "never_ready": "Not ready, and nothing written for",
    "cache_directory_missing": "Missing for",
    "filesystem_unresponsive": "No answer for",
}
_INDENT = "\u2002"  # as wide as a digit


@dataclass(frozen=True)
class Lines:
    """Lines: a list, as they are (`pre`), a command to be copied, or what a page shows on demand below a title (`folded`)."""

    lines: tuple[str, ...]
    kind: Literal["list", "pre", "command", "folded"] = "list"
    title: str = ""


@dataclass(frozen=True)
class Facts:
    """Labels and values."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Chart:
    """The growth curve, an SVG document without a text from outside."""

    svg: str


Part = str | Facts | Lines | Listing | Chart


@dataclass(frozen=True)
class Section:
    """A part of what is told; `label` is its title where there is little room."""

    label: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Verdict:
    """What is told above all: job, attempt if there may be several, state, category and confidence of the cause, then the cause, what to do, what was seen."""

    name: str
    attempt: str
    state: str
    tags: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]


def make_verdict(report: Report, then: str = "") -> Verdict:
    """Say the verdict.

    Args:
        report: of the attempt.
        then: how a run that was left alone ended, if that is known.

    Returns:
        Its rows are the cause, what to do, whether it is made again, and what was measured.
    """
    cause, ending = report.diagnosis, ending_of(report.outcome, report.stall.kind)
    tags = [report.outcome]
    if cause is not None and cause.category != report.outcome:  # of a cancelled attempt nothing else is known
        tags += [cause.category, *filter(None, [report.stall.kind]), f"confidence {cause.confidence}"]
    lead = "Cause not known, seen" if cause is not None and cause.category == "unknown" else "Cause"
    rows = (
        (lead, _capital(cause.summary) if cause is not None else ""),
        ("Next", cause.resolution if cause is not None else ending.advice),
        ("Retry", report.retry.sentence if report.retry is not None else ""),
        ("What", report.facts),
        ("Then", then),
    )
    several = report.attempt > 1 or (report.where is not None and (report.where.attempts or 1) > 1)
    attempt = f"attempt {_attempt(report)}" if several else ""
    return Verdict(report.name, attempt, ending.state, tuple(tags), tuple(row for row in rows if row[1]))


def sections(
    report: Report, evidence: Evidence | None = None, *, log: Sequence[str] = (), cut: Sequence[str] = ()
) -> Iterator[Section]:
    """Say what is told below the verdict.

    Args:
        report: of the attempt.
        evidence: for a page, which shows all of it.
        log: the end of the output; default what the report has of it.
        cut: what a bundle does not have, or not whole.

    Yields:
        Sections that say something.
    """
    cause, last = report.diagnosis, tuple(log or report.log_tail)[-_MAX_LOG_LINES:]
    said, missing = cause.said if cause is not None else (), list[str]()
    silent = "The generator printed nothing."
    bundle, replay, seen = report.bundle, tuple[str, ...](), list[tuple[str, str, list[Part]]]()
    if evidence is None:
        if {line.strip() for line in last[-_SHORT_LOG:]}.issuperset(said):
            said = ()  # they are told as the last lines
    else:
        bundle, replay = None, _replay(report)
        silent = silent if evidence.output_seen else f"{UNSEEN.capitalize()}."
        missing = [f"{one.part}: {one.why}" for one in evidence.missing]
        seen = [
            ("", "Processes", list(_processes(evidence))),
            ("", "Storage, memory and pressure", [Lines(tuple(_machine(evidence)))]),
        ]
    growth: list[Part] = [Chart(draw_report(report)), Facts(tuple(numbers(report))), Lines(replay, "command")]
    found: list[tuple[str, str, list[Part]]] = [
        (
            "",
            "Everything that was found out, on the worker",
            [Lines((f"cachewatch report {bundle}",) * bool(bundle), "command")],
        ),
        ("growth", "Growth", growth),
        ("", "Would have been stopped", [Lines(tuple(describe_would_be_stops(report.would_be_stops)))]),
        ("seen", "Evidence", [Lines(cause.evidence if cause is not None else ())]),
        ("log", "What its log says of it", [Lines(said, "pre")]),
        ("files", "Files", list(_files(report.listing))),
        *seen,
        ("last", "Last lines of the generator's output", [Lines(last, "pre") if last else silent]),
        ("", "Pauses that looked like a stall", [Lines(tuple(one.message for one in report.growth.suspected[-5:]))]),
        ("cut", "What is missing or cut, and notes", [Lines((*missing, *cut, *report.notes))]),
    ]
    for label, title, parts in found:
        told = tuple(part for part in parts if not isinstance(part, Lines) or part.lines)
        if told:
            yield Section(label, title, told)


def numbers(report: Report) -> list[tuple[str, str]]:
    """Write what was measured, where, and how it ended, as labels and values."""
    growth, where, stop, ready = report.growth, report.where, report.stop, report.ready
    ended = f"signal {report.signal}" if report.signal is not None else "unknown"
    rows: list[tuple[str, str | None]] = [
        ("Attempt", f"{_attempt(report)}, {format_duration(report.duration_s)}"),
        ("Started", report.started_at[:19].replace("T", " ") + " UTC"),
        *(_where(where) if where is not None else ()),
        ("Bytes written", format_bytes(growth.bytes_written)),
        ("Present", describe_growth(growth.bytes_present, growth.files_present)),
        ("First byte", _after(growth.first_write_s)),
        ("Last growth", _after(growth.last_growth_s)),
        ("Longest pause", format_duration(growth.longest_pause_s)),
        ("Progress told", describe_last(report.logged) if report.logged is not None else None),
        ("Learned", str(report.learned) if report.learned is not None else None),
        ("Generator", f"exit code {report.exit_code}" if report.exit_code is not None else ended),
        *(_ready(ready) if ready is not None else ()),
    ]
    if stop is not None:
        ends = f"{len(stop.terminated)} terminated, {len(stop.killed)} killed, {len(stop.survivors)} left"
        rows.append(("Process tree", f"gone after {stop.gone_after_s:.2f} s: {ends}"))
        rows += [("Could not be killed", f"pid {one.pid}, state {one.state}") for one in stop.survivors]
    rows += [("Log of the generator", where.log if where is not None else None), ("Command", " ".join(report.command))]
    return [(label, value) for label, value in rows if value]


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {format_duration(seconds)}"


def _where(where: Where) -> Iterator[tuple[str, str | None]]:
    """Where it ran, and with which windows: a pid means nothing without its host."""
    names, windows = ("first byte", "growth", "warm-up", "in all"), where.windows
    seconds = (windows.first_write_within_s, windows.stall_after_s, windows.warmup_within_s, windows.max_duration_s)
    yield "Host", f"{where.host}, pid {where.pid} of {where.user}"
    yield "Worker", where.worker
    yield "Flow run", where.flow_run
    shown = (f"{name} {format_duration(s)}" for name, s in zip(names, seconds, strict=True) if s is not None)
    yield "Windows", ", ".join(shown)


def _ready(ready: Readiness) -> Iterator[tuple[str, str | None]]:
    warm_s = next((change.at_s for change in ready.phases if change.phase == "warm_up"), None)
    yield "Ready", f"{_after(ready.at_s)}, by {ready.what}"
    yield "Last answer", ready.last_answer if ready.at_s is None else None
    yield "Warm-up began", _after(warm_s) if warm_s is not None else None
    if ready.left_running:
        yield "Left running", f"pid {ready.pid}" if ready.pid is not None else f"container {ready.container}"
        yield "To stop it", ready.how_to_stop


def _attempt(report: Report) -> str:
    most = report.where.attempts if report.where is not None else None
    return f"{report.attempt} of {most}" if most is not None and most >= report.attempt else str(report.attempt)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _replay(report: Report) -> tuple[str, ...]:
    """The command that judges the growth of this run again, with this window or another; it starts no generator."""
    samples = [one.at_s for one in report.growth.samples]
    if not report.bundle or len(samples) < 3:
        return ()
    words = ["cachewatch", "replay", f"{report.bundle}/growth.jsonl"]
    window = {"no_growth": "--stall-after", "never_started": "--first-write-within"}.get(report.stall.kind or "")
    if window and report.stall.window_s:
        words += [window, f"{report.stall.window_s:g}s"]
    steps = sorted(after - before for before, after in itertools.pairwise(samples))
    return (shlex.join([*words, "--poll", f"{max(0.1, steps[len(steps) // 2]):.1f}s"]),)


def _files(listing: Listing | None) -> Iterator[Part]:
    if listing is None:
        yield "The cache directory could not be listed."
        return
    count = min(len(listing.entries), _MAX_FILES)
    more = f", {count:,} shown" if count != listing.total_files else ""
    total = f"{format_count(listing.total_files, 'file')}, {format_bytes(listing.total_bytes)}"
    yield f"{total}{more}; what may be cut first, then what grew last."
    if count:
        yield replace(listing, entries=listing.entries[:_MAX_FILES])
    rest = (f"{one.path}: {format_count(one.files, 'file')}, {format_bytes(one.bytes)}" for one in listing.rest)
    yield Lines(tuple(rest), "folded", "Files not listed, by directory")


def _processes(evidence: Evidence) -> Iterator[Part]:
    """The tree; below each process its stacks and open files."""
    if not evidence.processes:
        why = " ".join(missing.why for missing in evidence.missing if missing.part == "processes")
        yield f"{_capital(why) or 'No process of the generator was left'}."
    yield Lines(tuple(
        f"pid {lock.waiter_pid} waits for a {lock.kind} lock on {lock.path or 'a file'}, held by {lock.holder} {lock.holder_command}"
        for lock in evidence.locks
    ))  # fmt: skip
    depth: dict[int, int] = {}
    for process in evidence.processes[:_MAX_PROCESSES]:
        level = depth[process.pid] = depth.get(process.parent_pid, -1) + 1
        used = f"{process.cpu_in_window_s or 0:.1f} s of CPU in the window, {_bytes(process.resident_bytes)} resident"
        io = process.io_in_window
        moved = f", {format_bytes(io.read)} read, {format_bytes(io.written)} written" if io is not None else ""
        argv = " ".join(process.argv) or process.name
        title = f"{_INDENT * 2 * min(level, 12)}pid {process.pid}, {process.state}, {used}{moved}: {argv}"
        yield Lines(tuple(_details(process)) or ("nothing else is known",), "folded", title)
    if (hidden := evidence.process_count - _MAX_PROCESSES) > 0:
        yield f"{hidden} more processes are in report.json."


def _details(process: ProcessFacts) -> Iterator[str]:
    peers = {one.fd: f"{one.family} {one.local} → {one.remote} {one.state}" for one in process.sockets}
    for python in process.python_threads:
        yield f"Python thread {python.tid} {python.name}"
        yield from (f"  {frame}" for frame in python.frames)
    for thread in process.threads[:64]:
        yield f"thread {thread.tid} {thread.name}: {thread.state} {thread.syscall or thread.wait_channel}"
        yield from (f"  {frame}" for frame in thread.kernel_stack)
    for file in process.files:
        size = f", at {_bytes(file.position_bytes)} of {_bytes(file.size_bytes)}" if file.size_bytes is not None else ""
        yield f"fd {file.fd}, {file.kind} {file.access}: {peers.get(file.fd, file.target)}{size}"


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)


def _machine(evidence: Evidence) -> Iterator[str]:
    for facts in (*evidence.filesystems, *evidence.other_filesystems):
        space = "did not answer" if not facts.responded else facts.error
        if facts.free_bytes is not None and facts.total_bytes is not None:
            space = f"{format_bytes(facts.free_bytes)} of {format_bytes(facts.total_bytes)} free"
            space += f", {facts.free_inodes:,} inodes free" if facts.total_inodes else ""
        yield f"{facts.path}: {facts.type} {facts.source} on {facts.mount_point} ({','.join(facts.options)}): {space}"
    for group in evidence.cgroups:
        limit = format_bytes(group.limit_bytes) if group.limit_bytes else "no limit"
        yield f"control group {group.path}: {_bytes(group.current_bytes)} of {limit}, OOM kills: {group.oom_kills}"
    for one in evidence.pressure:
        yield f"pressure {one.resource}: some {one.some_avg10:.1f} % / full {one.full_avg10:.1f} % over 10 s"


def make_headline(name: str, outcome: str, cause: Cause | None, lasted: str) -> str:
    """Say how an attempt failed, the cause before the numbers.

    Args:
        name: of the job.
        outcome: stalled, deadline_exceeded or failed.
        cause: its cause; without one, what is known stands in its place.
        lasted: from `how_long` or `how_it_ended`.

    Returns:
        One or two sentences, safe for a terminal.

    Example:
        >>> lock = Cause("waiting_for_lock", "pid 7 (python3) waits for a lock")
        >>> make_headline("llama", "stalled", lock, how_long("no_growth", 360.2))
        'llama stalled: pid 7 (python3) waits for a lock. No growth for 6 minutes.'
    """
    lead = f"{for_terminal(name, 100)} {_VERBS[outcome]}"
    if cause is None:
        return f"{lead}: {lasted[:1].lower()}{lasted[1:]}."
    return f"{lead}{'' if cause.is_sure else ', probably'}: {cause.summary.rstrip('.')}. {lasted}."


def how_long(kind: str | None, seconds: float) -> str:
    """Say for how long a stall lasted, as the beginning of a sentence; without a kind, how long the attempt ran.

    Example:
        >>> how_long("never_started", 1200.4), how_long(None, 7200)
        ('Nothing was written for 20 minutes', 'It ran for 2 h')
    """
    lead = "It ran for" if kind is None else _LONG.get(kind, "No growth for")
    return f"{lead} {_rounded(seconds)}"


def how_it_ended(exit_code: int | None, signal: str | None) -> str:
    """Say how a generator that failed ended, as the beginning of a sentence.

    Example:
        >>> how_it_ended(1, None), how_it_ended(None, "SIGKILL")
        ('Exit code 1', 'Killed by SIGKILL')
    """
    if signal is not None:
        return f"Killed by {signal}"
    return "Its exit code is not known" if exit_code is None else f"Exit code {exit_code}"


def describe_cancelled(by: str, duration_s: float, pause_s: float | None, window_s: float, log: str) -> Cause:
    """Say who cancelled an attempt, and whether it grew at that time.

    Args:
        by: who or what cancelled it, such as `SIGINT`.
        duration_s: how long it ran.
        pause_s: seconds without growth at the end; None if nothing was written.
        window_s: the window that had not passed.
        log: the redacted end of its output.

    Returns:
        What stands in the place of a cause.

    Example:
        >>> describe_cancelled("SIGINT", 65.2, 8.0, 300, "").summary
        'it was cancelled (SIGINT) after 65 s; it last grew 8 s before its end'
    """
    grew = "it had written nothing" if pause_s is None else f"it last grew {_rounded(pause_s)} before its end"
    still = "no byte" if pause_s is None else "no growth"
    return Cause(
        CANCELLED,
        f"it was cancelled ({by}) after {_rounded(duration_s)}; {grew}",
        (
            f"{still} for {_rounded(duration_s if pause_s is None else pause_s)} of a window of {format_duration(window_s)}",
        ),
        said=quoted(*[line for line in log.splitlines() if line.strip(" ~^")][-_SAID_LINES:]),
    )


def _rounded(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 10 else float(round(seconds)))
