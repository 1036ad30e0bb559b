"""A job that starts the small server of the contract on a free port, and an end for whatever it has started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.states import State
from tests.support import eventually, new_tag, tagged

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.watching.servers.records import list_servers, remove_record
from prefect_cachewatch.watching.servers.stopping import stop_server

SERVER = str(Path(__file__).parents[1] / "contract" / "ready_server.py")
QUICK = {"stall_after_s": 0.8, "first_write_within_s": 300, "poll_s": 0.2, "warmup_within_s": 300}


class Bench:
    """A job that starts a server on a free port."""

    def __init__(self, root: Path) -> None:
        self.root, self.tag = root, new_tag()
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/health"

    def job(self, *, ready: dict[str, Any] | None = None, **plan: Any) -> CacheJob:
        cache = self.root / "cache"
        return CacheJob(
            name=self.tag,
            command=[sys.executable, "-I", "-S", SERVER, str(cache), str(self.port), json.dumps(plan), self.tag],
            cache_dirs=[cache],
            ready={"kind": "http", "url": self.url, **(ready or {})},
        )

    def run(self, job: CacheJob, stall: dict[str, float] | None = None, **more: Any) -> State[Any]:
        given = {"stop": StopPolicy(grace_s=1), "retry": RetryPolicy(attempts=1)} | more
        state: State[Any] = generate_cache(job, stall=StallPolicy(**QUICK | (stall or {})), **given, return_state=True)
        return state


def task_states(state: State[Any]) -> dict[str, str]:
    """The states of a run's tasks by their names, once none of them runs any more."""
    by_run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    found: dict[str, str] = {}

    def ended() -> bool:
        with get_client(sync_client=True) as client:
            found.update(
                {one.name: str(one.state.name) for one in client.read_task_runs(flow_run_filter=by_run) if one.state}
            )
        return bool(found) and "Running" not in found.values()

    eventually(ended)
    return found


@contextlib.contextmanager
def made_bench(root: Path) -> Iterator[Bench]:
    """Make a bench; nothing that it has started is left afterwards."""
    made = Bench(root)
    try:
        yield made
    finally:
        for one in list_servers():
            if one.record is not None and one.record.name == made.tag:
                stop_server(one.record, 0)
                remove_record(one.path)
        for pid in tagged(made.tag):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
