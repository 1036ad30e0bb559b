"""`generate_cache(metrics=...)` on a real server: scraped while it runs and waits, and what it leaves in files."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
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
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Failed, State
from prometheus_client.parser import text_string_to_metric_families
from tests.prefect_server import BIN, free_port

from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.tasks.prefect_api.run_metrics import FlowMetrics

pytestmark = pytest.mark.usefixtures("prefect_harness")

STALL = StallPolicy(stall_after_s=1.5, first_write_within_s=30, poll_s=0.3)
CALM = StallPolicy(stall_after_s=60, first_write_within_s=60, poll_s=0.3)
ONCE = RetryPolicy(attempts=1)
# Fails at its first attempt, and is well at the second.
SECOND_TIME = """
import os, sys
where = os.path.join(sys.argv[1], "layer.bin")
again = os.path.exists(where)
with open(where, "ab") as file:
    file.write(bytes(50_000))
raise SystemExit(0 if again else 3)
"""
FREEZES = """
import os, signal, sys
open(os.path.join(sys.argv[1], "layer.bin"), "wb").write(bytes(50_000))
os.kill(os.getpid(), signal.SIGSTOP)
"""
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


def read(page: str) -> dict[str, float]:
    """Values by series, the label `cache` left out."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "cache")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape_until(url: str, series: str, value: float, timeout_s: float = 60) -> dict[str, float]:
    deadline = time.monotonic() + timeout_s
    seen: dict[str, float] = {}
    while time.monotonic() < deadline:
        try:
            seen = read(httpx.get(url, timeout=10).text)
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


def test_attempts_verdicts_and_runs_count_on_in_the_file_of_their_cache(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    where = {"to": f"file:{metrics}"}
    stalled = run(job(tmp_path / "one", FREEZES, "one"), stall=STALL, metrics=where)
    assert stalled.name == "Stalled"
    twice = RetryPolicy(attempts=2, backoff_s=0, retry_exit_codes=[3])
    assert run(job(tmp_path / "two", SECOND_TIME, "two"), retry=twice, metrics=where).type == "COMPLETED"
    assert run(job(tmp_path / "two", SECOND_TIME, "two"), retry=twice, metrics=where).type == "COMPLETED"
    assert (
        run(job(tmp_path / "two", SECOND_TIME, "two"), storage={"name": "no-such-limit"}, metrics=where).name
        == "Refused"
    )
    one, two = (read(next(metrics.glob(f"cachewatch-{name}-*.prom")).read_text()) for name in ("one", "two"))
    assert one["cachewatch_last_verdict{cause=stopped_by_signal,kind=no_growth}"] == 1
    assert (one["cachewatch_attempts_total{outcome=stalled}"], one["cachewatch_runs_total{outcome=stalled}"]) == (1, 1)
    assert two["cachewatch_attempts_total{outcome=failed}"] == 1
    assert two["cachewatch_attempts_total{outcome=completed}"] == 2
    assert two["cachewatch_runs_total{outcome=completed}"] == 2
    assert two["cachewatch_runs_total{outcome=refused}"] == 1
    assert two["cachewatch_written_bytes_total"] == 150_000
    assert (two["cachewatch_running"], two["cachewatch_attempt"]) == (0, 0)  # the refused run made none


def test_a_taken_port_costs_the_metrics_and_not_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as held, caplog.at_level(logging.WARNING):
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        writes = "import sys; open(sys.argv[1] + '/a.bin', 'wb').write(bytes(9999))"
        state = run(job(tmp_path / "cache", writes, "llama"), metrics={"to": f"127.0.0.1:{port}"})
    assert state.type == "COMPLETED", state
    assert (
        f"no metrics of this run: metrics cannot be served on 127.0.0.1:{port}: the port is taken by another process"
        in caplog.text
    )


def test_a_failure_of_ours_is_counted_and_closes_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics").mkdir()

    def broken(*given: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(sys.modules["prefect_cachewatch.flows.generation"], "run_attempt", broken)
    state = run(job(tmp_path / "cache", "pass", "llama"), metrics={"to": f"file:{tmp_path / 'metrics'}"})
    assert state.is_failed()
    (path,) = (tmp_path / "metrics").iterdir()
    values = read(path.read_text())
    assert (values["cachewatch_runs_total{outcome=failed}"], values["cachewatch_running"]) == (1, 0)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Completed(name="Cached"), "cached"),
        (Failed(name="FilesystemUnresponsive"), "stalled"),
        (Failed(name="DeadlineExceeded"), "deadline_exceeded"),
        (Failed(name="VerificationFailed"), "verification_failed"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_final_state_is_an_outcome(tmp_path: Path, state: State[Any], outcome: str) -> None:
    logger = logging.getLogger("test")
    metrics = FlowMetrics(Metrics(to=f"file:{tmp_path}"), job(tmp_path / "cache", "pass", "llama"), logger)
    metrics.open(InPlace())
    assert metrics.ended(state) is state
    (path,) = tmp_path.glob("*.prom")
    values = read(path.read_text())
    counted = {series for series, value in values.items() if series.startswith("cachewatch_runs_total") and value}
    assert counted == {f"cachewatch_runs_total{{outcome={outcome}}}"}
    assert ("cachewatch_last_success_timestamp_seconds" in values) == (outcome in ("completed", "cached"))


@pytest.mark.parametrize(("error", "outcome"), [(KeyboardInterrupt(), "cancelled"), (ValueError(), "failed")])
def test_a_run_that_was_broken_off_is_cancelled_or_failed(tmp_path: Path, error: BaseException, outcome: str) -> None:
    metrics = FlowMetrics(
        Metrics(to=f"file:{tmp_path}"),
        job(tmp_path / "cache", "pass", "llama"),
        logging.getLogger("test"),
    )
    exporter = metrics.open(InPlace())
    assert exporter is not None
    exporter.attempt_began(1, None)
    metrics.abandon(error)
    values = read(next(tmp_path.glob("*.prom")).read_text())
    assert values[f"cachewatch_runs_total{{outcome={outcome}}}"] == 1
    assert values[f"cachewatch_attempts_total{{outcome={outcome}}}"] == 1


@pytest.mark.campaign
def test_the_command_with_a_store_writes_its_file_where_it_was_typed(tmp_path: Path) -> None:
    for directory in ("store", "metrics"):
        (tmp_path / directory).mkdir()
    writes = "import pathlib, sys; pathlib.Path(sys.argv[1], 'a.bin').write_bytes(b'x' * 9000)"
    argv = [
        str(BIN / "cachewatch"), "generate", "--store", "store", "--name", "llama", "--attempts", "1", "--poll", "0.5s",
        "--quiet", "--metrics", "file:metrics", "--", sys.executable, "-c", writes, "{cache_dir}",
    ]  # fmt: skip
    env = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value() or ""}  # the harness's server
    for _ in range(2):
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=170)
        assert (done.returncode, done.stderr) == (0, "")
    (path,) = (tmp_path / "metrics").iterdir()
    values = read(path.read_text())
    assert values["cachewatch_runs_total{outcome=completed}"] == 1
    assert values["cachewatch_runs_total{outcome=cached}"] == 1
    assert values["cachewatch_attempts_total{outcome=completed}"] == 1
    assert values["cachewatch_written_bytes_total"] == 9000
