"""`--progress-log` on real processes: a slow generator that tells so goes on, one that repeats itself is stopped."""

from __future__ import annotations

import json
import sys

import pytest

from support import CACHEWATCH, assert_none_left, new_tag, run, run_exec

WINDOWS = ("--stall-after", "1.2s", "--first-write-within", "1.2s", "--poll", "0.2s", "--no-bundle", "--grace", "0.5s")
PATTERN = r"shards: .*\| (?P<done>\d+)/(?P<total>\d+)"
# Writes once, then is silent on disk for 4 s and prints a bar that is redrawn; `mode` says what the bar shows.
GENERATOR = """
import os, sys, time
cache, mode = sys.argv[2], sys.argv[3]
open(os.path.join(cache, "first"), "wb").write(bytes(9000))
for step in range(8):
    shown = step if mode == "tells" else 1
    sys.stderr.write(f"\\rshards:  {shown * 12}% |##  | {shown}/8 [00:{step:02}, 2 it/s]")
    sys.stderr.flush()
    time.sleep(0.5)
open(os.path.join(cache, "last"), "wb").write(bytes(9000))
"""


def generator(cache, mode: str, tag: str) -> list[str]:
    return [sys.executable, "-c", GENERATOR, tag, str(cache), mode]


@pytest.mark.campaign
def test_a_generator_that_is_silent_on_disk_and_tells_of_progress_is_no_stall(tmp_path):
    tag, cache, trace = new_tag(), tmp_path / "c", tmp_path / "t.csv"
    ran = run_exec(
        cache, *WINDOWS, "--progress-log", PATTERN, "--record", trace, command=generator(cache, "tells", tag)
    )
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    logged = ran.report["logged"]
    assert (logged["count"], logged["done"], logged["total"], logged["percent"]) == (8, 7.0, 8.0, 87.5)
    assert 0 < logged["left_s"] < 5
    assert ran.report["growth"]["longest_pause_s"] < 1.2
    percents = [sample["percent"] for sample in ran.report["growth"]["samples"] if sample["percent"] is not None]
    assert percents == sorted(percents)
    assert percents[-1] == 87.5
    replayed = run([*CACHEWATCH, "replay", str(trace), "--json", *WINDOWS[:6]])
    assert json.loads(replayed.stdout)["status"] == "ended"
    assert_none_left(tag)


def test_a_generator_that_repeats_the_same_line_is_a_stall(tmp_path):
    tag, cache = new_tag(), tmp_path / "c"
    ran = run_exec(cache, *WINDOWS, "--progress-log", PATTERN, command=generator(cache, "repeats", tag))
    assert (ran.status, ran.report["stall"]["kind"], ran.report["logged"]["count"]) == (124, "no_growth", 1)
    assert " before: 1 of 8 (12 %)." in ran.report["message"]
    assert_none_left(tag)


@pytest.mark.campaign
def test_a_counter_that_never_ends_is_ended_by_the_time_limit(tmp_path):
    tag, cache = new_tag(), tmp_path / "c"
    counts = "import time\nfor n in range(10**6): print(f'step {n}', flush=True); time.sleep(0.1)"
    ran = run_exec(
        cache, *WINDOWS, "--progress-log", r"step \d+", "--max-duration", "2.5s",
        command=[sys.executable, "-c", counts, tag],
    )  # fmt: skip
    assert (ran.status, ran.report["outcome"]) == (124, "deadline_exceeded")
    assert ran.report["logged"]["count"] > 5
    assert_none_left(tag)


def test_a_pattern_that_takes_exponential_time_leaves_the_watch_as_it_is(tmp_path):
    tag, cache = new_tag(), tmp_path / "c"
    prints = "import time\nfor n in range(3): print('a' * 60, flush=True)\ntime.sleep(100)"
    ran = run_exec(cache, *WINDOWS, "--progress-log", "(?:a|a)*b", command=[sys.executable, "-c", prints, tag])
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "never_started")
    assert [note for note in ran.report["notes"] if "takes too long to search for" in note]
    assert "told of no progress" in ran.report["message"]
    assert_none_left(tag)


def test_a_secret_in_a_line_of_progress_is_not_in_the_report(tmp_path):
    ran = run_exec(
        tmp_path / "c", "--progress-log", "loaded .*", "--env", "API_TOKEN=hunter2hunter2",
        command=["sh", "-c", f"echo loaded with $API_TOKEN; head -c 9000 /dev/zero > {tmp_path}/c/a"],
    )  # fmt: skip
    assert (ran.status, ran.report["logged"]["count"]) == (0, 1)
    assert "hunter2hunter2" not in json.dumps(ran.report)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("(", "is not a regular expression"), ("x*", "matches an empty text"), ("(a+)+b", "repeats a repetition"),
     (r"of (?P<total>\d+)", "has a group total and none named done")],
)  # fmt: skip
def test_a_pattern_that_is_no_good_is_refused_before_the_start(tmp_path, pattern, says):
    ran = run_exec(tmp_path / "c", "--progress-log", pattern, command=["touch", str(tmp_path / "started")])
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert "--progress-log" in ran.stderr
    assert says in ran.stderr
    assert not (tmp_path / "started").exists()
