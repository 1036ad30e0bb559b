"""A user's file, for the type checkers only: the public names as they are meant to be used."""

from __future__ import annotations

import threading
from pathlib import Path

from prefect_cachewatch import (
    CacheGeneration,
    CacheGenerationError,
    CacheJob,
    CacheStore,
    CachewatchError,
    GenerationSummary,
    HealthCheck,
    InputError,
    Profile,
    PublishPolicy,
    ReadyOnHttp,
    ReadyOnLog,
    Report,
    RetryPolicy,
    StallPolicy,
    StopPolicy,
    deploy_cache,
    generate_cache,
    make_profile,
    monitor_cache,
    watch,
)
from prefect_cachewatch.capacity import PlanInput, plan
from prefect_cachewatch.flows import generate_cache as the_same

job = CacheJob(name="llama", command=["python3", "generate.py"], cache_dirs=[Path("/mnt/cache")], env={"A": "b"})
stall: StallPolicy = StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15, progress="any")
stop: StopPolicy = StopPolicy(grace_s=10)
retry: RetryPolicy = RetryPolicy(attempts=3, backoff_s=30, on_retry="clean")

server = CacheJob(
    name="llama",
    command=["python3", "serve.py"],
    cache_dirs=[Path("/mnt/cache")],
    ready=ReadyOnHttp(url="http://127.0.0.1:8000/health", then="leave_running"),
)
once = ReadyOnLog(pattern="startup complete", then="stop")


def through_prefect() -> GenerationSummary:
    state = generate_cache(job, stall=stall, stop=stop, retry=retry, return_state=True)
    result = state.result()
    assert isinstance(result, GenerationSummary)
    return result


def without_prefect() -> Report:
    try:
        return watch(job, stall, stop, log=Path("/tmp/generator.log"))
    except InputError as error:
        raise SystemExit(error.message) from error
    except CachewatchError:
        raise


def by_block() -> GenerationSummary | None:
    try:
        return CacheGeneration(job=job, stall=stall, retry=retry).run()
    except CacheGenerationError as error:
        print(error.data["state"])
        return None


def in_a_notebook() -> float:
    assert the_same is generate_cache
    return plan(PlanInput.model_validate({"storage": {}, "workloads": []})).answers[0].row.bytes_per_s


def in_a_flow() -> None:
    finished = threading.Event()
    future = monitor_cache.submit([Path("/mnt/cache")], finished, stall, on_stall=print)
    future.wait()


def publish_and_deploy() -> str:
    publish = PublishPolicy(store=Path("/mnt/caches"), cache_key={"dtype": "bf16"}, expected_files=["*.tensorbin"])
    state = deploy_cache(job, publish, HealthCheck(url="http://127.0.0.1:8000/health"), return_state=True)
    summary = state.result()
    assert isinstance(summary, GenerationSummary) and summary.publication is not None
    return summary.publication.path


def read_a_cache() -> int:
    store = CacheStore("/mnt/caches")
    with store.open_current("llama") as pinned:
        size: int = pinned.manifest.total_bytes
    freed: int = store.gc("llama", keep=2).freed_bytes
    return size + freed


def by_profile() -> CacheJob:
    server = make_profile("tt-inference-server", {"model": "Llama-3.1-8B-Instruct", "tt_cache_path": "/mnt/cache"})
    policy: StallPolicy = server.stall(stall_after_s=600)
    other: Profile = make_profile("openvino", {"cache_dir": "/mnt/ov"})
    assert policy.stall_after_s < other.stall().first_write_within_s
    return server.job(command=["python3", "run.py"])
