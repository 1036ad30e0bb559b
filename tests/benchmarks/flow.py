"""The guarded flow against a bare Prefect flow that runs the same command, on the same server; and what it asks of the API."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import CACHEWATCH, interleaved, median, row, scratch, spread, timed

# Writes 4 MiB a second for so many seconds.
WRITER = """
import os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
for number in range(int(sys.argv[2])):
    with open(os.path.join(sys.argv[1], f"{number}.bin"), "wb") as file:
        file.write(os.urandom(4 << 20))
    time.sleep(1)
"""
# The same command as people run it in a flow today.
BARE = """
import subprocess, sys
from prefect import flow, task

@task
def run_command(argv):
    subprocess.run(argv, check=True)

@flow
def bare(argv):
    run_command(argv)

bare(sys.argv[1:])
"""
_REQUEST = re.compile(rb"(?:^|\r\n\r\n|\})(GET|POST|PUT|PATCH|DELETE) (/\S*) HTTP/1\.1\r\n")


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure both flows on one server, then the guarded one's requests through a counting proxy.

    Args:
        quick: shorter commands and fewer runs.

    Returns:
        Rows for wall time and for requests a minute while it watches.
    """
    seconds, runs = (3, 2) if quick else (10, 5)
    with scratch() as root, _server(root) as (api, environ):
        number = iter(range(10_000))
        guarded, bare = interleaved(
            runs,
            lambda: timed(lambda: _guarded(root / f"g{next(number)}", seconds, environ)),
            lambda: timed(lambda: _bare(root / f"b{next(number)}", seconds, environ)),
        )
        watching, requests = _requests(root / "counted", api, environ, 20 if quick else 80)
    ours, peer = median(guarded), median(bare)
    per_minute = 60 * len(requests) / watching
    kinds = ", ".join(sorted({f"{method} {path}" for _, method, path in requests}))
    return [
        row(f"guarded flow, command of {seconds} s", ours, "s", "bare Prefect flow", peer,
            target="at most 1.2 x + 1 s", ok=ours <= 1.2 * peer + 1, note=spread(guarded)),
        row("API requests while it watches", per_minute, "per minute", "", None,
            target="at most 6", ok=per_minute <= 6, note=f"{len(requests)} in {watching:.0f} s: {kinds}"),
    ]  # fmt: skip


def _guarded(cache: Path, seconds: int, environ: dict[str, str], *options: str) -> None:
    argv = [CACHEWATCH, "generate", "--cache-dir", str(cache), *options, "--"]
    _check([*argv, sys.executable, "-S", "-c", WRITER, str(cache), str(seconds)], environ)


def _bare(cache: Path, seconds: int, environ: dict[str, str]) -> None:
    argv = [sys.executable, "-c", BARE]
    _check([*argv, sys.executable, "-S", "-c", WRITER, str(cache), str(seconds)], environ)


def _check(argv: list[str], environ: dict[str, str]) -> None:
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def _requests(
    cache: Path, api: str, environ: dict[str, str], seconds: int
) -> tuple[float, list[tuple[float, str, str]]]:
    """Run the guarded flow through a proxy; give the seconds of its watch and the requests made in it."""
    with _proxy(int(api.split(":")[2].split("/", maxsplit=1)[0])) as (port, seen):
        through = environ | {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
        _guarded(cache, seconds, through, "--expect", "320MiB")  # with a progress artifact: the most it ever asks
    # The watch: from the first file to the last, less a second for the start's own requests on its tail.
    times = sorted(path.stat().st_mtime for path in cache.iterdir())
    begin, end = times[0] + 2, times[-1]
    return end - begin, [found for found in seen if begin <= found[0] <= end]


@contextmanager
def _server(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    port = _free_port()
    api = f"http://127.0.0.1:{port}/api"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {
        "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    argv = [
        str(Path(sys.executable).with_name("prefect")),
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (root / "server.log").open("wb") as log:
        server = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"{api}/health", timeout=2):
                    break
            except OSError:
                if server.poll() is not None:
                    break
                time.sleep(0.5)
        else:
            server.terminate()
        if server.poll() is not None:
            raise RuntimeError(f"the Prefect server did not start: {(root / 'server.log').read_text()[-1000:]}")
        yield api, environ | {"PREFECT_API_URL": api}
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def _proxy(upstream: int) -> Iterator[tuple[int, list[tuple[float, str, str]]]]:
    """A TCP proxy that notes each HTTP request that goes through it; a websocket counts as the one that opens it."""
    seen: list[tuple[float, str, str]] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, sink: socket.socket, count: bool) -> None:
        upgraded = False
        try:
            while data := source.recv(1 << 16):
                if count and not upgraded:
                    for method, path in _REQUEST.findall(data):
                        seen.append((time.time(), method.decode(), path.decode()))
                    upgraded = b"\r\nupgrade: websocket" in data.lower()
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", upstream))
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], seen
    finally:
        listener.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
