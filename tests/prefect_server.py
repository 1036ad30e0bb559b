"""A real Prefect server for tests, what they ask of it, the processes around it, and a proxy that can be down or slow."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.prefect_database import fresh_home

BIN = Path(sys.executable).parent
# For what a server, a worker or a flow's process does on a busy machine; nothing is asserted close to it.
PATIENCE_S = 300.0
# Longer than SQLite waits for its lock in a server: what was not written is answered by 503, and asked again.
_ANSWER_S = 120.0


@dataclass
class Server:
    """A real Prefect server on a free loopback port."""

    url: str
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    def request(self, method: str, path: str, **body: Any) -> Any:
        # A server that is busy asks to come again, or does not answer in time: what only reads is asked again, as
        # Prefect's own client does.
        reads = method == "GET" or path.endswith("/filter")
        for pause_s in (1, 2, 4, 0):
            try:
                answer = httpx.request(method, f"{self.url}{path}", json=body or None, timeout=_ANSWER_S)
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

    def wait_for_state(self, run_id: str, *types: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until a flow run is in a state of one of these types; returns the run."""
        deadline = time.monotonic() + timeout_s
        while True:
            run = self.flow_run(run_id)
            if run["state_type"] in types:
                return run
            assert time.monotonic() < deadline, f"{run['name']} is {run['state_type']} {run['state']['message']}"
            time.sleep(0.2)

    def run_named(self, name: str) -> dict[str, Any]:
        """The only flow run of this name."""
        (found,) = self.request("POST", "/flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        return dict(found)

    def wait_final(self, run_id: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until a flow run is in a final state; returns the run."""
        return self.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED", "CANCELLED", timeout_s=timeout_s)

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
        deadline = time.monotonic() + PATIENCE_S
        while not self.request("POST", "/events/filter", filter=ended)["events"]:
            assert time.monotonic() < deadline, "the worker did not say that the run has ended"
            time.sleep(0.2)

    def task_states(self, run_id: str) -> dict[str, str]:
        """Names of task runs to the names of their states; waits until the events have arrived."""
        filters = {"flow_runs": {"id": {"any_": [run_id]}}}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.request("POST", "/task_runs/filter", **filters)
            states = {run["name"]: run["state_name"] for run in found}
            if (states and "Running" not in states.values()) or time.monotonic() > deadline:
                return states
            time.sleep(0.2)

    def artifacts(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = self.request("POST", "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run_id]}})
        return {artifact["key"]: artifact for artifact in found}

    def log_lines(self, run_id: str, *until: str, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
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

    def wait_for_event(self, run_id: str, kind: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
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

    def wait_for_deployment(self, name: str) -> None:
        """Wait until something that serves flows has made its deployment."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(httpx.HTTPStatusError):
                self.request("GET", f"/deployments/name/{name}")
                return
            assert time.monotonic() < deadline, f"nobody serves {name}"
            time.sleep(0.3)

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

    def cancel(self, run_id: str) -> None:
        """Cancel a run, as the button in the UI does it."""
        self.set_state(run_id, "CANCELLING", "Cancelling")

    def prefect(self, *words: str, cwd: Path) -> None:
        """Run a command of Prefect's that must succeed."""
        argv = [BIN / "prefect", *words]
        done = subprocess.run(argv, env=self.env, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def client(
        self, *argv: str | Path, folder: Path, more: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A worker, or what serves flows: started in a folder with its log there, and ended."""
        with (folder / "client.log").open("ab") as log:
            process = subprocess.Popen(
                [*argv], env={**self.env, **(more or {})}, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            try:
                yield process
            finally:
                end(process)

    def worker(
        self, pool: str, folder: Path, more: Mapping[str, str] | None = None
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """A worker of a pool."""
        return self.client(BIN / "prefect", "worker", "start", "--pool", pool, folder=folder, more=more)

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
def running_server(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`prefect server start` with a database of its own, in memory where there is some; `more` is added to its environment.

    On a disk that others keep busy a server holds SQLite's lock for so long that other requests fail.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachewatch-prefect-", dir=memory) as database:
        fresh_home(Path(database))
        yield from _serving(folder, Path(database) / "prefect.db", more or {})


def _serving(home: Path, database: Path, more: Mapping[str, str]) -> Iterator[Server]:
    port = free_port()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT")},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_SERVER_SERVICES_SCHEDULER_DEPLOYMENT_BATCH_SIZE": "10",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_CLI_PROMPT": "false",
        "CACHEWATCH_STATE": str(home / "state"),
    }
    with started_server({**env, **more}, home / "server.log") as process:
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
            deadline = time.monotonic() + PATIENCE_S
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


def flow_process_of(pids: Iterable[int]) -> psutil.Process:
    """The process that has started the engine of a tree, of which these are processes."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            above = psutil.Process(pid).parents()
            engines = [
                one for one in above if one.cmdline()[-1:] and one.cmdline()[-1].startswith("cachewatch: engine")
            ]
            if engines:
                flow = engines[-1].parent()
                assert flow is not None
                return flow
    raise AssertionError("no engine above it")


class Proxy:
    """Passes connections to a server; `down()` refuses and cuts them, `delay_s` holds back each request, `answer` takes the server's place."""

    def __init__(self, target_port: int) -> None:
        self.target_port, self.port = target_port, free_port()
        self.delay_s = 0.0
        self.answer: bytes | None = None
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.up()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def up(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), 10)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, requests: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if requests and self.delay_s and data.split(b" ", 1)[0] in _METHODS:
                    time.sleep(self.delay_s)
                if requests and self.answer is not None:
                    source.sendall(self.answer)
                    break
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                if one in self._open:
                    self._open.remove(one)
        if requests:
            for one in (source, target):
                one.close()


_METHODS: Sequence[bytes] = (b"GET", b"POST", b"PATCH", b"PUT", b"DELETE")
