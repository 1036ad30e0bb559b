"""A generator that can never run again is stopped long before its window, one that may go on is not; for real."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.standing_trees import DEAD, LIVE, standing
from tests.support import (
    CACHEWATCH,
    assert_none_left,
    eventually,
    exec_argv,
    new_tag,
    program,
    run_exec,
    running,
    signal_each,
    tagged,
)  # fmt: skip

DEADLOCK = """
    import subprocess, sys
    open(sys.argv[2] + '/a.bin', 'wb').write(bytes(99999))
    child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'print("x" * 10**6)', sys.argv[1]], stdout=subprocess.PIPE)
    child.wait()
"""
PAUSE = """
    import sys, time
    open(sys.argv[2] + '/a.bin', 'wb').write(bytes(99999))
    time.sleep(4)
    open(sys.argv[2] + '/b.bin', 'wb').write(bytes(99999))
"""


def test_a_full_pipe_and_a_wait_for_its_writer_are_proven_and_stopped(tmp_path: Path) -> None:
    tag, cache = new_tag(), tmp_path / "c"
    ran = run_exec(
        cache, "--prove-after", "1s", "--bundle-dir", tmp_path / "b", command=[*program(DEADLOCK, tag), str(cache)]
    )
    assert_none_left(tag)
    assert ran.status == 124
    assert ran.report
    stall = ran.report["stall"]
    assert (stall["kind"], stall["window_s"]) == ("deadlocked", 300)
    assert stall["pause_s"] < 150
    waits = {wait["call"]: wait for wait in stall["waits"]}
    assert waits["wait4"]["waits_for"] == [waits["write"]["pid"]]
    assert waits["write"]["waits_for"] == [waits["wait4"]["pid"]]
    assert "nothing outside can wake them (proven after" in ran.last_line
    (page,) = (tmp_path / "b").glob("*/report.html")
    first = waits["wait4"]
    chain = f"pid {first['pid']} ({first['process']}) waits for pid {waits['write']['pid']}: wait4"
    assert chain in page.read_text()


@pytest.mark.campaign
def test_what_is_only_to_be_reported_is_left_alone_though_it_is_proven(tmp_path: Path) -> None:
    tag, cache, report = new_tag(), tmp_path / "c", tmp_path / "r.json"

    def stalls() -> list[dict[str, object]]:
        return json.loads(report.read_text())["would_be_stops"] if report.exists() else []

    options = ["--on-stall", "report", "--prove-after", "0.5s", "--poll", "0.5s", "--report", report, "--no-bundle"]
    with running(exec_argv(cache, *options, command=[*program(DEADLOCK, tag), str(cache)])) as watch:
        assert eventually(stalls)
        eventually(lambda: False, 3.0)  # several polls later it stands still as before
        assert len(tagged(tag)) == 2
        assert watch.poll() is None
        watch.terminate()
        watch.wait(60)
    assert_none_left(tag)
    assert [(stall["kind"], stall["resumed_at_s"]) for stall in stalls()] == [("deadlocked", None)]


@pytest.mark.campaign
def test_a_generator_that_sleeps_longer_than_that_completes(tmp_path: Path) -> None:
    tag, cache = new_tag(), tmp_path / "c"
    ran = run_exec(cache, "--prove-after", "1s", "--poll", "0.5s", command=[*program(PAUSE, tag), str(cache)])
    assert (ran.status, ran.report["outcome"], ran.report["stall"]["waits"]) == (0, "completed", [])


@pytest.mark.campaign
def test_without_the_proof_the_window_decides_and_without_a_proof_the_notes_say_why(tmp_path: Path) -> None:
    tag, cache = new_tag(), tmp_path / "c"
    ran = run_exec(
        cache,
        "--prove-after",
        "0.5s",
        "--no-proof",
        "--stall-after",
        "3s",
        command=[*program(DEADLOCK, tag), str(cache)],
    )
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth")
    assert not any("proven" in note for note in ran.report["notes"])
    assert_none_left(tag)
    sleeps = [sys.executable, "-c", "import time; time.sleep(99)"]
    ran = run_exec(cache, "--prove-after", "0.5s", "--first-write-within", "3s", command=sleeps)
    assert ran.report["stall"]["kind"] == "never_started"
    (note,) = (note for note in ran.report["notes"] if "not proven that the tree can never run again: thread" in note)
    assert "(clock_nanosleep)" in note


@pytest.mark.campaign
@pytest.mark.parametrize("on_stall", ["report", "stop"])
def test_a_watched_process_is_reported_once_and_stopped_only_where_a_stall_stops_it(
    tmp_path: Path, on_stall: str
) -> None:
    report = tmp_path / "r.json"
    (tmp_path / "c").mkdir()
    with standing({"dead": DEAD["two locks"]}) as roots:
        pid = roots["dead"]
        argv = [*CACHEWATCH, "watch", "--pid", str(pid), "--cache-dir", str(tmp_path / "c"), "--on-stall", on_stall]
        options = ["--prove-after", "0.5s", "--poll", "0.5s", "--report", str(report), "--no-bundle", "--grace", "0s"]
        with running([*argv, *options]) as watch:
            assert eventually(report.exists)
            if on_stall == "stop":
                assert watch.wait(60) == 124
                return
            stalls = eventually(lambda: json.loads(report.read_text())["attached"]["stalls"])
            eventually(lambda: False, 3.0)  # several polls later it stands still as before
            os.kill(pid, 0)
            watch.terminate()
            watch.wait(60)
        assert [stall["kind"] for stall in stalls] == ["deadlocked"]
        (stall,) = json.loads(report.read_text())["attached"]["stalls"]
        assert stall["resumed_at_s"] is None


@pytest.mark.campaign
def test_a_watched_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with standing({"live": LIVE["a semaphore that is shared outside"]}) as roots:
        options = ["--cache-dir", str(tmp_path / "c"), "--prove-after", "0.5s", "--poll", "0.5s", "--on-stall", "stop"]
        with running([*CACHEWATCH, "watch", "--pid", str(roots["live"]), *options]) as watch:
            eventually(lambda: watch.poll() is not None, 5.0)
            assert watch.poll() is None
            os.kill(roots["live"], 0)
            watch.terminate()
            watch.wait(60)


SERVES = """
    import sys, threading, time
    open(sys.argv[2] + '/a.bin', 'wb').write(bytes(99999))
    time.sleep(1)
    SAY
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lock.acquire).start()
    lock.acquire()
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("ready", "say"),
    [
        ("log=startup complete", "print('startup complete', flush=True)"),
        # Nothing looks for the marker again before the proof: it is looked for before the stop.
        ("file=MARK", "open('MARK', 'w').close()"),
    ],
)
def test_a_server_that_is_ready_is_not_stopped_though_each_of_its_threads_waits_for_ever(
    tmp_path: Path, ready: str, say: str
) -> None:
    tag, cache, mark, state = new_tag(), tmp_path / "c", str(tmp_path / "mark"), tmp_path / "state"
    command = [*program(SERVES.replace("SAY", say.replace("MARK", mark)), tag), str(cache)]
    env = {**os.environ, "CACHEWATCH_STATE": str(state)}
    options = [
        "--ready",
        ready.replace("MARK", mark),
        "--ready-every",
        "60s",
        "--prove-after",
        "0.5s",
        "--poll",
        "0.5s",
    ]
    try:
        ran = run_exec(cache, *options, "--no-bundle", command=command, env=env)
        assert (ran.status, ran.report["outcome"], ran.report["stop"]) == (0, "completed", None)
        (pid,) = tagged(tag)
        assert ran.report["ready"]["pid"] == pid
        # Who watches it from now on reports the proof, once, and leaves it alone.
        report = tmp_path / "watch.json"
        argv = [*CACHEWATCH, "watch", "--pid", str(pid), "--cache-dir", str(cache), "--on-stall", "report"]
        more = ["--prove-after", "0.5s", "--poll", "0.5s", "--report", str(report), "--no-bundle"]
        with running([*argv, *more], env=env) as watch:
            stalls = eventually(
                lambda: report.exists() and json.loads(report.read_text())["attached"]["stalls"], timeout_s=60
            )
            assert [stall["kind"] for stall in stalls] == ["deadlocked"]
            eventually(lambda: False, 3.0)
            assert tagged(tag) == [pid]
            watch.terminate()
            watch.wait(60)
    finally:
        signal_each(tagged(tag))
    assert_none_left(tag)
