"""Every flow can be served: it is pickled into each run's process, as `flow.serve` does it."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect import Flow
from prefect.flow_engine import run_flow
from prefect.utilities.callables import cloudpickle_wrapped_call
from tests.orchestration.test_fleet import children, job, new_tag, write_jobs
from tests.prefect_server import Server

import prefect_cachewatch.flows

MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(prefect_cachewatch.flows.__path__, "prefect_cachewatch.flows.")
]
FLOWS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Flow) and value.fn.__module__ == module.__name__
}
# Prefect is imported once, and each call is loaded in a child of its own: nothing of ours is there before it.
LOADS = """
import os, pickle, sys, cloudpickle, prefect, prefect.flow_engine
assert not [name for name in sys.modules if name.startswith("prefect_cachewatch")]
for call in pickle.load(sys.stdin.buffer):
    child = os.fork()
    if not child:
        fn, args, options = cloudpickle.loads(pickle.loads(call).args[0])
        print(options["flow"].name, sorted(options["flow"].parameters.properties)[0], flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed", flush=True)
"""


def test_all_flows_are_looked_at() -> None:
    assert {flow.name for flow in FLOWS.values()} == {
        "generate-cache", "deploy-cache", "generate-fleet", "follow-up-stall", "plan-capacity",
        "check-capacity",
    }  # fmt: skip


def pickled(flow: Any, by_value: bool) -> bytes:
    """By value is how Prefect takes along modules which are not installed: a checkout's, or a copy of ours."""
    for module in MODULES if by_value else []:
        cloudpickle.register_pickle_by_value(module)
    try:
        return pickle.dumps(cloudpickle_wrapped_call(run_flow, flow=flow))
    finally:
        for module in MODULES if by_value else []:
            cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.server
def test_every_flow_is_pickled_for_the_process_of_a_run() -> None:
    calls = {(name, by_value): pickled(flow, by_value) for name, flow in FLOWS.items() for by_value in (False, True)}
    done = subprocess.run(
        [sys.executable, "-c", LOADS], input=pickle.dumps([*calls.values()]), capture_output=True, timeout=150
    )
    assert done.returncode == 0, done.stderr.decode()
    found = dict(zip(calls, done.stdout.decode().splitlines(), strict=True))
    flows = {(name, by_value): FLOWS[name] for name, by_value in calls}
    assert found == {call: f"{flow.name} {min(flow.parameters.properties)}" for call, flow in flows.items()}


@pytest.mark.fleet
@pytest.mark.timeout(900)
def test_a_served_fleet_runs_its_jobs(server: Server, tmp_path: Path) -> None:
    script, tag = tmp_path / "serve.py", new_tag()
    script.write_text(
        "from prefect_cachewatch.flows.fleet.flow import generate_fleet\n"
        "if __name__ == '__main__':\n"
        "    generate_fleet.serve(name='served', pause_on_shutdown=False)\n"
    )
    path = write_jobs(tmp_path, tag, [job("one", tag, tmp_path), job("two", tag, tmp_path)])
    with server.client(sys.executable, script, folder=tmp_path):
        server.wait_for_deployment("generate-fleet/served")
        run_id = server.start_run("generate-fleet/served", {"jobs": str(path)})
        run = server.wait_final(run_id)
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    assert sorted(children(server, run_id)) == ["one", "two"]
