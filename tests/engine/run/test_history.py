"""The history of a job: what it keeps, who reads which of its runs, and that damage costs only estimates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_cachewatch.cli.main import main
from prefect_cachewatch.run.history import (
    PastRun,
    add_run,
    enough_window_s,
    known_jobs,
    last_run,
    place_of,
    read_history,
)

RUN = PastRun("2026-01-31T23:59:59+00:00", "completed", 30.0, 1000, 1000, 12.4, place=place_of(["/c"]))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_the_newest_run_comes_first_and_the_last_fifty_are_kept() -> None:
    for written in range(1, 60):
        add_run("Llama 3", replace(RUN, bytes_written=written))
    runs = read_history("llama-3")
    assert (len(runs), runs[0].bytes_written, runs[-1].bytes_written) == (50, 59, 10)
    assert known_jobs() == ["llama-3"]


def test_the_last_run_is_one_in_the_same_directories_that_completed_and_wrote() -> None:
    for run in (RUN, replace(RUN, outcome="stalled"), replace(RUN, bytes_written=0), replace(RUN, place="other")):
        add_run("x", run)
    assert last_run("x", ["/c"]) == RUN
    assert last_run("x", ["/d"]) is None


def test_the_window_that_would_have_been_enough_is_twice_the_longest_pause_and_two_polls() -> None:
    assert enough_window_s([12.4], 5.0) == 25.0
    assert enough_window_s([12.4], 15.0) == 30.0
    assert enough_window_s([], 15.0) is None


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["report", *argv])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_report_shows_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, told = shown(capsys, "--history", "llama")
    assert (status, told.count("\n")) == (125, 1) and "there is no run of 'llama' yet, nor of any other job" in told
    add_run("llama", RUN)
    add_run("llama", replace(RUN, outcome="stalled", cause="waiting_for_lock", longest_pause_s=None, stalls=1))
    status, out, _ = shown(capsys, "--history", "llama")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["WHEN", "(UTC)", "OUTCOME", "SIZE", "DURATION", "PAUSE", "STALLS", "CAUSE"],
        ["2026-01-31", "23:59", "stalled", "1000", "B", "30", "s", "-", "1", "waiting_for_lock"],
        ["2026-01-31", "23:59", "completed", "1000", "B", "30", "s", "12", "s", "0"],
    ]
    _, out, _ = shown(capsys, "--history", "llama", "--json")
    assert [run["outcome"] for run in json.loads(out)["runs"]] == ["stalled", "completed"]
    _, _, told = shown(capsys, "--history", "lama")
    assert told == "cachewatch: there is no run of 'lama' yet: known are llama\n"
