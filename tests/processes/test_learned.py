"""Learned windows with real generators: six short runs are learned from, and a stop in vain is made good."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from prefect_cachewatch import CacheJob, StallPolicy, StopPolicy, watch
from prefect_cachewatch.run.pauses import PAUSES, add_run, read_runs
from prefect_cachewatch.watching import learned
from prefect_cachewatch.watching.learned import PastPauses
from support import CACHEWATCH, Ran, assert_none_left, new_tag, program, run_exec
from support import run as run_argv

# Writes three files a quarter of a second apart; hangs before the last one for as often as the file `hangs` says.
WRITES = """
    import os, sys, time
    cache, hangs = sys.argv[2:4]
    for number in range(3):
        if number == 2 and os.path.exists(hangs) and (left := int(open(hangs).read())):
            open(hangs, "w").write(str(left - 1))
            time.sleep(600)
        open(f"{cache}/{number}", "wb").write(b"x" * 100_000)
        time.sleep(0.25)
"""


def run_cachewatch(*argv: str) -> Ran:
    return run_argv([*CACHEWATCH, *argv])


class Job:
    """A job, and its runs one after the other, each into an empty cache."""

    def __init__(self, tmp_path: Path) -> None:
        self.tag, self.cache, self.hangs = new_tag(), tmp_path / "cache", tmp_path / "hangs"
        self.history = tmp_path / f".cache{PAUSES}"
        self.job = CacheJob(
            name="learns", cache_dirs=[self.cache],
            command=[*program(WRITES, self.tag), str(self.cache), str(self.hangs)],
        )  # fmt: skip

    def run(self, hangs: int = 0, **policy: object):
        shutil.rmtree(self.cache, ignore_errors=True)
        self.hangs.write_text(str(hangs))
        stall = StallPolicy(**{"stall_after_s": "learned:8s", "first_write_within_s": 60, "poll_s": 0.1, **policy})
        report = watch(self.job, stall, StopPolicy(grace_s=1), bundle=False)
        assert_none_left(self.tag)
        return report

    def remembered(self) -> int:
        return len(self.history.read_text().splitlines())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(learned, "_FLOOR_S", 1.5)  # half a minute in real life
    return Job(tmp_path)


@pytest.mark.campaign
def test_from_the_sixth_run_on_windows_are_learned_and_a_stop_in_vain_is_made_good(job: Job):
    for number in range(5):
        report = job.run()
        assert (report.outcome, report.learned) == ("completed", [])
        assert f"the configured windows hold: {number} of 5 completed runs" in " ".join(report.notes)
        assert job.remembered() == number + 1
    sixth = job.run()
    assert sixth.outcome == "completed"
    assert {(each.phase, each.runs) for each in sixth.learned} == {("before_first_byte", 5), ("writing", 5)}
    assert all(1.5 <= each.window_s < 8 for each in sixth.learned if each.phase == "writing")

    once = job.run(hangs=1)  # the attempt that hangs is stopped by the learned window, and the second one completes
    assert (once.outcome, once.attempt, once.learned) == ("completed", 2, [])
    assert "a learned window has stopped the attempt before" in " ".join(once.notes)
    assert job.remembered() == 7

    always = job.run(hangs=9)
    assert (always.outcome, always.attempt, always.stall.kind, always.stall.learned) == (
        "stalled",
        2,
        "no_growth",
        False,
    )
    assert always.stall.window_s == 8
    assert job.remembered() == 7, "a run that did not complete tells nothing about healthy ones"


@pytest.mark.campaign
def test_another_command_or_a_cache_that_is_not_empty_begins_anew(job: Job):
    job.run()
    told = json.loads(job.history.read_text())
    for _ in range(4):
        add_run(str(job.history), told["job"], False, PastPauses(1, 1), "")
    assert job.run().learned
    job.job = job.job.model_copy(update={"command": [*job.job.command, "--more"]})
    assert "0 of 5 completed runs of this command are known that began with an empty cache" in " ".join(job.run().notes)
    report = watch(job.job, StallPolicy(stall_after_s="learned"), bundle=False)  # type: ignore[arg-type]
    assert "0 of 5 completed runs of this command are known that began with files in the cache" in " ".join(
        report.notes
    )


def test_who_has_not_asked_for_learned_windows_is_told_nothing_of_them(tmp_path: Path):
    job = Job(tmp_path)
    assert job.run(stall_after_s=8).notes == []
    assert not job.history.exists()


@pytest.mark.campaign
def test_a_planted_history_leaves_the_floor_and_the_configured_window(tmp_path: Path):
    """Without a lowered floor: pauses of nothing give half a minute, pauses of a week the configured window."""
    job = Job(tmp_path)
    job.run()
    told = json.loads(job.history.read_text())
    for silence_s, found in ((0.0, [("before_first_byte", 30.0)]), (600000.0, [])):
        job.history.unlink()
        for _ in range(9):
            add_run(str(job.history), told["job"], False, PastPauses(silence_s, silence_s), "")
        assert [(each.phase, each.window_s) for each in job.run().learned] == found


def test_exec_says_what_it_has_learned_and_where_the_history_lies(tmp_path: Path):
    cache, history = tmp_path / "cache", tmp_path / f".cache{PAUSES}"
    options = f"exec --stall-after learned --poll 1s --cache-dir {cache} --report {tmp_path / 'r'} --"
    argv = [*options.split(), "sh", "-c", f"echo x > {cache}/x"]
    assert "0 of 5 completed runs" in run_cachewatch(*argv).stderr
    told = json.loads(history.read_text())
    for silence_s in (20.0, 31.0, 24.0, 40.0):
        add_run(str(history), told["job"], False, PastPauses(silence_s, silence_s), "")
    shutil.rmtree(cache)
    said = run_cachewatch(*argv)
    assert said.status == 0
    sentence = "window 1 minute, learned from 5 runs; a healthy run as those is stopped with probability below 16.7 %"
    assert f"while it writes: {sentence} (configured: 5 minutes)" in said.stderr
    report = json.loads((tmp_path / "r").read_text())
    window = {
        "phase": "writing",
        "window_s": 60.0,
        "configured_s": 300.0,
        "runs": 5,
        "longest_s": 40.0,
        "chance": 1 / 6,
    }
    assert window in report["learned"]
    assert len(read_runs(str(history), told["job"])) == 6


@pytest.mark.campaign
def test_a_history_in_the_cache_never_counts_whatever_is_ignored_and_whoever_asks(tmp_path: Path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / PAUSES).write_text("x" * 1000)
    ran = run_exec(cache, "--no-default-ignores", command=["true"])
    assert (ran.status, ran.report["outcome"]) == (1, "nothing_written")
    assert ran.report["growth"]["files_present"] == 0


def test_a_history_that_cannot_be_used_is_said_and_the_run_goes_on(tmp_path: Path):
    cache, history = tmp_path / "cache", tmp_path / f".cache{PAUSES}"
    os.mkfifo(history)  # opened without care, it would hang
    said = run_cachewatch(
        "exec", "--stall-after", "learned", "--cache-dir", str(cache), "--", "sh", "-c", f"echo > {cache}/x"
    )
    assert said.status == 0
    assert "the configured windows hold: the history of pauses cannot be read" in said.stderr


@pytest.mark.parametrize("command", [["watch", "--pid", "1", "--cache-dir", "/tmp"], ["replay", __file__]])
def test_commands_that_know_no_runs_refuse_learned_windows(command: list[str]):
    said = run_cachewatch(*command, "--stall-after", "learned")
    assert said.status == 125
    assert said.stderr.count("\n") == 1
    assert "learned" in said.stderr
