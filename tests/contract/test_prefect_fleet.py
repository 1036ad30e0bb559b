"""A fleet on one host and a real Prefect server: failures first, a run a job, and the limit of its storage kept."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.contract.on_prefect import HANGS, WELL, WRITES
from tests.prefect_server import PATIENCE_S, Server
from tests.support import assert_none_left

SCRIPT = """
import json, logging, sys
from prefect_cachewatch import InputError, generate_fleet, storage_slot

state = generate_fleet(sys.argv[1], return_state=True)
logger, active = logging.getLogger("own"), []
with storage_slot(sys.argv[2], 1, logger):
    active.append(sys.argv[2])
try:
    with storage_slot(sys.argv[2] + "-missing", 1, logger):
        active.append("without a limit")
except InputError as error:
    active.append(error.message)
print("answer", json.dumps([str(state.state_details.flow_run_id), active]))
"""
# Each says when it began and ended.
MARKS = (
    "import sys, time\nlog = open(sys.argv[2], 'a', buffering=1)\nlog.write(f'{time.monotonic()} 1\\n')\n"
    f"{WRITES}time.sleep(0.5)\nlog.write(f'{{time.monotonic()}} -1\\n')\n"
)


@pytest.fixture(scope="module")
def fleet(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What Prefect has of a fleet of four jobs, and of its jobs by name."""
    folder, name = tmp_path_factory.mktemp("fleet"), f"fleet-{uuid.uuid4().hex[:8]}"
    jobs = [
        {
            "name": job, "cache_dirs": [str(folder / job)], "storage": {"name": name},
            "command": [sys.executable, "-c", code, str(folder / job), str(folder / "marks")],
            **({"stall": HANGS} if job == "hangs" else {}),
        }
        for job, code in (("good", MARKS), ("well", MARKS), ("hangs", WRITES + "time.sleep(600)"), ("fails", WRITES + "sys.exit(3)"))
    ]  # fmt: skip
    policy = {"poll_s": 0.5, "table_every_s": 1, "missing_limit": "create:1", "max_parallel": 4}
    defaults = {"stall": WELL, "stop": {"grace_s": 1}, "retry": {"attempts": 1}}
    asked = {"version": 1, "name": name, "policy": policy, "defaults": defaults, "jobs": jobs}
    (folder / "jobs.yaml").write_text(json.dumps(asked))
    argv = [sys.executable, "-c", SCRIPT, str(folder / "jobs.yaml"), name]
    done = subprocess.run(argv, env=server.env, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    answers = [line.removeprefix("answer ") for line in done.stdout.splitlines() if line.startswith("answer ")]
    assert answers, done.stderr
    run_id, slots = json.loads(answers[0])
    children = {"parent_flow_run_id": {"any_": [run_id]}}
    yield {
        "name": name,
        "folder": folder,
        "run": server.flow_run(run_id),
        "slots": slots,
        "jobs": {run["name"]: run for run in server.request("POST", "/flow_runs/filter", flow_runs=children)},
        "artifacts": server.artifacts(run_id),
        "limit": server.request("GET", f"/v2/concurrency_limits/{name}"),
    }
    assert_none_left(str(folder), 60)


def test_a_fleet_that_failed_in_part_says_so_and_names_the_first_that_did(fleet: dict[str, Any]) -> None:
    run = fleet["run"]
    assert (run["state_type"], run["state_name"], run["name"]) == ("FAILED", "PartlyFailed", fleet["name"])
    first, *lines = run["state"]["message"].split("; then: ")
    assert first.startswith(
        f"Fleet '{fleet['name']}': 2 of 4 caches are there; 2 failed. First: fails is GeneratorFailed ("
    )
    assert [line.partition(" (")[0] for line in lines] == ["hangs is Stalled"]


def test_each_job_is_a_run_below_the_fleet_s_with_a_state_of_its_own(fleet: dict[str, Any]) -> None:
    states = {"good": "Completed", "well": "Completed", "hangs": "Stalled", "fails": "GeneratorFailed"}
    assert {name: run["state_name"] for name, run in fleet["jobs"].items()} == states
    assert all(f"cachewatch-fleet:{fleet['name']}" in run["tags"] for run in fleet["jobs"].values())


def test_the_only_table_has_the_failures_first_each_with_its_cause_and_next_step(fleet: dict[str, Any]) -> None:
    ((key, table),) = fleet["artifacts"].items()
    assert (key, table["type"]) == (f"cachewatch-fleet-{fleet['name']}", "table")
    *rows, total = json.loads(table["data"])
    assert [row["job"] for row in rows] == ["fails", "hangs", "good", "well"]
    assert total["job"] == "total: 4 jobs"
    for row in rows:
        failed = row["job"] in ("fails", "hangs")
        assert (bool(row["cause"]), bool(row["next"])) == (failed, failed)
        assert fleet["jobs"][row["job"]]["id"] in row["run"]
        assert row["attempts"] == "1"
    assert all(row["bytes"] == "48.8 KiB" and row["time"] for row in rows[2:])


def test_a_storages_limit_keeps_its_jobs_apart_and_all_slots_are_given_back(fleet: dict[str, Any]) -> None:
    assert (fleet["limit"]["limit"], fleet["limit"]["active_slots"]) == (1, 0)
    marks = [line.split() for line in Path(fleet["folder"], "marks").read_text().splitlines()]
    assert len(marks) == 4
    assert max(accumulate(int(step) for _, step in sorted((float(at), step) for at, step in marks))) == 1
    *rows, _ = json.loads(next(iter(fleet["artifacts"].values()))["data"])
    assert sum(row["wait"] not in ("", "0 s") for row in rows) >= 2


def test_a_slot_for_work_of_ones_own_needs_a_limit(fleet: dict[str, Any]) -> None:
    held, refused = fleet["slots"]
    assert held == fleet["name"]
    assert refused.startswith(f"there is no concurrency limit for the storage {held}-missing: create it")
