"""`cachewatch history`: what runs left in the state directory, as a table and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.cli.history import render_history
from prefect_cachewatch.cli.main import main
from prefect_cachewatch.postmortem.report import GrowthReport, Report, StallReport
from prefect_cachewatch.run.history import history_path, remember_run
from prefect_cachewatch.run.past import JobRun, read_past_runs
from prefect_cachewatch.run.regression import slower_than_before


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


def attempt(
    day: int, outcome: str = "completed", *, name: str = "llama", number: int = 1, **more: Any
) -> dict[str, Any]:
    return {
        "outcome": outcome, "name": name, "attempt": number, "duration_s": 600.0,
        "started_at": f"2026-11-{day:02}T0{number}:00:00.000+00:00",
        "growth": {"bytes_present": 2**30, "bytes_written": 2**30, "longest_pause_s": 12.0}, **more,
    }  # fmt: skip


def leave(directory: Path, *reports: Any) -> None:
    directory.mkdir(mode=0o700, parents=True)
    for number, report in enumerate(reports, 1):
        text = report if isinstance(report, str) else json.dumps(report)
        (directory / (f"report-{number}.json" if len(reports) > 1 else "report.json")).write_text(text)


def history(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["history", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def run_of(day: int, duration_s: float = 600.0, outcome: str = "completed", **more: Any) -> JobRun:
    facts: dict[str, Any] = {"attempts": 1, "stalls": 0, "longest_pause_s": 12.0, **more}
    at = f"2026-11-{day:02}T01:00:00.000+00:00"
    return JobRun("llama", at, at, outcome, bytes_present=2**30, bytes_written=2**30, duration_s=duration_s, **facts)


def test_a_run_of_several_attempts_is_one_line_with_its_stalls_and_cause(state, capsys):
    stalled = attempt(2, "stalled", diagnosis={"category": "waiting_for_lock"})
    leave(state / "generations/llama-a", attempt(1))
    leave(state / "generations/llama-b", stalled, attempt(2, number=2))
    leave(state / "generations/qwen-c", attempt(3, name="qwen"))
    leave(state / "bundles/20261102T010000Z-llama-aaaaaa", stalled)
    leave(state / "bundles/20261103T010000Z-llama-bbbbbb", attempt(3, "failed", diagnosis={"category": "io_error"}))
    status, out, err = history(capsys, "llama")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "WHEN (UTC)        OUTCOME        SIZE    DURATION  PAUSE  STALLS",
        "2026-11-03 01:00  failed     1.00 GiB  10 minutes   12 s       0",
        "                  cause: io_error",
        "2026-11-02 02:00  completed  1.00 GiB  10 minutes   12 s       1",
        "                  cause: waiting_for_lock",
        "2026-11-01 01:00  completed  1.00 GiB  10 minutes   12 s       0",
    ]
    assert history(capsys, "llama", "--last", "1")[1].splitlines()[1].endswith("10 minutes   12 s       0  io_error")
    body = json.loads(history(capsys, "llama", "--json", "--last", "2")[1])
    assert [run["attempts"] for run in body["runs"]] == [1, 2]
    assert body["runs"][1]["ended_at"] == "2026-11-02T02:10:00.000+00:00"
    assert (body["name"], body["regression"], body["unread"]) == ("llama", None, [])


def test_a_remembered_run_whose_reports_were_pruned_is_shown_once(state, capsys):
    report = Report(
        "completed", StallReport(), "", 0, None, "Llama 3.1", [], ["/c"], 1, "2026-11-01T01:00:00.000+00:00", 600.0,
        GrowthReport(5, 5, 2**20, 1, longest_pause_s=3.0),
    )  # fmt: skip
    remember_run(history_path("Llama 3.1", ["/c"]), report)
    leave(state / "generations/llama-3-1-a", attempt(2, name="Llama 3.1"))
    remember_run(history_path("Llama 3.1", ["/d"]), Report(**{**vars(report), "started_at": attempt(2)["started_at"]}))
    (runs,) = read_past_runs("llama 3.1").runs.values()
    assert [(run.name, run.attempts, run.bytes_present) for run in runs] == [
        ("Llama 3.1", 1, 2**30),
        ("Llama 3.1", None, 2**20),
    ]
    assert history(capsys)[1].splitlines() == [
        "NAME       RUNS  LAST END (UTC)",
        "Llama 3.1     2  2026-11-02 01:10",
    ]


def test_the_last_run_of_six_that_was_slower_is_told_in_one_sentence(state, capsys):
    for day in range(1, 7):
        leave(state / f"generations/llama-{day}", attempt(day, duration_s=840.0 if day == 6 else 600.0))
    out = history(capsys, "llama", "--last", "1")[1]
    sentence = "The last run took 14 minutes, 40 % slower than the median of the 5 before (10 minutes)."
    assert out.splitlines()[2:] == ["", sentence]
    told = json.loads(history(capsys, "llama", "--json")[1])["regression"]
    assert told["sentence"] == sentence and told["slower"] == pytest.approx(0.4)


def test_only_completed_runs_that_wrote_are_compared():
    before = [run_of(day) for day in range(9, 3, -1)]
    assert slower_than_before([run_of(10, 900), *before]) is not None
    assert slower_than_before([run_of(10, 900, "stalled"), *before]) is None
    assert slower_than_before([run_of(10, 900), run_of(9, 5, "cached"), *before[1:]]) is not None
    assert slower_than_before([run_of(10, 900), *[run_of(9, 5, "failed")] * 9]) is None
    assert slower_than_before([]) is None


def test_the_longest_words_fit_80_columns_and_the_chart_is_drawn_where_it_can_be():
    wide = run_of(1, 3599.0, "verification_failed", longest_pause_s=3599.0, cause="network_filesystem_unresponsive")
    lines = list(render_history([wide, run_of(2, 3000), run_of(1, 1500)], blocks=True))
    assert max(map(len, lines)) <= 80
    assert lines[2].strip() == "cause: network_filesystem_unresponsive"
    assert lines[-1] == "▄█  25 minutes to 50 minutes"
    assert "█" not in "".join(render_history([wide, run_of(2), run_of(1)]))


def test_stalls_that_were_left_alone_count_too(state):
    leave(state / "generations/llama-a", attempt(1, would_be_stops=[{}, {}]))
    leave(state / "generations/llama-b", attempt(2, "ended", attached={"stalls": [{}]}))
    assert [run.stalls for run in read_past_runs("llama").runs["llama"]] == [1, 2]


def test_an_unknown_name_is_one_sentence_with_the_nearest(state, capsys):
    assert history(capsys) == (0, f"no run in {state} yet\n", "")
    none = history(capsys, "llama")
    assert none[0] == 125 and "begins its history" in none[2] and none[2].count("\n") == 1
    leave(state / "generations/llama-a", attempt(1))
    assert history(capsys, "lama") == (
        125, "", f"cachewatch: there is no run of 'lama' in {state}: did you mean llama?\n",
    )  # fmt: skip
    unlike = history(capsys, "x\x1b[2J")[2]
    assert "exec and watch leave one only if they stall or fail" in unlike
    assert unlike.endswith("cachewatch history lists the jobs that have one\n")


HOSTILE = [
    "", "[1]", "{", "[" * 200_000, '{"name": 7}', json.dumps(attempt(1) | {"started_at": "9999-99-99"}),
    json.dumps(attempt(1) | {"started_at": None}), "\x00" * 9, "1" * 9999,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_damaged_report_is_counted_and_left_out(state, capsys, text):
    leave(state / "generations/llama-a", attempt(2))
    leave(state / "generations/llama-b", text)
    status, out, err = history(capsys, "llama")
    assert (status, len(out.splitlines())) == (0, 2)
    assert err == f"cachewatch: 1 file in {state} could not be read as a report: generations/llama-b/report.json\n"
    _, out, _ = history(capsys, "llama", "--json")
    assert json.loads(out)["unread"] == ["generations/llama-b/report.json"]
    _, out, err = history(capsys, "--json")
    assert len(json.loads(out)) == 1 and err.endswith(": generations/llama-b/report.json\n")


def test_figures_that_are_none_are_shown_as_unknown_and_words_obey_nothing(state, capsys):
    odd = {"bytes_present": -1, "bytes_written": "x", "longest_pause_s": float("inf")}
    report = attempt(1, "\x1b[2J" * 9, duration_s=10**400, growth=odd, diagnosis={"category": "\x1b"}, would_be_stops=7)
    report["started_at"] = "9999-12-31T23:59:59-23:59"
    leave(state / "generations/llama-a", report | {"started_at": "0001-01-01T00:00:00"})
    leave(
        state / "generations/llama-b",
        report | {"started_at": "2026-11-01T00:00:00", "growth": 7, "duration_s": float("nan")},
    )
    leave(state / "generations/llama-c", report)
    status, out, err = history(capsys, "llama")
    assert status == 0 and "\x1b" not in out + err and "Traceback" not in err
    assert out.splitlines()[1].split()[-5:] == ["-", "-", "-", "0", "\\x1b"]


def test_pipes_links_and_huge_files_are_not_waited_for(state, capsys):
    leave(state / "generations/llama-a", attempt(1))
    for name in ("b", "c", "d"):
        (state / f"generations/llama-{name}").mkdir()
    os.mkfifo(state / "generations/llama-b/report.json")
    os.symlink("../llama-a/report.json", state / "generations/llama-c/report.json")
    with open(state / "generations/llama-d/report.json", "wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(state / "generations/llama-e")
    os.symlink("llama-a", state / "generations/llama-f")
    (state / "history").mkdir(mode=0o700)
    os.mkfifo(state / "history/llama-0123456789ab.jsonl")
    (state / "history/llama-0123456789ac.jsonl").write_text('[1]\n{"ended_at": 1}\n' + "[" * 100_000)
    found = read_past_runs("llama")
    assert [len(runs) for runs in found.runs.values()] == [1]
    files = [
        *(f"generations/llama-{name}/report.json" for name in "bcd"),
        *(f"history/llama-0123456789a{x}.jsonl" for x in "bc"),
    ]
    assert found.unread == files


def test_a_directory_that_others_may_write_into_is_one_sentence(state, capsys):
    leave(state / "generations/llama-a", attempt(1))
    (state / "generations").chmod(0o777)
    status, out, err = history(capsys, "llama")
    assert (status, out) == (125, "") and err.count("\n") == 1
    assert f"{state}/generations is not read: others may write into it" in err
