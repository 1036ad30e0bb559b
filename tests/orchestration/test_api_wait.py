"""A Prefect API that takes connections and never answers: what is waited for is said, and the wait has an end."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import eventually, mostly_apart, run

from prefect_cachewatch.cli import api_patience
from prefect_cachewatch.cli.api_patience import ApiWatchdog
from prefect_cachewatch.flows.telling import Telling

# The same commands, but with less patience.
SOON = """
import prefect_cachewatch.cli.api_patience as patience, prefect_cachewatch.cli.automations as automations
from prefect_cachewatch.cli.main import main
patience._TELL_AFTER_S, automations._API_S = 0.5, 3.0
main()
"""


@pytest.fixture
def mute() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel takes the connections
        yield f"http://127.0.0.1:{server.getsockname()[1]}/api"


@pytest.mark.parametrize("patience", mostly_apart(["3s", "0.5s"], ["3s"]))
def test_a_command_says_once_what_it_waits_for_and_until_when(mute: str, tmp_path: Path, patience: str) -> None:
    words = ["generate", "--api-patience", patience, "--cache-dir", str(tmp_path / "cache"), "--", "true"]
    if patience == "3s":
        words = ["automations", "apply", "notify"]
    env = {**os.environ, "PREFECT_API_URL": mute, "PREFECT_HOME": str(tmp_path / "prefect"), "TZ": "UTC"}
    ran = run([sys.executable, "-c", SOON, *words], env=env)
    *told, last = ran.stderr.splitlines()
    assert ran.status == 125, ran
    assert f"the Prefect API at {mute} has not answered within" in last
    wait = rf"cachewatch: waiting for the Prefect API at {re.escape(mute)} to answer, until \d\d:\d\d:\d\d"
    assert len(told) == (1 if patience == "3s" else 0), told  # what may last no longer needs no line
    assert all(re.fullmatch(wait, line) for line in told), told


def test_a_run_that_only_waits_for_the_api_says_so_once_a_wait(
    mute: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_patience, "api_url", lambda: mute)
    monkeypatch.setattr(api_patience, "_TELL_AFTER_S", 0.5)
    told, said = Telling(), ""
    watchdog = ApiWatchdog(told, 300)
    watchdog.start()

    def lines(count: int) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.count("\n") >= count

    try:
        assert eventually(lambda: lines(1))
        told.work()
        told.tell()
        assert eventually(lambda: lines(2))
    finally:
        watchdog.close()
    first, second = said.splitlines()
    assert first.startswith(f"cachewatch: waiting for the Prefect API at {mute} to take in that a run begins, until ")
    assert second.startswith(f"cachewatch: waiting for the Prefect API at {mute} to take in how the run ended, until ")
