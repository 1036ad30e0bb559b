"""The corpus that stall rules are held against: recorded runs of real generators, and synthetic families.

A synthetic run is made from its family's name and a seed alone, and is the same on every machine. Its gaps
between writes are made so that some families pause beyond five minutes now and then without hanging.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from prefect_cachewatch.engine.events import Progress
from prefect_cachewatch.engine.recording import Recording, read_recording

RUNS = Path(__file__).parent / "data" / "runs"
_TAIL_S = 5.0


def _steady(random: Random) -> Iterator[float]:
    """A file every ten seconds or so, as most converters."""
    while True:
        yield max(1.0, random.gauss(10, 1.5))


def _lognormal(random: Random) -> Iterator[float]:
    """Tensors of very different sizes; one pause in a thousand is beyond five minutes."""
    while True:
        yield random.lognormvariate(math.log(10), 1.1)


def _layer_wise(random: Random) -> Iterator[float]:
    """Eight tensors in a row, then the next layer is computed."""
    while True:
        yield from (random.uniform(0.5, 2) for _ in range(7))
        yield random.lognormvariate(math.log(60), 0.55)


def _phase_change(random: Random) -> Iterator[float]:
    """Fast copying first, then slow compilation: what was learnt in the first phase is wrong in the second."""
    yield from (random.uniform(0.5, 3) for _ in range(random.randint(100, 300)))
    while True:
        yield random.uniform(20, 150)


def _pareto(random: Random) -> Iterator[float]:
    """A heavy tail (exponent 1.6): the longest pause so far says little about the next."""
    while True:
        yield 5 * random.paretovariate(1.6)


FAMILIES: dict[str, Callable[[Random], Iterator[float]]] = {
    "steady": _steady,
    "lognormal": _lognormal,
    "layer-wise": _layer_wise,
    "phase change": _phase_change,
    "Pareto": _pareto,
}


def synthetic_run(family: str, seed: int, writes: int = 400) -> Recording:
    """Make a run of a family.

    Args:
        family: one of `FAMILIES`.
        seed: which one of it.
        writes: how many files are written.

    Returns:
        The run: one measurement a write, the first after half a minute to ten minutes of loading.
    """
    random = Random(f"{family} {seed}")
    gaps = FAMILIES[family](random)
    times = itertools.accumulate([random.uniform(30, 600), *itertools.islice(gaps, writes - 1)])
    samples, total = [Progress(0.0)], 0
    for number, at_s in enumerate(times, start=1):
        total += max(8192, round(random.lognormvariate(math.log(40e6), 1)))
        samples.append(grown(at_s, total, files_present=number))
    end_s = samples[-1].at_s + _TAIL_S
    return Recording(f"{family}-{seed}", (*samples, grown(end_s, total, files_present=writes)), "exited", end_s)


def grown(at_s: float, written: int, **more: Any) -> Progress:
    """A measurement; what was written is there, and blocks follow the bytes."""
    given = {"bytes_kept": written, "bytes_present": written, "allocated_written": written, "allocated_kept": written}
    return Progress(at_s, written, **(given | more))


def recorded_runs() -> list[Recording]:
    """The runs of real generators that wrote something, with allocated bytes."""
    return [read_recording(path) for path in sorted(RUNS.glob("*.detail.jsonl"))]


def write_times(run: Recording, least_bytes: int = 4096) -> list[float]:
    """When the run had grown by the least growth, seconds since its start; without the rule."""
    found, before = [], run.samples[0]
    for now in run.samples:
        sizes = (now.bytes_written - before.bytes_written, now.allocated_written - before.allocated_written)
        if max(sizes) >= least_bytes:
            found.append(now.at_s)
            before = now
    return found


def hang_point(run: Recording) -> float:
    """A moment to freeze at: just after one of the writes, not among the first tenth; the same at every call."""
    times = write_times(run)
    return Random(run.name).choice(times[len(times) // 10 :]) + 1e-3
