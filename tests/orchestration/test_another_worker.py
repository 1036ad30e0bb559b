"""A retry that another worker of the pool makes: a real Prefect server, real process workers, real generators."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.orchestration.conftest import BIN, Server, end
from tests.support import eventually

pytestmark = pytest.mark.timeout(600)
FINAL = ("FAILED", "COMPLETED", "CRASHED", "CANCELLED")
NOT_OF_A_HANDOVER = ("Traceback", "unexpected exception", "non-zero status", "Crashed", "base exception")
# At the first attempt its storage fails; the next one goes on with what is there.
FAILS_ONCE = """
import os, sys, time
cache, told = sys.argv[1:3]
there = sorted(name for name in os.listdir(cache) if name.startswith("layer"))
first = not os.path.exists(told)
with open(told, "a") as file:
    print(os.environ["OF_WORKER"], *there, file=file)
for number in (len(there), len(there) + 1):
    open(os.path.join(cache, f"layer{number}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(3)
if first or "always" in sys.argv:
    raise OSError(5, "Input/output error", os.path.join(cache, "b.bin"))
"""


@pytest.fixture(scope="module")
def pool(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A work pool, with the generation and the fleet deployed to it."""
    folder = tmp_path_factory.mktemp("another-worker")
    (folder / "prefect.yaml").write_text(
        "pull: null\ndeployments:\n"
        "  - {name: handed, entrypoint: prefect_cachewatch.flows.generate_cache, work_pool: {name: handed},\n"
        "     concurrency_limit: 1}\n"
        "  - {name: free, entrypoint: prefect_cachewatch.flows.generate_cache, work_pool: {name: handed}}\n"
        "  - {name: handed-fleet, entrypoint: prefect_cachewatch.flows.generate_fleet, work_pool: {name: handed}}\n"
    )
    for command in (
        ["work-pool", "create", "handed", "--type", "process"],
        ["deploy", "--prefect-file", "prefect.yaml", "--all"],
    ):
        done = subprocess.run(
            [BIN / "prefect", *command], env=server.env, cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return server


@contextlib.contextmanager
def worker(server: Server, folder: Path, name: str) -> Iterator[Path]:
    """A worker with a state directory of its own, as on a machine of its own; yields its log."""
    log = folder / f"{name}.log"
    env = server.env | {"OF_WORKER": name, "CACHEWATCH_STATE": str(folder / name)}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [BIN / "prefect", "worker", "start", "--pool", "handed", "--name", f"{name}-{uuid.uuid4().hex[:6]}"],
            env=env, cwd=folder, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield log
        finally:
            end(process)


def parameters(folder: Path, *more: str, **retry: Any) -> dict[str, Any]:
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    command = [sys.executable, "-c", FAILS_ONCE, str(cache), str(folder / "told"), *more]
    return {
        "job": {"name": f"handed-{uuid.uuid4().hex[:8]}", "command": command, "cache_dirs": [str(cache)]},
        "stall": {"stall_after_s": 30, "first_write_within_s": 30, "poll_s": 0.5},
        "stop": {"grace_s": 1},
        "retry": {"another_worker": True, "backoff_s": 1, **retry},
    }


def states(server: Server, run_id: str) -> list[str]:
    """The names of a run's states, the first one first; a worker's own notes of what it prepares left out."""
    found = server.request("GET", f"/flow_run_states/?flow_run_id={run_id}")
    names = [state["name"] for state in sorted(found, key=lambda state: str(state["timestamp"]))]
    return [name for name in names if name not in ("Submitting", "InfrastructurePending", "Late")]


def wait_for_handover(server: Server, run_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while (run := server.flow_run(run_id))["state_name"] != "AwaitingRetry":
        assert run["state_type"] not in FINAL, run["state"]
        assert time.monotonic() < deadline, run["state"]
        time.sleep(0.2)
    return run


def reports(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in folder.glob("generations/*/report-*.json")}


def test_another_worker_goes_on_with_the_cache_and_with_the_count_of_attempts(pool: Server, tmp_path: Path) -> None:
    storage = f"nfs-{uuid.uuid4().hex[:6]}"
    pool.request("POST", "/v2/concurrency_limits/", name=storage, limit=1)
    asked = parameters(tmp_path, backoff_s=40, jitter=0) | {"storage": {"name": storage}}
    with worker(pool, tmp_path, "first") as first_log:
        run_id = pool.start_run("generate-cache/handed", asked)
        waiting = wait_for_handover(pool, run_id)
        assert waiting["state"]["message"] == (
            "attempt 1 of 3 ended failed: again after 40 s, by any free worker of the pool, because the storage may answer"
        )
        assert waiting["infrastructure_pid"] is None
        deployment = pool.request("GET", f"/deployments/{waiting['deployment_id']}")
        assert deployment["global_concurrency_limit"]["active_slots"] == 0
        assert pool.request("GET", f"/v2/concurrency_limits/{storage}")["active_slots"] == 0
        assert eventually(lambda: "is paused" in first_log.read_text(), 60)
    with worker(pool, tmp_path, "second") as second_log:
        run = pool.wait_for_state(run_id, *FINAL, timeout_s=120)
    assert run["state_type"] == "COMPLETED", run["state"]
    assert (tmp_path / "told").read_text().splitlines() == ["first", "second layer0.bin layer1.bin"]
    assert states(pool, run_id) == [
        "Scheduled", "Pending", "Running", "AwaitingRetry", "Pending", "Running", "Completed",
    ]  # fmt: skip
    assert pool.task_states(run_id) == {
        "generate-1": "GeneratorFailed", "monitor-1": "Completed", "generate-2": "Completed", "monitor-2": "Completed",
    }  # fmt: skip
    lines = (first_log.read_text() + second_log.read_text()).splitlines()
    logs = "\n".join(line for line in lines if "cachewatch.output" not in line)  # what the generator said
    assert [words for words in NOT_OF_A_HANDOVER if words in logs] == []
    assert "this run was handed over after attempt 1: the next one is 2 of 3" in logs
    (first,), (second,) = reports(tmp_path / "first").values(), reports(tmp_path / "second").values()
    assert (first["attempt"], first["outcome"], second["attempt"], second["outcome"]) == (1, "failed", 2, "completed")
    assert first["retry"]["change"] == ["another_worker"]


def test_the_attempts_are_counted_over_processes_and_a_retry_by_hand_has_all_of_them(
    pool: Server, tmp_path: Path
) -> None:
    asked = parameters(tmp_path, "always", attempts=2)
    with worker(pool, tmp_path, "one"), worker(pool, tmp_path, "other"):
        run_id = pool.start_run("generate-cache/free", asked)
        run = pool.wait_for_state(run_id, *FINAL, timeout_s=120)
        assert (run["state_name"], run["run_count"]) == ("GeneratorFailed", 2), run["state"]
        assert len((tmp_path / "told").read_text().splitlines()) == 2
        pool.set_state(run_id, "SCHEDULED", "AwaitingRetry")  # the button in the UI
        assert eventually(lambda: len((tmp_path / "told").read_text().splitlines()) == 3, 60)
        again = wait_for_handover(pool, run_id)
        assert again["state"]["message"].startswith("attempt 1 of 2 ended failed: again after")
        # A run that waits for a worker is cancelled at once: nothing of it is left to end.
        pool.set_state(run_id, "CANCELLING", "Cancelling")
        assert pool.flow_run(run_id)["state_type"] == "CANCELLED"
        assert "Crashed" not in states(pool, run_id)


def test_a_fleet_waits_for_a_job_that_is_handed_over_and_the_whole_build_is_published(
    pool: Server, tmp_path: Path
) -> None:
    asked, store = parameters(tmp_path), tmp_path / "store"
    store.mkdir()
    del asked["job"]["cache_dirs"]
    asked["job"]["command"][3] = "{cache_dir}"
    jobs = tmp_path / "jobs.yaml"
    entry = {**asked["job"], "retry": asked["retry"], "stall": asked["stall"], "deployment": "generate-cache/free",
        "publish": {"store": str(store), "suspect_window_s": 0}}  # fmt: skip
    policy = {"poll_s": 0.5, "table_every_s": 1}
    jobs.write_text(yaml.safe_dump({"version": 1, "name": "handed", "policy": policy, "jobs": [entry]}))
    with worker(pool, tmp_path, "one"), worker(pool, tmp_path, "other"):
        run_id = pool.start_run("generate-fleet/handed-fleet", {"jobs": str(jobs)})
        run = pool.wait_for_state(run_id, *FINAL, timeout_s=200)
    assert run["state_type"] == "COMPLETED", run["state"]
    assert len((tmp_path / "told").read_text().splitlines()) == 2
    (table,) = pool.artifacts(run_id).values()
    row = json.loads(table["data"])[0]
    assert (row["state"], row["attempts"]) == ("Completed", "2"), row
    # The newest file may be cut, the one before it is whole: it is not made again.
    assert (tmp_path / "told").read_text().splitlines()[1].split()[1:] == ["layer0.bin"]
    assert sorted(path.name for path in store.glob("*/current/layer*")) == ["layer0.bin", "layer1.bin", "layer2.bin"]
