"""`--progress-log`: a slow generator that tells of progress goes on, one that repeats itself is stopped."""

from __future__ import annotations

import json

from tests.contract.harness import QUICK, WELL, Place

HANGS = (*QUICK, "--poll", "0.2s", "--stall-after", "1s", "--first-write-within", "1s", "--no-bundle")
# Half of the silence on disk below; each step of the generator takes a thirtieth of it.
WINDOW = (*QUICK, "--stall-after", "6s", "--first-write-within", "60s", "--no-bundle")
PATTERN = r"shards: .*\| (?P<done>\d+)/(?P<total>\d+)"
TELLS = r"""
(PLACE / "cache/first").write_bytes(bytes(9000))
for step in range(60):
    sys.stderr.write(f"\rshards:  {step}% |##  | {step}/60 [00:{step:02}, 2 it/s]")
    sys.stderr.flush()
    time.sleep(0.2)
(PLACE / "cache/last").write_bytes(bytes(9000))
"""
REPEATS = r"""
(PLACE / "cache/first").write_bytes(bytes(9000))
while True:
    sys.stderr.write("\rshards:  12% |##  | 1/8 [00:01, 2 it/s]")
    time.sleep(0.1)
"""


def test_a_generator_that_is_silent_on_disk_and_tells_of_progress_is_no_stall(place: Place) -> None:
    ran = place.exec(*WINDOW, "--progress-log", PATTERN, "--record", "t.jsonl", command=place.program(TELLS))
    assert (ran.status, ran.report["outcome"]) == (0, "completed"), ran.stderr
    logged = ran.report["logged"]
    assert (logged["count"], logged["done"], logged["total"]) == (60, 59.0, 60.0)
    percents = [sample["percent"] for sample in ran.report["growth"]["samples"] if sample["percent"] is not None]
    assert percents and percents == sorted(percents)
    replayed = place.run("replay", "t.jsonl", "--json", *WINDOW[-5:-1])
    assert json.loads(replayed.stdout)["status"] == "ended"


def test_a_generator_that_repeats_the_same_line_is_a_stall(place: Place) -> None:
    ran = place.exec(*HANGS, "--first-write-within", "60s", "--progress-log", PATTERN, command=place.program(REPEATS))
    assert (ran.status, ran.report["stall"]["kind"], ran.report["logged"]["count"]) == (124, "no_growth", 1)
    assert "1 of 8 (12 %)" in ran.report["message"]
    place.assert_nobody()


def test_a_counter_that_never_ends_is_ended_by_the_time_limit(place: Place) -> None:
    counts = "for n in range(10**6): print(f'step {n}', flush=True); time.sleep(0.1)"
    options = (*WELL, "--no-bundle", "--progress-log", r"step \d+", "--max-duration", "2s")
    ran = place.exec(*options, command=place.program(counts))
    assert (ran.status, ran.report["outcome"], ran.report["logged"]["count"] > 0) == (124, "deadline_exceeded", True)


def test_a_pattern_that_takes_exponential_time_leaves_the_watch_as_it_is(place: Place) -> None:
    prints = "for n in range(3): print('a' * 60, flush=True)\ntime.sleep(100)"
    ran = place.exec(*HANGS, "--progress-log", "(?:a|a)*[bc]", command=place.program(prints))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "never_started")
    assert [note for note in ran.report["notes"] if "takes too long to search for" in note]


def test_a_secret_in_a_line_of_progress_is_not_in_the_report(place: Place) -> None:
    script = "echo loaded with $API_TOKEN; head -c 9000 /dev/zero > $C/a"
    options = (*WELL, "--progress-log", "loaded .*", "--env", "API_TOKEN=hunter2hunter2")
    ran = place.exec(*options, command=["sh", "-c", script])
    assert (ran.status, ran.report["logged"]["count"]) == (0, 1)
    assert "hunter2hunter2" not in json.dumps(ran.report)
