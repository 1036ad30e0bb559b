"""A real Prefect server: deployments, a process worker, schedules, retry and cancel from the API, serve."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prefect_server import BIN, PATIENCE_S, Server
from tests.support import assert_none_left, eventually, tagged

ROOT = Path(__file__).resolve().parents[2]
GROWS = """
import os, sys, time
for n in range(int(sys.argv[2])):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.2)
"""
HANGS = GROWS.replace("range(int(sys.argv[2]))", "range(1)") + "time.sleep(600)\n"


def parameters(cache: Path, code: str, tag: str, layers: int = 3) -> dict[str, Any]:
    return {
        "job": {
            "name": tag,
            "command": [sys.executable, "-c", code, str(cache), str(layers), tag],
            "cache_dirs": [str(cache)],
        },
        # Only what writes once and hangs for good has a short window.
        "stall": {"stall_after_s": 2 if code == HANGS else 300, "first_write_within_s": 300, "poll_s": 0.5},
        "stop": {"grace_s": 1},
        "retry": {"attempts": 1},
    }


@pytest.fixture(scope="module")
def deployed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The project's own prefect.yaml deployed, once as it is and once with a schedule of every minute, and a worker."""
    folder = tmp_path_factory.mktemp("deploy")
    text = (ROOT / "deployments" / "prefect.yaml").read_text()
    scheduled = json.dumps(parameters(folder / "scheduled", GROWS, "scheduled"))
    (folder / "prefect.yaml").write_text(text)
    (folder / "minutely.yaml").write_text(
        text.partition("deployments:")[0]
        + f"""deployments:
  - name: minutely
    entrypoint: prefect_cachewatch.flows.generate_cache
    work_pool: {{name: caches}}
    schedules: [{{cron: "* * * * *"}}]
    parameters: {scheduled}
"""
    )
    server.prefect("work-pool", "create", "caches", "--type", "process", cwd=folder)
    server.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", "nightly-cache", cwd=folder)
    server.prefect("deploy", "--prefect-file", "minutely.yaml", "--name", "minutely", cwd=folder)
    with server.worker("caches", folder):
        yield server


NIGHTLY = "generate-cache/nightly-cache"


def test_the_deployment_carries_its_cron_schedule_and_its_form(deployed: Server) -> None:
    found = deployed.request("GET", f"/deployments/name/{NIGHTLY}")
    assert [s["schedule"]["cron"] for s in found["schedules"]] == ["30 2 * * *"]
    schema = json.dumps(found["parameter_openapi_schema"])
    assert "No growth for this long is a stall; counted once writing has begun." in schema


def test_a_stall_on_a_worker_is_failed_named_stalled_and_leaves_nothing(deployed: Server, tmp_path: Path) -> None:
    tag = f"stall-{uuid.uuid4().hex[:8]}"
    run_id = deployed.start_run(NIGHTLY, parameters(tmp_path / "cache", HANGS, tag))
    run = deployed.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    assert (run["state_type"], run["state_name"]) == ("FAILED", "Stalled")
    assert "no disk write activity detected for 2 s" in run["state"]["message"]
    assert_none_left(tag)
    assert deployed.task_states(run_id) == {"generate-1": "Terminated", "monitor-1": "StallDetected"}
    assert sorted(deployed.artifacts(run_id)) == [f"cachewatch-{tag}-{what}" for what in ("listing", "report")]
    # Retry, as the button in the UI does it: a new process, the second run of the same flow run. Not before the worker has
    # cleared the first one away, which takes the working directory of both along with Prefect 3.7.
    deployed.wait_for_process(run_id)
    deployed.set_state(run_id, "SCHEDULED", "AwaitingRetry")
    deadline = time.monotonic() + PATIENCE_S
    while (run := deployed.flow_run(run_id))["run_count"] < 2 or run["state_type"] not in ("FAILED", "COMPLETED"):
        assert time.monotonic() < deadline, run["state"]
        time.sleep(0.2)
    assert (run["state_name"], run["run_count"]) == ("Stalled", 2)


def test_a_served_flow_runs_and_can_be_cancelled(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "from prefect_cachewatch.flows.generation import generate_cache\n"
        "if __name__ == '__main__':  # serve starts each run by importing this file anew\n"
        "    generate_cache.serve(name='served', pause_on_shutdown=False)\n"
    )
    tag = f"served-{uuid.uuid4().hex[:8]}"
    with server.client(sys.executable, script, folder=tmp_path):
        server.wait_for_deployment("generate-cache/served")
        run_id = server.start_run("generate-cache/served", parameters(tmp_path / "cache", GROWS, tag, layers=3000))
        assert eventually(lambda: len(list(tmp_path.glob("cache/*.bin"))) >= 3, 120), server.flow_run(run_id)["state"]
        server.cancel(run_id)
        run = server.wait_final(run_id)
        assert run["state_type"] == "CANCELLED", run["state"]
        assert_none_left(tag, 60)


def test_the_schedule_starts_a_run_by_itself(deployed: Server) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        runs = deployed.request("POST", "/flow_runs/filter", deployments={"name": {"any_": ["minutely"]}})
        done = [run for run in runs if run["state_type"] == "COMPLETED"]
        if done:
            break
        assert time.monotonic() < deadline, [(run["state_type"], run["state"]["message"]) for run in runs]
        time.sleep(0.5)
    assert done[0]["auto_scheduled"] is True


SERVES = """
import http.server, os, sys, time
open(os.path.join(sys.argv[1], "layer.bin"), "wb").write(os.urandom(50_000))
time.sleep(1)
print("startup complete", flush=True)
http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler).serve_forever()
"""


def test_a_server_that_a_worker_has_started_outlives_its_run_and_is_stopped_by_its_record(
    deployed: Server, tmp_path: Path
) -> None:
    tag = f"serve-{uuid.uuid4().hex[:8]}"
    asked = parameters(tmp_path / "cache", SERVES, tag)
    asked["job"]["ready"] = {"kind": "log", "pattern": "startup complete"}
    run_id = deployed.start_run(NIGHTLY, asked)
    run = deployed.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    assert (run["state_type"], run["state_name"]) == ("COMPLETED", "Ready")
    # The flow's process and its guards end by themselves.
    assert eventually(lambda: len(tagged(tag)) == 1)
    (server,) = tagged(tag)
    assert f"left running as pid {server}" in run["state"]["message"]
    done = subprocess.run(
        [BIN / "cachewatch", "stop", tag], env=deployed.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.count("was stopped in")) == (0, 1), done
    assert_none_left(tag)
