"""Ends of a flow run on a real server: cancelled, terminated, killed, its worker killed before it."""

from __future__ import annotations

import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.harness import SHAPES, Sandbox, living, until, wait_ready
from tests.prefect_server import Server, flow_process_of
from tests.support import PATIENCE_S

DEPLOYMENT = """
deployments:
  - name: faults
    entrypoint: prefect_cachewatch.flows.generation.generate_cache
    work_pool: {name: faults}
"""
pytestmark = pytest.mark.timeout(900)


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
    return Fleet(server, folder)


def parameters(box: Sandbox, name: str, command: list[str]) -> dict[str, Any]:
    return {
        "job": {"name": name, "command": command, "cache_dirs": [str(box.cache)]},
        "stall": {"stall_after_s": 300, "first_write_within_s": 300, "poll_s": 0.5},
        "stop": {"grace_s": 0.5},
        "retry": {"attempts": 1},
    }


class Runs:
    """One flow run of each shape, side by side."""

    def __init__(self, server: Server, box: Sandbox) -> None:
        self.server = server
        self.ids: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        for shape in SHAPES:
            box.mkdir(f"cache-{shape}")
            box.cache_name = f"cache-{shape}"
            self.tags[shape], command = box.tree(shape, life_s=300, interval_s=0.5)
            self.ids[shape] = server.start_run("generate-cache/faults", parameters(box, shape, command))
        for shape, tag in self.tags.items():
            wait_ready(tag, shape, 300)  # six flows start at once
        for run_id in self.ids.values():
            server.wait_for_state(run_id, "RUNNING")
        self.flows = {shape: flow_process_of(living(tag)) for shape, tag in self.tags.items()}

    def wait_gone(self) -> None:
        for shape, tag in self.tags.items():
            until(lambda tag=tag: not living(tag), PATIENCE_S, f"the {shape} tree is gone")

    def ends(self) -> set[str]:
        return {self.server.wait_final(run_id)["state_type"] for run_id in self.ids.values()}


def test_cancel_from_the_api_ends_cancelled_with_every_tree_gone(fleet: Fleet, own_sandbox: Sandbox) -> None:
    with fleet.worker():
        runs = Runs(fleet.server, own_sandbox)
        for run_id in runs.ids.values():
            fleet.server.cancel(run_id)
        runs.wait_gone()
        assert runs.ends() == {"CANCELLED"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_flow_process_that_is_ended_leaves_nobody_and_a_true_state(
    number: signal.Signals, fleet: Fleet, own_sandbox: Sandbox
) -> None:
    with fleet.worker():
        runs = Runs(fleet.server, own_sandbox)
        for flow in runs.flows.values():
            flow.send_signal(number)
        runs.wait_gone()
        assert runs.ends() == {"CRASHED"}


def test_a_killed_worker_and_then_a_killed_flow_leave_nobody(fleet: Fleet, own_sandbox: Sandbox) -> None:
    with fleet.worker() as worker:
        runs = Runs(fleet.server, own_sandbox)
        worker.kill()
        worker.wait()
        assert all(living(tag) for tag in runs.tags.values())
        for flow in runs.flows.values():
            flow.kill()
        runs.wait_gone()
