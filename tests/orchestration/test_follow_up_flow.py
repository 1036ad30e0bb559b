"""The follow-up as a flow of this process: what it refuses, and what it does with a run that has no deployment."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.follow_up import follow_up_stall
from prefect_cachewatch.flows.generation import generate_cache

pytestmark = pytest.mark.usefixtures("prefect_harness")


def generated(tmp_path: Path, code: str, within_s: float = 60) -> tuple[str, uuid.UUID]:
    name = f"follow-{uuid.uuid4().hex[:8]}"
    job = CacheJob(name=name, command=[sys.executable, "-c", code], cache_dirs=[tmp_path / "cache"])
    generate_cache(
        job,
        stall=StallPolicy(stall_after_s=within_s, first_write_within_s=within_s, poll_s=0.2),
        stop=StopPolicy(grace_s=1),
        retry=RetryPolicy(attempts=1),
        return_state=True,
    )
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name])))
    return name, run.id


def test_a_run_that_is_not_there_is_refused_in_a_sentence() -> None:
    state = follow_up_stall(uuid.UUID(int=7), return_state=True)
    assert (state.name, state.message) == (
        "Refused",
        f"there is no flow run {uuid.UUID(int=7)}: give the id of a generation that failed",
    )


def test_a_run_that_did_not_stall_is_refused_in_a_sentence(tmp_path: Path) -> None:
    name, run_id = generated(tmp_path, f"open({str(tmp_path / 'cache/a')!r}, 'w').write('a cache')")
    state = follow_up_stall(run_id, return_state=True)
    assert state.name == "Refused"
    assert (
        state.message == f"flow run {name} is Completed, not Stalled or GeneratorFailed: there is nothing to follow up"
    )


def test_a_stall_without_a_deployment_is_told_and_not_run_again(tmp_path: Path) -> None:
    _, run_id = generated(tmp_path, "import time; time.sleep(600)", within_s=1)
    result = follow_up_stall(run_id, rerun="once")
    assert result == {
        "run_again": False,
        "failures_in_a_row": 1,
        "sentence": "It stalled for the first time in a row: run it again when the cause is mended.",
        "flow_run_id": None,
    }


FULL = "raise OSError(28, 'No space left on device')"


def test_a_cause_that_lasts_is_not_followed_up(tmp_path: Path) -> None:
    _, run_id = generated(tmp_path, FULL)
    result = follow_up_stall(run_id, rerun="once")
    assert isinstance(result, dict)
    said = "it is not run again, because the disk is as full as before."
    assert (result["run_again"], result["sentence"]) == (False, f"It failed for the first time in a row: {said}")
