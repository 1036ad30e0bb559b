"""A run outlives those around it: a server that is restarted while it asks for slots, a worker that no longer reads it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from tests.prefect_server import Proxy

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.tasks.prefect_api.outage import ask_patiently, is_outage
from prefect_cachewatch.tasks.prefect_api.storage_slots import require_limit, storage_slot

pytestmark = pytest.mark.usefixtures("prefect_harness")
LOGGER = logging.getLogger("test-outages")
GENERATES = """
import sys
from prefect_cachewatch.flows.generation import generate_cache

generate_cache({"name": sys.argv[1], "command": sys.argv[3:], "cache_dirs": [sys.argv[2]]},
               stall={"stall_after_s": 30, "poll_s": 0.5}, retry={"attempts": 1})
"""
GROWS = """
import os, sys, time
for n in range(40):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.2)
"""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """The harness's server behind a proxy that can be down, and its clients sent there."""
    found = Proxy(httpx.URL(PREFECT_API_URL.value()).port or 0)
    with temporary_settings({PREFECT_API_URL: found.url}):
        yield found
    found.down()


def make_limit(name: str, limit: int) -> str:
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=limit))
    return name


def test_a_server_that_comes_back_is_waited_for_before_a_generation(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make_limit(f"back-{uuid.uuid4().hex[:8]}", 1)
    proxy.down()
    back = threading.Timer(2, proxy.up)
    back.start()
    with caplog.at_level(logging.INFO), storage_slot(storage, 1, LOGGER):
        assert require_limit(storage, 1).active_slots == 1
    back.join()
    assert "The Prefect API does not answer (ConnectError): asking again for 3 minutes" in caplog.text
    assert "The Prefect API answers again after" in caplog.text
    assert require_limit(storage, 1).active_slots == 0


def test_slots_that_cannot_be_given_back_do_not_take_the_place_of_how_the_job_ended(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make_limit(f"lost-{uuid.uuid4().hex[:8]}", 2)
    with storage_slot(storage, 1, LOGGER):
        proxy.down()
    assert f"1 of 2 slots of {storage} could not be given back" in caplog.text
    assert "they are free after 5 minutes at the latest" in caplog.text
    proxy.up()
    with pytest.raises(RuntimeError, match="the generator's own end"), storage_slot(storage, 1, LOGGER):
        proxy.down()
        raise RuntimeError("the generator's own end")


class Times:
    """A clock that only sleeping moves."""

    now_s = 0.0

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


def test_an_api_that_stays_away_is_one_sentence_when_the_patience_is_over() -> None:
    times, asked = Times(), []

    def ask() -> None:
        asked.append(times.now_s)
        raise httpx.ConnectError("refused")

    with pytest.raises(InputError) as caught:
        ask_patiently(ask, LOGGER, patience_s=12, clock=lambda: times.now_s, sleep=times.sleep)
    assert asked == [0, 1, 3, 7, 12]
    assert caught.value.message == (
        "the Prefect API has not answered for 12 s (ConnectError): start it with `prefect server start`, or set PREFECT_API_URL"
    )


@pytest.mark.parametrize(("status", "away"), [(500, True), (503, True), (404, False), (423, False)])
def test_only_a_server_that_does_not_work_counts_as_away(status: int, away: bool) -> None:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    answer = httpx.HTTPStatusError("said", request=request, response=httpx.Response(status, request=request))
    outer = RuntimeError("wrapped")
    outer.__cause__ = answer
    assert is_outage(outer) is away


def run_named(name: str) -> dict[str, Any]:
    filters = {"flow_runs": {"name": {"any_": [name]}}}
    found = httpx.post(f"{PREFECT_API_URL.value()}/flow_runs/filter", json=filters, timeout=30)
    return dict(found.raise_for_status().json()[0])


@pytest.mark.campaign
def test_a_run_whose_worker_no_longer_reads_its_output_goes_on_to_its_own_end(tmp_path: Path) -> None:
    name, cache = f"unread-{uuid.uuid4().hex[:8]}", tmp_path / "cache"
    argv = [sys.executable, "-c", GENERATES, name, str(cache), sys.executable, "-c", GROWS, str(cache)]
    env = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value(), "PREFECT_HOME": str(tmp_path / "home")}
    # As a worker holds it: its output is a pipe that only the worker reads.
    flow = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline_s = time.monotonic() + 60
        while len(list(cache.glob("*.bin"))) < 3:
            assert flow.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert flow.stdout is not None
        flow.stdout.close()
        flow.wait(90)
    finally:
        if flow.poll() is None:
            flow.kill()
            flow.wait(10)
    run = run_named(name)
    assert (run["state_type"], run["state_name"]) == ("COMPLETED", "Completed"), run["state"]
    assert len(list(cache.glob("*.bin"))) == 40
