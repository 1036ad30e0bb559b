"""A run's artifacts in Prefect: the listing as a table, the explanation as Markdown, progress in place.

Publishing is best effort and bounded in time. A server that is down delays the end of a run by no more than that,
and the report is on disk in any case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import Logger, LoggerAdapter
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.utilities.context import get_task_and_flow_run_ids

from prefect_cachewatch.common.text import for_markdown, slugify
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.report.chart import draw_report
from prefect_cachewatch.report.markdown import listing_rows, write_markdown
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.report.sections import (
    Chart,
    Facts,
    Section,
    make_verdict,
    numbers,
    sections,
)
from prefect_cachewatch.run.history import enough_window_s
from prefect_cachewatch.watching.stall import effective_poll_s

PATIENCE_S = 120.0
AnyLogger = Logger | LoggerAdapter[Any]
Data = str | float | Sequence[Mapping[str, Any]]


def create_artifact(kind: Literal["markdown", "table", "progress"], key: str, data: Data, description: str) -> UUID:
    """Create an artifact of the run that this is called in, the newest version of its key.

    Args:
        kind: as Prefect names it.
        key: small letters, digits and dashes.
        data: Markdown, per cent, or the rows of a table.
        description: Markdown.

    Returns:
        Its id.
    """
    task_run_id, flow_run_id = get_task_and_flow_run_ids()
    made = ArtifactCreate(
        type=kind,
        key=key,
        data=_stored(data),
        description=description,
        task_run_id=task_run_id,
        flow_run_id=flow_run_id,
    )
    return get_client(sync_client=True).create_artifact(made).id


def update_artifact(artifact_id: UUID, data: Data, description: str) -> None:
    """Change an artifact in place; data and description as for `create_artifact`.

    The client's own function would send all of it a second time, as an event: in a run of hours, progress alone would fill
    the tables of events.
    """
    body = {"data": _stored(data), "description": description}
    client = get_client(sync_client=True)
    client.request("PATCH", "/artifacts/{id}", path_params={"id": artifact_id}, json=body).raise_for_status()


def _stored(data: Data) -> str | float:
    return data if isinstance(data, str | float) else json.dumps(data)


def publish_failure(report: Report, logger: AnyLogger, patience_s: float = PATIENCE_S) -> list[str]:
    """Publish the listing and the explanation of an attempt that did not complete.

    Args:
        report: the attempt's report.
        logger: the run's logger.
        patience_s: seconds for which an unreachable server is tried.

    Returns:
        The keys that were published.
    """
    files = f"{_of_attempt(report)}files of {for_markdown(report.name)}: what may be cut first, then what grew last"
    files = files[0].upper() + files[1:]
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
    """Write the explanation of an attempt as Markdown.

    Args:
        report: the attempt's report.
    """
    without = replace(report, listing=None)  # it makes an artifact of its own
    return write_markdown(make_verdict(report), (one for one in sections(without) if one.label != "files"))


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
    longest, window = format_duration(growth.longest_pause_s), format_duration(stall.stall_after_s)
    known = dict(numbers(report)) | {"Longest pause": f"{longest} of a window of {window}"}
    rows = [(label, known.pop(label)) for label in ("Present", "Bytes written", "Longest pause")]
    if wrote_s > 0:
        rows.append(("Rate while writing", f"{format_bytes(growth.bytes_written / wrote_s)}/s"))
    enough_s = enough_window_s(pauses_s, effective_poll_s(stall))
    if enough_s is not None:
        runs = "this run" if len(pauses_s) == 1 else f"the last {len(pauses_s)} runs"
        enough = f"{format_duration(enough_s)} (twice the longest pause of {runs})"
        rows.append(("Window that would have been enough", enough))
    rows += known.items()
    told = [Section("growth", "Growth", (Chart(draw_report(report)), Facts(tuple(rows))))]
    told += [one for one in sections(report) if one.label in ("", "cut")]
    return write_markdown(make_verdict(report), told)


def _key(report: Report, what: str) -> str:
    """Name an artifact of an attempt; sorted by their keys, those of several attempts are in order."""
    number = f"-{report.attempt:02d}" if report.attempt > 1 else ""
    return f"cachewatch-{slugify(report.name)}-{what}{number}"


def _description(report: Report) -> str:
    return _of_attempt(report) + for_markdown(report.headline or report.facts, 500)


def _of_attempt(report: Report) -> str:
    attempt = make_verdict(report).attempt
    return f"{attempt.capitalize()}: " if attempt else ""
