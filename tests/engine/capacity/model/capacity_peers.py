"""The same closed networks in ciw and simpy: other people's simulators, to check ours against."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WARM_UP = 0.1


def ciw_network(
    counts: list[int], demands: list[list[float]], think: list[float], *, until_s: float, seed: int
) -> list[tuple[float, float]]:
    """Throughput and mean burst time of each class, by ciw.

    A delay node and processor-sharing nodes. A PSNode with one server is silently first come, first
    served: infinitely many servers make it share.
    """
    import ciw

    classes, stations = len(counts), len(demands[0])
    names = [f"class {c}" for c in range(classes)]
    nodes = stations + 1
    ring = [[1.0 if b == (a + 1) % nodes else 0.0 for b in range(nodes)] for a in range(nodes)]
    network = ciw.create_network(
        # All jobs arrive at once at the start, and none after them.
        arrival_distributions={
            name: [ciw.dists.Sequential([0.0, float("inf")]), *([None] * stations)] for name in names
        },
        batching_distributions={
            name: [ciw.dists.Deterministic(count), *([ciw.dists.Deterministic(1)] * stations)]
            for name, count in zip(names, counts, strict=True)
        },
        service_distributions={
            name: [ciw.dists.Exponential(1 / think[c]), *(ciw.dists.Exponential(1 / d) for d in demands[c])]
            for c, name in enumerate(names)
        },
        routing=dict.fromkeys(names, ring),
        number_of_servers=[float("inf")] * nodes,
        ps_thresholds=[1] * nodes,
    )
    ciw.seed(seed)
    simulation = ciw.Simulation(network, node_class=[ciw.Node, *([ciw.PSNode] * stations)])
    simulation.simulate_until_max_time(until_s)
    warm = until_s * WARM_UP
    records = [record for record in simulation.get_all_records() if record.exit_date >= warm and record.node > 1]
    found = []
    for name in names:
        mine = [record for record in records if record.customer_class == name]
        bursts = sum(record.node == nodes for record in mine)
        spent = sum(record.exit_date - record.arrival_date for record in mine)
        found.append((bursts / (until_s - warm), spent / bursts))
    return found


def simpy_network(
    counts: list[int], demands: list[list[float]], think: list[float], *, until_s: float, seed: int
) -> list[tuple[float, float]]:
    """Throughput and mean burst time of each class, by simpy with processor-sharing stations."""
    import simpy

    env, draw = simpy.Environment(), random.Random(seed)
    stations = [_Sharing(env) for _ in demands[0]]
    warm = until_s * WARM_UP
    times: list[list[float]] = [[] for _ in counts]

    def job(c: int) -> Iterator[Any]:
        while True:
            yield env.timeout(draw.expovariate(1 / think[c]))
            began = env.now
            for station, demand in zip(stations, demands[c], strict=True):
                yield station.serve(draw.expovariate(1 / demand))
            if env.now >= warm:
                times[c].append(env.now - began)

    for c, count in enumerate(counts):
        for _ in range(count):
            env.process(job(c))
    env.run(until=until_s)
    return [(len(mine) / (until_s - warm), sum(mine) / len(mine)) for mine in times]


@dataclass(frozen=True)
class Jobs:
    """Jobs of a class as simpy runs them: `wanted` through the limit, or so many without end (`running`)."""

    burst_bytes: float
    think_s: float
    wanted: int = 0
    running: int = 0
    bursts: int = 1
    occupy: int = 1  # slots of the limit
    burst_cv: float = 0.0
    think: str = "uniform"  # by half, or exponential, or constant


def simpy_batch(
    classes: Sequence[Jobs], slots: int, points: Sequence[tuple[int, float]], seed: int, *, link: float | None = None
) -> list[float]:
    """When the last job of each class ends, by simpy: jobs wait for slots in turn, then think and burst so many times.

    A burst goes over the link, then to the storage, whose n bursts get what its curve has at n; both share evenly.
    """
    import simpy

    env, draw = simpy.Environment(), random.Random(seed)
    storage = _Sharing(env, points)
    path = [storage] if link is None else [_Sharing(env, [(1, link), (2, link)]), storage]
    free = _Slots(env, slots)
    ends = [0.0 for _ in classes]

    def burst(mine: Jobs) -> Iterator[Any]:
        yield env.timeout(mine.think_s * _pause(draw, mine.think))
        size = mine.burst_bytes * _size(draw, mine.burst_cv)
        for station in path:
            yield station.serve(size)

    def job(c: int) -> Iterator[Any]:
        mine = classes[c]
        yield free.take(mine.occupy)
        for _ in range(mine.bursts):
            yield from burst(mine)
        free.give(mine.occupy)
        ends[c] = float(env.now)

    def always(mine: Jobs) -> Iterator[Any]:
        while True:
            yield from burst(mine)

    for mine in classes:
        for _ in range(mine.running):
            env.process(always(mine))
    # In turn, as they come from several users.
    turns = sorted(((i + 0.5) / mine.wanted, c) for c, mine in enumerate(classes) for i in range(mine.wanted))
    env.run(until=env.all_of([env.process(job(c)) for _, c in turns]))
    return ends


def _pause(draw: random.Random, kind: str) -> float:
    return {
        "uniform": lambda: draw.uniform(0.5, 1.5),
        "exponential": lambda: draw.expovariate(1),
        "constant": lambda: 1.0,
    }[kind]()


def _size(draw: random.Random, cv: float) -> float:
    if cv == 0:
        return 1.0
    variance = math.log(1 + cv * cv)
    return draw.lognormvariate(-variance / 2, math.sqrt(variance)) if cv != 1 else draw.expovariate(1)


class _Slots:
    """Slots of a limit, first come, first served."""

    def __init__(self, env: Any, count: int) -> None:
        self._env, self._free = env, count
        self._waiting: list[tuple[int, Any]] = []

    def take(self, count: int) -> Any:
        turn = self._env.event()
        self._waiting.append((count, turn))
        self._serve()
        return turn

    def give(self, count: int) -> None:
        self._free += count
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            count, turn = self._waiting.pop(0)
            self._free -= count
            turn.succeed()


class _Sharing:
    """A station whose n jobs share evenly what its curve has at n; the plain way, without virtual time."""

    def __init__(self, env: Any, curve: Sequence[tuple[int, float]] = ((1, 1.0), (2, 1.0))) -> None:
        self._env = env
        self._rates = [_between(curve, n) for n in range(1, curve[-1][0] + 1)]
        self._left: dict[Any, float] = {}
        self._since = 0.0
        self._version = 0

    def serve(self, work: float) -> Any:
        self._advance()
        done = self._env.event()
        self._left[done] = work
        self._schedule()
        return done

    def _advance(self) -> None:
        if self._left:
            share = (self._env.now - self._since) * self._rate() / len(self._left)
            self._left = {job: left - share for job, left in self._left.items()}
        self._since = self._env.now

    def _rate(self) -> float:
        return self._rates[min(len(self._left), len(self._rates)) - 1]

    def _schedule(self) -> None:
        self._version += 1
        if self._left:
            soonest = max(0.0, min(self._left.values())) * len(self._left) / self._rate()
            self._env.process(self._finish(soonest, self._version))

    def _finish(self, after: float, version: int) -> Iterator[Any]:
        yield self._env.timeout(after)
        if version != self._version:
            return  # somebody arrived or left meanwhile, and a newer process takes over
        self._advance()
        job = min(self._left, key=lambda entry: self._left[entry])
        del self._left[job]
        job.succeed()
        self._schedule()


def _between(curve: Sequence[tuple[int, float]], n: int) -> float:
    """The curve at n, by straight lines between its points."""
    (left, low), (right, high) = next(pair for pair in itertools.pairwise([(0, 0.0), *curve]) if pair[1][0] >= n)
    return low + (high - low) * (n - left) / (right - left)
