"""Several generations, on two workers, on one storage that pauses or dies: one incident, told once, and slots held back."""

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
from tests.faults.harness import in_namespace
from tests.orchestration.conftest import BIN, Server, running_server
from tests.support import unavailable

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
WINDOW_S = 24.0
RUNS = 4
STORAGE = "nas"
# Writes until it is told to end; says beside the storage that it writes.
WRITES = """
import os, sys, time
cache, beside, name = sys.argv[1:4]
n = 0
while not os.path.exists(beside + "/end"):
    with open(f"{cache}/{n}.bin", "wb") as file:
        file.write(b"x" * 50_000)
    open(f"{beside}/{name}.writes", "w").close()
    time.sleep(0.5)
    n += 1
"""
WORKERS = """
import subprocess, sys
prefect, log = sys.argv[1:3]
running = []
for name in ("one", "two"):
    with open(f"{log}/{name}.log", "wb") as said:
        argv = [prefect, "worker", "start", "--pool", "sick", "--name", name, "--limit", "2"]
        running.append(subprocess.Popen(argv, stdout=said, stderr=said, stdin=subprocess.DEVNULL))
try:
    for one in running:
        one.wait()
except BaseException:
    for one in running:
        one.terminate()
    for one in running:
        one.wait(30)
"""


class Storage:
    """A FUSE mount that two workers share, and a limit of slots."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder, self.mount = server, folder, folder / "mount"
        self.mount.mkdir()
        text = (ROOT / "deployments" / "prefect.yaml").read_text().partition("deployments:")[0]
        (folder / "prefect.yaml").write_text(
            text + "deployments:\n  - name: sick\n    entrypoint: prefect_cachewatch.flows.generate_cache\n"
            "    work_pool: {name: sick}\n"
        )
        self.prefect("work-pool", "create", "sick", "--type", "process")
        self.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", "sick")
        server.request("POST", "/v2/concurrency_limits/", name=STORAGE, limit=RUNS)
        argv = in_namespace(None, "--fuse", str(self.mount), str(folder / "fuse.pid"))
        self.workers = subprocess.Popen(
            [*argv, sys.executable, "-c", WORKERS, str(BIN / "prefect"), str(folder)],
            env=server.env, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.wait_for((folder / "fuse.pid").exists, 60)
        self.pid = int((folder / "fuse.pid").read_text())

    def prefect(self, *words: str) -> None:
        done = subprocess.run(
            [BIN / "prefect", *words], env=self.server.env, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def wait_for(self, condition: Any, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def start(self, tag: str) -> list[str]:
        """Start the runs, half of them on each worker, and wait until all of them write."""
        beside = self.folder / tag
        beside.mkdir()
        started = []
        for number in range(RUNS):
            name = f"{tag}-{number}"
            cache = str(self.mount / name)
            parameters = {
                "job": {
                    "name": name, "cache_dirs": [cache],
                    "command": [sys.executable, "-I", "-S", "-c", WRITES, cache, str(beside), name],
                },
                "stall": {"stall_after_s": WINDOW_S, "first_write_within_s": 300, "poll_s": 2},
                "stop": {"grace_s": 1}, "retry": {"attempts": 1}, "storage": {"name": STORAGE},
            }  # fmt: skip
            started.append(self.server.start_run("generate-cache/sick", parameters))
        self.wait_for(lambda: len(list(beside.glob("*.writes"))) == RUNS, 400)
        time.sleep(3)  # each has been measured, and has said so
        return started

    def limit(self) -> int:
        return int(self.server.request("GET", f"/v2/concurrency_limits/{STORAGE}")["limit"])

    def events(self, kind: str) -> list[dict[str, Any]]:
        asked = {"event": {"name": [f"cachewatch.storage.{kind}"]}}
        found: list[dict[str, Any]] = self.server.request("POST", "/events/filter", filter=asked)["events"]
        return found

    def incidents(self) -> list[dict[str, Any]]:
        found = self.server.request("POST", "/variables/filter", limit=200)
        return [one for one in found if one["name"].startswith("cachewatch-incident-")]


@pytest.fixture(scope="module")
def sick_server(tmp_path_factory: pytest.TempPathFactory, state_directory: Path) -> Iterator[Server]:
    more = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.5"}
    with running_server(tmp_path_factory.mktemp("sick"), state_directory, more) as running:
        yield running


@pytest.fixture(scope="module")
def storage(sick_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        unavailable("needs root and /dev/fuse")
    made = Storage(sick_server, tmp_path_factory.mktemp("storage"))
    yield made
    os.kill(made.pid, signal.SIGUSR2)
    made.workers.send_signal(signal.SIGINT)
    try:
        made.workers.wait(40)
    finally:
        os.kill(made.pid, signal.SIGKILL)


def test_a_storage_that_pauses_is_one_incident_and_every_run_completes(storage: Storage) -> None:
    runs = storage.start("pauses")
    os.kill(storage.pid, signal.SIGUSR1)
    lowest, until_s = RUNS, time.monotonic() + 3 * WINDOW_S
    while time.monotonic() < until_s:
        lowest = min(lowest, storage.limit())
        time.sleep(1)
    assert {storage.server.flow_run(run)["state_type"] for run in runs} == {"RUNNING"}
    os.kill(storage.pid, signal.SIGUSR2)
    assert lowest == 1
    storage.wait_for(lambda: storage.limit() == RUNS, 120)  # in steps, while they write
    storage.wait_for(lambda: storage.incidents() == [], 60)
    (storage.folder / "pauses" / "end").touch()
    for run in runs:
        assert storage.server.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED")["state_type"] == "COMPLETED"
    (told,) = storage.events("suspected")
    assert told["resource"]["prefect.resource.id"] == f"cachewatch.storage.{STORAGE}"
    assert set(told["payload"]["runs"]) <= set(runs) and len(told["payload"]["runs"]) >= 3
    assert told["payload"]["message"].startswith(f"storage {STORAGE} is suspected: ")
    storage.wait_for(lambda: len(storage.events("recovered")) == 1, 30)
    pages = storage.server.request(
        "POST", "/artifacts/filter", artifacts={"key": {"any_": [f"cachewatch-storage-{STORAGE}"]}}
    )
    assert pages and {page["flow_run_id"] for page in pages} <= set(runs)
    assert any("is suspected" in page["data"] for page in pages)


def test_a_storage_that_is_dead_is_one_incident_and_each_run_has_its_own_end(storage: Storage) -> None:
    runs = storage.start("dies")
    before = len(storage.events("suspected"))
    os.kill(storage.pid, signal.SIGUSR1)
    ends = [
        storage.server.wait_for_state(run, "COMPLETED", "FAILED", "CRASHED", timeout_s=20 * WINDOW_S) for run in runs
    ]
    os.kill(storage.pid, signal.SIGUSR2)
    assert {end["state_name"] for end in ends} == {"FilesystemUnresponsive"}
    storage.wait_for(lambda: len(storage.events("suspected")) == before + 1, 30)
    storage.wait_for(lambda: storage.limit() == RUNS, 60)  # nobody is left who would have to wait
