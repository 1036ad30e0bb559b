"""A user's file, for the type checkers only: the public names as they are meant to be used."""

from __future__ import annotations

import threading
from pathlib import Path

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.flows.deployment import deploy_cache
from prefect_cachewatch.flows.generation import GenerationSummary, generate_cache
from prefect_cachewatch.health import HealthCheck
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.report import Report, build_report
from prefect_cachewatch.site import CacheSite
from prefect_cachewatch.tasks import monitor_cache
from prefect_cachewatch.watch import Outcome, Watch, run_watch

job = CacheJob(name="llama", command=["python3", "generate.py"], cache_dirs=[Path("/mnt/cache")], env={"A": "b"})
stall: StallPolicy = StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15, progress="any")
stop: StopPolicy = StopPolicy(grace_s=10)
retry: RetryPolicy = RetryPolicy(attempts=3, backoff_s=30, factor=2, on_retry="clean")


def through_prefect() -> GenerationSummary:
    state = generate_cache(job, stall=stall, stop=stop, retry=retry, return_state=True)
    result = state.result()
    assert isinstance(result, GenerationSummary)
    return result


def without_prefect() -> Report:
    try:
        with CacheSite(job.cache_dirs, ignore=job.ignore) as site:
            outcome: Outcome = run_watch(Watch(site, job, stall, stop))
    except InputError as error:
        raise SystemExit(error.message) from error
    except CachewatchError:
        raise
    return build_report(outcome, name=job.name, command=job.command, log_tail=[])


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
