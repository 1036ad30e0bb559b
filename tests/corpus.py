"""The corpus that stall rules are held against: recorded traces of real generators, and synthetic families.

A synthetic trace is made from its family's name and a seed alone, and is the same on every machine. Its gaps
between writes are made so that some families pause beyond five minutes now and then without hanging.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.run.trace.rows import Trace, TraceRow

__all__ = ["FAMILIES", "hang_point", "recorded_traces", "synthetic_trace", "write_times"]

TRACES = Path(__file__).parent / "data" / "traces"
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


def synthetic_trace(family: str, seed: int, writes: int = 400) -> Trace:
    """Make a trace of a family.

    Args:
        family: one of `FAMILIES`.
        seed: which one of it.
        writes: how many files are written.

    Returns:
        The trace: one row a write, the first after half a minute to ten minutes of loading.
    """
    random = Random(f"{family} {seed}")
    gaps = FAMILIES[family](random)
    times = itertools.accumulate([random.uniform(30, 600), *itertools.islice(gaps, writes - 1)])
    rows, total = [TraceRow(0.0, 0, 0)], 0
    for number, t_s in enumerate(times, start=1):
        total += max(8192, round(random.lognormvariate(math.log(40e6), 1)))
        rows.append(TraceRow(t_s, total, number))
    rows.append(TraceRow(rows[-1].t_s + _TAIL_S, total, writes))
    return Trace(f"{family}-{seed}", tuple(rows))


def recorded_traces() -> list[Trace]:
    """The traces of real generators that wrote something, with allocated bytes."""
    return [read_trace(path) for path in sorted(TRACES.glob("*.detail.csv"))]


def write_times(trace: Trace, least_bytes: int = 4096) -> list[float]:
    """When the trace had grown by the least growth, seconds since its start; without ledger and rule."""
    found, before = [], trace.rows[0]
    for row in trace.rows:
        sizes = (row.total_bytes - before.total_bytes, (row.alloc_bytes or 0) - (before.alloc_bytes or 0))
        if max(sizes) >= least_bytes:
            found.append(row.t_s - trace.start_s)
            before = row
    return found


def hang_point(trace: Trace) -> float:
    """A moment to freeze at: just after one of the writes, not among the first tenth; the same at every call."""
    times = write_times(trace)
    return Random(trace.name).choice(times[len(times) // 10 :]) + 1e-3
