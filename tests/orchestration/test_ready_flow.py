"""Servers in the flow: its states, its tasks, what it leaves in Prefect, and who runs on."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.states import State
from tests.orchestration.ready_job import Bench, made_bench, task_states
from tests.support import assert_none_left, tagged

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.flows.generation import GenerationSummary
from prefect_cachewatch.store.policy import PublishPolicy

pytestmark = pytest.mark.usefixtures("prefect_harness")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with made_bench(tmp_path) as made:
        yield made


def report_artifact(state: State[Any], tag: str) -> str:
    chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        found = {str(each.key): each for each in client.read_artifacts(artifact_filter=chosen)}
    return str(found[f"cachewatch-{tag}-report"].data)


def test_a_server_that_gets_ready_ends_the_run_completed_and_named_ready_and_runs_on(bench: Bench):
    state = bench.run(bench.job(warm_s=4), outputs={"report": bench.root / "report.json"})
    assert (state.type.value, state.name) == ("COMPLETED", "Ready")
    summary = state.result()
    assert isinstance(summary, GenerationSummary)
    assert summary.ready is not None
    assert tagged(bench.tag) == [summary.ready.pid]
    assert state.message is not None
    assert f"stop it with `cachewatch stop --pid {summary.ready.pid}`" in state.message
    assert task_states(state) == {"generate-1": "Ready", "monitor-1": "Completed"}
    with urllib.request.urlopen(bench.url, timeout=10) as answer:
        assert answer.status == 200
    report = json.loads((bench.root / "report.json").read_text())
    assert [change["phase"] for change in report["ready"]["phases"]] == ["writing", "warm_up"]
    page = report_artifact(state, bench.tag)
    assert f"- Left running: `pid {summary.ready.pid}`" in page
    assert f"- To stop it: `cachewatch stop --pid {summary.ready.pid}`" in page
    assert "- Warm-up began: " in page


@pytest.mark.campaign
def test_a_server_that_ends_before_it_is_ready_fails_the_run_at_once_and_is_tried_again(bench: Bench):
    retry = RetryPolicy(attempts=2, backoff_s=0.05)
    state = bench.run(bench.job(exit_in_warmup=0), stall={"warmup_within_s": 3600}, retry=retry)
    assert (state.type.value, state.name) == ("FAILED", "GeneratorFailed")
    assert "ended with exit code 0 before it was ready" in str(state.message)
    states = task_states(state)
    assert (states["generate-1"], states["generate-2"]) == ("GeneratorFailed", "GeneratorFailed")
    assert "device 3 does not answer" in report_artifact(state, bench.tag)


def test_a_running_servers_cache_is_not_published(bench: Bench):
    (bench.root / "store").mkdir()
    policy = PublishPolicy(store=bench.root / "store")
    state = bench.run(bench.job(), publish=policy)
    assert (state.type.value, state.name) == ("FAILED", "Refused")
    assert "a server that is left running may go on writing into its cache" in str(state.message)
    assert tagged(bench.tag) == []


def test_the_cache_of_a_server_that_was_stopped_when_ready_is_published(bench: Bench):
    (bench.root / "store").mkdir()
    job = bench.job(ready={"then": "stop"})
    job = job.model_copy(update={
        "name": "llama", "cache_dirs": [Path("{cache_dir}")],
        "command": [*job.command[:4], "{cache_dir}", *job.command[5:]],
    })  # fmt: skip
    state = bench.run(job, publish=PublishPolicy(store=bench.root / "store"))
    assert (state.type.value, state.name) == ("COMPLETED", "Completed"), state.message
    assert task_states(state)["generate-1"] == "Ready"
    assert sorted(path.name for path in (bench.root / "store/llama/current/").glob("layer*"))
    assert_none_left(bench.tag, 0)
