"""Notifications from end to end: a real server, Prefect's own blocks, and a listener on loopback that they reach."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.orchestration.test_fleet import FAILS, GROWS, job, new_tag, until, write_jobs
from tests.orchestration.webhooks import Received, Webhooks, listen
from tests.prefect_server import BIN, Server, running_server

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "deployments" / "automations"
BLOCK = 'CustomWebhookNotificationBlock(name="x", url="http://127.0.0.1:{port}/", json_data={{"subject": "{{{{subject}}}}", "body": "{{{{body}}}}"}}).save("ops")'


@dataclass
class Paged:
    """A server whose blocks reach the listener."""

    server: Server
    webhooks: Webhooks

    def cachewatch(self, *argv: object, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "cachewatch"), *map(str, argv)]
        return subprocess.run(command, env=self.server.env, capture_output=True, text=True, timeout=timeout_s)

    def events(self, *names: str) -> list[tuple[str, str, str]]:
        found = self.server.request("POST", "/events/filter", filter={"event": {"name": list(names)}})
        return [(one["occurred"], one["event"], one["resource"]["prefect.resource.name"]) for one in found["events"]]

    def apply(self, *argv: object) -> None:
        done = self.cachewatch("automations", "apply", *argv)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paged]:
    folder = tmp_path_factory.mktemp("paged")
    with listen() as webhooks, running_server(folder) as server:
        code = f"from prefect.blocks.notifications import *; {BLOCK.format(port=webhooks.port)}"
        subprocess.run([sys.executable, "-c", code], env=server.env, check=True, timeout=120)
        yield Paged(server, webhooks)


def named(webhooks: Webhooks, text: str) -> list[Received]:
    return [one for one in webhooks.received if text in one.text]


def test_a_stall_and_a_fleet_are_told_with_their_causes(paged: Paged, tmp_path: Path) -> None:
    paged.apply("notify", "--notify", "custom-webhook/ops")
    tag = new_tag()
    jobs = [job("good", tag, tmp_path, GROWS), job("bad", tag, tmp_path, FAILS), job("worse", tag, tmp_path, FAILS)]
    path = write_jobs(tmp_path, tag, jobs)
    fleet = paged.cachewatch("fleet", path)
    assert fleet.returncode == 1, fleet.stderr
    alone = f"alone-{tag}"
    (tmp_path / "alone").mkdir()
    stalled = paged.cachewatch(
        "generate", "--name", alone, "--cache-dir", tmp_path / "alone", "--first-write-within", "2s", "--stall-after", "2s", "--poll", "0.5s", "--",
        sys.executable, "-c", "import time; time.sleep(100)",
    )  # fmt: skip
    assert stalled.returncode == 124, stalled.stderr
    told = paged.webhooks.wait_for(lambda one: alone in one.text, 240)
    assert told.body["subject"].startswith(f"{alone} stalled: ")
    assert told.body["body"].startswith("Next: ") and "/runs/flow-run/" in told.body["body"]
    assert "Tensor cache generation never started" in told.body["body"]
    paged.webhooks.wait_for(lambda one: f"Fleet '{tag}'" in one.text)
    digest, *again = named(paged.webhooks, f"Fleet '{tag}'")
    assert {one.text for one in again} <= {digest.text}, "the same, if it was sent again"
    assert digest.body["subject"].startswith(f"Fleet '{tag}': 1 of 3 caches are there; 2 failed. First: ")
    assert (
        "\n- bad is GeneratorFailed (" in digest.body["body"]
        and "\n- worse is GeneratorFailed (" in digest.body["body"]
    )


STALLS = """
import sys
from prefect_cachewatch.tasks.prefect_api.events import emit_generation_event, storage_resource
for name, storage in zip("abcde", sys.argv[1:]):
    assert emit_generation_event("stalled", name, {"message": f"{name} stalled"}, storage_resource(storage, []))
"""


def test_the_third_stall_on_one_storage_is_told_and_two_on_another_are_not(paged: Paged) -> None:
    paged.apply("one-storage", "--notify", "custom-webhook/ops")
    sick, well = f"sick {new_tag()}", f"well {new_tag()}"
    subprocess.run([sys.executable, "-c", STALLS, sick, well, sick, well, sick], env=paged.server.env, check=True)
    told = paged.webhooks.wait_for(lambda one: sick in one.text, 120)
    assert told.body["subject"] == f"3 stalls on one storage: {sick}"
    assert re.match(
        r"The last one: [ace] stalled", told.body["body"]
    )  # a server counts what comes at once in any order
    assert named(paged.webhooks, well) == []


WATCHED = """
import sys
from prefect_cachewatch.tasks.prefect_api import reporter
reporter.EVENT_EVERY_S = 2.0
from prefect_cachewatch.cli.main import main
sys.exit(main())
"""
GROWS_ON = """
import sys, time
for n in range(3000):
    open(f"{sys.argv[1]}/{n}", "wb").write(b"x" * 1000)
    time.sleep(0.2)
"""


def test_a_dead_man_s_check_tells_of_what_did_not_happen(paged: Paged, tmp_path: Path) -> None:
    # One test for three checks, which wait side by side. Nobody polls the deployment's pool.
    server, tag = paged.server, new_tag()
    flow = server.request("POST", "/flows/", name="generate-cache")["id"]
    server.request("POST", "/work_pools/", name=tag, type="process")
    server.request(
        "POST", "/deployments/", name=tag, flow_id=flow, work_pool_name=tag, entrypoint="x.py:x",
        schedules=[{"active": True, "schedule": {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z"}}],
    )  # fmt: skip
    files = {}
    for name, old, new in (("late", "within: 600", "within: 10"), ("silent", "within: 900", "within: 90")):
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text((SHIPPED / f"{name}.yaml").read_text().replace(old, new))
    block = ("--notify", "custom-webhook/ops")
    paged.apply(files["late"], files["silent"], *block)
    paged.apply("missed", *block, "--deployment", f"generate-cache/{tag}", "--within", "15s")
    # A run as the scheduler makes it, and one that a fleet would start: only the first is a schedule's.
    deployment = server.request("GET", f"/deployments/name/generate-cache/{tag}")["id"]
    for name, tags in ((f"scheduled-{tag}", ["auto-scheduled"]), (f"asked-{tag}", [])):
        server.request("POST", f"/deployments/{deployment}/create_flow_run", name=name, tags=tags)
    runs = {}
    for name in ("frozen", "alive"):
        (tmp_path / name).mkdir()
        argv = [
            "generate", "--name", f"{name}-{tag}", "--cache-dir", str(tmp_path / name), "--quiet", "--",
            sys.executable, "-c", GROWS_ON, str(tmp_path / name),
        ]  # fmt: skip
        runs[name] = subprocess.Popen([sys.executable, "-c", WATCHED, *argv], env=server.env, stdin=subprocess.DEVNULL)
    try:
        for name in runs:
            until(lambda name=name: any(one[2] == f"{name}-{tag}" for one in paged.events("cachewatch.run.sampled")))
        runs["frozen"].send_signal(signal.SIGSTOP)
        silent = paged.webhooks.wait_for(lambda one: f"frozen-{tag} measures nothing" in one.text, 300)
        assert (
            silent.body["subject"]
            == f"frozen-{tag} measures nothing for 1 minute and 30 seconds, and its state is Running"
        )
        late = paged.webhooks.wait_for(lambda one: f"scheduled-{tag} is Late" in one.text)
        assert late.body["subject"] == f"scheduled-{tag} is Late: no worker took it for 10 seconds"
        missed = paged.webhooks.wait_for(lambda one: f"generate-cache/{tag} did not complete" in one.text)
        assert missed.body["subject"] == f"generate-cache/{tag} did not complete for 15 seconds"
        assert all("Next: " in one.body["body"] for one in (silent, late, missed))
        assert named(paged.webhooks, f"alive-{tag}") == [] and named(paged.webhooks, f"asked-{tag} is Late") == []
    finally:
        for run in runs.values():
            run.send_signal(signal.SIGCONT)
            run.send_signal(signal.SIGTERM)
        for run in runs.values():
            run.wait(60)
