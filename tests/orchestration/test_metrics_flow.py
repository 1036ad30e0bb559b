"""`generate_cache(metrics=...)` on a real server: scraped while it runs and waits, and what it leaves in files."""

from __future__ import annotations

import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.states import State
from tests.prefect_server import free_port
from tests.support import metrics_of

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache

pytestmark = pytest.mark.usefixtures("prefect_harness")

CALM = StallPolicy(stall_after_s=60, first_write_within_s=60, poll_s=0.3)
ONCE = RetryPolicy(attempts=1)
UNTIL_TOLD = """
import os, sys, time
open(os.path.join(sys.argv[1], "layer.bin"), "wb").write(bytes(50_000))
while not os.path.exists(sys.argv[1] + ".end"):
    time.sleep(0.05)
"""


def job(cache: Path, code: str, name: str) -> CacheJob:
    return CacheJob(
        name=name, command=[sys.executable, "-c", code, str(cache)], cache_dirs=[cache], expected_bytes=100_000
    )


def run(job: CacheJob, **given: Any) -> State[Any]:
    values = {"stall": CALM, "stop": StopPolicy(grace_s=1), "retry": ONCE, "outputs": {"bundle": False}} | given
    state: State[Any] = generate_cache(job, **values, return_state=True)
    return state


def scrape_until(url: str, series: str, value: float, timeout_s: float = 60) -> dict[str, float]:
    deadline = time.monotonic() + timeout_s
    seen: dict[str, float] = {}
    while time.monotonic() < deadline:
        try:
            seen = metrics_of(httpx.get(url, timeout=10).text)
        except httpx.HTTPError:
            seen = {}
        if seen.get(series, -1.0) >= value:
            return seen
        time.sleep(0.1)
    raise AssertionError(f"{series} did not come to {value}: {seen}")


def test_a_run_is_scraped_while_it_waits_for_its_slot_and_while_it_writes(tmp_path: Path) -> None:
    storage, url = f"nfs-{uuid.uuid4().hex[:6]}", f"http://127.0.0.1:{(port := free_port())}/metrics"
    cache = tmp_path / "cache"
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(storage, 1)
    with ThreadPoolExecutor(1) as pool:
        with concurrency(storage, occupy=1):
            future = pool.submit(
                run, job(cache, UNTIL_TOLD, "llama"), storage={"name": storage}, metrics={"to": f":{port}"}
            )
            waiting = scrape_until(url, f"cachewatch_slot_waiting_seconds{{storage={storage}}}", 0.5)
            assert (waiting["cachewatch_running"], waiting["cachewatch_attempt"]) == (0, 0)
        writing = scrape_until(url, "cachewatch_written_bytes_total", 50_000)
        assert writing[f"cachewatch_slot_waiting_seconds{{storage={storage}}}"] == 0
        assert writing[f"cachewatch_slot_wait_seconds_total{{storage={storage}}}"] > 0.5
        assert (writing["cachewatch_running"], writing["cachewatch_expected_bytes"]) == (1, 100_000)
        Path(f"{cache}.end").touch()
        state = future.result(60)
    assert state.type == "COMPLETED", state
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
