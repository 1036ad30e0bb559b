"""Ends of a flow run on a real server: cancelled, terminated, killed, its worker killed before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import SHAPES, SLACK_S, Sandbox, living, slack_s, until, wait_ready
from tests.faults.prefect_server import Api, end, flow_process_of, prefect, start_server

SECTION = "1 Ends of the process"
GRACE_S = 0.5
DEPLOYMENT = """
deployments:
  - name: faults
    entrypoint: prefect_cachewatch.flows.generation.generate_cache
    work_pool: {name: faults}
"""
SERVE = """
from prefect_cachewatch.flows.generation import generate_cache

if __name__ == "__main__":  # serve starts each run by importing this file anew
    generate_cache.serve(name="served", pause_on_shutdown=False)
"""

pytestmark = pytest.mark.timeout(400)


class Fleet:
    """Server, worker pool and what is needed to run deployments on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process, self.env = start_server(folder, dict(os.environ) | {"CACHEWATCH_STATE": str(folder / "state")})
        self.api = Api(self.env["PREFECT_API_URL"])
        (folder / "prefect.yaml").write_text(DEPLOYMENT)
        prefect(self.env, "work-pool", "create", "faults", "--type", "process", cwd=folder)
        prefect(self.env, "deploy", "--prefect-file", "prefect.yaml", "--name", "faults", cwd=folder)
        self.clients: list[subprocess.Popen[bytes]] = []

    def start_client(self, *argv: str) -> subprocess.Popen[bytes]:
        with (self.folder / "client.log").open("ab") as log:
            process = subprocess.Popen(
                list(argv), env=self.env, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self.clients.append(process)
        return process

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self.start_client(str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", "faults")

    def start_serve(self) -> subprocess.Popen[bytes]:
        script = self.folder / "serve.py"
        script.write_text(SERVE)
        return self.start_client(sys.executable, str(script))

    def close(self) -> None:
        for client in self.clients:
            end(client)
        end(self.process)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    yield found
    found.close()


def parameters(box: Sandbox, name: str, command: list[str], stall_s: float = 120) -> dict[str, Any]:
    return {
        "job": {"name": name, "command": command, "cache_dirs": [str(box.cache)]},
        "stall": {"stall_after_s": stall_s, "first_write_within_s": 120, "poll_s": 0.5},
        "stop": {"grace_s": GRACE_S},
        "retry": {"attempts": 1},
    }


class Runs:
    """One flow run of each shape, side by side."""

    def __init__(self, fleet: Fleet, box: Sandbox, deployment: str) -> None:
        self.api = fleet.api
        self.ids: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        for shape in SHAPES:
            box.mkdir(f"cache-{shape}")
            box.cache_name = f"cache-{shape}"
            self.tags[shape], command = box.tree(shape, life_s=150, interval_s=0.5)
            self.ids[shape] = self.api.start(f"generate-cache/{deployment}", parameters(box, shape, command))
        for shape, tag in self.tags.items():
            wait_ready(tag, shape, 120)
        until(lambda: all(self.api.run(i)["state_type"] == "RUNNING" for i in self.ids.values()), 30, "all run")
        self.flows = {shape: flow_process_of(tag) for shape, tag in self.tags.items()}

    def wait_gone(self, limit_s: float) -> dict[str, float]:
        """Seconds until each tree was gone, from now."""
        began, took = time.monotonic(), dict[str, float]()
        while len(took) < len(self.tags):
            for shape, tag in self.tags.items():
                if shape not in took and not living(tag):
                    took[shape] = time.monotonic() - began
            left = {s: len(living(t)) for s, t in self.tags.items() if s not in took}
            assert time.monotonic() - began < limit_s or not left, f"left after {limit_s:g} s: {left}"
            time.sleep(0.02)
        return took


@pytest.mark.parametrize("how", ["process worker", "serve"])
def test_cancel_from_the_api_ends_cancelled_with_every_tree_gone(
    how: str, fleet: Fleet, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        f"cancel from the API, {how}",
        "state Cancelling set through the API, a run of each shape",
        f"Cancelled; no survivor within the {how}'s poll + grace + {SLACK_S:g} s",
    )
    client = fleet.start_worker() if how != "serve" else fleet.start_serve()
    if how == "serve":
        until(
            lambda: any(d["name"] == "served" for d in fleet.api.ask("POST", "/deployments/filter", limit=50)),
            60,
            "it serves",
        )
    runs = Runs(fleet, own_sandbox, "faults" if how != "serve" else "served")
    for run_id in runs.ids.values():
        fleet.api.cancel(run_id)
    took = runs.wait_gone(30 + GRACE_S + slack_s())
    states = {shape: fleet.api.wait_final(run_id) for shape, run_id in runs.ids.items()}
    assert {shape: run["state_type"] for shape, run in states.items()} == dict.fromkeys(SHAPES, "CANCELLED")
    row.measured += [(shape, f"{seconds:.1f} s") for shape, seconds in took.items()]
    end(client)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_flow_process_that_is_ended_leaves_nobody_and_a_true_state(
    number: signal.Signals, fleet: Fleet, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        f"{number.name} of the flow process",
        f"{number.name} of the flow process on a process worker, a run of each shape",
        f"no survivor within grace + {SLACK_S:g} s; Crashed at once, since no orphan holds the worker's pipe",
    )
    worker = fleet.start_worker()
    runs = Runs(fleet, own_sandbox, "faults")
    for flow in runs.flows.values():
        flow.send_signal(number)
    began = time.monotonic()
    took = runs.wait_gone(GRACE_S + slack_s())
    for run_id in runs.ids.values():
        assert fleet.api.wait_final(run_id, 30)["state_type"] == "CRASHED"
    seen_s = time.monotonic() - began
    row.measured += [(shape, f"{seconds:.2f} s") for shape, seconds in took.items()]
    row.measured.append(("all Crashed within", f"{seen_s:.1f} s"))
    end(worker)


def test_a_killed_worker_and_then_a_killed_flow_leave_nobody(fleet: Fleet, own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "SIGKILL of the worker, then of the flow",
        "nobody is left to set a state, a run of each shape",
        f"flows and generators live on without their worker; no survivor within grace + {SLACK_S:g} s of the flow's end",
    )
    worker = fleet.start_worker()
    runs = Runs(fleet, own_sandbox, "faults")
    worker.kill()
    worker.wait(10)
    time.sleep(2)
    assert all(living(tag) for tag in runs.tags.values())
    for flow in runs.flows.values():
        flow.kill()
    took = runs.wait_gone(GRACE_S + slack_s())
    states = {fleet.api.run(run_id)["state_type"] for run_id in runs.ids.values()}
    row.measured += [(shape, f"{seconds:.2f} s") for shape, seconds in took.items()]
    row.measured.append(("state with nobody left to set it", ", ".join(sorted(states)).lower()))


def test_a_stall_of_every_shape_ends_stalled_with_the_tree_gone(
    fleet: Fleet, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "stall of a flow run",
        "writing ends, the tree lives on, a run of each shape",
        "Failed, named Stalled; no survivor",
    )
    worker = fleet.start_worker()
    runs = {}
    for shape in SHAPES:
        own_sandbox.mkdir(f"cache-{shape}")
        own_sandbox.cache_name = f"cache-{shape}"
        tag, command = own_sandbox.tree(shape, writes=5, life_s=150)
        runs[shape] = (
            tag,
            fleet.api.start("generate-cache/faults", parameters(own_sandbox, shape, command, stall_s=4)),
        )
    for shape, (tag, run_id) in runs.items():
        run = fleet.api.wait_final(run_id, 150)
        assert (run["state_type"], run["state_name"]) == ("FAILED", "Stalled"), run["state"]
        assert living(tag) == []
        assert len(fleet.api.artifacts(run_id)) >= 2
        row.measured.append((shape, "Stalled"))
    end(worker)
