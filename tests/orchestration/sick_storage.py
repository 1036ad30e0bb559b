"""Generations of two workers on one FUSE storage that pauses or dies, and what must come of it; for a server of any database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.harness import in_namespace
from tests.orchestration.conftest import BIN, Server
from tests.support import unavailable

__all__ = ["Storage", "dies", "mounted_storage", "pauses"]

ROOT = Path(__file__).resolve().parents[2]
STORAGE = "nas"
KINDS = ("silent", "moving", "suspected", "recovered")
# Writes until it is told to end; says beside the storage that it writes.
WRITES = """
import os, sys, time
cache, beside, name = sys.argv[1:4]
n = 0
while not os.path.exists(beside + "/end"):
    with open(f"{cache}/{n}.bin", "wb") as file:
        file.write(b"x" * 50_000)
    with open(f"{beside}/{name}.writes", "a") as told:
        told.write(".")
    time.sleep(0.5)
    n += 1
"""
WORKERS = """
import subprocess, sys
prefect, log, limit = sys.argv[1:4]
running = []
for name in ("one", "two"):
    with open(f"{log}/{name}.log", "wb") as said:
        argv = [prefect, "worker", "start", "--pool", "sick", "--name", name, "--limit", limit]
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
    """A FUSE mount that two workers share, and a limit of slots.

    Args:
        server: a real one.
        folder: of the test's own.
        runs: generations at once, half of them on each worker.
        window_s: their stall window; half of it must suffice for events to come and a probe of 5 s to end.
    """

    def __init__(self, server: Server, folder: Path, runs: int, window_s: float) -> None:
        self.server, self.folder, self.mount = server, folder, folder / "mount"
        self.runs, self.window_s = runs, window_s
        self.mount.mkdir()
        text = (ROOT / "deployments" / "prefect.yaml").read_text().partition("deployments:")[0]
        (folder / "prefect.yaml").write_text(
            text + "deployments:\n  - name: sick\n    entrypoint: prefect_cachewatch.flows.generate_cache\n"
            "    work_pool: {name: sick}\n"
        )
        self.prefect("work-pool", "create", "sick", "--type", "process")
        self.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", "sick")
        server.request("POST", "/v2/concurrency_limits/", name=STORAGE, limit=runs)
        argv = in_namespace(None, "--fuse", str(self.mount), str(folder / "fuse.pid"))
        self.workers = subprocess.Popen(
            [*argv, sys.executable, "-c", WORKERS, str(BIN / "prefect"), str(folder), str(runs // 2)],
            env=server.env, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.wait_for((folder / "fuse.pid").exists, 60, "the storage is mounted")
        self.pid = int((folder / "fuse.pid").read_text())

    def prefect(self, *words: str) -> None:
        done = subprocess.run(
            [BIN / "prefect", *words], env=self.server.env, cwd=self.folder, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def hang(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def come_back(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)

    def wait_for(self, condition: Callable[[], Any], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s; {self.seen()}"
            time.sleep(0.5)

    def seen(self) -> str:
        """Say how everything stands, for a test that fails."""
        runs = self.server.request("POST", "/flow_runs/filter", limit=200)
        states = [f"{run['name']}: {run['state_name']} ({(run['state'] or {}).get('message')})" for run in runs]
        events = [(one["event"], one["occurred"], one["payload"]) for kind in KINDS for one in self.events(kind)]
        logs = [
            path.read_text()[-1500:] for path in (self.folder / "one.log", self.folder / "two.log") if path.exists()
        ]
        return "\n".join([f"limit {self.limit()}", f"incidents {self.incidents()}", *states, *map(str, events), *logs])

    @contextmanager
    def writing(self, tag: str) -> Iterator[list[str]]:
        """Start the runs, and wait until all of them have written for a while; they are told to end whatever comes."""
        beside = self.folder / tag
        beside.mkdir()
        started = []
        for number in range(self.runs):
            name = f"{tag}-{number}"
            cache = str(self.mount / name)
            parameters = {
                "job": {
                    "name": name, "cache_dirs": [cache],
                    "command": [sys.executable, "-I", "-S", "-c", WRITES, cache, str(beside), name],
                },
                "stall": {"stall_after_s": self.window_s, "first_write_within_s": 600, "poll_s": 2},
                "stop": {"grace_s": 1}, "retry": {"attempts": 1}, "storage": {"name": STORAGE},
            }  # fmt: skip
            started.append(self.server.start_run("generate-cache/sick", parameters))

        def all_write() -> bool:
            told = [path.stat().st_size for path in beside.glob("*.writes")]
            return len(told) == self.runs and min(told) >= 10

        try:
            self.wait_for(all_write, 500, "all runs write")
            yield started
        finally:
            self.come_back()
            (beside / "end").touch()

    def ends(self, runs: list[str], timeout_s: float) -> list[dict[str, Any]]:
        def ended() -> list[dict[str, Any]]:
            found = [self.server.flow_run(run) for run in runs]
            return found if all(run["state_type"] in ("COMPLETED", "FAILED", "CRASHED") for run in found) else []

        self.wait_for(ended, timeout_s, "all runs have ended")
        return ended()

    def limit(self) -> int:
        return int(self.server.request("GET", f"/v2/concurrency_limits/{STORAGE}")["limit"])

    def events(self, kind: str) -> list[dict[str, Any]]:
        asked = {"event": {"name": [f"cachewatch.storage.{kind}"]}}
        found: list[dict[str, Any]] = self.server.request("POST", "/events/filter", filter=asked)["events"]
        return found

    def incidents(self) -> list[dict[str, Any]]:
        found = self.server.request("POST", "/variables/filter", limit=200)
        return [one for one in found if one["name"].startswith("cachewatch-incident-")]


@contextmanager
def mounted_storage(server: Server, folder: Path, runs: int, window_s: float) -> Iterator[Storage]:
    """A storage with its workers, which are ended by pid."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        unavailable("needs root and /dev/fuse")
    made = Storage(server, folder, runs, window_s)
    try:
        yield made
    finally:
        made.come_back()
        made.workers.send_signal(signal.SIGINT)
        try:
            made.workers.wait(60)
        finally:
            os.kill(made.pid, signal.SIGKILL)


def pauses(storage: Storage) -> None:
    """A storage that pauses for three windows is one incident, the limit follows it, and every run completes."""
    with storage.writing("pauses") as runs:
        storage.hang()
        lowest, until_s = storage.runs, time.monotonic() + 3 * storage.window_s
        while time.monotonic() < until_s:
            lowest = min(lowest, storage.limit())
            time.sleep(1)
        states = {storage.server.flow_run(run)["state_type"] for run in runs}
        storage.come_back()
        assert states == {"RUNNING"}, storage.seen()
        assert lowest == 1, storage.seen()
        storage.wait_for(
            lambda: storage.limit() == storage.runs, 300, "all slots are back"
        )  # in steps, while they write
        storage.wait_for(lambda: storage.incidents() == [], 60, "the incident is over")
    ends = storage.ends(runs, 200)
    assert {end["state_type"] for end in ends} == {"COMPLETED"}, storage.seen()
    (told,) = storage.events("suspected")
    assert told["resource"]["prefect.resource.id"] == f"cachewatch.storage.{STORAGE}"
    assert set(told["payload"]["runs"]) <= set(runs) and len(told["payload"]["runs"]) > len(runs) / 2
    assert told["payload"]["message"].startswith(f"storage {STORAGE} is suspected: ")
    storage.wait_for(lambda: len(storage.events("recovered")) == 1, 60, "the recovery is told")
    pages = storage.server.request(
        "POST", "/artifacts/filter", artifacts={"key": {"any_": [f"cachewatch-storage-{STORAGE}"]}}
    )
    assert pages and {page["flow_run_id"] for page in pages} <= set(runs)
    assert any("is suspected" in page["data"] for page in pages)


def dies(storage: Storage) -> None:
    """A storage that is dead for good is one incident, and each run has its own end, with its name."""
    before = len(storage.events("suspected"))
    with storage.writing("dies") as runs:
        storage.hang()
        ends = storage.ends(runs, 20 * storage.window_s)
        assert {end["state_name"] for end in ends} == {"FilesystemUnresponsive"}, storage.seen()
        assert all(end["state"]["message"].startswith(f"{end['parameters']['job']['name']} stalled") for end in ends), (
            storage.seen()
        )
    storage.wait_for(lambda: len(storage.events("suspected")) == before + 1, 60, "one incident is told")
    storage.wait_for(lambda: storage.limit() == storage.runs, 120, "all slots are back")  # nobody is left to wait
