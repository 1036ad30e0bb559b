"""The scale test, small: the same server, workers, faults and judgement as `make scale`, with a dozen runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest

from tests.scale.campaign import GENERATOR, Campaign, Plan
from tests.scale.meter import Meter
from tests.scale.review import look_for_survivors
from tests.scale.services import MissingPart, Stack, find_parts
from tests.support import unavailable

PLAN = Plan(
    runs=12,
    workers=2,
    limit=3,
    seconds=10,
    stalling=0.17,
    failing=0.09,
    slots=5,
    kill_flow_at=None,
    kill_worker_at=0.15,
    restart_server_at=0.5,
    down_s=3,
    pending_s=75,
    worker_query_s=5,
    timeout_s=400,
)


pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def parts() -> None:
    try:
        find_parts()
    except MissingPart as error:
        unavailable(str(error))


def test_a_process_or_file_that_a_run_left_is_found_and_ended() -> None:
    stack = Stack({}, {})
    try:
        meter = Meter(stack.mark, str(GENERATOR))
        meter.start()
        env = stack.client_env | {"PREFECT__FLOW_RUN_ID": "b2c7"}
        left = subprocess.Popen(["sleep", "600"], env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        (stack.root / "state" / "runs").mkdir(parents=True)
        (stack.root / "state" / "runs" / "abc.run").touch()
        assert look_for_survivors(stack, meter, within_s=0) == [
            f"pid {left.pid} survived its run: sleep 600 ",
            "1 state files of runs are left: abc.run",
        ]
        meter.stop()
    finally:
        stack.close()
        shutil.rmtree(stack.root)
    assert left.wait(10) == -signal.SIGTERM
    assert stack.marked() == []


def test_a_fleet_ends_in_its_true_states_though_a_worker_is_killed_and_the_server_restarted() -> None:
    campaign = Campaign(PLAN)
    result = campaign.run()
    said = "\n".join(result.events)
    assert result.problems == [], said
    assert "SIGKILL of worker-1" in said
    assert "the server is back" in said
    assert sum(result.happened.values()) == PLAN.runs
    assert result.happened["finished"] >= 3
    # Every figure was really measured.
    figures = result.figures
    assert figures["database"]["total_bytes"] > 0
    assert figures["database"]["rows"]["flow_run"] == PLAN.runs
    assert figures["requests_per_run"] > 10
    assert figures["requests_of_a_worker_per_minute"] > 1
    assert all(
        figures["processor_s"][role] > 0 for role in ("flow", "guard", "scanner", "worker", "server", "postgres")
    )
    assert figures["requeued"] >= 1
    assert figures["slots_back_after_s"] < 360
    # Nothing of it is left, on disk or as a process.
    assert campaign.stack.marked() == []
    assert campaign.stack.processes == {}
    assert not os.path.exists(campaign.stack.root)
