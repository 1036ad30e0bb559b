"""A real Prefect server for the fault suite, and a proxy before it that can be down or slow."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.faults.harness import living, until
from tests.prefect_database import fresh_home

BIN = Path(sys.executable).parent


class Api:
    """The server's API, asked directly."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, **body: Any) -> Any:
        for last in (False, False, False, False, True):
            try:
                answer = httpx.request(method, f"{self.url}{path}", json=body or None, timeout=60)
            except httpx.TimeoutException:  # what only reads may be asked again
                if last or not (method == "GET" or path.endswith("/filter")):
                    raise
            else:
                if answer.status_code != 503:  # SQLite under load
                    break
            time.sleep(1)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/flow_runs/{run_id}")
        return found

    def run_named(self, name: str) -> dict[str, Any]:
        found = self.ask("POST", "/flow_runs/filter", flow_runs={"name": {"any_": [name]}})
        assert len(found) == 1, found
        return dict(found[0])

    def wait_final(self, run_id: str, timeout_s: float = 60) -> dict[str, Any]:
        until(
            lambda: self.run(run_id)["state_type"] not in ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING"),
            timeout_s,
            "a final state",
        )
        return self.run(run_id)

    def artifacts(self, run_id: str) -> list[str]:
        found = self.ask("POST", "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run_id]}})
        return sorted(artifact["key"] for artifact in found)

    def start(self, deployment: str, parameters: dict[str, Any]) -> str:
        flow_name, name = deployment.split("/")
        found = self.ask("GET", f"/deployments/name/{flow_name}/{name}")
        return str(self.ask("POST", f"/deployments/{found['id']}/create_flow_run", parameters=parameters)["id"])

    def cancel(self, run_id: str) -> None:
        self.ask(
            "POST", f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLING", "name": "Cancelling"}, force=False
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_server(home: Path, environ: dict[str, str]) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Start `prefect server start` on a free loopback port with a database of its own; returns it and its clients' env."""
    fresh_home(home)
    port = free_port()
    env = {name: value for name, value in environ.items() if not name.startswith("PREFECT")} | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_CLI_PROMPT": "false",
    }
    with (home / "server.log").open("wb") as log:
        argv = [str(BIN / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def healthy() -> bool:
        assert process.poll() is None, (home / "server.log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{env['PREFECT_API_URL']}/health", timeout=5).status_code == 200
        return False

    until(healthy, 150, "the Prefect server answers")
    return process, env


def prefect(env: dict[str, str], *words: str, cwd: Path) -> None:
    done = subprocess.run(
        [str(BIN / "prefect"), *words], env=env, cwd=cwd, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server or worker by its pid."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def flow_process_of(tag: str) -> psutil.Process:
    """The process that holds the guard of a tree."""
    for pid in living(tag):
        with contextlib.suppress(psutil.Error):
            above = psutil.Process(pid).parents()
            guards = [one for one in above if "cachewatch-guard" in one.cmdline()]
            if guards:
                flow = guards[-1].parent()
                assert flow is not None
                return flow
    raise AssertionError(f"no guard above {tag}")


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
