"""Faults of the Prefect API: down before the start, in mid-run, at the moment of the stall, for good; slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.faults.conftest import Fault, Front
from tests.faults.harness import Sandbox, living, until
from tests.prefect_server import PATIENCE_S, free_port

SECTION = "4 The API"
pytestmark = pytest.mark.timeout(400)


def generate(box: Sandbox, url: str, name: str, command: list[str], *options: str, window: str = "3s") -> Any:
    argv = box.cachewatch("generate", "--attempts", "1", "--name", name, "--cache-dir", str(box.cache))
    argv += ["--stall-after", window, "--first-write-within", "60s", "--poll", "1s", "--grace", "300ms"]
    argv += ["--report", str(box.report_path), *options, "--", *command]
    env = box.env(PREFECT_API_URL=url, PREFECT_HOME=str(box.root / "home" / "prefect"))
    with open(box.root / "out" / "stderr.txt", "wb") as stderr:
        return box.popen([*box.prelude, *argv], env=env, stderr=stderr, stdout=stderr)


def test_a_server_that_is_down_before_the_start_is_said_in_one_sentence(own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION, "down before the start", "nobody listens at PREFECT_API_URL", "one sentence, exit 125, nothing run"
    )
    url = f"http://127.0.0.1:{free_port()}/api"
    began = time.monotonic()
    process = generate(own_sandbox, url, "down", ["touch", str(own_sandbox.root / "ran")])
    assert process.wait(120) == 125
    text = own_sandbox.stderr()
    assert f"the Prefect API at {url} cannot be reached: start it with `prefect server start`" in text
    assert text.count("\n") == 1, text
    assert not (own_sandbox.root / "ran").exists()
    row.measured.append(("", f"exit 125 after {time.monotonic() - began:.1f} s"))


def test_a_server_that_is_down_in_mid_run_and_back_changes_nothing(
    front: Front, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION, "down in mid-run", "connections cut and refused for 90 s of a run", "Completed, artifact there, exit 0"
    )
    name = "mid-run"
    tag, command = own_sandbox.tree("plain", writes=520, interval_s=0.2, life_s=107)
    process = generate(own_sandbox, front.proxy.url, name, command, "--expect", "4MB", window="20s")
    until(lambda: living(tag), 90, "the generator runs")
    time.sleep(4)
    front.proxy.down()
    time.sleep(90)
    assert living(tag), "the generator ended with its server"
    front.proxy.up()
    assert process.wait(120) == 0, own_sandbox.stderr()
    run = front.server.run_named(name)
    assert run["state_type"] == "COMPLETED", run["state"]
    row.measured.append(("", f"Completed, artifacts: {len(front.server.artifacts(run['id']))}"))
    assert front.server.artifacts(run["id"])


def test_a_server_that_is_down_at_the_stall_gets_everything_when_it_is_back(
    front: Front, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "down at the moment of the stall, back later",
        "connections cut and refused from before the stall until 15 s after it",
        "tree stopped at once, report on disk, then state Stalled and artifacts delivered, exit 124",
    )
    name = "stall-down"
    tag, command = own_sandbox.tree("term_ignorer", writes=20, interval_s=0.2)
    process = generate(own_sandbox, front.proxy.url, name, command)
    until(lambda: len(os.listdir(own_sandbox.cache)) >= 3, 90, "the generator writes")
    front.proxy.down()
    until(lambda: len(os.listdir(own_sandbox.cache)) >= 20, PATIENCE_S, "it falls silent")
    gone_s = until(lambda: not living(tag), PATIENCE_S, "the tree is gone")
    report_s = until(own_sandbox.report_path.exists, PATIENCE_S, "the report is on disk")
    assert json.loads(own_sandbox.report_path.read_text())["outcome"] == "stalled"
    time.sleep(15)
    front.proxy.up()
    began = time.monotonic()
    assert process.wait(180) == 124, own_sandbox.stderr()
    delivered_s = time.monotonic() - began
    run = front.server.run_named(name)
    assert (run["state_type"], run["state_name"]) == ("FAILED", "Stalled"), run["state"]
    assert len(front.server.artifacts(run["id"])) >= 2
    row.measured.append(
        (
            "",
            f"tree gone {gone_s:.1f} s after the last write (window 3 s), report {report_s:.1f} s later, delivered {delivered_s:.1f} s after the API was back",
        )
    )


def test_a_server_that_never_comes_back_is_said_by_exit_code_and_report(
    front: Front, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "down at the moment of the stall, for good",
        "connections cut and refused from before the stall on",
        "tree stopped at once; exit 124 within a bounded time, the report on disk and stderr say so",
    )
    tag, command = own_sandbox.tree("plain", writes=20, interval_s=0.2)
    process = generate(own_sandbox, front.proxy.url, "stall-gone", command, "--api-patience", "10s")
    until(lambda: len(os.listdir(own_sandbox.cache)) >= 3, 90, "the generator writes")
    front.proxy.down()
    until(lambda: len(os.listdir(own_sandbox.cache)) >= 20, PATIENCE_S, "it falls silent")
    until(lambda: not living(tag), PATIENCE_S, "the tree is gone")
    began = time.monotonic()
    code = process.wait(300)
    took = time.monotonic() - began
    report = json.loads(own_sandbox.report_path.read_text())
    assert report["outcome"] == "stalled"
    assert code == 124, own_sandbox.stderr()[-2000:]
    assert "no disk write activity detected for 3 s" in own_sandbox.stderr()
    assert "The Prefect API could not be told" in own_sandbox.stderr()
    row.measured.append(("", f"exit 124 after {took:.0f} s (patience 10 s)"))


def test_a_slow_server_does_not_delay_detection(front: Front, own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(SECTION, "slow server", "5 s a request", "the decision waits for no answer (window 10 s), tree gone")
    tag, command = own_sandbox.tree("plain", writes=80, interval_s=0.2)
    process = generate(own_sandbox, front.proxy.url, "slow", command, window="10s")
    until(lambda: len(os.listdir(own_sandbox.cache)) >= 3, 120, "the generator writes")
    front.proxy.delay_s = 5.0
    until(own_sandbox.report_path.exists, 90, "the report is on disk")
    assert living(tag) == []
    front.proxy.delay_s = 0.5  # the rest of the run's traffic needs no proof
    report = json.loads(own_sandbox.report_path.read_text())
    late_s = report["stop"]["decided_after_last_growth_s"] - 10
    assert report["outcome"] == "stalled"
    assert 0 <= late_s < 60  # how late it is on a quiet machine is measured
    assert process.wait(180) == 124
    row.measured.append(("", f"decided {late_s:.3f} s after the window"))


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
    front: Front, own_sandbox: Sandbox, fault: Fault, ends: str
) -> None:
    row = fault(
        SECTION,
        f"down before and after `storage_slot`, its work ends {ends}",
        "connections refused until it has been asked; and again before the slots are given back",
        "the slots are waited for; how the work ends is what is seen; the slots' lease is told",
    )
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
    row.measured.append(("", "held"))
