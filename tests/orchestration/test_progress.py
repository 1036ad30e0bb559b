"""What a run shows while it lasts: the size to expect and where it comes from, and the events in their order."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State
from tests.orchestration.test_generate_cache import task_states

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.fleet.outcome import fleet_end
from prefect_cachewatch.flows.generation import generate_cache, live_view
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.run.runner import View
from prefect_cachewatch.tasks.prefect_api.fleet_rows import final_row

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


def run(name: str, cache_dirs: list[Path], code: str = WRITES, on_stall: str = "stop", **more: Any) -> State[Any]:
    where = str(cache_dirs[0]) if cache_dirs else "{cache_dir}"
    dirs: dict[str, Any] = {"cache_dirs": cache_dirs} if cache_dirs else {}
    job = CacheJob(name=name, command=[sys.executable, "-c", code, where], on_stall=on_stall, **dirs)
    stall = StallPolicy(stall_after_s=1.5, first_write_within_s=5, poll_s=0.3)
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


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        (WRITES, ["started", "completed"]),
        (WRITES + "time.sleep(600)", ["started", "suspected", "stalled"]),
        (WRITES + "sys.exit(3)", ["started", "failed"]),
    ],
)
def test_the_events_tell_the_story_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kinds: list[str]
) -> None:
    seen: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    storages: set[str] = set()

    def note(event: str, resource: dict[str, Any], payload: dict[str, Any], related: Any = ()) -> None:
        seen.append((event, resource, payload))
        storages.update(one["prefect.resource.id"] for one in related if one["prefect.resource.role"] == "storage")

    monkeypatch.setattr("prefect_cachewatch.tasks.prefect_api.events.emit_event", note)
    of_prefect: list[str] = []
    monkeypatch.setattr("prefect.events.utilities.emit_event", lambda event, **_: of_prefect.append(event))
    state = run("Told 1", [tmp_path / "cache"], code)
    of_the_run = [event for event, _, _ in seen if event.startswith("cachewatch.run.")]
    assert of_the_run == ["cachewatch.run.sampled", "cachewatch.run.paused"], "for the automation silent"
    seen = [one for one in seen if one[0].startswith("cachewatch.generation.")]
    assert [event.removeprefix("cachewatch.generation.") for event, _, _ in seen] == kinds
    assert {resource["prefect.resource.id"] for _, resource, _ in seen} == {"cachewatch.cache.told-1"}
    assert all(payload["attempt"] == 1 for _, _, payload in seen)
    (storage,) = storages
    assert storage.startswith("cachewatch.storage."), "the device of this machine"
    last = seen[-1][2]
    assert (last["bytes_written"], last["files_present"]) == (300_000, 6)
    assert last["category"] == {"stalled": "unknown", "failed": "generator_failed"}.get(kinds[-1])
    assert progress(state).key == "cachewatch-told-1-progress"
    assert [event for event in of_prefect if event.startswith("prefect.artifact")] == [], "beside the server's own"


@pytest.mark.campaign
def test_a_stall_that_is_only_reported_is_told_at_once_and_the_run_ends_as_its_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        "prefect_cachewatch.tasks.prefect_api.events.emit_event",
        lambda event, resource, payload, related=None: seen.append(
            (event.removeprefix("cachewatch.generation."), payload)
        ),
    )
    state = run("left alone", [tmp_path / "cache"], WRITES + "time.sleep(5)", on_stall="report")
    assert (state.type, state.name) == ("COMPLETED", "Completed"), state
    assert str(state.message).endswith("It would have been stopped once, in vain: it completed.")
    seen = [one for one in seen if not one[0].startswith("cachewatch.")]  # of the run and its storage
    assert [kind for kind, _ in seen] == ["started", "suspected", "stall_reported", "completed"]
    told = seen[2][1]
    assert (told["outcome"], told["kind"], told["attempt"]) == ("stalled", "no_growth", 1)
    assert "would have been stopped, and was left alone." in told["message"]
    assert task_states(state) == {"generate-1": "Completed", "monitor-1": "StallReported"}
    report = json.loads((Path(state.result().run_dir) / "report-1.json").read_text())
    (stall,) = report["would_be_stops"]
    assert (stall["kind"], stall["in_vain"], Path(stall["bundle"]).is_dir()) == ("no_growth", True, True)
    with get_client(sync_client=True) as client:
        by_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
        pages = [str(a.data) for a in client.read_artifacts(artifact_filter=by_run) if a.key.endswith("-report")]
    assert len(pages) == 2  # of the stall, and of the end
    assert any("and was left alone" in page for page in pages)
    assert any("(no\\_growth): it completed" in page or "(no_growth): it completed" in page for page in pages)
    row = final_row("left alone", flow_run_of(state), None)
    assert row.cause == "It would have been stopped once, in vain: it completed."
    assert "1 of the generations that completed would have been stopped" in fleet_end("nightly", [row]).message


def flow_run_of(state: State[Any]) -> Any:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def test_events_that_cannot_be_sent_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_options: Any) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr("prefect_cachewatch.tasks.prefect_api.events.emit_event", broken)
    assert run("Untold", [tmp_path / "cache"]).is_completed()


class Seen(View):
    """A view that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def attempt_begins(self, number: int, attempts: int) -> None:
        self.told.append(f"attempt {number} of {attempts}")

    def attempt_waits(self, pause_s: float) -> None:
        self.told.append("waits" if 0 <= pause_s <= 0.5 else f"waits {pause_s}")


def test_the_view_is_told_of_each_attempt_and_of_the_wait_between(tmp_path: Path) -> None:
    view = Seen()
    token = live_view.set(view)
    job = CacheJob(name="twice", command=["false"], cache_dirs=[tmp_path / "cache"])
    try:
        generate_cache(job, retry=RetryPolicy(attempts=2, backoff_s=0.5), return_state=True)
    finally:
        live_view.reset(token)
    assert view.told == ["attempt 1 of 2", "waits", "attempt 2 of 2"]
