"""A real Prefect server: deployments, a process worker, schedules, retry and cancel from the API, serve."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prefect_server import BIN, Server, alive, end, wait_until_gone
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[2]
POLICIES = {
    "stall": {"stall_after_s": 2, "first_write_within_s": 20, "poll_s": 0.5},
    "stop": {"grace_s": 1},
    "retry": {"attempts": 1},
}
GROWS = """
import os, sys, time
for n in range(int(sys.argv[2])):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.2)
"""
HANGS = GROWS + "time.sleep(600)\n"


def parameters(cache: Path, code: str, tag: str, layers: int = 3) -> dict[str, Any]:
    return {
        "job": {
            "name": tag,
            "command": [sys.executable, "-c", code, str(cache), str(layers), tag],
            "cache_dirs": [str(cache)],
        },
        **POLICIES,
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
    for command in (
        ["work-pool", "create", "caches", "--type", "process"],
        ["deploy", "--prefect-file", "prefect.yaml", "--name", "nightly-cache"],
        ["deploy", "--prefect-file", "minutely.yaml", "--name", "minutely"],
    ):
        done = subprocess.run(
            [BIN / "prefect", *command], env=server.env, cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
    log = (folder / "worker.log").open("wb")
    worker = subprocess.Popen(
        [BIN / "prefect", "worker", "start", "--pool", "caches"],
        env=server.env, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    yield server
    end(worker)
    log.close()


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
    wait_until_gone(tag, 1)
    assert deployed.task_states(run_id) == {"generate-1": "Terminated", "monitor-1": "StallDetected"}
    assert sorted(deployed.artifacts(run_id)) == [f"cachewatch-{tag}-{what}" for what in ("listing", "report")]
    # Retry, as the button in the UI does it: a new process, the second run of the same flow run. Not before the worker has
    # cleared the first one away, which takes the working directory of both along with Prefect 3.7.
    deployed.wait_for_process(run_id)
    deployed.set_state(run_id, "SCHEDULED", "AwaitingRetry")
    deadline = time.monotonic() + 60
    while (run := deployed.flow_run(run_id))["run_count"] < 2 or run["state_type"] not in ("FAILED", "COMPLETED"):
        assert time.monotonic() < deadline, run["state"]
        time.sleep(0.2)
    assert (run["state_name"], run["run_count"]) == ("Stalled", 2)


@pytest.mark.parametrize(
    ("command", "state", "sentence"),
    [
        ([sys.executable, "-c", HANGS, "{cache}", "2", "{tag}"], "Stalled", "no disk write activity detected for 2 s"),
        ([sys.executable, "-c", "raise SystemExit('no such layer 4')"], "GeneratorFailed", "no such layer 4"),
        (["no-such-program-of-ours"], "Refused", "command 'no-such-program-of-ours' not found in PATH"),
    ],
    ids=["stalled", "failed", "refused"],
)
def test_the_log_of_a_run_that_failed_says_why_once_and_has_no_traceback_of_prefects_own(
    deployed: Server, tmp_path: Path, command: list[str], state: str, sentence: str
) -> None:
    tag = f"told-{uuid.uuid4().hex[:8]}"
    asked = parameters(tmp_path / "cache", HANGS, tag)
    asked["job"]["command"] = [
        word.format(cache=tmp_path / "cache", tag=tag) if "{" in word[:1] else word for word in command
    ]
    run_id = deployed.start_run(NIGHTLY, asked)
    assert deployed.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")["state_name"] == state
    deployed.wait_for_process(run_id)
    lines = deployed.log_lines(run_id, "Finished in state")
    told = [line["message"] for line in lines]
    assert not any("Traceback" in line or "NoneType" in line or "unexpected exception" in line for line in told), told
    assert [line["level"] for line in lines if sentence in line["message"] and "output" not in line["name"]] == [40], (
        told
    )
    assert f"Finished in state {state}" in told
    output = [line["message"] for line in lines if line["name"] == "cachewatch.output"]
    assert output == ([sentence] if state == "GeneratorFailed" else [])


def test_a_healthy_run_on_a_worker_is_completed(deployed: Server, tmp_path: Path) -> None:
    tag = f"healthy-{uuid.uuid4().hex[:8]}"
    run_id = deployed.start_run(NIGHTLY, parameters(tmp_path / "cache", GROWS, tag))
    run = deployed.wait_for_state(run_id, "FAILED", "COMPLETED", "CRASHED")
    assert run["state_type"] == "COMPLETED", run["state"]
    assert deployed.task_states(run_id) == {"generate-1": "Completed", "monitor-1": "Completed"}


def test_cancel_from_the_api_ends_cancelled_with_the_tree_gone(deployed: Server, tmp_path: Path) -> None:
    tag = f"cancel-{uuid.uuid4().hex[:8]}"
    # A daemon in a session of its own, deaf to SIGTERM: what survives a plain kill of the flow.
    code = (
        "import os, signal\nif os.fork() == 0:\n    os.setsid()\n    signal.signal(15, signal.SIG_IGN)\n"
        "    import time; time.sleep(600)\n" + GROWS
    )
    asked = parameters(tmp_path / "cache", code, tag, layers=3000) | {
        "outputs": {"report": str(tmp_path / "report.json")}
    }
    run_id = deployed.start_run(NIGHTLY, asked)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("cache/*.bin"))) < 3:
        assert time.monotonic() < deadline, deployed.flow_run(run_id)["state"]
        time.sleep(0.1)
    assert len(alive(tag)) >= 2
    deployed.set_state(run_id, "CANCELLING", "Cancelling")
    run = deployed.wait_for_state(run_id, "CANCELLED", "CRASHED", "COMPLETED", "FAILED")
    assert run["state_type"] == "CANCELLED", run["state"]
    wait_until_gone(tag, 5)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["outcome"], report["growth"]["files_present"] >= 3) == ("cancelled", True)
    assert report["listing"]["total_files"] == report["growth"]["files_present"]
    assert "was cancelled (the flow run was cancelled)" in report["message"]
    assert sorted(deployed.artifacts(run_id)) == [f"cachewatch-{tag}-listing", f"cachewatch-{tag}-report"]
    bundled = json.loads((Path(report["bundle"]) / "report.json").read_text())["diagnosis"]
    assert bundled["summary"].startswith("it was cancelled (the flow run was cancelled) after ")
    payload = deployed.wait_for_event(run_id, "cancelled")["payload"]
    assert payload["outcome"] == "cancelled"
    # Where it ran, in report and event: pids mean nothing without it.
    where = report["where"]
    assert payload["where"] == where
    assert (where["host"], where["attempts"], where["windows"]["stall_after_s"]) == (socket.gethostname(), 1, 2)
    assert where["worker"].startswith("ProcessWorker ") and where["flow_run"].endswith(f"/flow-run/{run_id}")
    assert Path(where["log"]).is_file()
    page = str(deployed.artifacts(run_id)[f"cachewatch-{tag}-report"]["data"])
    assert "1 of 1" in page and where["worker"] in page and where["log"] in page
    told = deployed.log_lines(run_id, "was cancelled (the flow run was cancelled)")
    assert sum("was cancelled (the flow run was cancelled)" in line["message"] for line in told) == 1


def test_a_run_that_is_cancelled_between_two_attempts_says_so(deployed: Server, tmp_path: Path) -> None:
    tag = f"between-{uuid.uuid4().hex[:8]}"
    asked = parameters(tmp_path / "cache", "raise SystemExit('no such layer')", tag) | {
        "retry": {"attempts": 3, "backoff_s": 300}
    }
    run_id = deployed.start_run(NIGHTLY, asked)
    deployed.log_lines(run_id, "attempt 1 of 3 ended failed", timeout_s=60)
    deployed.set_state(run_id, "CANCELLING", "Cancelling")
    assert deployed.wait_for_state(run_id, "CANCELLED", "CRASHED", "COMPLETED", "FAILED")["state_type"] == "CANCELLED"
    message = deployed.wait_for_event(run_id, "cancelled")["payload"]["message"]
    assert message.startswith("The run was cancelled in the pause before attempt 2 of 3. ")


def test_a_served_flow_runs_and_can_be_cancelled(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "from prefect_cachewatch.flows.generation import generate_cache\n"
        "if __name__ == '__main__':  # serve starts each run by importing this file anew\n"
        "    generate_cache.serve(name='served', pause_on_shutdown=False)\n"
    )
    log = (tmp_path / "serve.log").open("wb")
    serving = subprocess.Popen([sys.executable, script], env=server.env, cwd=tmp_path, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                tag = f"served-{uuid.uuid4().hex[:8]}"
                run_id = server.start_run(
                    "generate-cache/served", parameters(tmp_path / "cache", GROWS, tag, layers=3000)
                )
                break
            except Exception:
                assert time.monotonic() < deadline, (tmp_path / "serve.log").read_text()
                time.sleep(0.3)
        while len(list(tmp_path.glob("cache/*.bin"))) < 3:
            assert time.monotonic() < deadline + 60, server.flow_run(run_id)["state"]
            time.sleep(0.1)
        server.set_state(run_id, "CANCELLING", "Cancelling")
        run = server.wait_for_state(run_id, "CANCELLED", "CRASHED", "COMPLETED", "FAILED")
        assert run["state_type"] == "CANCELLED", run["state"]
        wait_until_gone(tag, 5)
    finally:
        end(serving)
        log.close()


def test_the_schedule_starts_a_run_by_itself(deployed: Server) -> None:
    deadline = time.monotonic() + 130
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
    assert eventually(lambda: len(alive(tag)) == 1)
    (server,) = alive(tag)
    assert f"left running as pid {server}" in run["state"]["message"]
    done = subprocess.run(
        [BIN / "cachewatch", "stop", tag], env=deployed.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.count("was stopped in")) == (0, 1), done
    wait_until_gone(tag)
