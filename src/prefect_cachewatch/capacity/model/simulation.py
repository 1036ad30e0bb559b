"""A discrete-event simulation of the same closed network, for what formulas do not give: tails.

Jobs think, then carry one burst through the stations in order; each station shares its rate
among the jobs it has (processor sharing). Means agree with `convolution` whatever the
distribution of the bursts. The 99th percentiles and the silences do not; they need a simulation.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefect_cachewatch.capacity.model.estimates import ClassSimulation, Record, summarise
from prefect_cachewatch.capacity.model.network import check_network
from prefect_cachewatch.errors import InputError

Burst = Literal["constant", "exponential", "lognormal"]
Think = Literal["constant", "exponential", "uniform"]
Floats = NDArray[np.float64]

_CHUNK = 4096
MAX_EVENTS = 200_000_000


@dataclass(frozen=True)
class SimulationResult:
    """One seeded run; all but `elapsed_s` is the same for the same arguments."""

    seed: int
    events: int
    simulated_s: float
    classes: tuple[ClassSimulation, ...]
    elapsed_s: float

    @property
    def events_per_s(self) -> float:
        """Events handled in a second of this machine."""
        return self.events / self.elapsed_s if self.elapsed_s > 0 else math.inf


def simulate(
    populations: int | Sequence[int],
    demands_s: ArrayLike,
    think_s: float | Sequence[float],
    capacity: Sequence[float] | None = None,
    *,
    burst: Burst | Sequence[Burst] = "constant",
    burst_cv: float | Sequence[float] = 1.0,
    think: Think = "exponential",
    growths_per_burst: int | Sequence[int] = 1,
    poll_s: float = 15.0,
    events: int = 200_000,
    seed: int = 0,
    load_dependent_station: int = -1,
) -> SimulationResult:
    """Simulate a closed network of processor-sharing stations.

    Args:
        populations: jobs of each class, or one number for one class.
        demands_s: `demands_s[class][station]`, mean seconds of service of a burst, alone.
        think_s: mean seconds between bursts, by class or one number for all.
        capacity: alpha(1), alpha(2), ... of the load-dependent station, as in `solve_closed`.
        burst: distribution of the size of a burst; one size holds for all stations.
        burst_cv: coefficient of variation, for lognormal bursts only.
        think: distribution of the thinking; uniform: from half to one and a half of the mean. Where
            it and the bursts are constant, jobs may fall
            into step and never meet, and means differ from the exact ones.
        growths_per_burst: files written one after another in a burst: a file's bytes appear at
            its end, taken as an equal share of the burst's time.
        poll_s: seconds between the monitor's scans, for the silences as it sees them.
        events: ends of thinking and of service to simulate, the first tenth of which warm up.
        seed: the same seed gives the same result.
        load_dependent_station: which station `capacity` belongs to.

    Returns:
        Means with 95 % confidence intervals (batch means), the 99th percentile of burst times,
        and the distribution of the silences between two growths.

    Raises:
        InputError: if an argument is out of range.

    Source: virtual time of processor sharing: a station's clock runs at alpha(n)/n, and a job
        leaves when it has advanced by the job's demand; batch means after Law and Kelton.

    Example:
        >>> result = simulate(3, [0.605, 2.1, 1.35], 15, events=20_000, seed=1)
        >>> abs(result.classes[0].throughput_per_s.mean / 0.15151649 - 1) < 0.03
        True
    """
    counts, demands, pauses, alpha, variable = check_network(
        populations, demands_s, think_s, capacity, load_dependent_station
    )
    classes = len(counts)
    kinds = _by_class(burst, classes, "burst")
    spreads = [float(value) for value in _by_class(burst_cv, classes, "burst_cv")]
    parts = [int(value) for value in _by_class(growths_per_burst, classes, "growths_per_burst")]
    if not 1000 <= events <= MAX_EVENTS:
        raise InputError(f"events {events} must be 1,000 to {MAX_EVENTS:,}: fewer say nothing")
    if sum(counts) == 0:
        raise InputError("populations has no job at all: nothing happens in such a simulation")
    if min(parts) < 1 or not poll_s > 0:
        raise InputError("growths_per_burst must be 1 or more, and poll_s above 0")
    if think not in ("constant", "exponential", "uniform"):
        raise InputError(f"think {think!r} is no distribution of thinking: use constant, exponential or uniform")
    streams = np.random.SeedSequence(seed).spawn(2 * classes)
    sizes = [_sizes(kinds[c], spreads[c], np.random.default_rng(streams[c])) for c in range(classes)]
    thinking = [_thinks(think, pauses[c], np.random.default_rng(streams[classes + c])) for c in range(classes)]
    began = time.perf_counter()
    record = _run(counts, demands, alpha, variable, sizes, thinking, events)
    elapsed = time.perf_counter() - began
    return SimulationResult(
        seed=seed,
        events=events,
        simulated_s=record.end_s,
        classes=tuple(summarise(record, counts, c, parts[c], poll_s) for c in range(classes)),
        elapsed_s=elapsed,
    )


def _run(  # noqa: PLR0915 - one hot loop: a call a turn would halve its speed
    counts: Sequence[int],
    demands: Floats,
    alpha: Floats,
    variable: int | None,
    sizes: list[Iterator[float]],
    thinking: list[Iterator[float]],
    events: int,
) -> Record:
    """The loop: one end of thinking or of service a turn; plain Python, kept tight on purpose."""
    stations = demands.shape[1]
    owner = [c for c, count in enumerate(counts) for _ in range(count)]
    jobs = len(owner)
    # A job goes straight from each station it visits to the next one where it has work.
    work = [[float(demands[c, k]) for k in range(stations)] for c in range(len(counts))]
    route = [[k for k in range(stations) if work[c][k] > 0] for c in range(len(counts))]
    after = [dict(zip([-1, *path], [*path, -1], strict=True)) for path in route]
    rate = [[0.0] + [1.0 / n for n in range(1, jobs + 1)] for _ in range(stations)]
    if variable is not None:
        rate[variable] = [0.0] + [float(alpha[n - 1]) / n for n in range(1, jobs + 1)]
    draw_size = [stream.__next__ for stream in sizes]
    draw_think = [stream.__next__ for stream in thinking]
    thinkers: list[tuple[float, int]] = []
    for job in range(jobs):
        heappush(thinkers, (draw_think[owner[job]](), job))
    queues: list[list[tuple[float, int]]] = [[] for _ in range(stations)]
    clock = [0.0] * stations  # virtual time of each station
    since = [0.0] * stations  # when it was last brought up to date
    due = [math.inf] * stations  # when its next job leaves, in real time
    scale = [1.0] * jobs
    began = [0.0] * jobs
    done_job, done_start, done_end = array("l"), array("d"), array("d")
    infinity = math.inf
    now = 0.0
    for _ in range(events):
        now = thinkers[0][0] if thinkers else infinity
        here = -1
        for k in range(stations):
            if due[k] < now:
                now = due[k]
                here = k
        if here < 0:
            job = thinkers[0][1]
            heappop(thinkers)
            c = owner[job]
            began[job] = now
            scale[job] = draw_size[c]()
        else:
            queue = queues[here]
            finish, job = heappop(queue)
            c = owner[job]
            # Exactly the finish, not clock + elapsed x rate: rounding must not strand a job.
            clock[here] = finish
            since[here] = now
            due[here] = now + (queue[0][0] - finish) / rate[here][len(queue)] if queue else infinity
        there = after[c][here]
        if there < 0:
            done_job.append(job)
            done_start.append(began[job])
            done_end.append(now)
            heappush(thinkers, (now + draw_think[c](), job))
        else:
            queue = queues[there]
            served = rate[there]
            size = len(queue)
            # An idle station's clock starts anew, so that it does not lose digits over a long run.
            virtual = clock[there] + (now - since[there]) * served[size] if size else 0.0
            heappush(queue, (virtual + scale[job] * work[c][there], job))
            clock[there] = virtual
            since[there] = now
            due[there] = now + (queue[0][0] - virtual) / served[size + 1]
    return Record(np.array(done_job), np.array(done_start), np.array(done_end), now)


def _sizes(kind: str, spread: float, random: np.random.Generator) -> Iterator[float]:
    if kind == "constant" or (kind == "lognormal" and spread == 0):
        while True:
            yield 1.0
    elif kind == "exponential":
        while True:
            yield from random.standard_exponential(_CHUNK).tolist()
    elif kind == "lognormal":
        if not (math.isfinite(spread) and 0 < spread <= 10):
            raise InputError(f"burst_cv {spread!r} must be above 0 and at most 10")
        sigma = math.sqrt(math.log1p(spread**2))
        while True:
            yield from random.lognormal(-(sigma**2) / 2, sigma, _CHUNK).tolist()
    else:
        raise InputError(f"burst {kind!r} is no distribution: use constant, exponential or lognormal")


def _thinks(kind: str, mean_s: float, random: np.random.Generator) -> Iterator[float]:
    if kind == "constant" or mean_s == 0:
        while True:
            yield float(mean_s)
    while True:
        drawn = random.standard_exponential(_CHUNK) if kind == "exponential" else random.uniform(0.5, 1.5, _CHUNK)
        yield from (drawn * mean_s).tolist()


def _by_class(value: Any, classes: int, name: str) -> list[Any]:
    if isinstance(value, (str, int, float)):
        return [value] * classes
    values = list(value)
    if len(values) != classes:
        raise InputError(f"{name} has {len(values)} values for {classes} classes: give one for each, or one for all")
    return values
