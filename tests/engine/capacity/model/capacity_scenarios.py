"""Random plans beside simpy, which shares no code with the planner: batch hours, and how good the number recommended is.

`python -m tests.engine.capacity.model.capacity_scenarios 160` runs so many and prints what docs/capacity.md says; 160 take
some four minutes on two cores.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from typing import Literal

from tests.engine.capacity.model.capacity_peers import Jobs, simpy_batch

from prefect_cachewatch.capacity import (
    LimitPlan,
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    WorkloadClass,
    plan,
)

_RUNS = 3  # of simpy for each number of jobs


@dataclass(frozen=True)
class Scenario:
    """One storage, one or two classes with a batch, now and then one that always runs."""

    points: list[tuple[int, float]]
    link: float | None
    classes: list[Jobs]
    max_slowdown: float

    @property
    def batches(self) -> list[Jobs]:
        return [jobs for jobs in self.classes if jobs.wanted]

    @property
    def always(self) -> list[Jobs]:
        return [jobs for jobs in self.classes if jobs.running]


@dataclass(frozen=True)
class Comparison:
    """What simpy makes of one plan."""

    seed: int
    pauses: str
    classes: int
    error: float  # of the batch time that the plan gives for the first class, as a share of the simulated one
    behind: float  # how much longer the batch (of two classes: both at once) takes than with the best number
    n: int
    best: int


def scenario(seed: int) -> Scenario:
    """A scenario, the same for the same seed."""
    draw = random.Random(seed)
    one, contention = 10 ** draw.uniform(7.7, 9.3), draw.choice([0, 0.02, 0.05, 0.1, 0.3, 1])
    coherency, top = draw.choice([0, 0, 0, 0.001, 0.004]), draw.choice([8, 16, 32])
    points = []
    for n in (1, 2, 4, 8, 16, 32):
        if n <= top:
            scaled = n / (1 + contention * (n - 1) + coherency * n * (n - 1))
            points.append((n, one * scaled * draw.uniform(0.95, 1.05)))
    link = 10 ** draw.uniform(8.7, 9.5) if draw.random() < 0.2 else None
    two, beside = draw.random() < 0.4, draw.random() < 0.3

    def jobs(asks: bool) -> Jobs:
        size = round(10 ** draw.uniform(8, 10))
        return Jobs(
            burst_bytes=size,
            think_s=size / one * 10 ** draw.uniform(-1, 1.2),
            wanted=draw.randint(5, 60) if asks else 0,
            running=0 if asks else draw.randint(1, 3),
            bursts=draw.randint(5, 40),
            burst_cv=draw.choice([0, 0, 0.5, 1]),
            think=draw.choice(["uniform", "uniform", "exponential", "constant"]),
        )

    classes = [jobs(True), *([jobs(True)] if two else []), *([jobs(False)] if beside else [])]
    return Scenario(points, link, classes, draw.uniform(1.5, 5))


def planned(what: Scenario, aim: Literal["batch", "most"] = "batch") -> LimitPlan:
    """The plan of a scenario, with its rates as they are."""
    curve = ServiceCurve(points=[{"n": n, "throughput_bytes_per_s": rate} for n, rate in what.points])
    workloads = [
        WorkloadClass(
            name=f"class {i}",
            burst_bytes=jobs.burst_bytes,
            think_s=jobs.think_s,
            bursts_per_job=jobs.bursts,
            jobs=max(1, jobs.wanted),
            running=jobs.running or None,
            burst_cv=jobs.burst_cv,
            watched=False,
        )
        for i, jobs in enumerate(what.classes)
    ]
    storage = StorageProfile(name="disk", sequential_write=curve, through="local")
    policy = Policy(derate=0, max_slowdown=what.max_slowdown, max_concurrency=64, aim=aim)
    return plan(storage, LinkProfile(bytes_per_s=what.link), workloads, policy)


def compare(seed: int) -> Comparison:
    """Plan a scenario, and simulate it at the number recommended and at all others that the rules admit."""
    what = scenario(seed)
    answer = planned(what)
    mine = next(row[0] for row in answer.table if row[0].n == answer.limit)
    first = _took([what.batches[0], *what.always], answer.limit, what)[0]
    weights = [entry.occupy for entry in answer.classes]
    batches = [replace(jobs, occupy=weight) for jobs, weight in zip(what.batches, weights, strict=True)]
    room = max(1, what.points[-1][0] - sum(jobs.running for jobs in what.always))
    admitted = min(answer.most, room) if len(batches) == 1 else planned(what, aim="most").slots
    numbers = range(max(weights), max(admitted, answer.slots) + 1)
    spans = {
        n: max(_took([*batches, *what.always], n, what)[: len(batches)])
        for n in numbers
        if any(n % weight == 0 for weight in weights)
    }
    best = min(spans, key=lambda n: spans[n])
    return Comparison(
        seed=seed,
        pauses=what.batches[0].think,
        classes=len(batches),
        error=mine.batch_s / first - 1,
        behind=spans[answer.slots] / spans[best] - 1,
        n=answer.slots,
        best=best,
    )


def _took(classes: Sequence[Jobs], slots: int, what: Scenario) -> list[float]:
    runs = [simpy_batch(classes, slots, what.points, seed, link=what.link) for seed in range(_RUNS)]
    return [statistics.mean(run[c] for run in runs) for c in range(len(classes))]


def said(found: Sequence[Comparison]) -> list[str]:
    """The lines of the page's table."""

    def line(name: str, of: Callable[[Comparison], float], some: Sequence[Comparison]) -> str:
        sizes = sorted(abs(of(each)) for each in some)
        least, most = (pick(map(of, some)) for pick in (min, max))
        ninth = sizes[int(0.9 * (len(sizes) - 1))]
        return f"| {name} | {len(some)} | {statistics.median(sizes):.1%} | {ninth:.1%} | {least:+.1%} to {most:+.1%} |"

    def error(each: Comparison) -> float:
        return each.error

    def behind(each: Comparison) -> float:
        return each.behind

    apart = [each for each in found if each.pauses != "constant"]
    equal = [each for each in found if each.pauses == "constant"]
    return [
        line("batch time, pauses that vary", error, apart),
        line("batch time, equal pauses", error, equal),
        line("the number recommended, one class", behind, [each for each in found if each.classes == 1]),
        line("the shared limit, two classes at once", behind, [each for each in found if each.classes == 2]),
    ]


if __name__ == "__main__":
    with Pool() as pool:
        every = pool.map(compare, range(int(sys.argv[1])), chunksize=1)
    print("\n".join(said(every)))
    for each in sorted(every, key=lambda each: -max(abs(each.error), each.behind))[:12]:
        print(each)
