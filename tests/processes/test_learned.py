"""Learned windows with real generators: five short runs are learned from, and a stop in vain is made good."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_cachewatch import CacheJob, StallPolicy, StopPolicy, watch
from prefect_cachewatch.run.history import add_run, read_history
from support import assert_none_left, new_tag, program

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


class Job:
    """A job, and its runs one after the other, each into an empty cache."""

    def __init__(self, tmp_path: Path) -> None:
        self.tag, self.cache, self.hangs = new_tag(), tmp_path / "cache", tmp_path / "hangs"
        self.job = CacheJob(
            name="learns", cache_dirs=[self.cache],
            command=[*program(WRITES, self.tag), str(self.cache), str(self.hangs)],
        )  # fmt: skip

    def run(self, hangs: int = 0):
        shutil.rmtree(self.cache, ignore_errors=True)
        self.hangs.write_text(str(hangs))
        stall = StallPolicy(stall_after_s="learned:60s", first_write_within_s=60, poll_s=0.1)  # type: ignore[arg-type]
        report = watch(self.job, stall, StopPolicy(grace_s=1), bundle=False)
        assert_none_left(self.tag)
        return report


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_from_the_sixth_run_on_a_window_is_learned_and_a_stop_in_vain_is_made_good(tmp_path: Path):
    job = Job(tmp_path)
    for number in range(5):
        report = job.run()
        assert (report.outcome, report.learned) == ("completed", None)
        assert f"the configured window holds: {number} of 5 completed runs" in " ".join(report.notes)
    sixth = job.run()
    assert sixth.outcome == "completed"
    assert sixth.learned is not None and (sixth.learned.runs, sixth.learned.configured_s) == (5, 60)
    assert 30 <= sixth.learned.window_s < 60

    once = job.run(hangs=1)  # the attempt that hangs is stopped by the learned window, and the second one completes
    assert (once.outcome, once.attempt, once.learned) == ("completed", 2, None)
    assert "a learned window has stopped the attempt before" in " ".join(once.notes)

    always = job.run(hangs=9)
    stall = always.stall
    assert (always.outcome, always.attempt, stall.kind, stall.learned) == ("stalled", 2, "no_growth", False)
    assert stall.window_s == 60
    runs = read_history("learns")
    assert [(run.outcome, run.attempts) for run in runs[:3]] == [("stalled", 2), ("completed", 2), ("completed", 1)]


@pytest.mark.campaign
def test_another_command_or_a_cache_that_is_not_empty_begins_anew(tmp_path: Path):
    job = Job(tmp_path)
    job.run()
    (told,) = read_history("learns")
    for _ in range(4):
        add_run("learns", replace(told, longest_pause_s=1.0))
    job.job = job.job.model_copy(update={"command": [*job.job.command, "--more"]})
    assert "0 of 5 completed runs of this command are known that began with an empty cache" in " ".join(job.run().notes)
    report = watch(job.job, StallPolicy(stall_after_s="learned"), bundle=False)  # type: ignore[arg-type]
    said = "0 of 5 completed runs of this command are known that began with files in the cache"
    assert said in " ".join(report.notes)
