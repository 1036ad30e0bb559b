"""Estimates from a simulated record: means with confidence intervals, tails, and silences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BATCHES = 20
_T_95 = 2.093  # Student's t, 19 degrees of freedom, two-sided 95 %
_WARM_UP = 0.1
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_MAX_GROWTHS = 64  # growths of a burst that are looked at: further ones are alike


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval, from batch means."""

    mean: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class ClassSimulation:
    """What the jobs of one class saw."""

    throughput_per_s: Estimate
    burst_s: Estimate  # R
    burst_p99_s: float
    gap_quantiles_s: dict[float, float]  # silence between two growths: quantile -> seconds
    gap_max_s: float
    seen_gap_p99_s: float  # the same as a monitor with poll_s sees it, from scan to scan
    seen_gap_max_s: float
    bursts: int


@dataclass(eq=False)
class Record:
    """Every burst of a run: whose it was, when it began and when it ended."""

    job: Floats
    start_s: Floats
    end_of_burst_s: Floats
    end_s: float


def summarise(record: Record, counts: Sequence[int], c: int, parts: int, poll_s: float) -> ClassSimulation:
    """Estimate the figures of one class from a record; the first tenth is left out as warm-up.

    Args:
        record: all bursts of a run.
        counts: jobs of each class.
        c: index of the class.
        parts: growths of a burst.
        poll_s: seconds between the monitor's scans.

    Returns:
        Means with intervals, and tails; nan where there are too few bursts to say.
    """
    first = sum(counts[:c])
    warm = record.end_s * _WARM_UP
    mine = (record.job >= first) & (record.job < first + counts[c]) & (record.end_of_burst_s >= warm)
    job, start, end = record.job[mine], record.start_s[mine], record.end_of_burst_s[mine]
    times = end - start
    if times.size < 2 * _BATCHES:
        nothing = Estimate(math.nan, -math.inf, math.inf)
        return ClassSimulation(nothing, nothing, math.nan, {}, math.nan, math.nan, math.nan, int(times.size))
    span = (record.end_s - warm) / _BATCHES
    batch = np.minimum(((end - warm) / span).astype(int), _BATCHES - 1)
    done = np.bincount(batch, minlength=_BATCHES)
    spent = np.bincount(batch, weights=times, minlength=_BATCHES)
    rates = done / span
    with np.errstate(invalid="ignore", divide="ignore"):
        means = spent / done
    gaps, seen = _gaps(job, start, end, parts, poll_s)
    return ClassSimulation(
        throughput_per_s=_estimate(float(rates.mean()), rates),
        burst_s=_estimate(float(times.mean()), means[done > 0]),
        burst_p99_s=float(np.quantile(times, 0.99)),
        gap_quantiles_s={q: float(np.quantile(gaps, q)) for q in _QUANTILES},
        gap_max_s=float(gaps.max()),
        seen_gap_p99_s=float(np.quantile(seen, 0.99)),
        seen_gap_max_s=float(seen.max()),
        bursts=int(times.size),
    )


def _gaps(job: Floats, start: Floats, end: Floats, parts: int, poll_s: float) -> tuple[Floats, Floats]:
    """Silences of each job between growths, in real time and from scan to scan."""
    order = np.lexsort((end, job))
    job, start, end = job[order], start[order], end[order]
    same = job[1:] == job[:-1]
    before, begin, finish = end[:-1][same], start[1:][same], end[1:][same]
    step = (finish - begin) / parts
    early, gaps, seen = before, [], []
    for part in range(1, min(parts, _MAX_GROWTHS) + 1):
        late = finish if part == parts else begin + step * part
        gaps.append(late - early)
        seen.append((np.ceil(late / poll_s) - np.ceil(early / poll_s)) * poll_s)
        early = late
    return np.concatenate(gaps), np.concatenate(seen)


def _estimate(mean: float, batches: Floats) -> Estimate:
    half = _T_95 * float(batches.std(ddof=1)) / math.sqrt(batches.size) if batches.size > 1 else math.inf
    return Estimate(mean, mean - half, mean + half)
