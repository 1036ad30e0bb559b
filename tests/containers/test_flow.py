"""Containers through the Prefect flow: attempts, Secret blocks, the store; and that nothing secret is left anywhere."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from pathlib import Path

import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client

from prefect_cachewatch.config import CacheJob, ContainerSpec, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.run.placement import find_image
from prefect_cachewatch.store.policy import PublishPolicy
from tests.containers.engine import SHELL_IMAGE
from tests.prefect_database import harness as prefect_harness

FAST = {
    "stall": StallPolicy(stall_after_s=2, first_write_within_s=60, poll_s=0.3),
    "stop": StopPolicy(grace_s=0.3),
    "return_state": True,
}


@pytest.fixture(scope="module")
def harness():
    with prefect_harness():
        yield


def job(cache: Path | None, script: str, **fields: object) -> CacheJob:
    dirs = {} if cache is None else {"cache_dirs": [cache]}
    return CacheJob(
        name="in-container", command=["sh", "-c", script], container=ContainerSpec(image=SHELL_IMAGE), **dirs, **fields
    )


def test_the_flow_stops_a_stalled_container_and_nothing_secret_is_left_behind(harness, engine, cache, tmp_path):
    secret = f"hush-{uuid.uuid4().hex}"
    Secret(value=secret).save("container-token", overwrite=True)
    script = f"env; echo token=$HF_THING; dd if=/dev/zero of={cache}/f bs=1M count=1; sleep 7777; true"
    state = generate_cache(
        job(cache, script, env_secrets={"HF_THING": "container-token"}),
        retry=RetryPolicy(attempts=1), outputs={"report": tmp_path / "report.json", "bundle_dir": tmp_path / "bundles"}, **FAST,
    )  # fmt: skip
    assert state.name == "Stalled", state.message
    assert "sleep" in state.message
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["stop"]["survivors"] == []
    # It was there, for the generator: the log file on this machine has it, since the generator said it.
    assert any(secret in path.read_text() for path in Path(os.environ["XDG_STATE_HOME"]).rglob("generator-1.log"))
    texts = [state.message, json.dumps(report)]
    texts += [
        path.read_text(errors="replace")
        for path in (tmp_path / "bundles").rglob("*")
        if path.suffix != ".gz" and path.is_file()
    ]
    texts += [
        gzip.decompress(path.read_bytes()).decode(errors="replace") for path in (tmp_path / "bundles").rglob("*.gz")
    ]
    with get_client(sync_client=True) as client:
        texts += [str(one.data) for one in client.read_artifacts()]
    assert len(texts) > 5
    assert [text for text in texts if secret in text] == []


def test_a_generator_beyond_its_memory_limit_is_said_to_have_been_killed_for_it(harness, cache, tmp_path):
    greedy = CacheJob(
        name="greedy", command=["sh", "-c", "exec dd if=/dev/zero of=/dev/null bs=400M count=1"], cache_dirs=[cache],
        container=ContainerSpec(image=SHELL_IMAGE, memory_bytes="64m"),
    )  # fmt: skip
    state = generate_cache(greedy, retry=RetryPolicy(attempts=1), outputs={"report": tmp_path / "report.json"}, **FAST)
    assert "the kernel killed the generator because memory ran out" in state.message
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["exit_code"], report["signal"], report["diagnosis"]["category"]) == (None, 9, "oom_killed")
    assert any("went beyond its limit of 64.0 MiB" in note for note in report["notes"]), report["notes"]


def test_each_attempt_is_a_container_of_its_own_and_the_second_resumes(harness, cache):
    script = f"[ -e {cache}/a ] && exec touch {cache}/done; echo x > {cache}/a; exit 7"
    state = generate_cache(job(cache, script), retry=RetryPolicy(attempts=2, backoff_s=0), **FAST)
    assert state.is_completed(), state.message
    assert (cache / "done").exists()


def test_a_build_of_a_store_is_written_from_a_container(harness, tmp_path):
    job_ = job(None, "dd if=/dev/zero of=$OUT/weights.bin bs=1M count=3 2>/dev/null", env={"OUT": "{cache_dir}"})
    policy = PublishPolicy(store=tmp_path / "store")
    policy.store.mkdir()
    first = generate_cache(job_, publish=policy, **FAST)
    assert first.is_completed(), first.message
    (found,) = (tmp_path / "store").rglob("weights.bin")
    assert found.stat().st_size == 3 << 20
    assert generate_cache(job_, publish=policy, **FAST).name == "Cached"
    other = job_.model_copy(update={"container": ContainerSpec(image="localhost:1/another:1", pull="never")})
    refused = generate_cache(other, publish=policy, **FAST)  # another image is another cache: not taken from the store
    assert (refused.name, "is not on the engine" in refused.message) == ("Refused", True)


def test_a_tag_that_leads_to_another_image_is_another_cache(harness, engine, tmp_path):
    image = "localhost/cachewatch-test/moves:1"
    job_ = job(None, "echo x > $OUT/weights.bin", env={"OUT": "{cache_dir}"}).model_copy(
        update={"container": ContainerSpec(image=image)}
    )
    policy = PublishPolicy(store=tmp_path / "store")
    policy.store.mkdir()
    assert find_image(job_) == ""
    told = []
    for number in (1, 2):
        engine.podman("import", "--change", f"ENV NUMBER={number}", engine.home / "shell.tar", image)
        told.append(find_image(job_))
        assert generate_cache(job_, publish=policy, **FAST).name == "Completed"
        assert generate_cache(job_, publish=policy, **FAST).name == "Cached"
    assert told[0].startswith("sha256:") and told[1].startswith("sha256:") and told[0] != told[1]
    versions = [
        json.loads(path.read_text())["cache_key"]["container image id"] for path in policy.store.rglob("builds/*.json")
    ]
    assert sorted(versions) == sorted(told)
    engine.podman("rmi", "--force", image)
