"""Servers in containers: ready, handed over, left alone by the janitor, and stopped later."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.containers.engine import SHELL_IMAGE
from tests.support import CACHEWATCH, eventually, run, run_exec


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    return found


def test_a_server_in_a_container_is_ready_left_running_and_stopped_later(engine, cache: Path, port):
    script = f"dd if=/dev/zero of={cache}/f bs=1M count=1 2>/dev/null; echo fine > /tmp/health; httpd -f -p 127.0.0.1:{port} -h /tmp"
    url = f"http://127.0.0.1:{port}/health"
    ran = run_exec(
        cache, "--image", SHELL_IMAGE, "--network", "host", "--poll", "0.3s", "--ready", f"http={url}",
        "--grace", "0.5s", command=["sh", "-c", script],
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    name = ran.report["name"]
    assert ran.report["ready"]["left_running"] is True
    assert len(ran.report["ready"]["container"]) == 64
    # Its guard has let go, and no janitor takes it for a leftover.
    assert run([*CACHEWATCH, "doctor", "--no-prefect"]).status == 0
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == b"fine\n"
    assert len(engine.containers()) == 1
    assert "container " in run([*CACHEWATCH, "stop", "--list"]).stdout
    stopped = run([*CACHEWATCH, "stop", name])
    assert stopped.status == 0, stopped.stderr
    assert engine.containers() == []
    assert json.loads(run([*CACHEWATCH, "stop", "--list", "--json"]).stdout) == []


def test_a_server_that_ends_before_it_is_ready_has_failed_with_its_exit_code(cache: Path, port):
    ran = run_exec(
        cache, "--image", SHELL_IMAGE, "--poll", "0.3s", "--ready", f"tcp=127.0.0.1:{port}", command=["sh", "-c", "exit 5"]
    )  # fmt: skip
    assert ran.status == 5, ran.stderr


def test_a_server_that_is_stopped_when_it_is_ready_leaves_nothing(engine, cache: Path):
    script = f"dd if=/dev/zero of={cache}/f bs=1M count=1 2>/dev/null; echo listening on all; sleep 7777; true"
    ran = run_exec(
        cache, "--image", SHELL_IMAGE, "--poll", "0.3s", "--ready", "log=listening on", "--then", "stop", "--grace", "0.3s",
        command=["sh", "-c", script],
    )  # fmt: skip
    assert ran.status == 0, ran.stderr
    assert eventually(lambda: not engine.containers())
