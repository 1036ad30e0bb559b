"""The page of a job's last runs: its sentence, its chart, its table."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from prefect_cachewatch.run.history_page import describe_runs, draw_durations, history_markdown
from prefect_cachewatch.run.past import JobRun

SVG = "{http://www.w3.org/2000/svg}"


def run_of(day: int, duration_s: float | None = 600.0, outcome: str = "completed", **more) -> JobRun:
    at = f"2026-11-{day:02}T01:00:00.000+00:00"
    facts = {"attempts": 1, "stalls": int(outcome == "stalled"), "longest_pause_s": 12.0, **more}
    return JobRun("llama", at, at, outcome, bytes_present=2**30, bytes_written=2**30, duration_s=duration_s, **facts)


def test_a_slow_run_is_said_first_then_come_chart_and_table():
    text = history_markdown("llama", [run_of(20, 840.0), *(run_of(day) for day in range(19, 9, -1))])
    sentence = "**The last run took 14 minutes, 40 % slower than the median of the 10 before (10 minutes).**"
    places = [text.index(part) for part in ("the last 11 runs", sentence, "data:image/svg+xml", "| When (UTC) |")]
    assert places == sorted(places)
    assert "| 2026-11-20 01:00 | completed |  | 1.00 GiB | 14 minutes | 12 s | 0 |" in text


def test_a_row_has_stalls_and_cause_and_is_no_markup():
    text = history_markdown("a|b", [run_of(2, None, "stalled", cause="<b>[x](javascript:1)|", longest_pause_s=None)])
    row = text.splitlines()[-3]
    assert row.startswith("| 2026-11-02 01:00 | stalled | ") and row.endswith(" | 1.00 GiB | - | - | 1 |")
    assert "<b>" not in text and "[x](" not in row.replace("\\[x\\]", "") and row.count(" | ") == 6


def test_fifty_runs_are_shown_and_counted():
    runs = [run_of(1 + index % 28) for index in range(60)]
    assert history_markdown("llama", runs).count("| 2026-11-") == 50
    assert (
        describe_runs("llama", [run_of(2, outcome="stalled"), run_of(1)])
        == "llama: 2 runs, 1 of them completed, 1 stall"
    )


def test_the_chart_has_a_bar_for_each_run_the_oldest_first_and_the_median():
    svg = ET.fromstring(draw_durations([run_of(3, 100.0), run_of(2, 300.0, "stalled"), run_of(1, 200.0)]))
    bars = [each for each in svg.iter(SVG + "rect") if each.get("class") in ("done", "bad")]
    assert [bar.get("class") for bar in bars] == ["done", "bad", "done"]
    heights = [float(bar.get("height") or 0) for bar in bars]
    assert [round(height / max(heights), 2) for height in heights] == [0.67, 1.0, 0.33]
    assert "median 2 min 30 s (dashed)" in "".join(svg.itertext())
    assert len(draw_durations([run_of(1)] * 50)) < 10_000
