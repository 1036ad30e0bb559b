"""The text of the artifact of a completed run. No server."""

from __future__ import annotations

from dataclasses import replace

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.flows.generation import generate_cache  # noqa: F401 - imports as a worker does
from prefect_cachewatch.report.report import GrowthReport, Report, SampleReport, StallReport, StopSection
from prefect_cachewatch.tasks.prefect_api.artifacts import completion_markdown

CAUSE = Cause("waiting_for_lock", "pid 7 (a) waits for a lock", ("/proc/locks: FLOCK",))
GROWTH = GrowthReport(
    2**30, 2**30, 2**30, 43, 2.0, 300.0, 12.0, [], [SampleReport(0.0, 0, 0), SampleReport(300.0, 2**30, 2**30)]
)
STALLED = Report(
    "stalled", StallReport("no_growth", 300.0, 300.0), "Tensor cache generation stalled: no bytes.", None, 15, "Llama",
    ["gen"], ["/c"], 1, "2026-11-20T14:00:00+00:00", 600.5, GROWTH, StopSection(300.0, 0.01, [], [], []),
    headline="Llama stalled: pid 7 (a) waits for a lock. No growth for 5 minutes.", diagnosis=CAUSE, bundle="/state/bundles/x",
)  # fmt: skip


def test_a_completed_run_compares_its_pause_with_the_window_and_says_what_would_have_been_enough():
    done = replace(
        STALLED, outcome="completed", stall=StallReport(None, None, None), facts="Done.", headline="", diagnosis=None
    )
    text = completion_markdown(done, [12.0, 30.0], StallPolicy())
    assert "12 s of a window of 5 minutes" in text
    assert "1 minute (twice the longest pause of the last 2 runs)" in text
    assert "3.44 MiB/s" in text
    assert "data:image/svg+xml" in text
