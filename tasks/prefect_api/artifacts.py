"""A run's artifacts in Prefect: the listing as a table, the explanation as Markdown, progress in place.

Publishing is best effort and bounded in time. A server that is down delays the end of a run by no more than that,
and the report is on disk in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from logging import Logger, LoggerAdapter
from typing import Any
from uuid import UUID

from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown, for_terminal, markdown_code, slugify
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.report.chart import draw_growth
from prefect_cachewatch.report.listing_table import listing_rows
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.report.where import describe_attempt, where_rows
from prefect_cachewatch.run.history import enough_window_s
from prefect_cachewatch.tasks.prefect_api.artifact_requests import create_artifact
from prefect_cachewatch.watching.leaving import describe_would_be_stops
from prefect_cachewatch.watching.outcomes import describe_growth, describe_last, ending_of
from prefect_cachewatch.watching.stall import effective_poll_s

PATIENCE_S = 120.0
AnyLogger = Logger | LoggerAdapter[Any]


def tell_failure(report: Report, logger: AnyLogger, patience_s: float = PATIENCE_S) -> None:
    """Log an attempt that did not complete, or a stall of one that goes on, and publish its artifacts.

    Args:
        report: its report.
        logger: the run's logger.
        patience_s: seconds for which an unreachable server is tried.
    """
    logger.error(report.message)
    if report.bundle is not None:
        logger.info("post-mortem: cachewatch report %s", report.bundle)
    publish_failure(report, logger, patience_s)


def publish_failure(report: Report, logger: AnyLogger, patience_s: float = PATIENCE_S) -> list[str]:
    """Publish the listing and the explanation of an attempt that did not complete.

    Args:
        report: the attempt's report.
        logger: the run's logger.
        patience_s: seconds for which an unreachable server is tried.

    Returns:
        The keys that were published.
    """
    files = f"Files of {for_markdown(report.name)}{_of_attempt(report)}: what may be cut first, then what grew last"
    makers: dict[str, Callable[[str], Any]] = {
        _key(report, "listing"): lambda key: create_artifact("table", key, listing_rows(report), files),
        _key(report, "report"): lambda key: create_artifact(
            "markdown", key, report_markdown(report), _description(report)
        ),
    }  # fmt: skip
    deadline_s = time.monotonic() + patience_s
    return [key for key, make in makers.items() if _publish(make, key, deadline_s, logger) is not None]


def publish_completion(
    report: Report,
    pauses_s: Sequence[float],
    stall: StallPolicy,
    logger: AnyLogger,
    patience_s: float = 10.0,
) -> list[str]:
    """Publish the short summary of an attempt that completed.

    Args:
        report: the attempt's report.
        pauses_s: the longest pauses of the completed runs of this cache, this one's first.
        stall: the policy of the attempt.
        logger: the run's logger.
        patience_s: seconds for which an unreachable server is tried; a completed run does not wait.

    Returns:
        The keys that were published.
    """
    key = _key(report, "report")
    text, description = completion_markdown(report, pauses_s, stall), _description(report)
    made = _publish(
        lambda key: create_artifact("markdown", key, text, description),
        key, time.monotonic() + patience_s, logger,
    )  # fmt: skip
    return [key] if made is not None else []


def _publish(make: Callable[[str], Any], key: str, deadline_s: float, logger: AnyLogger) -> UUID | None:
    made: UUID | None = try_until(lambda: make(key), f"artifact {key} was not published", deadline_s, logger)
    return made


def try_until(ask: Callable[[], Any], problem: str, deadline_s: float, logger: AnyLogger) -> Any:
    """Ask the API, again and again until it answers; what never succeeds is logged and hides no outcome.

    Args:
        ask: asks once.
        problem: what is logged if it never succeeds.
        deadline_s: monotonic time of the last try.
        logger: the run's logger.

    Returns:
        What `ask` returned; None if it never succeeded.
    """
    pause_s = 1.0
    while True:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - no failure of the API may hide the outcome
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                logger.warning("%s: %s", problem, type(error).__name__)
                return None
            time.sleep(min(pause_s, max(left_s, 0)))
            pause_s = min(pause_s * 2, 15)


def report_markdown(report: Report) -> str:
    """Write the explanation of an attempt: cause, what to do next, what was seen, numbers, log tail.

    Args:
        report: the attempt's report.

    Returns:
        Markdown; text from outside is escaped.
    """
    growth, stop = report.growth, report.stop
    rows = [
        ("Outcome", report.outcome + (f" ({report.stall.kind})" if report.stall.kind else "")),
        ("Attempt", f"{_which(report)}, {format_duration(report.duration_s)}"),
        *_where(report),
        ("Bytes written", f"{format_bytes(growth.bytes_written)} in this attempt"),
        ("Present", describe_growth(growth.bytes_present, growth.files_present)),
        ("First byte", "never" if growth.first_write_s is None else f"after {format_duration(growth.first_write_s)}"),
        ("Last growth", "never" if growth.last_growth_s is None else f"after {format_duration(growth.last_growth_s)}"),
        ("Longest pause before", format_duration(growth.longest_pause_s)),
        *([("Progress told", describe_last(report.logged))] if report.logged is not None else []),
        ("Generator", _ended(report)),
        *([("Learned", str(report.learned))] if report.learned is not None else []),
        *_ready_rows(report),
    ]
    if stop is not None:
        rows.append(
            ("Process tree", f"gone after {stop.gone_after_s:.2f} s: {len(stop.terminated)} terminated, "
             f"{len(stop.killed)} killed, {len(stop.survivors)} left")
        )  # fmt: skip
    for who in stop.survivors if stop else ():
        rows.append(("Could not be killed", f"pid {who.pid}, state {who.state}"))
    rows.append(("Command", " ".join(report.command)))
    diagnosis = report.diagnosis
    lines = [_heading(report), ""]
    if diagnosis is not None:
        told = diagnosis.summary
        lead = "Cause not known, seen" if diagnosis.category == "unknown" else "Cause"
        lines += [
            f"**{lead}:** {for_markdown(told[:1].upper() + told[1:], 1000)} "
            f"({diagnosis.category}, confidence {diagnosis.confidence})",
            "",
        ]
    advice = diagnosis.resolution if diagnosis else ending_of(report.outcome, report.stall.kind).advice
    if advice:
        lines += [f"**Next:** {for_markdown(advice, 1000)}", ""]
    if report.retry is not None:
        lines += [f"**Retry:** {for_markdown(report.retry.sentence, 1000)}", ""]
    lines += [for_markdown(report.facts, 2000), "", _chart(report), ""]
    if diagnosis is not None and diagnosis.evidence:
        lines += ["Seen:", "", *(f"- {for_markdown(line, 300)}" for line in diagnosis.evidence), ""]
    if report.bundle is not None:
        lines += [
            f"Everything that was found out: {markdown_code('cachewatch report ' + report.bundle, 1000)} on the worker",
            "",
        ]
    lines += [*_facts(rows), *_remarks(report)]
    if report.log_tail:
        tail = "\n".join(for_terminal(line, 300) for line in report.log_tail[-30:])
        fence = "`" * max(3, 1 + max((len(run) for run in tail.split() if set(run) == {"`"}), default=0))
        while fence in tail:
            fence += "`"
        lines += ["", "Last lines of the generator's output:", "", f"{fence}text", tail, fence]
    return "\n".join(lines) + "\n"


def completion_markdown(report: Report, pauses_s: Sequence[float], stall: StallPolicy) -> str:
    """Write the short summary of an attempt that completed.

    Args:
        report: the attempt's report.
        pauses_s: the longest pauses of the completed runs of this cache, this one's first.
        stall: the policy of the attempt.

    Returns:
        Markdown; text from outside is escaped.
    """
    growth = report.growth
    wrote_s = (growth.last_growth_s or 0.0) - (growth.first_write_s or 0.0)
    rate = growth.bytes_written / wrote_s if wrote_s > 0 else None
    rows = [
        ("Present", describe_growth(growth.bytes_present, growth.files_present)),
        ("Bytes written", format_bytes(growth.bytes_written)),
        ("Rate while writing", f"{format_bytes(rate)}/s" if rate else "nothing to say"),
        ("Duration", format_duration(report.duration_s)),
        *_where(report),
        ("First byte", "never" if growth.first_write_s is None else f"after {format_duration(growth.first_write_s)}"),
        (
            "Longest pause",
            f"{format_duration(growth.longest_pause_s)} of a window of {format_duration(stall.stall_after_s)}",
        ),
    ]
    if report.learned is not None:
        rows.append(("Learned", str(report.learned)))
    rows += _ready_rows(report)
    enough_s = enough_window_s(pauses_s, effective_poll_s(stall))
    if enough_s is not None:
        runs = "this run" if len(pauses_s) == 1 else f"the last {len(pauses_s)} runs"
        rows.append(
            ("Window that would have been enough", f"{format_duration(enough_s)} (twice the longest pause of {runs})")
        )
    lines = [_heading(report), ""]
    lines += [for_markdown(report.message, 2000), "", _chart(report), "", *_facts(rows)]
    return "\n".join([*lines, *_remarks(report)]) + "\n"


def _facts(rows: Sequence[tuple[str, str]]) -> list[str]:
    # No table: the UI at / breaks no line in one, and cuts it off at the edge of a phone.
    return [f"- {name}: {markdown_code(value, 500)}" for name, value in rows]


def _key(report: Report, what: str) -> str:
    """Name an artifact of an attempt; sorted by their keys, those of several attempts are in order."""
    number = f"-{report.attempt:02d}" if report.attempt > 1 else ""
    return f"cachewatch-{slugify(report.name)}-{what}{number}"


def _of_attempt(report: Report) -> str:
    """Say in a title which of several attempts it is of."""
    several = report.attempt > 1 or (report.where is not None and (report.where.attempts or 1) > 1)
    return f", attempt {_which(report)}" if several else ""


def _heading(report: Report) -> str:
    state = ending_of(report.outcome, report.stall.kind).state
    return f"## {for_markdown(report.name, 60)}{_of_attempt(report)}: {state}"


def _description(report: Report) -> str:
    number = _of_attempt(report).removeprefix(", ").capitalize()
    return f"{number}{': ' if number else ''}{for_markdown(report.headline or report.facts, 500)}"


def _remarks(report: Report) -> list[str]:
    lines = []
    if report.growth.suspected:
        lines += ["", "Suspected: " + "; ".join(for_markdown(s.message) for s in report.growth.suspected[-5:])]
    if report.would_be_stops:
        lines += [
            "",
            "Would have been stopped:",
            "",
            *(f"- {one}" for one in describe_would_be_stops(report.would_be_stops)),
        ]
    if report.notes:
        lines += ["", *(f"- {for_markdown(note, 500)}" for note in report.notes)]
    return lines


def _chart(report: Report) -> str:
    samples = [(s.at_s, s.bytes_written, s.allocated_written) for s in report.growth.samples]
    last_s, pause_s = report.growth.last_growth_s or 0.0, report.stall.pause_s
    pauses = [(s.at_s - s.pause_s, s.cleared_at_s) for s in report.growth.suspected if s.cleared_at_s is not None]
    if report.stall.kind is None or pause_s is None:
        svg = draw_growth(samples, end_s=report.duration_s, pauses=pauses)
    else:
        window_s = report.stall.window_s
        svg = draw_growth(samples, end_s=last_s + pause_s, stall_from_s=last_s, window_s=window_s, pauses=pauses)
    # An image, since both UIs remove raw SVG from Markdown.
    return f"![Bytes written over time]({svg_data_uri(svg)})"


def _ready_rows(report: Report) -> list[tuple[str, str]]:
    ready = report.ready
    if ready is None:
        return []
    when = "never" if ready.at_s is None else f"after {format_duration(ready.at_s)}"
    rows = [("Ready", f"{when}, by {ready.what}")]
    if ready.at_s is None and ready.last_answer is not None:
        rows.append(("Last answer", ready.last_answer))
    warm_s = next((change.at_s for change in ready.phases if change.phase == "warm_up"), None)
    if warm_s is not None:
        rows.append(("Warm-up began", f"after {format_duration(warm_s)}"))
    if ready.left_running:
        rows.append(("Left running", f"pid {ready.pid}" if ready.pid is not None else f"container {ready.container}"))
        rows.append(("To stop it", ready.how_to_stop or ""))
    return rows


def _which(report: Report) -> str:
    return describe_attempt(report.attempt, report.where.attempts if report.where is not None else None)


def _where(report: Report) -> list[tuple[str, str]]:
    return where_rows(asdict(report.where) if report.where is not None else None)


def _ended(report: Report) -> str:
    if report.exit_code is not None:
        return f"exit code {report.exit_code}"
    return f"signal {report.signal}" if report.signal is not None else "unknown"
