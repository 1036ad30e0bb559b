"""The same closed networks in ciw and simpy: other people's simulators, to check ours against."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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


def simpy_batch(
    jobs: int, slots: int, bursts: int, demand_s: float, think_s: float, alpha: Sequence[float], seed: int
) -> float:
    """Wall clock of a batch, by simpy: jobs wait for a slot, then think and burst so many times.

    Bursts are constant and pauses vary by half; one station serves n bursts at alpha(n) in all.
    """
    import simpy

    env, draw = simpy.Environment(), random.Random(seed)
    station, free = _Sharing(env, alpha), simpy.Resource(env, capacity=slots)

    def job() -> Iterator[Any]:
        with free.request() as slot:
            yield slot
            for _ in range(bursts):
                yield env.timeout(think_s * draw.uniform(0.5, 1.5))
                yield station.serve(demand_s)

    for _ in range(jobs):
        env.process(job())
    env.run()
    return float(env.now)


class _Sharing:
    """A station that serves its n jobs at alpha(n)/n each; the plain way, without virtual time."""

    def __init__(self, env: Any, alpha: Sequence[float] = (1.0,)) -> None:
        self._env, self._alpha = env, alpha
        self._left: dict[Any, float] = {}
        self._since = 0.0
        self._version = 0

    def serve(self, seconds: float) -> Any:
        self._advance()
        done = self._env.event()
        self._left[done] = seconds
        self._schedule()
        return done

    def _advance(self) -> None:
        if self._left:
            share = (self._env.now - self._since) * self._rate() / len(self._left)
            self._left = {job: left - share for job, left in self._left.items()}
        self._since = self._env.now

    def _rate(self) -> float:
        return self._alpha[min(len(self._left), len(self._alpha)) - 1]

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
