"""Where an attempt ran: the section's rows, and what a report without one says."""

from __future__ import annotations

from dataclasses import asdict

from prefect_cachewatch.report.where import describe_attempt, where_rows
from prefect_cachewatch.watching.sections import Where, Windows

WHERE = Where(
    host="gpu-7", user="ml", pid=4711, windows=Windows(1200, 300, warmup_within_s=600, max_duration_s=7200), attempts=3,
    log="/state/generator-2.log", worker="night", flow_run="http://prefect:4200/runs/flow-run/1",
)  # fmt: skip


def test_everything_that_is_known_is_a_row() -> None:
    assert where_rows(asdict(WHERE)) == [
        ("Host", "gpu-7, pid 4711 of ml"),
        ("Worker", "night"),
        ("Flow run", "http://prefect:4200/runs/flow-run/1"),
        ("Log of the generator", "/state/generator-2.log"),
        ("Windows", "first byte 20 minutes, growth 5 minutes, warm-up 10 minutes, in all 2 h"),
    ]


def test_an_attempt_is_said_with_how_many_there_are_where_that_is_known() -> None:
    assert [describe_attempt(2, 3), describe_attempt(2, None), describe_attempt(3, 2)] == ["2 of 3", "2", "3"]
