"""A fleet on a real Prefect server: over a process worker and in processes of its own host.

What a job is, and what a policy means, is tested with the rules; here are real runs, real deaths, real limits.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.prefect_server import BIN, PATIENCE_S, Server
from tests.support import assert_none_left, mostly_apart, signal_each, tagged

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(900)]

GROWS = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
for n in range(int(sys.argv[2])):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.1)
"""
HANGS = GROWS + "time.sleep(600)\n"
FAILS = GROWS + "sys.exit(3)\n"
SHORT = {"stall_after_s": 3}  # for what writes once and is to stall
DEFAULTS: dict[str, Any] = {
    "stall": {"stall_after_s": 300, "first_write_within_s": 300, "poll_s": 0.5},
    "stop": {"grace_s": 1},
    "retry": {"attempts": 1},
}
POLICY = {"poll_s": 0.5, "table_every_s": 1}


def new_tag() -> str:
    return f"fleet-{uuid.uuid4().hex[:10]}"


def job(name: str, tag: str, folder: Path, code: str = GROWS, layers: int = 3, **more: Any) -> dict[str, Any]:
    """One entry of a jobs file; the tag finds its generator among all processes."""
    cache = str(folder / name)
    entry = {"name": name, "command": [sys.executable, "-c", code, cache, str(layers), tag], "cache_dirs": [cache]}
    if "publish" in more:
        entry["command"][3] = "{cache_dir}"
        del entry["cache_dirs"]
    return entry | more


def write_jobs(folder: Path, tag: str, jobs: list[dict[str, Any]], **top: Any) -> Path:
    path = folder / "jobs.yaml"
    data = {"version": 1, "name": tag, "policy": POLICY, "defaults": DEFAULTS, "jobs": jobs, **top}
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="session")
def workers(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A work pool with two queues, the generation and the fleet deployed to it, and a worker."""
    folder = tmp_path_factory.mktemp("fleet-workers")
    (folder / "prefect.yaml").write_text(
        "pull: null\ndeployments:\n"
        "  - {name: one, entrypoint: prefect_cachewatch.flows.generate_cache, work_pool: {name: fleet}}\n"
        "  - {name: single, entrypoint: prefect_cachewatch.flows.generate_cache, work_pool: {name: fleet},\n"
        "     concurrency_limit: {limit: 1, collision_strategy: CANCEL_NEW}}\n"
        "  - {name: many, entrypoint: prefect_cachewatch.flows.generate_fleet, work_pool: {name: fleet}}\n"
    )
    server.prefect("work-pool", "create", "fleet", "--type", "process", cwd=folder)
    server.prefect("work-queue", "create", "urgent", "--pool", "fleet", "--priority", "1", cwd=folder)
    server.prefect("deploy", "--prefect-file", "prefect.yaml", "--all", cwd=folder)
    with server.worker("fleet", folder, {"CACHEWATCH_SLOT_LEASE_S": "60"}):
        yield server


def start_fleet(server: Server, jobs: Path, **more: Any) -> str:
    return server.start_run("generate-fleet/many", {"jobs": str(jobs), **more})


def run_fleet(server: Server, jobs: Path, *, timeout_s: float = 2 * PATIENCE_S, **more: Any) -> dict[str, Any]:
    """Run a fleet by the worker to its end."""
    run_id, deadline_s = start_fleet(server, jobs, **more), time.monotonic() + timeout_s
    while True:
        # A server that is busy with many jobs may take its time for an answer.
        with contextlib.suppress(httpx.TransportError):
            run = server.flow_run(run_id)
            if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED"):
                return run
        assert time.monotonic() < deadline_s, "the fleet did not end"
        time.sleep(0.5)


def children(server: Server, run_id: str) -> dict[str, dict[str, Any]]:
    """The runs of a fleet's jobs by name, as the UI's tree has them; the newest where there are several."""
    found = server.request("POST", "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run_id]}}, limit=200)
    return {run["name"]: run for run in sorted(found, key=lambda run: str(run["created"]))}


def table(server: Server, run: dict[str, Any]) -> list[dict[str, str]]:
    (artifact,) = server.artifacts(run["id"]).values()
    assert artifact["type"] == "table"
    found: list[dict[str, str]] = json.loads(artifact["data"])
    return found


def until(look: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (seen := look()):
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.2)
    return seen


def test_a_fleet_over_workers_is_partly_failed_and_its_table_says_who_needs_a_person(
    workers: Server, tmp_path: Path
) -> None:
    tag = new_tag()
    jobs = [
        job("good", tag, tmp_path, layers=15),
        job("hangs", tag, tmp_path, HANGS, layers=1, work_queue="urgent", stall=SHORT),
        job("fails", tag, tmp_path, FAILS),
        job("last", tag, tmp_path, priority=500),
    ]
    path = write_jobs(tmp_path, tag, jobs)
    run = run_fleet(workers, path, deployment="generate-cache/one")
    assert (run["state_type"], run["state_name"]) == ("FAILED", "PartlyFailed"), run["state"]["message"]
    assert "2 of 4 caches are there; 2 failed. First: fails is GeneratorFailed" in run["state"]["message"]
    found = children(workers, run["id"])
    assert {name: child["state_name"] for name, child in found.items()} == {
        "good": "Completed", "hangs": "Stalled", "fails": "GeneratorFailed", "last": "Completed",
    }  # fmt: skip
    assert (found["hangs"]["work_queue_name"], found["good"]["work_queue_name"]) == ("urgent", "default")
    rows = table(workers, run)
    assert [row["job"] for row in rows] == ["fails", "hangs", "good", "last", "total: 4 jobs"]
    stalled, good = rows[1], rows[2]
    assert stalled["cause"].startswith("pid ")
    assert stalled["next"] and stalled["run"].endswith(found["hangs"]["id"])
    assert (good["bytes"], good["attempts"], good["cause"]) == ("732 KiB", "1", "")
    assert good["rate"].endswith("KiB/s") and good["time"] and good["wait"]
    assert_none_left(tag)


def test_a_member_in_shadow_mode_is_left_alone_and_its_row_says_what_would_have_been(
    workers: Server, tmp_path: Path
) -> None:
    tag = new_tag()
    waits = GROWS + f"while not os.path.exists({str(tmp_path / 'reported')!r}): time.sleep(0.1)\n"
    jobs = [
        job("pauses", tag, tmp_path, waits, layers=1, stall=SHORT),
        job("steady", tag, tmp_path),
        job("breaks", tag, tmp_path, waits + "sys.exit(3)\n", layers=1, stall=SHORT),
    ]
    path = write_jobs(tmp_path, tag, jobs, defaults={**DEFAULTS, "on_stall": "report"})
    run_id = start_fleet(workers, path, deployment="generate-cache/one")
    for name in ("pauses", "breaks"):
        child = until(lambda name=name: children(workers, run_id).get(name))
        workers.wait_for_event(child["id"], "stall_reported")
    (tmp_path / "reported").touch()
    run = workers.wait_final(run_id)
    assert run["state_name"] == "PartlyFailed", run["state"]["message"]
    found = children(workers, run["id"])
    assert {name: child["state_name"] for name, child in found.items()} == {
        "pauses": "Completed", "steady": "Completed", "breaks": "GeneratorFailed",
    }  # fmt: skip
    assert workers.task_states(found["pauses"]["id"])["monitor-1"] == "StallReported"
    rows = {row["job"]: row for row in table(workers, run)}
    assert "It would have been stopped once, in vain: it completed." in rows["pauses"]["cause"]
    assert "It would have been stopped once, and rightly: it never grew again." in rows["breaks"]["cause"]
    assert rows["steady"]["cause"] == ""
    assert "1 of the generations that completed would have been stopped" in run["state"]["message"]
    assert_none_left(tag)


def test_a_fleet_in_its_own_host_ends_whole_and_a_second_one_has_nothing_to_do(workers: Server, tmp_path: Path) -> None:
    tag, store = new_tag(), tmp_path / "store"
    store.mkdir()
    jobs = [job(f"m{n}", tag, tmp_path, publish={"store": str(store)}) for n in range(3)]
    run = run_fleet(workers, write_jobs(tmp_path, tag, jobs))
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    found = children(workers, run["id"])
    assert {child["state_name"] for child in found.values()} == {"Completed"}
    assert all(workers.task_states(child["id"])["publish-cache"] == "Completed" for child in found.values())
    # One more job, as after a night that was cut short: only that one is run.
    jobs.append(job("m3", tag, tmp_path, publish={"store": str(store)}))
    again = run_fleet(workers, write_jobs(tmp_path, tag, jobs))
    assert "4 of 4 caches are there, 3 of them from before" in again["state"]["message"]
    assert list(children(workers, again["id"])) == ["m3"]
    assert [row["state"] for row in table(workers, again)] == ["Cached", "Cached", "Cached", "Completed", "4 done"]
    # Over workers it is their run that looks: the store may be another one than the fleet's host sees.
    third = run_fleet(workers, tmp_path / "jobs.yaml", deployment="generate-cache/one")
    assert "all from before" in third["state"]["message"]
    assert {child["state_name"] for child in children(workers, third["id"]).values()} == {"Cached"}
    assert {row["bytes"] for row in table(workers, third)[:-1]} == {"146 KiB"}


@pytest.mark.parametrize("deployment", mostly_apart([None, "generate-cache/one"], ["generate-cache/one"]))
def test_fail_fast_stops_what_runs_and_starts_no_more(workers: Server, tmp_path: Path, deployment: str | None) -> None:
    tag = new_tag()
    jobs = [
        job("long", tag, tmp_path, layers=6000),
        job("fails", tag, tmp_path, FAILS, layers=30),
        job("never", tag, tmp_path, priority=900),
    ]
    path = write_jobs(tmp_path, tag, jobs, policy={**POLICY, "on_failure": "fail_fast", "max_parallel": 2})
    run = run_fleet(workers, path, deployment=deployment)
    assert run["state_name"] == "FleetFailed", run["state"]["message"]
    assert "0 of 3 caches are there; 1 failed, 1 cancelled, 1 not started" in run["state"]["message"]
    found = children(workers, run["id"])
    assert {name: child["state_type"] for name, child in found.items()} == {"long": "CANCELLED", "fails": "FAILED"}
    assert [row["state"] for row in table(workers, run)[:-1]] == ["GeneratorFailed", "Cancelled", "NotStarted"]
    assert_none_left(tag)


@pytest.mark.parametrize("deployment", mostly_apart([None, "generate-cache/one"], [None]))
def test_cancelling_a_fleet_ends_its_jobs_and_their_generators(
    workers: Server, tmp_path: Path, deployment: str | None
) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job(f"m{n}", tag, tmp_path, layers=6000) for n in range(2)])
    run_id = start_fleet(workers, path, deployment=deployment)
    until(lambda: len(list(tmp_path.glob("m*/layer3.bin"))) == 2)
    workers.set_state(run_id, "CANCELLING", "Cancelling")
    assert workers.wait_for_state(run_id, "CANCELLED", "CRASHED", "FAILED", "COMPLETED")["state_type"] == "CANCELLED"
    assert_none_left(tag, 60)
    for child in children(workers, run_id).values():
        assert workers.wait_for_state(child["id"], "CANCELLED", "CRASHED")["state_type"] == "CANCELLED"


def test_one_job_of_a_fleet_can_be_cancelled_in_the_ui(workers: Server, tmp_path: Path) -> None:
    tag = new_tag()
    path = write_jobs(tmp_path, tag, [job("one", tag, tmp_path, layers=6000), job("two", tag, tmp_path)])
    run_id = start_fleet(workers, path)
    until((tmp_path / "one" / "layer3.bin").exists)
    workers.set_state(children(workers, run_id)["one"]["id"], "CANCELLING", "Cancelling")
    run = workers.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED")
    assert run["state_name"] == "PartlyFailed", run["state"]["message"]
    assert {name: child["state_type"] for name, child in children(workers, run_id).items()} == {
        "one": "CANCELLED", "two": "COMPLETED",
    }  # fmt: skip
    assert_none_left(tag)


def environ_of(pid: int) -> bytes:
    """The environment of a process; nothing of one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def fleet_process(tag: str) -> int:
    """The process of the fleet's own flow run: the parent of its jobs' processes."""
    for pid in tagged("prefect.engine"):
        environ = environ_of(pid)
        if b"CACHEWATCH_FLEET_PID=" in environ and tag.encode() in environ:
            return int(environ.partition(b"CACHEWATCH_FLEET_PID=")[2].partition(b"\0")[0])
    return 0


def test_a_fleet_that_is_killed_takes_its_jobs_along_and_a_retry_runs_what_is_left(
    workers: Server, tmp_path: Path
) -> None:
    tag, hold = new_tag(), tmp_path / "hold"
    hold.touch()
    waits = f"import os, time\nwhile os.path.exists({str(hold)!r}): time.sleep(0.1)\n"
    path = write_jobs(tmp_path, tag, [job("quick", tag, tmp_path), job("slow", tag, tmp_path, GROWS + waits)])
    run_id = start_fleet(workers, path)
    until(lambda: children(workers, run_id).get("quick", {}).get("state_type") == "COMPLETED")
    until((tmp_path / "slow" / "layer2.bin").exists)
    os.kill(until(lambda: fleet_process(tag)), signal.SIGKILL)
    assert_none_left(tag, 60)
    workers.wait_for_crash(run_id)
    hold.unlink()
    # Retry, as the button in the UI does it.
    workers.set_state(run_id, "SCHEDULED", "AwaitingRetry")
    run = workers.wait_for_state(run_id, "COMPLETED", "FAILED")
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    found = workers.request("POST", "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run_id]}})
    assert sorted((child["name"], child["state_type"]) for child in found if child["name"] == "quick") == [
        ("quick", "COMPLETED")
    ]
    assert sorted(child["state_type"] for child in found if child["name"] == "slow")[-1] == "COMPLETED"


@pytest.mark.parametrize("deployment", mostly_apart([None, "generate-cache/one"], [None]))
def test_a_retry_looks_whether_what_was_done_is_still_there(
    workers: Server, tmp_path: Path, deployment: str | None
) -> None:
    tag, mended, store = new_tag(), tmp_path / "mended", tmp_path / "store"
    store.mkdir()
    broken = f"import os, sys\nif not os.path.exists({str(mended)!r}): sys.exit(4)\n" + GROWS
    published = {"publish": {"store": str(store)}}
    jobs = [job(name, tag, tmp_path) for name in ("kept", "gone")]
    jobs += [job(name, tag, tmp_path, **published) for name in ("kept-build", "gone-build")]
    path = write_jobs(tmp_path, tag, [*jobs, job("broken", tag, tmp_path, broken)])
    run_id = start_fleet(workers, path, deployment=deployment)
    assert workers.wait_for_state(run_id, "COMPLETED", "FAILED")["state_name"] == "PartlyFailed"
    mended.touch()
    shutil.rmtree(tmp_path / "gone")
    shutil.rmtree(store / "gone-build")
    workers.set_state(run_id, "SCHEDULED", "AwaitingRetry")
    until(lambda: workers.flow_run(run_id)["state_type"] not in ("FAILED", "SCHEDULED", "PENDING"))
    run = workers.wait_for_state(run_id, "COMPLETED", "FAILED")
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    found = workers.request("POST", "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run_id]}})
    made = Counter(child["name"] for child in found)
    assert made == {"kept": 1, "kept-build": 1, "gone": 2, "gone-build": 2, "broken": 2}
    assert any((tmp_path / "gone").iterdir()) and (store / "gone-build" / "current").is_dir()


def test_a_fleet_over_workers_that_is_killed_finds_its_jobs_again(workers: Server, tmp_path: Path) -> None:
    tag, hold = new_tag(), tmp_path / "hold"
    hold.touch()
    waits = f"import os, time\nwhile os.path.exists({str(hold)!r}): time.sleep(0.1)\n"
    path = write_jobs(tmp_path, tag, [job("slow", tag, tmp_path, GROWS + waits)])
    run_id = start_fleet(workers, path, deployment="generate-cache/one")
    until((tmp_path / "slow" / "layer2.bin").exists)
    signal_each(processes_of(run_id))
    workers.wait_for_crash(run_id)
    workers.set_state(run_id, "SCHEDULED", "AwaitingRetry")
    workers.wait_for_state(run_id, "RUNNING")
    hold.unlink()
    run = workers.wait_for_state(run_id, "COMPLETED", "FAILED")
    assert run["state_type"] == "COMPLETED", run["state"]["message"]
    found = workers.request("POST", "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [run_id]}})
    assert [(child["name"], child["run_count"]) for child in found] == [("slow", 1)]  # started once, and not twice
    assert_none_left(tag)


REFUSALS = [
    (
        "generate-cache/none", {},
        "there is no deployment generate-cache/none, which the job 'a' names: see `prefect deployment ls`, or make it with "
        "`prefect deploy`",
    ),
    (
        "generate-fleet/many", {},
        "the deployment generate-fleet/many runs a flow without a parameter named job: name one of generate-cache or deploy-cache",
    ),
    (
        "generate-cache/single", {},
        "the deployment generate-cache/single cancels what exceeds its concurrency limit of 1, which most of a fleet's jobs "
        "would: name a deployment without one, such as `prefect deploy` makes without concurrency_limit",
    ),
    (
        "generate-cache/one", {"work_queue": "slow"},
        "there is no work queue slow in the work pool fleet, which the job 'a' names: create it with "
        "`prefect work-queue create slow --pool fleet --priority 1`",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("deployment", "fields", "said"), REFUSALS)
def test_what_a_fleet_misses_is_one_sentence_and_nothing_is_started(
    workers: Server, tmp_path: Path, deployment: str, fields: dict[str, Any], said: str
) -> None:
    path = write_jobs(tmp_path, new_tag(), [job("a", "none", tmp_path, **fields)])
    argv = [BIN / "cachewatch", "fleet", path, "--check", "--deployment", deployment]
    done = subprocess.run(argv, env=workers.env, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (125, f"cachewatch: {said}\n")
    assert not (tmp_path / "a").exists()


def test_a_storage_without_a_limit_is_used_unprotected_only_when_told_so(workers: Server, tmp_path: Path) -> None:
    tag = new_tag()
    path = write_jobs(
        tmp_path, tag, [job("a", tag, tmp_path, storage={"name": tag})], policy={**POLICY, "missing_limit": "ignore"}
    )
    assert run_fleet(workers, path)["state_type"] == "COMPLETED"
    answer = workers.request("POST", "/v2/concurrency_limits/filter")
    assert tag not in [limit["name"] for limit in answer]


def test_the_slot_and_the_generator_of_a_killed_job_both_end(workers: Server, tmp_path: Path) -> None:
    tag = new_tag()
    workers.request("POST", "/v2/concurrency_limits/", name=tag, limit=1)
    jobs = [
        job("killed", tag, tmp_path, layers=6000, priority=1, storage={"name": tag}),
        job("next", tag, tmp_path, storage={"name": tag}),
    ]
    path = write_jobs(tmp_path, tag, jobs, policy={**POLICY, "max_parallel": 1})
    run_id = start_fleet(workers, path, deployment="generate-cache/one")
    until((tmp_path / "killed" / "layer3.bin").exists)
    assert workers.request("GET", f"/v2/concurrency_limits/{tag}")["active_slots"] == 1
    child = children(workers, run_id)["killed"]
    signal_each(processes_of(child["id"]))
    assert_none_left(str(tmp_path / "killed"), 60)  # long before its lease: its guard sees to that
    run = workers.wait_for_state(run_id, "COMPLETED", "FAILED")
    assert run["state_name"] == "PartlyFailed", run["state"]["message"]
    found = children(workers, run_id)
    assert {name: child["state_name"] for name, child in found.items()} == {"killed": "Crashed", "next": "Completed"}
    assert workers.request("GET", f"/v2/concurrency_limits/{tag}")["active_slots"] == 0
    waited = next(row["wait"] for row in table(workers, run) if row["job"] == "next")
    assert waited  # for what was left of the lease of 60 s


def processes_of(run_id: str) -> list[int]:
    """The processes of a flow run on a worker: Prefect's, not the generator."""
    found = [pid for pid in tagged("prefect") if run_id.encode() in environ_of(pid)]
    assert found
    return found
