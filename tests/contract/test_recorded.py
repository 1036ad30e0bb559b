"""What a run leaves to be read later: its events, which can be replayed, and the history of a job. What is no such file gets a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import WELL, Place, eventually

# The first lines of a recording, and measurements that follow them.
BEGUN = '{"event": "ready", "protocol": 1, "name": "x"}\n{"event": "started", "protocol": 1, "n": 1, "pid": 7}\n'


def measured(at_s: object, written: object = 0) -> str:
    return f'{{"event": "progress", "protocol": 1, "at_s": {at_s}, "bytes_written": {written}}}\n'


SHORT = ("--poll", "0.3s", "--grace", "0.5s", "--stall-after", "2s", "--first-write-within", "60s", "--no-bundle")
# Writes layers a while apart and a temporary file that it deletes; then ends, or hangs.
LAYERS = """
for layer in range(4):
    for name in (f'layer{layer}', 'scratch'):
        (PLACE / 'cache' / name).write_bytes(b'x' * 100_000)
    time.sleep(0.4)
    (PLACE / 'cache/scratch').unlink()
"""
HANGS = LAYERS + "time.sleep(3600)\n"
# Writes for ever, until its cache's sibling `end` is there.
GOES_ON = """
number = 0
while not (PLACE / 'end').exists():
    (PLACE / f'cache/{number}').write_bytes(b'x' * 10_000); number += 1; time.sleep(0.05)
"""


def replayed(place: Place, path: Path, *options: str) -> dict[str, Any]:
    ran = place.run("replay", path, "--json", *options)
    assert (ran.status, ran.stderr) == (0, ""), ran.stderr
    data: dict[str, Any] = json.loads(ran.stdout)
    return data


def test_a_healthy_run_is_recorded_to_its_end(place: Place) -> None:
    path = place.root / "t.jsonl"
    ran = place.exec(*WELL, "--record", path, "--quiet", command=place.program(LAYERS))
    assert (ran.status, ran.stderr) == (0, "")
    found = replayed(place, path)
    assert (found["status"], found["recording"]["ending"], found["recording"]["torn"]) == ("ended", "exited", False)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    last = [one for one in events if one["event"] == "progress"][-1]
    assert (last["bytes_present"], last["files_present"]) == (400_000, 4)
    assert last["bytes_written"] == ran.report["growth"]["bytes_written"]
    assert [one["event"] for one in events if one["event"] != "progress"] == [
        "ready", "attempt_wanted", "started", "gone", "report", "bye",
    ]  # fmt: skip
    assert {one["protocol"] for one in events} == {1}
    assert [one["report"] for one in events if one["event"] == "report"] == [ran.report]


def test_a_run_that_stalled_stalls_at_the_same_moment_when_it_is_replayed(place: Place) -> None:
    path = place.root / "t.jsonl"
    ran = place.exec(*SHORT, "--record", path, command=place.program(HANGS))
    assert ran.status == 124
    found = replayed(place, path, "--stall-after", "2s", "--poll", "0.3s")
    assert (found["status"], found["kind"], found["stopped_in_vain"]) == ("stalled", "no_growth", False)
    assert found["recording"]["ending"] == "stopped"
    assert found["last_growth_s"] == pytest.approx(ran.report["growth"]["last_growth_s"], abs=0.01)
    # A longer window is not decided by a recording that ends in the pause; a hang there is.
    assert replayed(place, path, "--stall-after", "1m")["status"] == "ended"
    frozen = replayed(place, path, "--stall-after", "1m", "--hang-at", "1h")
    assert frozen["after_last_growth_s"] == pytest.approx(60, abs=0.01)


def test_a_run_whose_watch_is_killed_leaves_a_recording_to_its_end(place: Place) -> None:
    path = place.root / "t.jsonl"
    command = place.program(GOES_ON)
    argv = ["exec", "--cache-dir", place.cache, *WELL, "--record", path, "--", *command]
    with place.start(*argv) as watching:
        try:
            assert eventually(lambda: path.exists() and path.read_text().count('"progress"') > 4)
        finally:
            watching.kill()
    place.assert_nobody()
    found = replayed(place, path)
    assert (found["status"], found["recording"]["ending"], found["recording"]["torn"]) == ("ended", "stopped", False)
    assert found["bytes_written"] > 0


def test_a_directory_gets_a_file_of_its_own_for_each_run(place: Place) -> None:
    (runs := place.root / "runs").mkdir()
    for _ in range(2):
        assert place.exec(*WELL, "--record", runs, command=["sh", "-c", f"echo x >> {place.cache}/x"]).status == 0
    assert [replayed(place, path)["recording"]["ending"] for path in runs.iterdir()] == ["exited", "exited"]


def test_a_recording_that_fails_ends_no_generation(place: Place) -> None:
    # No file may grow beyond 4096 bytes, as on a disk that fills up; for the generator the limit is lifted again.
    path = place.root / "t.jsonl"
    assert place.exec(*WELL, "--allow-empty", command=["true"]).status == 0  # what it imports is compiled by now
    place.before = ["bash", "-c", 'ulimit -S -f 4; exec "$@"', "bash"]
    waits = f"until [ $(stat -c %s {path}) -ge 3000 ]; do sleep 0.1; done; sleep 1; head -c 50000 /dev/zero > {place.cache}/x"
    command = ["bash", "-c", f"ulimit -S -f unlimited; {waits}"]
    options = ("--cache-dir", place.cache, *WELL, "--poll", "0.1s", "--record", path)
    ran = place.run("exec", *options, "--", *command)
    assert ran.status == 0, ran.stderr
    assert f"the recording {path} is incomplete" in ran.stderr
    found = replayed(place, path)
    assert (found["recording"]["ending"], found["recording"]["torn"]) == ("cut_off", False)


@pytest.mark.parametrize(
    "where", ["exists", "pipe", "link", "cache", "missing"], ids=lambda where: f"the place is {where}"
)
def test_a_place_that_cannot_be_recorded_to_is_refused_before_the_start(place: Place, where: str) -> None:
    place.cache.mkdir()
    (place.root / "exists").write_text("mine")
    os.mkfifo(place.root / "pipe")
    (place.root / "link").symlink_to(place.root / "nowhere")
    path = {"cache": place.cache / "t.jsonl", "missing": place.root / "no/t.csv"}.get(where, place.root / where)
    ran = place.exec("--record", path, command=["touch", place.cache / "started"])
    assert (ran.status, ran.stderr.count("\n"), os.listdir(place.cache)) == (125, 1, [])
    assert str(path) in ran.stderr
    assert (place.root / "exists").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("pipe", None),
        ("directory", None),
        ("device", None),
        ("missing", None),
        ("", None),
        (BEGUN.partition("\n")[0] + "\n", None),
        ("t_s,total_bytes,file_count\n0,1,1\n", 1),
        ("[1]\n", 1),
        ("[" * 100_000 + "\n", 1),
        (BEGUN.replace('"protocol": 1', '"protocol": 2'), 1),
        (BEGUN.replace('"pid": 7', '"pid": "x"'), 2),
        (measured(1), 1),
        (BEGUN + '{"event": "progress", "protocol": 1}\n', 3),
        (BEGUN + measured('"soon"'), 3),
        (BEGUN + measured("NaN"), 3),
        (BEGUN + measured(1, "1" + "0" * 400), 3),
        (BEGUN + measured(1, "9" * 5000), 3),
        (BEGUN + measured(5) + measured(4), 4),
        (BEGUN + measured(1, 9) + measured(2, 8), 4),
        (BEGUN + '{"event": "gone", "protocol": 1, "at_s": 1, "why": "exited"}\n' + measured(2), 4),
        (b"\x80\x81\n", 1),
        (b"\0" * 100, None),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, int) else None,
)
def test_what_is_no_recording_is_refused_in_a_sentence_and_never_waited_for(
    place: Place, content: str | bytes, line: int | None
) -> None:
    path = place.root / "t.jsonl"
    if content == "pipe":
        os.mkfifo(path)
    elif content == "directory":
        path.mkdir()
    elif content == "device":
        path = Path("/dev/zero")
    elif content != "missing":
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = place.run("replay", path)
    assert (ran.status, ran.stdout, ran.stderr.count("\n")) == (125, "", 1), ran.stderr
    assert f"recording {path}" in ran.stderr and (line is None or f"line {line}: " in ran.stderr)


def test_a_recording_whose_last_line_was_cut_off_is_replayed_with_a_note(place: Place) -> None:
    path = place.root / "t.jsonl"
    path.write_text(BEGUN + measured(1) + measured(2)[:20])
    ran = place.run("replay", path)
    assert (ran.status, ran.stderr.count("\n")) == (0, 1)
    assert replayed(place, path)["recording"]["torn"] is True


def test_the_history_has_each_run_as_it_ended(place: Place) -> None:
    writes = ["sh", "-c", f"echo 12345 >> {place.cache}/x; exit $0"]
    assert place.exec(*WELL, command=[*writes, 0]).status == 0
    assert place.exec(*WELL, "--no-bundle", command=[*writes, 3]).status == 3
    assert place.exec(*SHORT, command=place.program(HANGS)).status == 124
    ran = place.run("report", "--history", "cache", "--json")
    runs = json.loads(ran.stdout)["runs"]
    assert [(run["outcome"], run["stalls"], run["warm"]) for run in runs] == [
        ("stalled", 1, True),
        ("failed", 0, True),
        ("completed", 0, False),
    ]
    unknown = place.run("report", "--history", "no-such-job")
    assert (unknown.status, unknown.stderr.count("\n")) == (125, 1) and "cache" in unknown.stderr


@pytest.mark.parametrize(
    "damage", ["pipe", "link", "garbage", "great numbers"], ids=lambda damage: f"its history is {damage}"
)
def test_a_history_that_cannot_be_used_costs_nothing_but_itself(place: Place, damage: str) -> None:
    writes = ["sh", "-c", f"echo 12345 >> {place.cache}/x"]
    assert place.exec(*WELL, command=writes).status == 0
    (history,) = (place.root / "state/history").iterdir()
    whole = json.loads(history.read_text())
    great = "1" + "0" * 400
    hostile = {
        "garbage": '{broken\n[1]\n"a"\n' + "[" * 100_000 + "\n",
        "great numbers": "\n".join(
            json.dumps({**whole, field: "GREAT"}).replace('"GREAT"', great)
            for field in ("duration_s", "bytes_written", "bytes_present", "longest_pause_s", "attempts", "stalls")
        ),
    }
    if damage in hostile:
        history.write_text(hostile[damage])
    else:
        history.unlink()
        os.mkfifo(history) if damage == "pipe" else history.symlink_to("/etc/passwd")
    ran = place.exec(*WELL, "--stall-after", "learned", command=writes)
    assert ran.status == 0, ran.stderr
    shown = place.run("report", "--history", "cache", "--json")
    if damage in hostile:  # the new run is there, and what was damaged is not
        assert len(json.loads(shown.stdout)["runs"]) == 1
    else:
        assert (shown.status, shown.stderr.count("\n")) == (125, 1)
        assert str(history) in ran.stderr


def test_a_window_is_learned_from_runs_and_is_said(place: Place) -> None:
    command = ["sh", "-c", f"echo x > {place.cache}/x"]
    options = ("--stall-after", "learned", "--poll", "1s")
    for number in range(6):
        ran = place.exec(*options, command=command)
        assert ran.status == 0
        assert f"{number} of 5 completed runs" in ran.stderr or number == 5
        (place.cache / "x").unlink()
    assert ran.report["notes"] or ran.report["learned"]
    for other in (["watch", "--pid", "1", "--cache-dir", place.root], ["replay", __file__]):
        refused = place.run(*other, "--stall-after", "learned")
        assert (refused.status, refused.stderr.count("\n")) == (125, 1) and "learned" in refused.stderr


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("pipe", "report.json"),
        ("missing", "report.json"),
        ("{", "report.json"),
        ("[" * 100_000, "report.json"),
        ("[]", "report.json"),
        ("{}", "report.json"),
        ('{"diagnosis": {}, "listing": {"entries": [{}]}}', "report.json"),
        ('{"diagnosis": {}, "listing": 5}', "report.json"),
        ('{"diagnosis": {}, "growth": [1]}', "report.json"),
        ('{"diagnosis": {}, "growth": {"bytes_written": 1%s}}' % ("0" * 400), "report.json"),
        ('{"diagnosis": {"evidence": 7}}', "report.json"),
    ],
    ids=lambda value: value[:50],
)
def test_what_is_no_bundle_is_refused_in_a_sentence_and_never_waited_for(
    place: Place, content: str, names: str
) -> None:
    (bundle := place.root / "bundle").mkdir()
    if content == "pipe":
        os.mkfifo(bundle / "report.json")
    elif content != "missing":
        (bundle / "report.json").write_text(content)
    ran = place.run("report", bundle)
    assert (ran.status, ran.stderr.count("\n")) == (125, 1), ran.stderr
    assert names in ran.stderr and "\x1b" not in ran.stderr


def test_without_any_bundle_report_says_where_it_looked(place: Place) -> None:
    ran = place.run("report")
    assert (ran.status, ran.stderr.count("\n")) == (125, 1) and str(place.root / "state/bundles") in ran.stderr
    assert json.loads(place.run("report", "--list", "--json").stdout)["bundles"] == []
