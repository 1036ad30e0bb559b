"""Exact means of n jobs of one class: each thinks, then moves a burst at the rate that the streams at that moment get.

A birth-death chain over the number of streams (the machine repairman, with a rate that depends on the state). Processor
sharing makes the means exact whatever the distribution of bursts and think times; the tails are `simulation`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Steady:
    """What goes on, on average, with so many jobs at once."""

    bursts_per_s: float
    burst_s: float
    streams: float
    streams_p99: int  # in 99 of 100 moments no more


def steady(one_burst_s: Sequence[float], think_s: float, jobs: int) -> Steady:
    """Solve the chain; Little's Law, jobs = X (Z + R), holds by construction.

    Args:
        one_burst_s: seconds of a burst while 1, 2, ... streams move theirs; `jobs` of them at least.
        think_s: mean seconds between two bursts of a job.
        jobs: jobs at once.

    Returns:
        The means.

    Example:
        Ten jobs think for 10 s, and one server needs 2 s for each burst of any.

        >>> found = steady([2.0 * n for n in range(1, 11)], 10.0, 10)
        >>> round(found.bursts_per_s, 6), round(found.burst_s, 5)
        (0.490808, 10.37458)
    """
    rates = [n / one_burst_s[n - 1] for n in range(1, jobs + 1)]
    if think_s == 0:
        return Steady(rates[-1], jobs / rates[-1], float(jobs), jobs)
    steps = (math.log(jobs - n + 1) - math.log(think_s) - math.log(rate) for n, rate in enumerate(rates, start=1))
    logs = [0.0, *accumulate(steps)]
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    whole = math.fsum(weights)
    shares = [weight / whole for weight in weights]
    bursts_per_s = math.fsum(share * rate for share, rate in zip(shares[1:], rates, strict=True))
    streams = math.fsum(n * share for n, share in enumerate(shares))
    p99 = next((n for n, sofar in enumerate(accumulate(shares)) if sofar >= 0.99), jobs)
    return Steady(bursts_per_s, streams / bursts_per_s, streams, p99)
