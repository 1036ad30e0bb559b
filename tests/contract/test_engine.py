"""The engine behind `cachewatch exec`: what it has loaded, what its front's death and silence lead to, how it is seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import prefect_cachewatch
from tests.contract.harness import QUICK, WELL, Place, eventually, state

HANGS = (*QUICK, "--stall-after", "2s", "--first-write-within", "2s")
# A generator that has said that it runs, and ends when it may.
WAITS = "(PLACE / 'up').touch()\nwhile not (PLACE / 'end').exists(): time.sleep(0.05)\nsys.exit(3)"


def test_what_is_needed_was_loaded_before_the_generator_starts(place: Place) -> None:
    copy, report = place.root / "copy", place.root / "report.json"
    shutil.copytree(Path(prefect_cachewatch.__file__).parent, copy / "prefect_cachewatch")
    load = "from importlib.metadata import entry_points as e; (c,) = e(group='console_scripts', name='cachewatch'); c.load()()"
    code = f"import sys; sys.path.insert(0, {str(copy)!r}); {load}"
    command = f"import shutil; shutil.rmtree({str(copy)!r}); import time; time.sleep(3600)"
    options = ("exec", "--cache-dir", place.cache, *HANGS, "--report", report, "--log", "log", "--record", "run.jsonl")
    argv = [sys.executable, "-c", code, *map(str, options), "--", sys.executable, "-c", command]
    ran = subprocess.run(argv, cwd=place.root, env=place.env, capture_output=True, text=True, timeout=180)
    assert (ran.returncode, "Traceback" in ran.stderr) == (124, False), ran.stderr
    place.assert_nobody()
    found = json.loads(report.read_text())
    assert (found["outcome"], Path(found["bundle"], "report.html").exists()) == ("stalled", True)


@pytest.mark.parametrize("name", ["KILL", "SEGV"])
def test_a_command_that_dies_leaves_a_report_a_history_and_a_bundle(place: Place, name: str) -> None:
    report = place.root / "report.json"
    options = ("--cache-dir", place.cache, *WELL, "--report", report, "--record", "run.jsonl")
    with place.started("exec", *options, "--", *place.program(WAITS)) as process:
        assert eventually((place.root / "up").exists)
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(60) == -getattr(signal, f"SIG{name}")
        place.assert_nobody()
    assert json.loads(report.read_text())["outcome"] == "cancelled"
    (history,) = (place.root / "state/history").iterdir()
    assert json.loads(history.read_text())["outcome"] == "cancelled"
    events = [json.loads(line)["event"] for line in (place.root / "run.jsonl").read_text().splitlines()]
    assert [one for one in events if one != "progress"] == [
        "ready", "attempt_wanted", "started", "stopping", "gone", "report", "bye",
    ]  # fmt: skip


def test_the_engine_is_seen_by_its_name_and_nothing_else_of_the_run(place: Place) -> None:
    options = ("--cache-dir", place.cache, *WELL, "--env", "API_TOKEN=hunter2zebra77q")
    with place.started("exec", *options, "--", *place.program(WAITS)) as process:
        assert eventually((place.root / "up").exists)
        words = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in place.everybody() if pid != process.pid]
        assert [line for line in words if b"cachewatch: engine cache" in line]
        assert not [line for line in words if b"hunter2zebra77q" in line]
        (place.root / "end").touch()


def test_an_engine_that_is_killed_is_our_own_failure_and_is_said(place: Place) -> None:
    with place.started("exec", "--cache-dir", place.cache, *WELL, "--", *place.program(WAITS)) as process:
        assert eventually((place.root / "up").exists)
        (engine,) = [
            pid for pid in place.everybody() if b"cachewatch: engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(engine, signal.SIGKILL)
        error = process.communicate(timeout=60)[1]
        assert (process.returncode, error.count("\n"), "engine" in error) == (125, 1, True)
        assert eventually(lambda: state(engine) == "")
