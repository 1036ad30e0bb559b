"""The labels that a failed run leaves for whoever decides later whether it is run again, and for notifications."""

from __future__ import annotations

import time
from uuid import UUID

from prefect import get_client

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger, try_until
from prefect_cachewatch.tasks.prefect_api.origin import this_run
from prefect_cachewatch.watching.outcomes import ending_of

NEXT_LABEL = "cachewatch.next"
CAUSE_LABEL = "cachewatch.cause"
LASTING_LABEL = "cachewatch.lasting"
TOLD_LABEL = "cachewatch.told"
HEADLINE_LABEL = "cachewatch.headline"


def label_cause(report: Report, lasting: str, logger: AnyLogger, patience_s: float = 30.0) -> None:
    """Label this flow run with its cause, the next step, and why a later run would end in the same way.

    Args:
        report: of its last attempt.
        lasting: the reason; empty if a later run may end otherwise.
        logger: the run's logger.
        patience_s: seconds for which an unreachable server is tried.
    """
    if (run := this_run()) is None:
        return
    known = report.diagnosis
    advice = known.resolution if known is not None else ending_of(report.outcome, report.stall.kind).advice
    labels = {
        CAUSE_LABEL: known.category if known is not None else "",
        TOLD_LABEL: for_terminal(known.summary, 300) if known is not None else "",
        HEADLINE_LABEL: short_headline(report),
        LASTING_LABEL: lasting,
        NEXT_LABEL: for_terminal(advice, 1000),
    }
    run_id = run.id
    try_until(
        lambda: _update(run_id, labels), "the labels of the run were not set", time.monotonic() + patience_s, logger
    )


def short_headline(report: Report) -> str:
    """Return the headline for a subject, whose first 80 characters have to name the cause: with a short name.

    Args:
        report: of an attempt.
    """
    name = for_terminal(report.name, 100)
    return for_terminal(name, 30) + report.headline[len(name) :][:220] if report.headline else ""


def _update(run_id: UUID, labels: dict[str, str]) -> None:
    with get_client(sync_client=True) as client:
        client.update_flow_run_labels(run_id, {name: text for name, text in labels.items() if text})
