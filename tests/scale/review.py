"""What is left when a fleet is over, how each run ended, and what it all took."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.scale.counts import count_requests, read_since
from tests.scale.meter import Meter
from tests.scale.server_api import Api
from tests.scale.services import Stack, environ_of
from tests.scale.truth import Ended, Interruptions, Truth, judge, read_truth

_ROLES = ("worker", "flow", "guard", "scanner", "generator", "server", "postgres", "redis")


@dataclass
class Verdicts:
    """How the runs ended, held against what their generators did."""

    happened: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    begin_s: float = 0.0
    requeued: int = 0


def wait_for_slots(api: Api, stack: Stack, limit: str, within_s: float) -> tuple[float, list[str]]:
    """Wait until no slot is held and no lease is left; those of killed runs and lost requests end by themselves.

    Args:
        api: of the server.
        stack: with Redis, where the leases are.
        limit: name of the concurrency limit.
        within_s: the leases' time, and some.

    Returns:
        Seconds until then, and what is wrong.
    """
    begin_s = time.monotonic()
    while (held := api.active_slots(limit)) + (leases := stack.count_leases()):
        if time.monotonic() - begin_s > within_s:
            return within_s, [f"{held} slots and {leases} leases of the storage are still held after their time"]
        time.sleep(3)
    return time.monotonic() - begin_s, []


def wait_for_task_runs(api: Api, within_s: float = 60) -> int:
    """Wait for the events that tell how task runs ended to arrive through Redis; returns how many never do."""
    deadline_s = time.monotonic() + within_s
    while (left := api.count_open_task_runs()) and time.monotonic() < deadline_s:
        time.sleep(3)
    return left


def look_for_survivors(stack: Stack, meter: Meter, within_s: float = 30) -> list[str]:
    """See that nothing of any run is left: no generator, guard, scanner or flow process, and no state file.

    Args:
        stack: whose mark, with a run's id, is in the environment of flow processes and generators.
        meter: still running; knows the guards and scanners.
        within_s: the last flow processes are given this long to end after their final states.

    Returns:
        A sentence for each thing that is left.
    """
    deadline_s = time.monotonic() + within_s
    time.sleep(2)  # the meter looks once a second
    while (left := _survivors(stack, meter)) and time.monotonic() < deadline_s:
        time.sleep(1)
    found = []
    for pid in left:
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"pid {pid} survived its run: {argv[:200]}")
    files = sorted(path.name for path in (stack.root / "state" / "runs").glob("*.run"))
    if files:
        found.append(f"{len(files)} state files of runs are left: {', '.join(files[:3])}")
    return found


def _survivors(stack: Stack, meter: Meter) -> list[int]:
    marked = [pid for pid in stack.marked() if b"PREFECT__FLOW_RUN_ID=" in environ_of(pid)]
    return sorted({*marked, *meter.helpers()})


def truth_of(stack: Stack, name: str) -> Truth:
    """Read what a generator has noted so far."""
    path = stack.root / "truth" / name
    return read_truth(path.read_text() if path.exists() else "")


def judge_all(
    api: Api, stack: Stack, runs: dict[str, str], window_s: float, away: Interruptions, killed: Sequence[str]
) -> Verdicts:
    """Hold every run's final state against its generator's notes.

    Args:
        api: of the server.
        stack: with the notes.
        runs: flow run ids to names.
        window_s: the runs' stall window.
        away: what was done to server and workers.
        killed: ids of the runs whose flow processes were killed.

    Returns:
        The verdicts; `begin_s` is the median from a worker's taking a run to its generator's start.
    """
    found, begins = Verdicts(), []
    for run, name in runs.items():
        truth, history = truth_of(stack, name), api.states(run)
        pending = [at_s for kind, _, at_s in history if kind == "PENDING"]
        kind, state, at_s = history[-1]
        # The last of them began the run; the first is of the worker that is to explain why it never began.
        ended = Ended(kind, state, min(pending, default=None), at_s)
        if truth.began_s is not None and pending:
            begins.append(truth.began_s - max(pending))
        found.requeued += any(name_of == "Requeued" for _, name_of, _ in history)
        what, problem = judge(truth, ended, window_s, away, run in killed)
        found.happened[what] += 1
        found.states[state] += 1
        if problem is not None:
            said = str(api.ask("GET", f"/flow_runs/{run}")["state"].get("message"))
            found.problems.append(f"{name}: {problem} ({said[:300]})")
    found.begin_s = statistics.median(begins) if begins else 0.0
    return found


def requests_of(stack: Stack, offset: int, runs: int, workers: int, took_s: float) -> dict[str, Any]:
    """Count the requests in the server's access log from an offset on."""
    found = count_requests(read_since(stack.server_log, offset))
    return {
        "requests_per_run": found.runs_total / runs,
        "requests_of_a_worker_per_minute": found.polling_total / (workers * took_s / 60),
        "requests_failed": found.failed,
    }


def metered(meter: Meter, runs: int) -> dict[str, Any]:
    """Gather what a meter has seen."""
    processor = meter.processor_s()
    return {"processor_s": processor, "processor_s_per_run": {role: processor.get(role, 0.0) / runs for role in _ROLES}}


def reported(stack: Stack, window_s: float) -> dict[str, Any]:
    """Say by the runs' own reports how late stalls were decided, and how long their trees took to go."""
    late, gone = [], []
    for path in sorted((stack.root / "reports").glob("*.json")):
        report = json.loads(path.read_text())
        if report["outcome"] == "stalled":
            late.append(report["stop"]["decided_after_last_growth_s"] - window_s)
            gone.append(report["stop"]["gone_after_s"])
    return {"decided_late_s": _spread(late), "gone_after_s": _spread(gone)}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "most": max(values)} if values else {"median": 0.0, "most": 0.0}
