"""Random plans beside simpy, which shares no code with the planner: how long a batch takes.

`python -m tests.engine.capacity.capacity_judge 160` prints the row of docs/reliability.md, with `mix` behind it that of mixes
with small bursts.

The judge knows hosts: each job stays on the host that it was given, and its stream gets the least of an even share of its
host's link, of the storage's curve, of the port and of the operations. Work is taken off at every event, the plain way.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import Pool
from typing import Any

from prefect_cachewatch.capacity import PlanInput, plan

_RUNS = 3


@dataclass(frozen=True)
class Jobs:
    """A class as the judge runs it: `wanted` jobs through the limit, or `running` without end."""

    burst_bytes: int
    think_s: float
    bursts: int
    wanted: int = 0
    running: int = 0
    burst_cv: float = 0.0
    think: str = "uniform"  # by half, or exponential, or constant


@dataclass(frozen=True)
class Scenario:
    """One storage, one or two classes with a batch, now and then one that always runs."""

    points: list[tuple[int, float]]
    classes: list[Jobs]
    hosts: int = 1
    link: float = math.inf
    port: float = math.inf
    ops: float = math.inf
    op_bytes: int = 2**20


@dataclass
class _Stream:
    host: int
    left: float
    done: Any = field(repr=False)


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
    most = max(rate for _, rate in points)
    hosts = draw.choice([1, 1, 4, 8])
    link = one * 10 ** draw.uniform(-0.2, 1) if draw.random() < 0.4 else math.inf
    port = most * draw.uniform(0.5, 1.5) if draw.random() < 0.2 else math.inf
    ops = most * draw.uniform(0.5, 2) / 2**20 if draw.random() < 0.2 else math.inf
    two, beside = draw.random() < 0.4, draw.random() < 0.3

    def jobs(asks: bool) -> Jobs:
        size = round(10 ** draw.uniform(8, 10))
        return Jobs(
            burst_bytes=size,
            think_s=size / one * 10 ** draw.uniform(-1, 1.2),
            bursts=draw.randint(5, 40),
            wanted=draw.randint(5, 60) if asks else 0,
            running=0 if asks else draw.randint(1, 3),
            burst_cv=draw.choice([0, 0, 0.5, 1]),
            think=draw.choice(["uniform", "uniform", "exponential", "constant"]),
        )

    classes = [jobs(True), *([jobs(True)] if two else []), *([jobs(False)] if beside else [])]
    return Scenario(points, classes, hosts, link, port, ops)


def mix(seed: int) -> Scenario:
    """A scenario beside a class of small bursts, which always runs or is part of the batch."""
    draw = random.Random(seed)
    found, rate = scenario(seed), draw.uniform(0.2, 1)
    main = replace(found.classes[0], bursts=draw.randint(10, 20), wanted=draw.randint(8, 20))
    size, running = max(1, round(main.burst_bytes * 10 ** draw.uniform(-2, -0.7))), draw.random() < 0.6
    small = Jobs(
        burst_bytes=size,
        think_s=size / found.points[0][1] * 10 ** draw.uniform(-0.5, 1),
        bursts=1 if running else round(rate * main.bursts * main.burst_bytes / size),
        wanted=0 if running else draw.randint(3, 8),
        running=draw.randint(1, 8) if running else 0,
    )
    return replace(found, classes=[main, small] if draw.random() < 0.7 or running else [small, main])


def planned(what: Scenario) -> PlanInput:
    """The plan of a scenario, with its rates as they are."""
    workloads = [
        {
            "name": f"class {i}", "burst_bytes": jobs.burst_bytes, "think_s": jobs.think_s, "bursts_per_job": jobs.bursts,
            "jobs": jobs.wanted or None, "running": jobs.running or None,
        }
        for i, jobs in enumerate(what.classes)
    ]  # fmt: skip
    storage: dict[str, Any] = {
        "name": "disk",
        "write": {"points": [{"n": n, "bytes_per_s": rate} for n, rate in what.points]},
        "port_bytes_per_s": what.port if math.isfinite(what.port) else None,
        "ops_per_s": what.ops if math.isfinite(what.ops) else None,
    }
    link = {"bytes_per_s": what.link if math.isfinite(what.link) else None, "hosts": what.hosts}
    policy = {"derate": 0}
    return PlanInput.model_validate({"storage": storage, "link": link, "workloads": workloads, "policy": policy})


def simpy_batch(what: Scenario, limit: int, seed: int) -> float:
    """When the last job of the batch ends, by simpy."""
    import simpy

    env, draw = simpy.Environment(), random.Random(seed)
    streams: list[_Stream] = []
    since, version = [0.0], [0]

    def rates() -> list[float]:
        n, by_host = len(streams), [sum(s.host == h for s in streams) for h in range(what.hosts)]
        even = min(_between(what.points, n), what.port, what.ops * what.op_bytes) / n if n else 0.0
        return [min(even, what.link / by_host[s.host]) for s in streams]

    def advance() -> None:
        for stream, rate in zip(streams, rates(), strict=True):
            stream.left -= rate * (env.now - since[0])
        since[0] = env.now

    def schedule() -> None:
        version[0] += 1
        if streams:
            soonest = min(max(0.0, s.left) / rate for s, rate in zip(streams, rates(), strict=True))
            env.process(finish(soonest, version[0]))

    def finish(after_s: float, mine: int) -> Iterator[Any]:
        yield env.timeout(after_s)
        if mine != version[0]:
            return  # somebody came or left meanwhile, and a newer process takes over
        advance()
        first = min(range(len(streams)), key=lambda i: streams[i].left)
        streams.pop(first).done.succeed()
        schedule()

    def burst(mine: Jobs, host: int) -> Iterator[Any]:
        yield env.timeout(mine.think_s * _pause(draw, mine.think))
        advance()
        stream = _Stream(host, mine.burst_bytes * _size(draw, mine.burst_cv), env.event())
        streams.append(stream)
        schedule()
        yield stream.done

    slots = simpy.Resource(env, limit)
    host_of = itertools.cycle(range(what.hosts))

    def job(mine: Jobs) -> Iterator[Any]:
        with slots.request() as slot:
            yield slot
            host = next(host_of)
            for _ in range(mine.bursts):
                yield from burst(mine, host)

    def always(mine: Jobs, host: int) -> Iterator[Any]:
        while True:
            yield from burst(mine, host)

    for mine in what.classes:
        for _ in range(mine.running):
            env.process(always(mine, next(host_of)))
    turns = sorted(((i + 0.5) / mine.wanted, c) for c, mine in enumerate(what.classes) for i in range(mine.wanted))
    env.run(until=env.all_of([env.process(job(what.classes[c])) for _, c in turns]))
    return float(env.now)


@dataclass(frozen=True)
class Comparison:
    """One scenario: the planner's batch as a share of the judge's, less 1."""

    seed: int
    n: int
    error: float


def compare(seed: int, make: Callable[[int], Scenario] = scenario) -> Comparison:
    """Plan a scenario, and let simpy run its batch at the number recommended."""
    what = make(seed)
    answer = plan(planned(what)).answers[0]
    judged = statistics.fmean(simpy_batch(what, answer.n, run) for run in range(_RUNS))
    assert answer.row.batch_s is not None
    return Comparison(seed, answer.n, answer.row.batch_s / judged - 1)


def _pause(draw: random.Random, kind: str) -> float:
    if kind == "constant":
        return 1.0
    return draw.expovariate(1) if kind == "exponential" else draw.uniform(0.5, 1.5)


def _size(draw: random.Random, cv: float) -> float:
    if cv == 0:
        return 1.0
    variance = math.log(1 + cv * cv)
    return draw.lognormvariate(-variance / 2, math.sqrt(variance)) if cv != 1 else draw.expovariate(1)


def _between(curve: Sequence[tuple[int, float]], n: int) -> float:
    """The curve at n, by straight lines between its points, and flat beyond."""
    if n >= curve[-1][0]:
        return curve[-1][1]
    (left, low), (right, high) = next(pair for pair in itertools.pairwise([(0, 0.0), *curve]) if pair[1][0] >= n)
    return low + (high - low) * (n - left) / (right - left)


if __name__ == "__main__":
    with Pool() as pool:
        make = mix if sys.argv[2:] == ["mix"] else scenario
        found = pool.map(partial(compare, make=make), range(int(sys.argv[1])), chunksize=1)
    sizes = sorted(abs(each.error) for each in found)
    print(
        f"{len(found)} plans: median {statistics.median(sizes):.1%}, nine of ten {sizes[int(0.9 * (len(sizes) - 1))]:.1%}, "
        f"all {min(each.error for each in found):+.1%} to {max(each.error for each in found):+.1%}"
    )
