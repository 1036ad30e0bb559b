"""The history of a cache: what earlier runs tell about size and window, and that damage costs only estimates."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_cachewatch.postmortem.report import GrowthReport, Report, StallReport
from prefect_cachewatch.run.history import PastRun, enough_window_s, history_path, past_runs, remember_run


def report(written: int, pause_s: float = 2.0) -> Report:
    growth = GrowthReport(written, written, 1000 + written, 3, 1.0, 9.0, pause_s, [], [])
    return Report(
        "completed", StallReport(None, None, None), "", 0, None, "llama", [], ["/c"], 1, "2026-11-20T14:00:00+00:00",
        10.0, growth, None, None, [], [],
    )  # fmt: skip


def test_runs_come_back_newest_first_without_those_that_wrote_nothing(tmp_path: Path) -> None:
    path = tmp_path / "h" / "x.jsonl"
    for written in (5, 0, 7):
        remember_run(path, report(written))
    assert [run.bytes_written for run in past_runs(path)] == [7, 5]
    assert past_runs(path)[0].bytes_present == 1007


def test_only_the_last_fifty_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for written in range(1, 60):
        remember_run(path, report(written))
    assert len(path.read_text().splitlines()) == 50
    assert past_runs(path, 1)[0].bytes_written == 59


def test_a_damaged_line_costs_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    remember_run(path, report(5))
    path.write_text("{broken\n[1]\n" + path.read_text())
    remember_run(path, report(6))
    assert [run.bytes_written for run in past_runs(path)] == [6, 5]


def test_a_pipe_or_a_link_in_the_place_of_a_history_is_not_waited_for_nor_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    remember_run(tmp_path / "real.jsonl", report(5))
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    for name in ("pipe.jsonl", "link.jsonl"):
        assert past_runs(tmp_path / name) == []
        remember_run(tmp_path / name, report(6))
    assert [run.bytes_written for run in past_runs(tmp_path / "real.jsonl")] == [5]


def test_a_state_directory_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    remember_run(tmp_path / "file" / "x.jsonl", report(5))
    assert past_runs(tmp_path / "file" / "x.jsonl") == []


def test_the_history_belongs_to_the_name_and_the_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", "/s")
    assert history_path("Llama", ["/a", "/b"]) == history_path("Llama", ["/b", "/a"])
    assert history_path("Llama", ["/a"]) != history_path("Llama", ["/b"])
    assert history_path("Llama", ["/a"]).parent == Path("/s/history")


def test_the_window_that_would_have_been_enough_is_twice_the_longest_pause_and_two_polls() -> None:
    run = PastRun("", 60.0, 1, 1, 1.0, 12.4)
    assert enough_window_s([run], 5.0) == 25.0
    assert enough_window_s([run], 15.0) == 30.0
    assert enough_window_s([], 15.0) is None
