"""Faults of the Prefect API: down before the start, in mid-run, at the moment of the stall, for good; slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Front
from tests.faults.harness import Sandbox, living, until
from tests.prefect_server import PATIENCE_S

pytestmark = pytest.mark.timeout(400)


def generate(box: Sandbox, url: str, name: str, command: list[str], *options: str, window: str = "10m") -> Any:
    argv = box.cachewatch("generate", "--attempts", "1", "--name", name, "--cache-dir", str(box.cache))
    argv += ["--stall-after", window, "--first-write-within", "5m", "--poll", "1s", "--grace", "300ms"]
    argv += ["--report", str(box.report_path), *options, "--", *command]
    env = box.env(PREFECT_API_URL=url, PREFECT_HOME=str(box.root / "home" / "prefect"))
    with open(box.root / "out" / "stderr.txt", "wb") as stderr:
        return box.popen([*box.prelude, *argv], env=env, stderr=stderr, stdout=stderr)


def told(box: Sandbox, command: list[str]) -> tuple[Path, list[str]]:
    """A file, and a command that begins when it is there: what happens before its first write is no matter of time."""
    go = box.root / "out" / "go"
    return go, ["sh", "-c", 'touch "$0.waits"; until [ -e "$0" ]; do sleep 0.1; done; exec "$@"', str(go), *command]


def test_a_server_that_is_down_in_mid_run_and_back_changes_nothing(front: Front, own_sandbox: Sandbox) -> None:
    name = "mid-run"
    end = own_sandbox.root / "out" / "end"
    script = 'n=0; until [ -e "$0" ]; do n=$((n+1)); head -c 9000 /dev/urandom > "$1/$n"; sleep 0.2; done'
    process = generate(own_sandbox, front.proxy.url, name, ["sh", "-c", script, str(end), str(own_sandbox.cache)])
    until(lambda: os.listdir(own_sandbox.cache), PATIENCE_S, "the generator writes")
    front.proxy.down()
    time.sleep(30)
    written = len(os.listdir(own_sandbox.cache))
    until(lambda: len(os.listdir(own_sandbox.cache)) > written, PATIENCE_S, "the generator writes without a server")
    front.proxy.up()
    end.touch()
    assert process.wait(PATIENCE_S) == 0, own_sandbox.stderr()
    run = front.server.run_named(name)
    assert run["state_type"] == "COMPLETED", run["state"]
    assert front.server.artifacts(run["id"])


def test_a_server_that_is_down_at_the_stall_gets_everything_when_it_is_back(front: Front, own_sandbox: Sandbox) -> None:
    name = "stall-down"
    tag, tree = own_sandbox.tree("term_ignorer", writes=1)
    go, command = told(own_sandbox, tree)
    process = generate(own_sandbox, front.proxy.url, name, command, window="2s")
    until(Path(f"{go}.waits").exists, PATIENCE_S, "the generator runs")
    front.proxy.down()
    go.touch()
    until(own_sandbox.report_path.exists, PATIENCE_S, "the report is on disk")
    assert living(tag) == []
    assert json.loads(own_sandbox.report_path.read_text())["outcome"] == "stalled"
    time.sleep(15)
    front.proxy.up()
    assert process.wait(180) == 124, own_sandbox.stderr()
    run = front.server.run_named(name)
    assert (run["state_type"], run["state_name"]) == ("FAILED", "Stalled"), run["state"]
    assert len(front.server.artifacts(run["id"])) >= 2


def test_a_server_that_never_comes_back_is_said_by_exit_code_and_report(front: Front, own_sandbox: Sandbox) -> None:
    tag, tree = own_sandbox.tree("plain", writes=1)
    go, command = told(own_sandbox, tree)
    process = generate(own_sandbox, front.proxy.url, "stall-gone", command, "--api-patience", "10s", window="2s")
    until(Path(f"{go}.waits").exists, PATIENCE_S, "the generator runs")
    front.proxy.down()
    go.touch()
    until(own_sandbox.report_path.exists, PATIENCE_S, "the report is on disk")
    assert living(tag) == []
    code = process.wait(300)
    report = json.loads(own_sandbox.report_path.read_text())
    assert report["outcome"] == "stalled"
    assert code == 124, own_sandbox.stderr()[-2000:]
    assert "no disk write activity detected for 2 s" in own_sandbox.stderr()
    assert "The Prefect API could not be told" in own_sandbox.stderr()


def test_a_slow_server_does_not_delay_detection(front: Front, own_sandbox: Sandbox) -> None:
    tag, tree = own_sandbox.tree("plain", writes=1)
    go, command = told(own_sandbox, tree)
    process = generate(own_sandbox, front.proxy.url, "slow", command, window="2s")
    until(Path(f"{go}.waits").exists, PATIENCE_S, "the generator runs")
    front.proxy.delay_s = 5.0
    go.touch()
    until(own_sandbox.report_path.exists, PATIENCE_S, "the report is on disk")
    assert living(tag) == []
    front.proxy.delay_s = 0.5  # the rest of the run's traffic needs no proof
    report = json.loads(own_sandbox.report_path.read_text())
    assert report["outcome"] == "stalled"
    assert 2 - 0.01 <= report["stop"]["decided_after_last_growth_s"] < 2 + 60  # how late on a quiet machine: make bench
    assert process.wait(180) == 124


SLOT = """
import logging, sys
from prefect_cachewatch import storage_slot
logging.basicConfig(level=logging.INFO)
with storage_slot(sys.argv[1], 1, logging.getLogger("own")):
    print("held", flush=True)
    if input() != "well":
        raise RuntimeError("the end of the work itself")
"""


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_slots_are_waited_for_until_the_server_is_back_and_one_that_keeps_them_changes_no_end(
    front: Front, own_sandbox: Sandbox, ends: str
) -> None:
    storage = f"slot-{ends}"
    front.server.request("POST", "/v2/concurrency_limits/", name=storage, limit=2, active=True)
    front.proxy.down()
    env = own_sandbox.env(PREFECT_HOME=str(own_sandbox.root / "home" / "prefect"), PREFECT_API_URL=front.proxy.url)
    said = own_sandbox.root / "out" / "stderr.txt"
    with said.open("wb") as stderr:
        process = own_sandbox.popen(
            [sys.executable, "-c", SLOT, storage], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
    assert process.stdin is not None and process.stdout is not None
    until(lambda: "asking again for 3 minutes" in own_sandbox.stderr(), 60, "it asks again")
    front.proxy.up()
    assert process.stdout.readline() == b"held\n", own_sandbox.stderr()
    assert front.server.request("GET", f"/v2/concurrency_limits/{storage}")["active_slots"] == 1
    front.proxy.down()
    process.stdin.write(f"{ends}\n".encode())
    process.stdin.close()
    code = process.wait(120)
    process.stdout.close()
    text = own_sandbox.stderr()
    assert (code, "RuntimeError: the end of the work itself" in text) == (
        (0, False) if ends == "well" else (1, True)
    ), text
    assert "The Prefect API answers again after" in text
    assert f"1 of 2 slots of {storage} could not be given back" in text
    assert "they are free after 5 minutes at the latest" in text
