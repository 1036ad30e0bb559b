"""Ends of a flow run on a real server: cancelled, terminated, killed, its worker killed before it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import SHAPES, Sandbox, living, wait_ready
from tests.prefect_server import Server, flow_process_of
from tests.support import PATIENCE_S

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


class Fleet(NamedTuple):
    server: Server
    folder: Path

    def worker(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return self.server.worker("faults", self.folder)


@pytest.fixture(scope="module")
def fleet(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The shared server with a work pool and a deployment to it."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "prefect.yaml").write_text(DEPLOYMENT)
    server.prefect("work-pool", "create", "faults", "--type", "process", cwd=folder)
    server.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", "faults", cwd=folder)
    (folder / "serve.py").write_text(SERVE)
    return Fleet(server, folder)


def parameters(box: Sandbox, name: str, command: list[str], stall_s: float = 120) -> dict[str, Any]:
    return {
        "job": {"name": name, "command": command, "cache_dirs": [str(box.cache)]},
        "stall": {"stall_after_s": stall_s, "first_write_within_s": 120, "poll_s": 0.5},
        "stop": {"grace_s": GRACE_S},
        "retry": {"attempts": 1},
    }


class Runs:
    """One flow run of each shape, side by side."""

    def __init__(self, server: Server, box: Sandbox, deployment: str) -> None:
        self.server = server
        self.ids: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        for shape in SHAPES:
            box.mkdir(f"cache-{shape}")
            box.cache_name = f"cache-{shape}"
            self.tags[shape], command = box.tree(shape, life_s=300, interval_s=0.5)
            self.ids[shape] = server.start_run(f"generate-cache/{deployment}", parameters(box, shape, command))
        for shape, tag in self.tags.items():
            wait_ready(tag, shape, 120)
        for run_id in self.ids.values():
            server.wait_for_state(run_id, "RUNNING")
        self.flows = {shape: flow_process_of(living(tag)) for shape, tag in self.tags.items()}

    def wait_gone(self) -> list[tuple[str, str]]:
        """Seconds until each tree was gone, from now."""
        began, took = time.monotonic(), dict[str, float]()
        while len(took) < len(self.tags):
            for shape, tag in self.tags.items():
                if shape not in took and not living(tag):
                    took[shape] = time.monotonic() - began
            left = {s: len(living(t)) for s, t in self.tags.items() if s not in took}
            assert time.monotonic() - began < PATIENCE_S or not left, f"left: {left}"
            time.sleep(0.02)
        return [(shape, f"{seconds:.2f} s") for shape, seconds in took.items()]

    def ends(self) -> set[str]:
        return {self.server.wait_final(run_id)["state_type"] for run_id in self.ids.values()}


@pytest.mark.parametrize("how", ["process worker", "serve"])
def test_cancel_from_the_api_ends_cancelled_with_every_tree_gone(
    how: str, fleet: Fleet, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        f"cancel from the API, {how}",
        "state Cancelling set through the API, a run of each shape",
        "Cancelled; no survivor",
    )
    serves = how == "serve"
    script = fleet.folder / "serve.py"
    with fleet.server.client(sys.executable, script, folder=fleet.folder) if serves else fleet.worker():
        if serves:
            fleet.server.wait_for_deployment("generate-cache/served")
        runs = Runs(fleet.server, own_sandbox, "served" if serves else "faults")
        for run_id in runs.ids.values():
            fleet.server.cancel(run_id)
        row.measured += runs.wait_gone()
        assert runs.ends() == {"CANCELLED"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_flow_process_that_is_ended_leaves_nobody_and_a_true_state(
    number: signal.Signals, fleet: Fleet, own_sandbox: Sandbox, fault: Fault
) -> None:
    row = fault(
        SECTION,
        f"{number.name} of the flow process",
        f"{number.name} of the flow process on a process worker, a run of each shape",
        "no survivor; Crashed, since no orphan holds the worker's pipe",
    )
    with fleet.worker():
        runs = Runs(fleet.server, own_sandbox, "faults")
        for flow in runs.flows.values():
            flow.send_signal(number)
        row.measured += runs.wait_gone()
        assert runs.ends() == {"CRASHED"}


def test_a_killed_worker_and_then_a_killed_flow_leave_nobody(fleet: Fleet, own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "SIGKILL of the worker, then of the flow",
        "nobody is left to set a state, a run of each shape",
        "flows and generators live on without their worker; no survivor after the flow's end",
    )
    with fleet.worker() as worker:
        runs = Runs(fleet.server, own_sandbox, "faults")
        worker.kill()
        worker.wait(10)
        assert all(living(tag) for tag in runs.tags.values())
        for flow in runs.flows.values():
            flow.kill()
        row.measured += runs.wait_gone()
    states = {fleet.server.flow_run(run_id)["state_type"] for run_id in runs.ids.values()}
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
    runs = {}
    with fleet.worker():
        for shape in SHAPES:
            own_sandbox.mkdir(f"cache-{shape}")
            own_sandbox.cache_name = f"cache-{shape}"
            tag, command = own_sandbox.tree(shape, writes=5, life_s=300)
            asked = parameters(own_sandbox, shape, command, stall_s=4)
            runs[shape] = (tag, fleet.server.start_run("generate-cache/faults", asked))
        for shape, (tag, run_id) in runs.items():
            run = fleet.server.wait_final(run_id, 240)
            assert (run["state_type"], run["state_name"]) == ("FAILED", "Stalled"), run["state"]
            assert living(tag) == []
            assert len(fleet.server.artifacts(run_id)) >= 2
            row.measured.append((shape, "Stalled"))
