"""Runs a fleet of guarded generations on real workers, and kills and restarts parts of it on the way."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.scale.counts import growth, measure_database
from tests.scale.meter import Meter
from tests.scale.review import (
    judge_all,
    look_for_survivors,
    metered,
    reported,
    requests_of,
    truth_of,
    wait_for_slots,
    wait_for_task_runs,
)
from tests.scale.server_api import Api
from tests.scale.services import POOL, Stack
from tests.scale.truth import Interruptions, modes

GENERATOR = Path(__file__).with_name("generator.py")
LOGS = Path("build/scale-logs")  # of a test that failed
STORAGE = "scale-storage"
DEPLOYMENT = f"""
deployments:
  - name: scale
    entrypoint: prefect_cachewatch.flows.generation.generate_cache
    work_pool: {{name: {POOL}}}
"""
_LEASE_S = 300.0  # of `storage_slot`; a run that was killed gives its slots back after it


@dataclass(frozen=True)
class Plan:
    """How much, how long, and what is broken on the way (each at a share of the runs being over)."""

    runs: int = 200
    workers: int = 4
    limit: int = 4
    seconds: float = 20.0
    stalling: float = 0.10
    failing: float = 0.05
    window_s: float = 8.0
    slots: int = 14
    kill_flow_at: float | None = 0.10
    kill_worker_at: float | None = 0.25
    restart_server_at: float | None = 0.50
    down_s: float = 15.0  # that the server is away, its own end and start not counted
    pending_s: float = 300.0  # after which a run that a dead worker had taken goes back to the queue; above any start
    worker_query_s: float = 10.0  # Prefect's default
    timeout_s: float = 5400.0


@dataclass
class Result:
    """What came of it; `problems` is empty if every promise was kept."""

    problems: list[str] = field(default_factory=list)
    happened: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)


class Campaign:
    """One test from the first service to the last process gone.

    Args:
        plan: what to do.
        tell: told what happens, a line at a time.
    """

    def __init__(
        self, plan: Plan, tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    ) -> None:
        self.plan, self._tell = plan, tell
        self.result = Result()
        self.stack = Stack(
            {"PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "5"},
            {"PREFECT_WORKER_QUERY_SECONDS": f"{plan.worker_query_s:g}"},
        )
        for name in ("caches", "truth", "reports"):
            (self.stack.root / name).mkdir()
        self.meter = Meter(self.stack.mark, str(GENERATOR))
        self.api = Api(self.stack.url)
        self.runs: dict[str, str] = {}  # flow run ids to names
        self._modes = list(modes(plan.runs, plan.stalling, plan.failing))
        self._killed_flows: list[str] = []
        self._away: list[tuple[float, float]] = []
        self._workers_killed_s: list[float] = []
        self._worker_deaths = 0
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """Note an event, with the seconds since the start."""
        line = f"{time.monotonic() - self._began_s:6.0f} s  {text}"
        self.result.events.append(line)
        self._tell(line)

    def run(self) -> Result:
        """Do it all; everything is ended when this returns or raises.

        Returns:
            The result, judged. The services' logs are in `build/scale-logs` if a promise was broken.
        """
        whole = False
        try:
            self._prepare()
            self._work()
            whole = not self.result.problems
        finally:
            self.meter.stop()
            self.stack.close()
            self.api.close()
            if not whole:
                shutil.rmtree(LOGS, ignore_errors=True)
                LOGS.mkdir(parents=True)
                for path in self.stack.root.glob("*.log"):
                    shutil.copy(path, LOGS)
                self.say(f"logs are kept in {LOGS}")
            shutil.rmtree(self.stack.root, ignore_errors=True)
        return self.result

    def _prepare(self) -> None:
        """Start the services, and queue all runs before there is a worker."""
        stack, api = self.stack, self.api
        stack.start()
        self.say("PostgreSQL, Redis and the server answer")
        (stack.root / "prefect.yaml").write_text(DEPLOYMENT)
        stack.prefect("work-pool", "create", POOL, "--type", "process")
        stack.prefect("deploy", "--prefect-file", "prefect.yaml", "--name", "scale")
        api.ask("POST", "/v2/concurrency_limits/", {"name": STORAGE, "limit": self.plan.slots})
        self._before = measure_database(stack.database_url)
        self._log_offset = stack.server_log.stat().st_size
        for name, process in stack.processes.items():
            self.meter.register(process.pid, name)
        self.meter.start()
        deployment = api.ask("GET", "/deployments/name/generate-cache/scale")["id"]
        for number in range(self.plan.runs):
            body = {"parameters": self._parameters(number)}
            made = api.ask("POST", f"/deployments/{deployment}/create_flow_run", body)
            self.runs[made["id"]] = f"scale-{number:04d}"
        taken = {"state": {"type": "PENDING", "name": "Pending"}, "force": False}
        api.ask("POST", f"/flow_runs/{next(iter(self.runs))}/set_state", taken)
        self.say(f"{self.plan.runs} runs are scheduled, one of them as if a worker had taken it and died at once")

    def _parameters(self, number: int) -> dict[str, Any]:
        root, name = self.stack.root, f"scale-{number:04d}"
        command = [sys.executable, "-I", "-S", str(GENERATOR), str(root / "caches" / name)]
        command += [str(root / "truth" / name), self._modes[number], f"{self.plan.seconds:g}", str(number)]
        return {
            "job": {"name": name, "command": command, "cache_dirs": [str(root / "caches" / name)]},
            "stall": {"stall_after_s": self.plan.window_s, "first_write_within_s": 120, "poll_s": 1},
            "stop": {"grace_s": 1},
            "retry": {"attempts": 1},
            "storage": {"name": STORAGE, "slots": 1},
            "outputs": {"report": str(root / "reports" / f"{name}.json")},
        }

    def _work(self) -> None:
        """Start the workers, break what is to be broken, and look at what came of it."""
        plan, begin_s = self.plan, time.monotonic()
        for number in range(plan.workers):
            self._start_worker(f"worker-{number + 1}")
        self.say(f"{plan.workers} workers of {plan.limit} runs each are started")
        self._watch_until_over(begin_s)
        took_s = time.monotonic() - begin_s
        slots_back_s, problems = wait_for_slots(self.api, self.stack, STORAGE, _LEASE_S + 60)
        self.say(f"all slots and leases are given back {slots_back_s:.0f} s later")
        open_task_runs = wait_for_task_runs(self.api)
        problems += look_for_survivors(self.stack, self.meter)
        self.meter.stop()
        away = Interruptions(tuple(self._away), tuple(self._workers_killed_s))
        verdicts = judge_all(self.api, self.stack, self.runs, plan.window_s, away, self._killed_flows)
        if not verdicts.requeued:
            problems.append("the run that nobody would have started was not put back into the queue")
        self.result.problems += [*problems, *verdicts.problems]
        self.result.happened, self.result.states = dict(verdicts.happened), dict(verdicts.states)
        self.result.figures = {
            "plan": vars(plan),
            "took_s": took_s,
            "runs_per_minute": 60 * plan.runs / took_s,
            "begin_s": verdicts.begin_s,
            "requeued": verdicts.requeued,
            "slots_back_after_s": slots_back_s,
            "worker_deaths_of_their_own": self._worker_deaths,
            "task_runs_left_open": open_task_runs,
            "database": growth(self._before, measure_database(self.stack.database_url)),
            **requests_of(self.stack, self._log_offset, plan.runs, plan.workers, took_s),
            **metered(self.meter, plan.runs),
            **reported(self.stack, plan.window_s),
        }

    def _watch_until_over(self, begin_s: float) -> None:
        plan, told = self.plan, 0
        faults = [
            (share, fault)
            for share, fault in (
                (plan.kill_flow_at, self._kill_flow),
                (plan.kill_worker_at, self._kill_worker),
                (plan.restart_server_at, self._restart_server),
            )
            if share is not None
        ]
        while (over := self._count_over()) < plan.runs:
            if time.monotonic() - begin_s > plan.timeout_s:
                self.result.problems.append(f"{plan.runs - over} runs were not over after {plan.timeout_s:g} s")
                return
            if faults and over >= faults[0][0] * plan.runs and faults[0][1]():
                faults.pop(0)
            self._mind_workers()
            self._mind_queue()
            if over >= told + max(1, plan.runs // 20):
                told = over
                self.say(f"{over} of {plan.runs} are over; load average {os.getloadavg()[0]:.1f}")
            time.sleep(2)
        self.say(f"all runs are over, {time.monotonic() - begin_s:.0f} s after the workers' start")
        if faults:
            self.result.problems.append("the runs were over before everything was done to them that was to be done")

    def _count_over(self) -> int:
        with contextlib.suppress(httpx.HTTPError):
            return self.api.count_over()
        return 0

    def _start_worker(self, name: str) -> None:
        process = self.stack.start_worker(name, self.plan.limit)
        self.meter.register(process.pid, "worker")

    def _mind_workers(self) -> None:
        """Start a worker again that died, as a service manager would; one that died of its own is counted."""
        for name, process in list(self.stack.processes.items()):
            if name.startswith("worker-") and process.poll() is not None:
                self._worker_deaths += process.returncode != -signal.SIGKILL
                self.say(f"{name} had ended with {process.returncode}, and is started again")
                self._start_worker(name)

    def _mind_queue(self) -> None:
        """Put back what a dead worker took, as docs/deploy.md tells people to do by hand."""
        with contextlib.suppress(httpx.HTTPError):
            for run in self.api.put_back(self.plan.pending_s):
                self.say(f"{self.runs[run]} was Pending for more than {self.plan.pending_s:g} s, and is put back")

    def _kill_flow(self) -> bool:
        """SIGKILL a flow process whose generator is at work, not one of the worker that is killed later."""
        spared = self.stack.processes["worker-1"].pid
        for run, (pid, worker) in self.meter.running().items():
            if worker != spared and truth_of(self.stack, self.runs[run]).writes >= 3:
                os.kill(pid, signal.SIGKILL)
                self._killed_flows.append(run)
                self.say(f"SIGKILL of the flow process of {self.runs[run]}")
                return True
        return False

    def _kill_worker(self) -> bool:
        """SIGKILL a worker while generators of its are at work."""
        process = self.stack.processes["worker-1"]
        orphans = sum(worker == process.pid for _, worker in self.meter.running().values())
        if not orphans or process.poll() is not None:
            return False
        process.kill()
        process.wait(10)
        self._workers_killed_s.append(time.time())
        self.say(f"SIGKILL of worker-1 while {orphans} of its generators are at work")
        return True

    def _restart_server(self) -> bool:
        began_s = time.time()
        self.say(f"the server is asked to end, with {len(self.meter.running())} generators at work")
        self.stack.stop_server()
        self.say(f"the server has ended after {time.time() - began_s:.0f} s")
        time.sleep(self.plan.down_s)
        self.stack.start_server()
        self.meter.register(self.stack.processes["server"].pid, "server")
        self._away.append((began_s, time.time()))
        self.say(f"the server is back {time.time() - began_s:.0f} s after it was asked to end")
        return True
