"""A whole cache that was not used, told by the flow: message, report, artifact and event; and by a store's key."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.system import Secret
from prefect.states import State
from tests.orchestration.test_generate_cache import artifacts

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.publish.policy import PublishPolicy

pytestmark = pytest.mark.usefixtures("prefect_harness")

WRITES = """
import os, sys, time
for cache in sys.argv[1:]:
    for number in range(3):
        with open(f"{cache}/{number}.bin", "wb") as file:
            file.write(os.urandom(1 << 19))
time.sleep(0.5)
"""


def run(
    name: str, dirs: list[Any], secrets: dict[str, str] | None = None, publish: PublishPolicy | None = None, **env: str
) -> tuple[State[Any], dict[str, Any]]:
    command = [sys.executable, "-c", WRITES, *map(str, dirs)]
    job = CacheJob(
        name=name,
        command=command,
        cache_dirs=[path for path in dirs if path != "{cache_dir}"] or dirs,
        env=env,
        env_secrets=secrets or {},
    )
    if "{cache_dir}" in dirs:
        job = job.model_copy(update={"cache_dirs": list(map(Path, dirs))})
    stall = StallPolicy(stall_after_s=60, first_write_within_s=60, poll_s=0.2)
    state: State[Any] = generate_cache(
        job, stall=stall, stop=StopPolicy(grace_s=1), retry=RetryPolicy(attempts=1), publish=publish, return_state=True
    )
    assert state.is_completed(), state.message
    summary = state.result()
    (report,) = Path(summary.run_dir).glob("report*.json")
    return state, json.loads(report.read_text())


@pytest.fixture
def name() -> str:
    return f"missed {uuid.uuid4().hex[:6]}"


def test_the_flow_tells_it_in_message_report_artifact_and_event(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "prefect_cachewatch.tasks.prefect_api.events.emit_event",
        lambda event, payload, **_: payloads.append({"event": event, **payload}),
    )
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path / "state"))
    # The value of a Secret block is one though it looks like an everyday word.
    Secret(value="production").save(f"pin-{name[-6:]}")
    first, report = run(name, [tmp_path / "c"], {"TT_PIN": f"pin-{name[-6:]}"}, TT_LAYOUT="tile")
    assert report["cache_missed"] is None
    (record,) = (tmp_path / "state" / "caches").iterdir()
    assert json.loads(record.read_text())["env"]["TT_PIN"] == "***"
    second, report = run(name, [tmp_path / "c"], {"TT_PIN": f"pin-{name[-6:]}"}, TT_LAYOUT="row")
    missed = report["cache_missed"]
    assert missed["differs"] == ["TT_LAYOUT was 'tile' and is 'row'"]
    assert str(second.message).endswith(missed["sentence"])
    assert "cache_missed" not in str(first.message)
    ends = [each["cache_missed"] for each in payloads if each["event"] == "cachewatch.generation.completed"]
    assert [end["how"] if end else None for end in ends] == [None, "rewritten"]
    text = str(next(value for key, value in artifacts(second).items() if key.endswith("-report")))
    assert "The cache that was there was not used" in text
    assert "TT_LAYOUT was 'tile'" in text.replace("\\", "")


@pytest.mark.campaign
def test_a_store_s_build_is_no_cache_that_was_there_but_a_directory_beside_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    policy = PublishPolicy(store=tmp_path / "store")
    cache = name.replace(" ", "-")
    _, report = run(cache, ["{cache_dir}", tmp_path / "kernels"], publish=policy)
    assert report["cache_missed"] is None
    again, report = run(cache, ["{cache_dir}", tmp_path / "kernels"], publish=policy.model_copy(update={"force": True}))
    missed = report["cache_missed"]
    assert (missed["found_bytes"], missed["differs"]) == (3 << 19, [])
    assert all(path.startswith(f"{tmp_path}/kernels/") for path in missed["files"])
    assert str(again.message).endswith(missed["sentence"])
    assert str(again.message).startswith(f"The cache '{cache}' was published")


def test_a_consumer_that_writes_into_the_current_build_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    cache = name.replace(" ", "-")
    run(cache, ["{cache_dir}"], publish=PublishPolicy(store=tmp_path / "store"))
    _, report = run("consumer", [tmp_path / "store" / cache / "current"])
    missed = report["cache_missed"]
    assert (missed["known_by"], missed["found_bytes"] >= 3 << 19) == ("manifest", True)
    assert len(missed["differs"]) == 1
    assert missed["differs"][0].startswith("the command is without '{cache_dir}'")
