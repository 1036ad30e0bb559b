"""Every entry of prefect.yaml on a real server; those of the process pool run, and the automations act."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from tests.deployments.conftest import DEPLOYMENTS, HEARTBEAT_S, done, flow_process, run
from tests.orchestration.test_worker import GROWS, HANGS, parameters
from tests.prefect_server import Server
from tests.support import assert_none_left, tagged

pytestmark = [pytest.mark.deployments, pytest.mark.timeout(600)]
ENTRIES = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())["deployments"]
WINDOW_S = 2 * HEARTBEAT_S + 10
Worker = subprocess.Popen[bytes]


def flow_of(entry: dict[str, Any]) -> str:
    return str(entry["entrypoint"]).rpartition(".")[2].replace("_", "-")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_every_entry_is_deployed_as_it_says(deployed: Server, entry: dict[str, Any]) -> None:
    found = deployed.request("GET", f"/deployments/name/{flow_of(entry)}/{entry['name']}")
    assert found["work_pool_name"] == entry["work_pool"]["name"]
    assert found["tags"] == entry["tags"]
    assert found["pull_steps"] == [{"prefect.deployments.steps.set_working_directory": {"directory": "."}}]
    written = json.dumps(entry.get("parameters", {})).replace("{{ $HOME }}", deployed.env["HOME"])
    assert found["parameters"] == json.loads(written)
    assert found["job_variables"] == entry["work_pool"].get("job_variables", {})
    assert [
        {"cron": s["schedule"]["cron"], "timezone": s["schedule"]["timezone"], "active": s["active"]}
        for s in found["schedules"]
    ] == [{"active": True, **schedule} for schedule in entry.get("schedules", [])]
    limit = entry.get("concurrency_limit")
    assert (found["global_concurrency_limit"] or {}).get("limit") == (limit["limit"] if limit else None)
    strategy = (found["concurrency_options"] or {}).get("collision_strategy")
    assert strategy == (limit["collision_strategy"] if limit else None)


def test_generate_deploy_fleet_plan_and_check_run_on_a_process_worker(
    deployed: Server, worker: Worker, tmp_path: Path
) -> None:
    tag = f"build-{uuid.uuid4().hex[:8]}"
    (tmp_path / "store").mkdir()
    deploy = parameters(tmp_path / "unused", GROWS, tag)
    del deploy["job"]["cache_dirs"]
    deploy["job"]["command"][3] = "{cache_dir}"
    deploy["publish"] = {"store": str(tmp_path / "store"), "cache_key": {"revision": "a"}}
    runs = {
        "deploy-cache/deploy-cache": deployed.start_run("deploy-cache/deploy-cache", {**deploy, "health": None}),
        "generate-fleet/nightly-fleet": deployed.start_run(
            "generate-fleet/nightly-fleet",
            {"name": tag, "jobs": [member(tmp_path, tag, n) for n in range(2)], "policy": {"poll_s": 1}},
        ),
        # With the parameters that the file has.
        "generate-cache/nightly-cache": deployed.start_run("generate-cache/nightly-cache", {}),
        "plan-capacity": deployed.start_run("plan-capacity/plan-capacity", {}),
        "check-capacity": deployed.start_run("check-capacity/check-capacity", {}),
    }
    for name, run_id in runs.items():
        ended = deployed.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED", timeout_s=170)
        assert ended["state_type"] == "COMPLETED", (name, ended["state"]["name"], ended["state"]["message"])
    assert (tmp_path / "store" / tag / "current").exists()
    assert Path(deployed.env["HOME"], "caches/example/layers.4.tensorbin").stat().st_size == 4_000_000
    assert list(deployed.artifacts(runs["plan-capacity"])) != []
    members = deployed.request("POST", "/flow_runs/filter", deployments={"name": {"any_": ["fleet-member"]}})
    assert sorted((one["name"], one["state_name"]) for one in members) == [
        (f"{tag}-0", "Completed"),
        (f"{tag}-1", "Completed"),
    ]


def member(folder: Path, tag: str, number: int) -> dict[str, Any]:
    given = parameters(folder / f"member-{number}", GROWS, f"{tag}-{number}")
    return {**given.pop("job"), **given}


class Webhook(http.server.BaseHTTPRequestHandler):
    received: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def webhook(deployed: Server) -> Iterator[str]:
    """A real listener, and a notification block that posts to it; yields the block's TYPE/NAME."""
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    code = f"""
from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block
Block(name="test", url="http://127.0.0.1:{listener.server_port}/", json_data={{"text": "{{{{subject}}}}: {{{{body}}}}"}}).save("ops")
"""
    done(deployed, "python", "-c", code)
    yield "custom-webhook/ops"
    listener.shutdown()
    listener.server_close()


def test_apply_is_idempotent_by_name_and_keeps_what_was_paused(deployed: Server, webhook: str, tmp_path: Path) -> None:
    names = [
        "follow up on a stall", "a scheduled run is late", "generate-cache/nightly-cache did not complete",
        "tell about a bad end", "tell about a stall that was only reported",
        "stalls on one storage", "a run is Running and measures nothing", "crash zombies",
    ]  # fmt: skip
    command = ("cachewatch", "automations", "apply", "--notify", webhook)
    said = done(deployed, *command, "--dry-run").splitlines()
    assert said == [f"would be created: cachewatch: {name}" for name in names]
    assert deployed.request("POST", "/automations/filter") == []
    assert done(deployed, *command).splitlines() == [f"created: cachewatch: {name}" for name in names]
    assert done(deployed, *command).splitlines() == [f"unchanged: cachewatch: {name}" for name in names]
    stored = {a["name"]: a for a in deployed.request("POST", "/automations/filter")}
    assert len(stored) == len(names)
    zombies = stored["cachewatch: crash zombies"]
    deployed.request("PATCH", f"/automations/{zombies['id']}", enabled=False)
    mine = tmp_path / "zombies.yaml"
    text = (DEPLOYMENTS / "automations" / "zombies.yaml").read_text()
    mine.write_text(text.replace("within: 600", "within: 700"))
    assert done(deployed, "cachewatch", "automations", "apply", str(mine)) == (
        "updated: cachewatch: crash zombies (paused)\n"
    )
    found = deployed.request("GET", f"/automations/{zombies['id']}")
    assert (found["trigger"]["within"], found["enabled"]) == (700.0, False)
    deployed.request("DELETE", f"/automations/{zombies['id']}")


def test_the_follow_up_of_another_pool_is_named_on_the_command(deployed: Server) -> None:
    apply = ("cachewatch", "automations", "apply", "follow-up")
    done(deployed, *apply)
    docker = "follow-up-stall/follow-up-stall-docker"
    name = "cachewatch: follow up on a stall"
    assert done(deployed, *apply, "--run", docker) == f"updated: {name}\n"
    (found,) = (a for a in deployed.request("POST", "/automations/filter") if a["name"] == name)
    assert found["actions"][0]["deployment_id"] == deployed.request("GET", f"/deployments/name/{docker}")["id"]
    assert done(deployed, *apply) == f"updated: {name}\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["notify"], "there is no block slack-webhook/cachewatch: create it in the UI (Blocks) or by"),
        (
            ["notify", "--notify", "ops"],
            "a block is named TYPE/NAME, for example slack-webhook/cachewatch, and not ops",
        ),
        (["notify", "--notify", "no-such-type/ops"], "there is no block no-such-type/ops"),
        (
            ["follow-up", "--run", "nightly"],
            "a deployment is named FLOW/NAME, for example follow-up-stall/follow-up-stall, and not nightly",
        ),
        (["missed", "--deployment", "nightly"], "a deployment is named FLOW/NAME"),
        (["follow-up", "--run", "a/b"], "there is no deployment a/b: prefect deploy --prefect-file prefect.yaml"),
    ],
)
def test_a_block_or_deployment_that_is_missing_is_one_sentence(deployed: Server, argv: list[str], said: str) -> None:
    result = run(deployed, "cachewatch", "automations", "apply", *argv)
    assert result.returncode == 125
    assert said in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_deployment_that_is_missing_is_one_sentence_and_nothing_is_written(deployed: Server, tmp_path: Path) -> None:
    before = deployed.request("POST", "/automations/filter")
    mine = tmp_path / "mine.yaml"
    text = (DEPLOYMENTS / "automations" / "follow-up.yaml").read_text()
    mine.write_text(
        text.replace("follow-up-stall/follow-up-stall", "follow-up-stall/elsewhere").replace("a stall", "x")
    )
    result = run(deployed, "cachewatch", "automations", "apply", "zombies", str(mine))
    assert result.returncode == 125
    assert result.stderr == (
        f"cachewatch: {mine}: there is no deployment follow-up-stall/elsewhere: "
        "prefect deploy --prefect-file prefect.yaml --name elsewhere creates it\n"
    )
    assert deployed.request("POST", "/automations/filter") == before


def test_a_trigger_that_prefect_does_not_know_is_one_sentence(deployed: Server, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("{name: x, trigger: {type: event, posture: Sideways}, actions: [{type: do-nothing}]}")
    result = run(deployed, "cachewatch", "automations", "apply", str(mine))
    assert result.returncode == 125
    assert "'x' is no automation that Prefect knows: trigger" in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_stall_tells_and_is_followed_up_and_a_dead_flow_is_crashed(
    deployed: Server,
    worker: Worker,
    start_worker: Callable[[str], Worker],
    webhook: str,
    templates: Path,
    tmp_path: Path,
) -> None:
    # One test for three reactions, which wait side by side.
    zombies = (templates / "automations" / "zombies.yaml").read_text().replace("within: 600", f"within: {WINDOW_S}")
    (tmp_path / "zombies.yaml").write_text(zombies)
    done(deployed, "cachewatch", "automations", "apply", "follow-up", "notify", "--notify", webhook)
    done(deployed, "cachewatch", "automations", "apply", str(tmp_path / "zombies.yaml"))

    # A worker and its flow die at once, as when their machine does; another run lives on longer than the window.
    template = str(templates / "pools" / "process.json")
    done(deployed, "prefect", "work-pool", "create", "doomed", "--type", "process", "--base-job-template", template)
    entry = {"name": "doomed", "entrypoint": "prefect_cachewatch.flows.generate_cache"}
    entries = [{**entry, "work_pool": {"name": "doomed"}}]
    (tmp_path / "doomed.yaml").write_text(yaml.safe_dump({"name": "x", "pull": None, "deployments": entries}))
    done(deployed, "prefect", "deploy", "--all", "--prefect-file", "doomed.yaml", cwd=tmp_path)
    doomed = start_worker("doomed")
    dead_tag, live_tag = f"dead-{uuid.uuid4().hex[:8]}", f"live-{uuid.uuid4().hex[:8]}"
    dead = deployed.start_run("generate-cache/doomed", parameters(tmp_path / "dead", GROWS, dead_tag, 3000))
    live = deployed.start_run("generate-cache/nightly-cache", parameters(tmp_path / "live", GROWS, live_tag, 3000))
    for folder in ("dead", "live"):
        wait_for(lambda folder=folder: len(list(tmp_path.glob(f"{folder}/*.bin"))) > 3, 90)
    wait_for(lambda: heartbeats(deployed, dead) > 0, 60)
    os.kill(doomed.pid, signal.SIGKILL)
    os.kill(flow_process(dead), signal.SIGKILL)
    killed = time.monotonic()
    assert_none_left(dead_tag)

    # Meanwhile a generation stalls.
    tag = f"stall-{uuid.uuid4().hex[:8]}"
    stalled = start_stall(deployed, tmp_path, tag)
    ended = deployed.wait_for_state(stalled, "FAILED", "COMPLETED", "CRASHED")
    assert ended["state_name"] == "Stalled", ended["state"]
    # A server whose SQLite file is busy starts a reaction anew after it has acted (see docs/deploy.md), perhaps twice.
    wait_for(lambda: follow_ups(deployed, stalled), 90)
    for follow_up in follow_ups(deployed, stalled):
        followed = deployed.wait_for_state(follow_up["id"], "COMPLETED", "FAILED", "CRASHED", timeout_s=120)
        assert followed["state_type"] == "COMPLETED", followed["state"]
    again = deployed.request("POST", "/flow_runs/filter", flow_runs={"tags": {"all_": ["cachewatch-rerun"]}})
    assert [(one["parameters"], one["state_type"]) for one in again] == [(ended["parameters"], "SCHEDULED")], "one each"
    assert again[0]["deployment_id"] == ended["deployment_id"]
    artifacts = [deployed.artifacts(follow_up["id"]) for follow_up in follow_ups(deployed, stalled)]
    assert {artifact["key"] for of in artifacts for artifact in of.values()} == {f"cachewatch-follow-up-{tag}"}
    said = [artifact["data"] for of in artifacts for artifact in of.values()]
    assert any("It stalled for the first time in a row: it is run again once" in text for text in said), said
    wait_for(lambda: any(stalled in told["text"] for told in Webhook.received), 120)
    told = [told["text"] for told in Webhook.received if stalled in told["text"]]
    assert told[0].startswith(f"{tag} stalled") and "Next: " in told[0]
    assert "Tensor cache generation stalled: no disk write activity detected for 2 s" in told[0]
    assert set(told) == {told[0]}, "the same, if it was sent again"

    crashed = deployed.wait_for_state(dead, "CRASHED", "COMPLETED", "FAILED", "CANCELLED", timeout_s=WINDOW_S + 90)
    assert crashed["state_type"] == "CRASHED"
    assert crashed["state"]["message"].startswith("No heartbeat for the whole window")
    while time.monotonic() < killed + WINDOW_S + 10:
        time.sleep(1)
    assert deployed.flow_run(live)["state_type"] == "RUNNING"
    # The stalled run sent a heartbeat too, and its window is over: its true state stays.
    assert deployed.flow_run(stalled)["state_name"] == "Stalled"
    assert tagged(live_tag)
    deployed.set_state(live, "CANCELLING", "Cancelling")
    assert deployed.wait_for_state(live, "CANCELLED", "CRASHED", "COMPLETED", "FAILED")["state_type"] == "CANCELLED"
    assert_none_left(live_tag, 5)


def wait_for(condition: Callable[[], Any], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def start_stall(server: Server, folder: Path, tag: str) -> str:
    # A deployment of its own: the run that lives on holds the one place of nightly-cache.
    entry = {"name": "aside", "entrypoint": "prefect_cachewatch.flows.generate_cache"}
    entries = [{**entry, "work_pool": {"name": "caches"}}]
    (folder / "aside.yaml").write_text(yaml.safe_dump({"name": "x", "pull": None, "deployments": entries}))
    done(server, "prefect", "deploy", "--all", "--prefect-file", "aside.yaml", cwd=folder)
    return server.start_run("generate-cache/aside", parameters(folder / "stalls", HANGS, tag))


def heartbeats(server: Server, run_id: str) -> int:
    found = server.request(
        "POST",
        "/events/filter",
        filter={
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run_id}"]},
        },
    )
    return len(found["events"])


def follow_ups(server: Server, stalled: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.request(
        "POST", "/flow_runs/filter", flows={"name": {"any_": ["follow-up-stall"]}}
    )
    return [one for one in found if one["parameters"].get("flow_run_id") == stalled]
