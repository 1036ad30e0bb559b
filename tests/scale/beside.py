"""What a guarded run costs beside a bare one: the same server, workers and generator, batch and batch about."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.scale.campaign import GENERATOR
from tests.scale.counts import count_requests, growth, measure_database, read_since
from tests.scale.meter import spent_s, tree_of
from tests.scale.server_api import FINAL, Api
from tests.scale.services import POOL, Stack

DEPLOYMENTS = f"""
deployments:
  - name: guarded
    entrypoint: prefect_cachewatch.flows.generation.generate_cache
    work_pool: {{name: {POOL}}}
  - name: bare
    entrypoint: bare_flow.bare
    work_pool: {{name: {POOL}}}
"""
STORAGE = "beside-storage"  # with more slots than runs at once: nobody waits
KINDS = {"bare": "bare/bare", "guarded": "generate-cache/guarded", "guarded, with slots": "generate-cache/guarded"}
_SETTLED_S = 12.0  # the server writes events in batches, some seconds apart
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Sizes:
    """How much is run."""

    runs: int = 100  # of each kind
    batches: int = 2  # that the runs of a kind are divided into
    workers: int = 2
    limit: int = 4
    seconds: float = 10.0


@dataclass
class Cost:
    """What the runs of a kind took, summed over its batches."""

    runs: int = 0
    took_s: float = 0.0
    ended_badly: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    processor_s: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        """Return them a run."""

        def a_run(total: Counter[str]) -> dict[str, float]:
            return {name: value / self.runs for name, value in total.most_common() if value > 0}

        return {
            "runs": self.runs,
            "ended_badly": self.ended_badly,
            "runs_per_minute": 60 * self.runs / self.took_s,
            "requests": a_run(self.requests),
            "rows": a_run(self.rows),
            "events": a_run(self.events),
            "bytes": a_run(self.bytes),
            "processor_s": a_run(self.processor_s),
        }


def measure_beside(sizes: Sizes, database: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run both kinds in turn on one server, and count.

    Args:
        sizes: how much.
        database: `postgresql` (with Redis) or `sqlite`.
        tell: told what happens, a line at a time.

    Returns:
        The sizes and, of each kind, the figures a run.
    """
    stack = Stack({}, {"PREFECT_WORKER_QUERY_SECONDS": "5"}, database)
    api = Api(stack.url)
    try:
        _prepare(stack)
        api.ask("POST", "/v2/concurrency_limits/", {"name": STORAGE, "limit": 1000})
        tell(f"the server on {database} answers")
        names = [f"worker-{number + 1}" for number in range(sizes.workers)]
        for name in names:
            stack.start_worker(name, sizes.limit)
        costs, loads = {kind: Cost() for kind in KINDS}, list[float]()
        for kind in KINDS:  # the first run compiles modules and fills the server's caches
            _batch(stack, api, sizes, kind, 1, Cost())
        for batch in range(sizes.batches):
            for kind, cost in costs.items():
                _batch(stack, api, sizes, kind, sizes.runs // sizes.batches, cost)
                loads.append(os.getloadavg()[1])
                tell(f"batch {batch + 1} of {sizes.batches}, {kind}: {cost.runs} runs in {cost.took_s:.0f} s")
        load = {"median": statistics.median(loads), "most": max(loads)}
        return {"sizes": vars(sizes), "load_average": load, **{kind: cost.figures() for kind, cost in costs.items()}}
    finally:
        stack.close()
        api.close()
        shutil.rmtree(stack.root, ignore_errors=True)


def _prepare(stack: Stack) -> None:
    for name in ("caches", "truth"):
        (stack.root / name).mkdir()
    stack.client_env["PYTHONPATH"] = str(stack.root)
    shutil.copy(Path(__file__).with_name("bare_flow.py"), stack.root)
    stack.start()
    (stack.root / "prefect.yaml").write_text(DEPLOYMENTS)
    stack.prefect("work-pool", "create", POOL, "--type", "process")
    stack.prefect("deploy", "--prefect-file", "prefect.yaml", "--all")


def _batch(stack: Stack, api: Api, sizes: Sizes, kind: str, runs: int, cost: Cost) -> None:
    deployment = api.ask("GET", f"/deployments/name/{KINDS[kind]}")["id"]
    before, offset = measure_database(stack.database_url), stack.server_log.stat().st_size
    spent, begin_s = _spent(stack), time.monotonic()
    ids = []
    for number in range(runs):
        body = {"parameters": _parameters(stack, kind, f"{kind}-{cost.runs + number}", sizes.seconds, number)}
        ids.append(api.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"])
    states = _wait(api, ids)
    cost.took_s += time.monotonic() - begin_s
    time.sleep(_SETTLED_S)
    added = growth(before, measure_database(stack.database_url))
    cost.runs += runs
    cost.ended_badly += sum(state != "COMPLETED" for state in states)
    cost.requests.update(count_requests(read_since(stack.server_log, offset)).runs)
    cost.rows.update(added["rows"])
    cost.events.update(added["events"])
    cost.bytes.update({"total": added["total_bytes"], **added["tables_bytes"]})
    cost.processor_s.update({role: value - spent.get(role, 0.0) for role, value in _spent(stack).items()})


def _spent(stack: Stack) -> dict[str, float]:
    """Processor seconds so far, by role; a worker has waited for its runs, and so has what they took."""
    total = Counter[str]()
    for name, process in stack.processes.items():
        if name.startswith("worker"):
            own_s, of_children_s = spent_s(process.pid)
            total.update({"runs": of_children_s, "workers": own_s})
        else:
            total[name] += sum(map(sum, map(spent_s, tree_of(process.pid))))
    return dict(total)


def _parameters(stack: Stack, kind: str, name: str, seconds: float, seed: int) -> dict[str, Any]:
    cache = stack.root / "caches" / name
    command = [sys.executable, "-I", "-S", str(GENERATOR), str(cache), str(stack.root / "truth" / name)]
    command += ["finish", f"{seconds:g}", str(seed)]
    if kind == "bare":
        cache.mkdir(exist_ok=True)
        return {"name": name, "command": command}
    guarded: dict[str, Any] = {"job": {"name": name, "command": command, "cache_dirs": [str(cache)]}}
    return guarded if kind == "guarded" else guarded | {"storage": {"name": STORAGE, "slots": 1}}


def _wait(api: Api, ids: Sequence[str]) -> list[str]:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = api.ask("POST", "/flow_runs/filter", {"flow_runs": {"id": {"any_": list(ids)}}})
        if len(found) == len(ids) and all(run["state_type"] in FINAL for run in found):
            return [run["state_type"] for run in found]
        time.sleep(1)
    raise RuntimeError(f"{len(ids)} runs were not over after {_TIMEOUT_S:g} s")
