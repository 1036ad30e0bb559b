"""Faults of the Prefect API that is mute, mad or something else: `--api-patience` is kept, and the generator's end is said."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Front
from tests.faults.harness import Sandbox, living, until
from tests.faults.test_api import generate
from tests.support import mostly_apart, unavailable

pytestmark = pytest.mark.timeout(400)


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers every request in one odd way: the name of its server's `way`."""

    def do_GET(self) -> None:
        way, stopped = self.server.way, self.server.stopped  # type: ignore[attr-defined]
        if way == "mute after the check" and self.path.endswith(("/health", "/version")):
            way = "version" if self.path.endswith("/version") else "healthy"
        if way.startswith("mute"):
            self.server.waiting.set()  # type: ignore[attr-defined]
            stopped.wait(300)
            return
        if way == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            self.close_connection = True
            return
        if way == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not stopped.wait(0.5):
                self.wfile.write(b" ")
            return
        status, headers, body = {
            "redirect": (302, {"Location": self.path}, b""),
            "500": (500, {}, b"{}"),
            "403": (403, {}, b"{}"),
            "html": (200, {"Content-Type": "text/html"}, b"<html>please log in</html>"),
            "429": (429, {"Retry-After": "86400"}, b"{}"),
            "503": (503, {}, b"{}"),
            "401": (401, {}, b"{}"),
            "half": (200, {"Content-Type": "application/json"}, b'"3.'),
            "version": (200, {"Content-Type": "application/json"}, b'"3.8.8"'),
            "healthy": (200, {"Content-Type": "application/json"}, b"true"),
        }[way]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PATCH = do_GET  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def odd() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    server.way, server.stopped, server.waiting = "mute", threading.Event(), threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    yield server
    server.stopped.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


WAYS = ["mute", "429", "503", "500", "401", "403", "html", "half", "redirect", "cut", "drip", "no TLS"]


@pytest.mark.parametrize("way", mostly_apart(WAYS, ["500", "html", "redirect", "cut", "drip", "no TLS"]))
def test_an_api_that_is_odd_at_the_start_is_one_sentence_in_bounded_time(
    odd: http.server.ThreadingHTTPServer, own_sandbox: Sandbox, way: str
) -> None:
    odd.way = way  # type: ignore[attr-defined]
    url = f"{'https' if way == 'no TLS' else 'http'}://127.0.0.1:{odd.server_port}/api"
    process = generate(own_sandbox, url, way, ["touch", str(own_sandbox.root / "ran")], "--api-patience", "5s")
    assert process.wait(90) == 125, own_sandbox.stderr()
    assert own_sandbox.stderr().count("\n") == 1, own_sandbox.stderr()
    assert url in own_sandbox.stderr()
    assert not (own_sandbox.root / "ran").exists()


@pytest.mark.parametrize("signalled", [False, True], ids=["patience", "SIGTERM"])
def test_an_api_that_is_mute_from_mid_run_on_hides_no_end(front: Front, own_sandbox: Sandbox, signalled: bool) -> None:
    tag, command = own_sandbox.tree("plain", writes=60, interval_s=0.1, life_s=8)
    patience = "5m" if signalled else "8s"
    process = generate(own_sandbox, front.proxy.url, f"mute-{signalled}", command, "--api-patience", patience)
    until(lambda: living(tag), 90, "the generator runs")
    front.proxy.delay_s = 600.0
    until(own_sandbox.report_path.exists, 120, "the report is on disk")
    if signalled:
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
    code = process.wait(100)
    outcome = json.loads(own_sandbox.report_path.read_text())["outcome"]
    assert (outcome, code) == ("completed", 0), own_sandbox.stderr()[-2000:]
    assert "Tensor cache generation completed" in own_sandbox.stderr()
    assert "The Prefect API could not be told" in own_sandbox.stderr()


@pytest.mark.parametrize("name", mostly_apart(["SIGTERM", "SIGINT"], ["SIGTERM"]))
@pytest.mark.parametrize("moment", ["the generator runs", "it waits for the next attempt"])
def test_a_signal_while_the_api_is_mute_ends_the_run_by_its_rules(
    front: Front, own_sandbox: Sandbox, moment: str, name: str
) -> None:
    number, storage = getattr(signal, name), f"mute-{name}-{moment[0]}"
    front.server.request("POST", "/v2/concurrency_limits/", name=storage, limit=1, active=True)
    tag, command = own_sandbox.tree("term_ignorer", interval_s=0.2, life_s=300)
    waits = moment != "the generator runs"
    options = ["--attempts", "3", "--backoff", "5m", "--storage", storage]
    process = generate(own_sandbox, front.proxy.url, storage, ["false"] if waits else command, *options)
    until(lambda: "ended failed: again after" in own_sandbox.stderr() if waits else living(tag), 90, moment)
    front.proxy.delay_s = 600.0
    time.sleep(1)
    process.send_signal(number)
    until(lambda: not living(tag), 60, "the tree is gone")
    assert process.wait(100) == 128 + number, own_sandbox.stderr()[-2000:]
    assert own_sandbox.report()["outcome"] == ("failed" if waits else "cancelled")
    assert "The Prefect API could not be told" in own_sandbox.stderr()


@pytest.mark.parametrize("name", mostly_apart(["SIGTERM", "SIGINT"], ["SIGTERM"]))
@pytest.mark.parametrize("way", ["mute", "mute after the check"])
def test_a_signal_before_a_mute_api_has_made_the_run_ends_the_command(
    odd: http.server.ThreadingHTTPServer, own_sandbox: Sandbox, way: str, name: str
) -> None:
    odd.way, number = way, getattr(signal, name)  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{odd.server_port}/api"
    process = generate(own_sandbox, url, "mute-start", ["touch", str(own_sandbox.root / "ran")])
    waiting: threading.Event = odd.waiting  # type: ignore[attr-defined]
    assert waiting.wait(90)
    process.send_signal(number)
    assert process.wait(100) in (128 + number, -number), own_sandbox.stderr()
    assert own_sandbox.stderr().count("\n") <= 1, own_sandbox.stderr()
    assert not (own_sandbox.root / "ran").exists()


@pytest.mark.parametrize("way", mostly_apart(["500", "429", "html", "redirect", "cut"], ["500", "cut"]))
def test_an_api_that_is_odd_from_mid_run_on_hides_no_end(front: Front, own_sandbox: Sandbox, way: str) -> None:
    head = {
        "500": b"500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}",
        "429": b"429 Too Many Requests\r\nRetry-After: 86400\r\nContent-Length: 2\r\n\r\n{}",
        "html": b"200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        "redirect": b"302 Found\r\nLocation: /api/x\r\nContent-Length: 0\r\n\r\n",
        "cut": b"200 OK\r\nContent-Length: 100\r\n\r\n{",
    }[way]
    tag, command = own_sandbox.tree("plain", writes=60, interval_s=0.1, life_s=8)
    process = generate(own_sandbox, front.proxy.url, f"odd-{way}", command, "--api-patience", "8s")
    until(lambda: living(tag), 90, "the generator runs")
    front.proxy.answer = b"HTTP/1.1 " + head
    until(own_sandbox.report_path.exists, 120, "the report is on disk")
    code = process.wait(100)
    outcome = json.loads(own_sandbox.report_path.read_text())["outcome"]
    assert (outcome, code) == ("completed", 0), own_sandbox.stderr()[-2000:]
    assert "Tensor cache generation completed" in own_sandbox.stderr()
    assert "The Prefect API could not be told" in own_sandbox.stderr()


def test_a_resolver_that_never_answers_is_one_sentence_in_bounded_time(own_sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        unavailable("needs root, for a resolver of its own")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.77.0.53", 53))
        conf = own_sandbox.root / "resolv.conf"
        conf.write_text("nameserver 127.77.0.53\noptions timeout:30 attempts:5\n")
        own_sandbox.mounts += ["--bind", str(own_sandbox.root)]
        own_sandbox.prelude = ["sh", "-c", f'mount --bind {conf} /etc/resolv.conf && exec "$@"', "sh"]
        command = ["touch", str(own_sandbox.root / "ran")]
        process = generate(own_sandbox, "http://prefect.example.org/api", "dns", command, "--api-patience", "5s")
        assert process.wait(90) == 125, own_sandbox.stderr()
        asked = mute.recv(512, socket.MSG_DONTWAIT)
    assert b"prefect" in asked
    assert own_sandbox.stderr().count("\n") == 1, own_sandbox.stderr()
    assert "has not answered within 5 s" in own_sandbox.stderr()
