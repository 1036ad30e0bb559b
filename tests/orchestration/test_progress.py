"""What a run shows while it lasts: the size to expect and where it comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.store.policy import PublishPolicy

pytestmark = pytest.mark.usefixtures("prefect_harness")
WRITES = """
import os, sys, time
for n in range(6):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.25)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("prefect_cachewatch.flows.attempts.LOG_EVERY_S", 0.3)


def run(name: str, cache_dirs: list[Path], **more: Any) -> State[Any]:
    where = str(cache_dirs[0]) if cache_dirs else "{cache_dir}"
    dirs: dict[str, Any] = {"cache_dirs": cache_dirs} if cache_dirs else {}
    job = CacheJob(name=name, command=[sys.executable, "-c", WRITES, where], **dirs)
    stall = StallPolicy(stall_after_s=300, poll_s=0.3)
    state: State[Any] = generate_cache(
        job, stall=stall, stop=StopPolicy(grace_s=1), retry=RetryPolicy(attempts=1), return_state=True, **more
    )
    return state


def progress(state: State[Any]) -> Any:
    by_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        return next(a for a in client.read_artifacts(artifact_filter=by_run) if a.type == "progress")


@pytest.mark.campaign
def test_without_any_size_the_bytes_are_said_and_the_next_run_expects_as_many(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = progress(run("sized", [cache]))
    assert first.data == 0
    assert "so far; the size to expect is not known" in first.description
    for file in cache.iterdir():
        file.unlink()
    second = progress(run("sized", [cache]))
    assert second.data == 100
    assert "of 293 KiB, as the last run" in second.description


@pytest.mark.campaign
def test_a_staged_build_expects_the_size_of_the_last_published_one(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    publish = PublishPolicy(store=tmp_path / "store", force=True)
    assert run("staged", [], publish=publish).is_completed()
    second = progress(run("staged", [], publish=publish))
    assert second.data == 100
    assert "of 293 KiB, as the last build" in second.description
