"""Closed formulas: Erlang's two for waiting, and the asymptotic bounds of a closed network.

What needs the whole state space (exact means for several classes) is in `convolution`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.errors import InputError

_MAX_SERVERS = 10_000_000


def erlang_b(servers: int, offered_load: float) -> float:
    """The probability that an arrival finds every server taken and leaves (Erlang's loss formula).

    Args:
        servers: servers or slots, 1 or more.
        offered_load: arrivals per second times mean seconds of service, 0 or more.

    Returns:
        A probability.

    Raises:
        InputError: if an argument is out of range.

    Source: Erlang 1917; the recursion B(c) = a B(c-1) / (c + a B(c-1)), which is stable.

    Example:
        >>> round(erlang_b(10, 5), 8)
        0.01838457
    """
    _check_load(servers, offered_load)
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = offered_load * blocked / (server + offered_load * blocked)
        if blocked == 0.0:
            break
    return blocked


def erlang_c(servers: int, offered_load: float) -> float:
    """The probability that an arrival has to wait for a server or slot (Erlang's delay formula).

    Args:
        servers: servers or slots, 1 or more.
        offered_load: arrivals per second times mean seconds of service, 0 or more.

    Returns:
        A probability; 1.0 when the load is as large as the number of servers, since the queue
        then grows without end.

    Raises:
        InputError: if an argument is out of range.

    Source: Erlang 1917; C = c B / (c - a (1 - B)) with B of `erlang_b`.

    Example:
        >>> round(erlang_c(2, 1), 8), round(erlang_c(10, 8), 8)
        (0.33333333, 0.40918015)
    """
    _check_load(servers, offered_load)
    if offered_load >= servers:
        return 1.0
    blocked = erlang_b(servers, offered_load)
    return servers * blocked / (servers - offered_load * (1 - blocked))


@dataclass(frozen=True)
class Bounds:
    """What no schedule can beat, from two numbers a class: all of its work, and its largest piece."""

    population: int
    demand_s: float  # D: seconds of service of one burst, alone
    demand_max_s: float  # Dmax: seconds a burst takes of the bottleneck at its full aggregate rate
    knee_n: float  # N* = (D + Z) / Dmax
    throughput_max_per_s: float  # min(N / (D + Z), 1 / Dmax)
    residence_min_s: float  # max(D, N Dmax - Z)


def bounds(
    population: int, demands_s: Sequence[float], think_s: float, capacity: Sequence[float] | None = None
) -> Bounds:
    """The asymptotic bounds of a closed network of one class, and the knee between them.

    Args:
        population: jobs, 0 or more.
        demands_s: seconds of service a burst needs at each station, alone.
        think_s: seconds between a job's bursts.
        capacity: alpha(n), n = 1, 2, ...: how much faster the last station serves n jobs than one;
            its last value holds beyond its end.

    Returns:
        Bounds on throughput and burst time at that population.

    Raises:
        InputError: if an argument is out of range.

    Source: Denning and Buzen 1978; Lazowska et al. 1984, chapter 5.

    Example:
        >>> edge = bounds(12, [1.6, 2 / 15], 10)  # 2 GB bursts, a 10G link, a 15 GB/s chassis
        >>> round(edge.knee_n, 3), edge.throughput_max_per_s
        (7.333, 0.625)
    """
    if not isinstance(population, int) or isinstance(population, bool) or population < 0:
        raise InputError(f"population {population!r} is not a number of jobs: give an integer from 0 on")
    demands = [float(value) for value in demands_s]
    if any(not math.isfinite(value) or value < 0 for value in demands) or not any(demands):
        raise InputError(f"demands_s {demands} must be seconds, none negative and at least one above 0")
    if not math.isfinite(think_s) or think_s < 0:
        raise InputError(f"think_s {think_s!r} must be seconds, 0 or more")
    least = list(demands)
    largest = list(demands)
    if capacity is not None:
        alpha = [float(value) for value in capacity]
        if not alpha or any(not math.isfinite(value) or value <= 0 for value in alpha):
            raise InputError("capacity must be alpha(1), alpha(2), ..., all above 0")
        reach = range(1, max(population, 1) + 1)
        at = [alpha[min(n, len(alpha)) - 1] for n in reach]
        largest[-1] = demands[-1] / max(at)
        least[-1] = demands[-1] / max(value / n for value, n in zip(at, reach, strict=True))
    total, most = math.fsum(least), max(largest)
    return Bounds(
        population=population,
        demand_s=total,
        demand_max_s=most,
        knee_n=(total + think_s) / most,
        throughput_max_per_s=min(population / (total + think_s), 1 / most),
        residence_min_s=max(total, population * most - think_s),
    )


def stall_bound(stall_window_s: float, think_s: float, demand_max_s: float, p99_factor: float) -> int:
    """The most jobs whose slowest bursts still end within the stall window, by the asymptote.

    Args:
        stall_window_s: silence after which the watch stops a job (W).
        think_s: seconds between bursts (Z).
        demand_max_s: seconds of a burst at the bottleneck's aggregate rate (D).
        p99_factor: 99th percentile over mean of a burst's time (k).

    Returns:
        floor(((W - Z) / k + Z) / D), 0 or more; the exact answer is never larger.

    Source: R >= N D - Z and the condition Z + k R <= W.

    Example:
        >>> stall_bound(300, 10, 2e9 / 131072000, 1.5), stall_bound(180, 10, 2e9 / 131072000, 1.5)
        (13, 8)
    """
    return max(0, math.floor(((stall_window_s - think_s) / p99_factor + think_s) / demand_max_s + 1e-9))


def _check_load(servers: int, offered_load: float) -> None:
    if not isinstance(servers, int) or isinstance(servers, bool) or not 1 <= servers <= _MAX_SERVERS:
        raise InputError(f"servers {servers!r} is not a number of servers: give an integer from 1 to {_MAX_SERVERS}")
    if not math.isfinite(offered_load) or offered_load < 0:
        raise InputError(f"offered_load {offered_load!r} must be 0 or more: arrivals per second x seconds of service")
