"""`monitor_cache` in flows of one's own: it watches work that another task does, and tells by its state how that ended."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.prefect_server import PATIENCE_S, Server

SCRIPT = """
import json, sys, threading
from pathlib import Path
from prefect import flow, task
from prefect_cachewatch import StallPolicy, monitor_cache

@task
def convert(cache, stopped, hangs):
    if hangs:
        (cache / "a.bin").write_bytes(bytes(10_000))
        return "stopped" if stopped.wait(60) else "never stopped"

@flow
def somebody_elses(name, hangs, allow_empty):
    cache, finished, stopped = Path(sys.argv[1], name), threading.Event(), threading.Event()
    policy = StallPolicy(stall_after_s=1.5, first_write_within_s=1.5 if hangs else 300, poll_s=0.3)
    watch = monitor_cache.submit([cache], finished, policy, on_stall=lambda _: stopped.set(), allow_empty=allow_empty)
    work = convert.submit(cache, stopped, hangs)
    try:
        result = work.result()
    finally:
        finished.set()
    watch.wait()
    return result, watch.state.name, watch.state.message

cases = {"hangs": (True, False), "empty": (False, False), "empty-allowed": (False, True), "warm": (False, False)}
print("answer", json.dumps({name: somebody_elses(name, *given) for name, given in cases.items()}))
"""
# By case: the name of the monitor's state, and what its message says.
CASES = {
    "hangs": ("StallDetected", "1.5 s", "stopped"),
    "empty": ("NothingWritten", "wrote nothing", None),
    "empty-allowed": ("Completed", "0 B in 0 files", None),
    "warm": ("Completed", "1 file", None),
}


@pytest.fixture(scope="module")
def watched(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("monitor")
    for name in CASES:
        (folder / name).mkdir()
    (folder / "warm" / "warm.bin").write_bytes(b"x")
    argv = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(argv, env=server.env, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    answers = [line.removeprefix("answer ") for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert answers, done.stderr
    return dict(json.loads(answers[0]))


@pytest.mark.parametrize("case", CASES)
def test_the_monitor_of_a_flow_of_ones_own_ends_as_its_work_did(watched: dict[str, Any], case: str) -> None:
    name, says, stopped = CASES[case]
    result, found, message = watched[case]
    assert (result, found) == (stopped, name), message
    assert says in message
    assert ("allow_empty" in message) == (name == "NothingWritten")
