"""A user's file, for the type checkers only: the public names as they are meant to be used."""

from __future__ import annotations

import threading
from pathlib import Path

from prefect_cachewatch.config import (
    AttachJob,
    CacheJob,
    ReadyOnHttp,
    ReadyOnLog,
    RetryPolicy,
    StallPolicy,
    StopPolicy,
)
from prefect_cachewatch.config.profiles import Profile, TTInferenceServer, make_profile
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.flows.deployment import deploy_cache
from prefect_cachewatch.flows.generation import GenerationSummary, generate_cache
from prefect_cachewatch.flows.watching import WatchSummary, watch_cache
from prefect_cachewatch.postmortem.report import Report, build_report
from prefect_cachewatch.publish.health import HealthCheck
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.tasks import monitor_cache
from prefect_cachewatch.watching.attempt import Outcome, Watch, run_watch
from prefect_cachewatch.watching.servers.records import list_servers, remove_record
from prefect_cachewatch.watching.servers.stopping import stop_server
from prefect_cachewatch.watching.site import CacheSite

job = CacheJob(name="llama", command=["python3", "generate.py"], cache_dirs=[Path("/mnt/cache")], env={"A": "b"})
stall: StallPolicy = StallPolicy(stall_after_s=300, first_write_within_s=1200, poll_s=15, progress="any")
stop: StopPolicy = StopPolicy(grace_s=10)
retry: RetryPolicy = RetryPolicy(attempts=3, backoff_s=30, factor=2, on_retry="clean")

server = CacheJob(
    name="llama",
    command=["python3", "serve.py"],
    cache_dirs=[Path("/mnt/cache")],
    ready=ReadyOnHttp(url="http://127.0.0.1:8000/health", status=200, then="leave_running"),
)
once = ReadyOnLog(pattern="startup complete", then="stop", warmup_begins_log="model loaded")


def stop_servers() -> int:
    survivors = 0
    for found in list_servers():
        if found.record is not None and found.state == "running":
            survivors += len(stop_server(found.record, 10).survivors)
            remove_record(found.path)
    return survivors


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


def watch_what_runs() -> int | None:
    state = watch_cache(AttachJob(pid=4711, cache_dirs=[Path("/mnt/cache")], on_stall="stop"), return_state=True)
    summary = state.result()
    assert isinstance(summary, WatchSummary)
    return summary.exit_code


def by_profile() -> CacheJob:
    server = TTInferenceServer(model="Llama-3.1-8B-Instruct", device="n300", tt_cache_path=Path("/mnt/cache"))
    policy: StallPolicy = server.stall(stall_after_s=600)
    other: Profile = make_profile("openvino", {"cache_dir": "/mnt/ov"})
    assert policy.stall_after_s < other.stall().first_write_within_s
    return server.job(command=["python3", "run.py"])
