"""What a person is told of an attempt: the one place that says what and in which order, the cause first. Pure.

`html`, `markdown` and `terminal` write sections; each escapes in one place, so that texts from outside stand here as they are.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.evidence.rules_crash import UNSEEN
from prefect_cachewatch.evidence.view import describe_holder
from prefect_cachewatch.report.chart import draw_growth
from prefect_cachewatch.report.listing import Listing
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.watching.leaving import describe_would_be_stops
from prefect_cachewatch.watching.outcomes import describe_growth, describe_last, ending_of

_MAX_FILES = 2000
_MAX_PROCESSES = 300
_MAX_OPEN = 200
_MAX_LOG_LINES, _SHORT_LOG = 500, 10
_INDENT = "\u2002"  # as wide as a digit


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `value` is what it is sorted by, `tags` are marks on it."""

    text: str
    value: float | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Labels and values."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Lines:
    """A list."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table; a head that begins with `#` is one of numbers. `name` is that of the one that can be sorted and filtered."""

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    name: str = ""


@dataclass(frozen=True)
class Pre:
    """Lines as they are, such as those of a log; `command` says that they are one to be copied."""

    lines: tuple[str, ...]
    command: bool = False


@dataclass(frozen=True)
class Chart:
    """The growth curve, an SVG document without a text from outside."""

    svg: str
    legend: str = ""


@dataclass(frozen=True)
class Folded:
    """Parts that a page shows on demand."""

    title: str
    parts: tuple[Part, ...]
    is_open: bool = False


Part = str | Facts | Lines | Table | Pre | Chart | Folded


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
    cause, unseen = report.diagnosis, evidence is not None and not evidence.output_seen
    last = tuple(log or report.log_tail)[-_MAX_LOG_LINES:]
    said = cause.said if cause is not None else ()
    if evidence is None and {line.strip() for line in last[-_SHORT_LOG:]}.issuperset(said):
        said = ()  # they are told as the last lines
    found: list[tuple[str, str, list[Part]]] = [
        ("growth", "Growth", _growth(report, evidence is not None)),
        ("", "Would have been stopped", [Lines(tuple(describe_would_be_stops(report.would_be_stops)))]),
        ("seen", "Evidence", [Lines(cause.evidence if cause is not None else ())]),
        ("log", "What its log says of it", [Pre(said)]),
        ("files", "Files", _files(report.listing)),
    ]
    if evidence is not None:
        found += [
            ("", "Process tree", _processes(evidence)),
            ("", "Open files, sockets, locks", _holdings(evidence)),
            ("", "Storage, memory and pressure", [Lines(tuple(_machine(evidence)))]),
            ("", "Stacks", _stacks(evidence)),
        ]
    silent = f"{UNSEEN.capitalize()}." if unseen else "The generator printed nothing."
    suspected = tuple(one.message for one in report.growth.suspected[-5:])
    missing = [f"{one.part}: {one.why}" for one in evidence.missing] if evidence is not None else []
    found += [
        ("last", "Last lines of the generator's output", [Pre(last)] if last else [silent]),
        ("", "Pauses that looked like a stall", [Lines(suspected)]),
        ("cut", "What is missing or cut, and notes", [Lines((*missing, *cut, *report.notes))]),
    ]
    if evidence is None and report.bundle is not None:
        command = Pre((f"cachewatch report {report.bundle}",), command=True)
        found.insert(0, ("", "Everything that was found out, on the worker", [command]))
    for label, title, parts in found:
        told = tuple(part for part in parts if not isinstance(part, Lines | Pre) or part.lines)
        if told:
            yield Section(label, title, told)


def draw_report(report: Report) -> str:
    """Draw the growth of an attempt; it ends with the decision, since stop, listing and bundle are no pause."""
    growth, stall = report.growth, report.stall
    samples = [(one.at_s, one.bytes_written, one.allocated_written) for one in growth.samples]
    pauses = [(one.at_s - one.pause_s, one.cleared_at_s) for one in growth.suspected if one.cleared_at_s is not None]
    if stall.kind is None or stall.pause_s is None:
        return draw_growth(samples, end_s=report.duration_s, pauses=pauses)
    last_s = growth.last_growth_s or 0.0
    end_s, window_s = last_s + stall.pause_s, stall.window_s
    return draw_growth(samples, end_s=end_s, stall_from_s=last_s, window_s=window_s, pauses=pauses)


def _growth(report: Report, is_page: bool) -> list[Part]:
    growth = report.growth
    told = [f"{format_bytes(growth.bytes_written)} written in {format_duration(report.duration_s)}"]
    if growth.last_growth_s is not None:
        told.append(f"the last after {format_duration(growth.last_growth_s)}")
    if growth.longest_pause_s:
        told.append(f"longest pause {format_duration(growth.longest_pause_s)}")
    legend = ["Red: the pause that was judged a stall, with its window."] * bool(report.stall.kind)
    legend += ["Amber: earlier pauses that were over."] * any(one.cleared_at_s for one in growth.suspected)
    parts: list[Part] = [Chart(draw_report(report), " ".join(legend)), f"{', '.join(told)}."]
    return [*parts, Facts(tuple(numbers(report))), *(_replay(report) if is_page else [])]


def numbers(report: Report) -> list[tuple[str, str]]:
    """Write what was measured, where, and how it ended, as labels and values."""
    growth, where, stop, ready = report.growth, report.where, report.stop, report.ready
    ended = f"signal {report.signal}" if report.signal is not None else "unknown"
    rows: list[tuple[str, str | None]] = [
        ("Attempt", f"{_attempt(report)}, {format_duration(report.duration_s)}"),
        ("Started", report.started_at[:19].replace("T", " ") + " UTC"),
        *_where(report),
        ("Bytes written", format_bytes(growth.bytes_written)),
        ("Present", describe_growth(growth.bytes_present, growth.files_present)),
        ("First byte", _after(growth.first_write_s)),
        ("Last growth", _after(growth.last_growth_s)),
        ("Longest pause", format_duration(growth.longest_pause_s)),
        ("Progress told", describe_last(report.logged) if report.logged is not None else None),
        ("Learned", str(report.learned) if report.learned is not None else None),
        ("Generator", f"exit code {report.exit_code}" if report.exit_code is not None else ended),
    ]
    if ready is not None:
        warm_s = next((change.at_s for change in ready.phases if change.phase == "warm_up"), None)
        left = f"pid {ready.pid}" if ready.pid is not None else f"container {ready.container}"
        rows += [
            ("Ready", f"{_after(ready.at_s)}, by {ready.what}"),
            ("Last answer", ready.last_answer if ready.at_s is None else None),
            ("Warm-up began", _after(warm_s) if warm_s is not None else None),
            ("Left running", left if ready.left_running else None),
            ("To stop it", ready.how_to_stop if ready.left_running else None),
        ]
    if stop is not None:
        ends = f"{len(stop.terminated)} terminated, {len(stop.killed)} killed, {len(stop.survivors)} left"
        rows.append(("Process tree", f"gone after {stop.gone_after_s:.2f} s: {ends}"))
        rows += [("Could not be killed", f"pid {who.pid}, state {who.state}") for who in stop.survivors]
    rows += [("Log of the generator", where.log if where is not None else None), ("Command", " ".join(report.command))]
    return [(label, value) for label, value in rows if value]


def _after(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {format_duration(seconds)}"


def _where(report: Report) -> list[tuple[str, str | None]]:
    """Where it ran, and with which windows: a pid means nothing without its host."""
    where = report.where
    if where is None:
        return []
    names, windows = ("first byte", "growth", "warm-up", "in all"), where.windows
    seconds = (windows.first_write_within_s, windows.stall_after_s, windows.warmup_within_s, windows.max_duration_s)
    shown = [f"{name} {format_duration(s)}" for name, s in zip(names, seconds, strict=True) if s is not None]
    host = f"{where.host}, pid {where.pid} of {where.user}"
    return [("Host", host), ("Worker", where.worker), ("Flow run", where.flow_run), ("Windows", ", ".join(shown))]


def _attempt(report: Report) -> str:
    most = report.where.attempts if report.where is not None else None
    return f"{report.attempt} of {most}" if most is not None and most >= report.attempt else str(report.attempt)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _replay(report: Report) -> list[Part]:
    """The command that judges the growth of this run again, which starts no generator."""
    samples = [one.at_s for one in report.growth.samples]
    if not report.bundle or len(samples) < 3:
        return []
    words = ["cachewatch", "replay", f"{report.bundle}/growth.jsonl"]
    window = {"no_growth": "--stall-after", "never_started": "--first-write-within"}.get(report.stall.kind or "")
    if window and report.stall.window_s:
        words += [window, f"{report.stall.window_s:g}s"]
    steps = sorted(after - before for before, after in itertools.pairwise(samples))
    words += ["--poll", f"{max(0.1, steps[len(steps) // 2]):.1f}s"]
    return ["Judge it again, with this window or another:", Pre((shlex.join(words),), command=True)]


def _files(listing: Listing | None) -> list[Part]:
    if listing is None:
        return ["The cache directory could not be listed."]
    entries = listing.entries[:_MAX_FILES]
    total = f"{format_count(listing.total_files, 'file')}, {format_bytes(listing.total_bytes)}"
    more = f", {len(entries):,} shown" if len(entries) != listing.total_files else ""
    rows = tuple(
        (Cell(one.path), Cell("", tags=tuple(one.flags)), Cell(format_duration(max(0.0, one.age_s)), one.age_s),
         Cell(format_bytes(one.size_bytes), one.size_bytes), Cell(format_bytes(one.allocated_bytes), one.allocated_bytes))
        for one in entries
    )  # fmt: skip
    parts: list[Part] = [f"{total}{more}; what may be cut first, then what grew last."]
    parts += [Table(("File", "Flags", "#Age", "#Size", "#On disk"), rows, "files")] * bool(rows)
    if listing.rest:
        rest = [(one.path, f"{one.files:,}", format_bytes(one.bytes)) for one in listing.rest[:_MAX_FILES]]
        table = _table(("Directory", "#Files", "#Bytes"), rest)
        parts.append(Folded("Files not listed, by directory", (table,), is_open=True))
    return parts


def _processes(evidence: Evidence) -> list[Part]:
    if not evidence.processes:
        why = " ".join(missing.why for missing in evidence.missing if missing.part == "processes")
        return [f"{_capital(why) or 'No process of the generator was left'}."]
    depth: dict[int, int] = {}
    rows = []
    for process in evidence.processes[:_MAX_PROCESSES]:
        level = depth[process.pid] = depth.get(process.parent_pid, -1) + 1
        main, io = (process.threads[0] if process.threads else None), process.io_in_window
        rows.append((
            _INDENT * min(level, 12) + str(process.pid),
            " ".join(process.argv) or process.name,
            f"{process.state} {(main.syscall or main.wait_channel) if main else ''}",
            str(process.thread_count),
            f"{process.cpu_s:.1f} s",
            "" if process.cpu_in_window_s is None else f"{process.cpu_in_window_s:.1f} s",
            _bytes(process.resident_bytes),
            _bytes(process.swap_bytes),
            "" if io is None else f"{format_bytes(io.read_chars)} / {format_bytes(io.write_chars)}",
            format_duration(process.age_s),
            str(process.nice),
        ))  # fmt: skip
    heads = ("Pid", "Command", "State", "#Threads", "#CPU", "#in window", "#Resident", "#Swap", "#Read / written in window", "#Age", "#Nice")  # fmt: skip
    hidden = evidence.process_count - len(rows)
    return [_table(heads, rows), *[f"{hidden} more processes are in report.json."] * (hidden > 0)]


def _bytes(size: int | None) -> str:
    return "" if size is None else format_bytes(size)


def _table(heads: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Table:
    return Table(heads, tuple(tuple(map(Cell, row)) for row in rows))


def _holdings(evidence: Evidence) -> list[Part]:
    locks = tuple(
        f"pid {lock.waiter_pid} waits for a {lock.kind} lock on {lock.path or 'a file'} held by pid {lock.holder_pid} "
        f"({lock.holder_name})" + (f"; holder: {describe_holder(lock)}" if lock.holder_command else "")
        for lock in evidence.locks
    )
    return [Lines(locks), *(_open_files(one) for one in evidence.processes[:_MAX_PROCESSES] if one.files)]


def _open_files(process: ProcessFacts) -> Folded:
    sockets = {
        socket.fd: f"{socket.family} {socket.local} → {socket.remote} {socket.state}" for socket in process.sockets
    }
    rows = [
        (str(file.fd), sockets.get(file.fd, file.target), f"{file.kind} {file.access}", "cache" * file.in_cache,
         _bytes(file.size_bytes), _bytes(file.position_bytes))
        for file in process.files[:_MAX_OPEN]
    ]  # fmt: skip
    count = process.file_count if process.file_count is not None else len(rows)
    table = _table(("#Fd", "File", "Kind", "Where", "#Size", "#At"), rows)
    return Folded(f"pid {process.pid} {process.name}: {count} open", (table,))


def _machine(evidence: Evidence) -> Iterator[str]:
    for facts in evidence.filesystems:
        space = "did not answer" if not facts.responded else facts.error
        if facts.free_bytes is not None and facts.total_bytes is not None:
            space = f"{format_bytes(facts.free_bytes)} of {format_bytes(facts.total_bytes)} free"
            if facts.total_inodes:
                space += f", {facts.free_inodes:,} of {facts.total_inodes:,} inodes free"
        yield f"{facts.path}: {facts.type} {facts.source} on {facts.mount_point} ({','.join(facts.options)}): {space}"
    for group in evidence.cgroups:
        limit = format_bytes(group.limit_bytes) if group.limit_bytes else "no limit"
        current = format_bytes(group.current_bytes) if group.current_bytes is not None else "unknown"
        kills = "unknown" if group.oom_kills is None else group.oom_kills
        yield f"control group {group.path}: {current} of {limit}, OOM kills: {kills}"
    for one in evidence.pressure:
        yield (
            f"pressure {one.resource}: some {one.some_avg10:.1f} % / full {one.full_avg10:.1f} % over 10 s, "
            f"{one.some_avg60:.1f} % / {one.full_avg60:.1f} % over 60 s"
        )


def _stacks(evidence: Evidence) -> list[Part]:
    found: list[Part] = []
    for process in evidence.processes[:_MAX_PROCESSES]:
        lines: list[str] = []
        for python in process.python_threads:
            lines += [f"Python thread {python.tid} {python.name}", *(f"  {frame}" for frame in python.frames)]
        for thread in process.threads[:64]:
            if thread.kernel_stack:
                lines.append(f"kernel, thread {thread.tid} {thread.name} ({thread.state})")
                lines += [f"  {frame}" for frame in thread.kernel_stack]
        if lines:
            is_open = bool(process.python_threads) and not found
            found.append(Folded(f"pid {process.pid} {process.name}", (Pre(tuple(lines)),), is_open))
    return found
