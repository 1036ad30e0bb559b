"""Prefect for tests: one harness for the session, and one real server with a process worker for its module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.prefect_database import fresh_home, harness

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for the real server is of `make test-server`, as far as it is of no other target."""
    for item in items:
        if HERE in item.path.parents and "server" in item.fixturenames and not item.get_closest_marker("fleet"):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Reports and logs of test runs stay out of the user's state directory."""
    path = tmp_path_factory.mktemp("state")
    before = os.environ.get("CACHEWATCH_STATE")
    os.environ["CACHEWATCH_STATE"] = str(path)
    yield path
    if before is None:
        del os.environ["CACHEWATCH_STATE"]
    else:
        os.environ["CACHEWATCH_STATE"] = before


@pytest.fixture(scope="session")
def prefect_harness() -> Iterator[None]:
    """A temporary database and server for flows that run in this process."""
    with harness():
        yield


@dataclass
class Server:
    """A real Prefect server on a free loopback port."""

    url: str
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    def request(self, method: str, path: str, **body: Any) -> Any:
        # A server that is busy asks to come again, or does not answer in time: what only reads is asked again, as
        # Prefect's own client does.
        reads = method == "GET" or path.endswith("/filter")
        for pause_s in (1, 2, 4, 0):
            try:
                answer = httpx.request(method, f"{self.url}{path}", json=body or None, timeout=30)
            except httpx.TransportError:
                if not (reads and pause_s and self.process.poll() is None):
                    raise
            else:
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    break
            time.sleep(pause_s)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def flow_run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", f"/flow_runs/{run_id}")
        return found

    def wait_for_state(self, run_id: str, *types: str, timeout_s: float = 90) -> dict[str, Any]:
        """Wait until a flow run is in a state of one of these types; returns the run."""
        deadline = time.monotonic() + timeout_s
        while True:
            run = self.flow_run(run_id)
            if run["state_type"] in types:
                return run
            assert time.monotonic() < deadline, f"{run['name']} is {run['state_type']} {run['state']['message']}"
            time.sleep(0.2)

    def wait_for_crash(self, run_id: str) -> None:
        """Wait until a worker has said its last of a run whose process was killed.

        A process worker reports such a run as Crashed twice, about 2 s apart; a retry in between is undone by the second.
        """
        self.wait_for_state(run_id, "CRASHED")
        self.wait_for_process(run_id)

    def wait_for_process(self, run_id: str) -> None:
        """Wait until the worker says that the process of a run has ended; its log lines have arrived by then."""
        ended = {
            "event": {"name": ["prefect.worker.executed-flow-run"]},
            "related": {"id": [f"prefect.flow-run.{run_id}"]},
        }
        deadline = time.monotonic() + 60
        while not self.request("POST", "/events/filter", filter=ended)["events"]:
            assert time.monotonic() < deadline, "the worker did not say that the run has ended"
            time.sleep(0.2)

    def task_states(self, run_id: str) -> dict[str, str]:
        """Names of task runs to the names of their states; waits until the events have arrived."""
        filters = {"flow_runs": {"id": {"any_": [run_id]}}}
        deadline = time.monotonic() + 20
        while True:
            found = self.request("POST", "/task_runs/filter", **filters)
            states = {run["name"]: run["state_name"] for run in found}
            if (states and "Running" not in states.values()) or time.monotonic() > deadline:
                return states
            time.sleep(0.2)

    def artifacts(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = self.request("POST", "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run_id]}})
        return {artifact["key"]: artifact for artifact in found}

    def log_lines(self, run_id: str, *until: str, timeout_s: float = 30) -> list[dict[str, Any]]:
        """The log of a flow run and its tasks, oldest first; waits until a line has each of these texts."""
        asked: dict[str, Any] = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        deadline = time.monotonic() + timeout_s
        while True:
            lines: list[dict[str, Any]] = self.request("POST", "/logs/filter", **asked)
            while len(page := self.request("POST", "/logs/filter", **asked, offset=len(lines)) if lines else []):
                lines += page
            if all(any(text in line["message"] for line in lines) for text in until):
                return lines
            assert time.monotonic() < deadline, [line["message"] for line in lines]
            time.sleep(0.3)

    def wait_for_event(self, run_id: str, kind: str, timeout_s: float = 30) -> dict[str, Any]:
        """The event `cachewatch.generation.<kind>` of a flow run; waits until it has arrived."""
        wanted = {
            "event": {"name": [f"cachewatch.generation.{kind}"]},
            "related": {"id": [f"prefect.flow-run.{run_id}"]},
        }
        deadline = time.monotonic() + timeout_s
        while not (found := self.request("POST", "/events/filter", filter=wanted)["events"]):
            assert time.monotonic() < deadline, f"no event .{kind}"
            time.sleep(0.2)
        event: dict[str, Any] = found[0]
        return event

    def start_run(self, deployment: str, parameters: dict[str, Any], **more: Any) -> str:
        flow_name, name = deployment.split("/")
        found = self.request("GET", f"/deployments/name/{flow_name}/{name}")
        for _ in range(10):
            try:
                run = self.request("POST", f"/deployments/{found['id']}/create_flow_run", parameters=parameters, **more)
                return str(run["id"])
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 503:  # SQLite is locked for a moment; the UI would try again too
                    raise
            time.sleep(1)
        raise AssertionError("the server answered 503 for 10 s")

    def set_state(self, run_id: str, kind: str, name: str) -> None:
        self.request("POST", f"/flow_runs/{run_id}/set_state", state={"type": kind, "name": name}, force=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session by pid."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@contextmanager
def running_server(folder: Path, state_directory: Path, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`prefect server start` with a database of its own; `more` is added to its environment."""
    home = fresh_home(folder)
    port = free_port()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT")},
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_SERVER_SERVICES_SCHEDULER_DEPLOYMENT_BATCH_SIZE": "10",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_CLI_PROMPT": "false",
        "CACHEWATCH_STATE": str(state_directory),
    }
    with started_server({**env, **(more or {})}, home / "server.log") as process:
        yield Server(env["PREFECT_API_URL"], env, process)


@contextmanager
def started_server(env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`prefect server start` at the address of its environment, as soon as it answers."""
    url = env["PREFECT_API_URL"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [BIN / "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(httpx.URL(url).port)],
            env=env, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield process
        finally:
            end(process)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, state_directory: Path) -> Iterator[Server]:
    """The real server that the tests share."""
    with running_server(tmp_path_factory.mktemp("prefect"), state_directory) as running:
        yield running


def alive(tag: str) -> list[int]:
    """Pids of living processes with a tag on their command line, the test's own and the guards' left out."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):  # it ends just now: there is no file, or nothing in it
            continue
        if tag.encode() in argv and state not in "ZX":
            found.append(int(name))
    return found


def wait_until_gone(tag: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while left := alive(tag):
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.05)
