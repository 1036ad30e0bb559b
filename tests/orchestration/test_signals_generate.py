"""Signals of `cachewatch generate`: the generator's are passed on, Ctrl-Z suspends it, the rest cancel the flow run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.contract.harness import state
from tests.prefect_server import Server
from tests.support import CACHEWATCH, PATIENCE_S, assert_none_left, eventually, new_tag, program, running, tagged

LISTENER = """
    import os, signal, sys, time
    out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.write(out, b"%d\\n" % number))
    os.write(out, b"ready\\n")
    end = time.monotonic() + 100
    while time.monotonic() < end and not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.02)
"""


def argv(tmp_path: Path, tag: str) -> list[str]:
    options = [
        "--name", tag, "--allow-empty", "--attempts", "1", "--grace", "0.5s", "--no-bundle", "--poll", "0.3s",
        "--report", str(tmp_path / "r.json"),
    ]  # fmt: skip
    command = [*program(LISTENER, tag), str(tmp_path / "heard")]
    return [*CACHEWATCH, "generate", "--cache-dir", str(tmp_path / "cache"), *options, "--", *command]


def flow_run(server: Server, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = server.request("POST", "/flow_runs/filter", flow_runs={"name": {"any_": [name]}})
    return found[0] if found else {}


def events(server: Server, run_id: str) -> list[str]:
    wanted = {"related": {"id": [f"prefect.flow-run.{run_id}"]}}
    return [event["event"] for event in server.request("POST", "/events/filter", filter=wanted)["events"]]


def test_usr1_reaches_the_generator_and_ctrl_z_suspends_it(tmp_path: Path, server: Server):
    tag, heard = new_tag(), tmp_path / "heard"
    with running(argv(tmp_path, tag), env=server.env, stderr=None, stdout=None) as process:
        assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n", 4 * PATIENCE_S)
        process.send_signal(signal.SIGUSR1)
        assert eventually(lambda: heard.read_text() == "ready\n10\n")
        (pid,) = tagged(tag)
        process.send_signal(signal.SIGTSTP)
        assert eventually(lambda: state(process.pid) == state(pid) == "T")
        process.send_signal(signal.SIGCONT)
        assert eventually(lambda: heard.read_text() == "ready\n10\n18\n")
        (tmp_path / "heard.end").touch()
        assert process.wait(4 * PATIENCE_S) == 0
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "completed"


def test_a_hangup_cancels_the_run_with_a_report(tmp_path: Path, server: Server):
    tag, heard = new_tag(), tmp_path / "heard"
    with running(argv(tmp_path, tag), env=server.env, stderr=None, stdout=None) as process:
        assert eventually(lambda: heard.exists() and heard.read_text() == "ready\n", 4 * PATIENCE_S)
        process.send_signal(signal.SIGHUP)
        assert process.wait(4 * PATIENCE_S) == 128 + signal.SIGHUP
    assert_none_left(tag)
    assert json.loads((tmp_path / "r.json").read_text())["outcome"] == "cancelled"
    assert {"1", "15"} <= set(heard.read_text().split())
    run = flow_run(server, tag)
    assert run["state_type"] == "CANCELLED"  # Crashed is a fault, which somebody is woken for
    assert run["state"]["message"].startswith("Tensor cache generation was cancelled")
    assert eventually(lambda: "cachewatch.generation.cancelled" in events(server, run["id"]))


def test_ctrl_c_before_the_generator_exists_cancels_the_run_and_starts_nothing(tmp_path: Path, server: Server):
    # It waits for a slot that another one holds: the run has begun, and no attempt has.
    tag = new_tag()
    limit = {"name": tag, "limit": 1, "active": True}
    server.request("POST", "/v2/concurrency_limits/", **limit)
    server.request("POST", "/v2/concurrency_limits/increment", names=[tag], slots=1, mode="concurrency")
    words = argv(tmp_path, tag)
    words[words.index("--name") : words.index("--name")] = ["--storage", tag]
    with running(words, env=server.env, stderr=None, stdout=None) as process:
        assert eventually(lambda: flow_run(server, tag).get("state_type") == "RUNNING", 4 * PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(4 * PATIENCE_S) == 130
    assert not (tmp_path / "heard").exists()
    run = flow_run(server, tag)
    assert run["state_type"] == "CANCELLED"
