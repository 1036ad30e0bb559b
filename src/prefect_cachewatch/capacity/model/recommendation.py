"""Which number of jobs is recommended, of all that the rules admit, and why.

`plan` shows this number and `plan-capacity` sets it.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_cachewatch.capacity.model.limits import ClassSearch, Found
from prefect_cachewatch.capacity.model.queueing import Bounds, bounds
from prefect_cachewatch.common.units import format_duration

__all__ = ["Recommendation", "edge_of", "recommend"]

_NEAR_BEST = 1.02


@dataclass(frozen=True)
class Recommendation:
    """Jobs of one class at once; `reason` ends a sentence that begins with the number."""

    n: int
    reason: str


def recommend(search: ClassSearch, found: Found) -> Recommendation:
    """Choose a number of jobs for a class alone, beside the classes that always run.

    Args:
        search: the class's search.
        found: what the rules admit of it.

    Returns:
        The number, 1 or more, and why it is no other.

    Example:
        >>> from prefect_cachewatch.capacity import LinkProfile, Policy, ServiceCurve, StorageProfile, WorkloadClass
        >>> from prefect_cachewatch.capacity.model.demands import Scenario
        >>> disk = ServiceCurve(per_stream_bytes_per_s=1e9, aggregate_bytes_per_s=1e9)
        >>> caches = WorkloadClass(name="caches", burst_bytes=2_000_000_000, think_s=10)
        >>> storage = StorageProfile(name="disk", sequential_write=disk)
        >>> search = ClassSearch(Scenario(storage, LinkProfile(), (caches,), Policy(max_slowdown=3)), 0)
        >>> search.find().most, recommend(search, search.find()).n
        (15, 9)
    """
    policy = search.scenario.policy
    if found.most < 1:
        return Recommendation(1, "fewer is none")
    room = search.measured_room
    reach = found.most if room is None or policy.beyond_measured else min(found.most, room)
    numbers = range(1, reach + 1)
    in_time = [n for n in numbers if search.in_time(n)] or list(numbers)
    n, reason = _aimed(search, in_time)
    if n == reach < found.most:
        more = f"{n} were measured" if n == search.demands.measured_n else f"{n} fit into what was measured"
        return Recommendation(n, f"the rules admit {found.most}, but no more than {more}")
    if room is not None and n > room:
        reason += f", beyond the n = {search.demands.measured_n} that were measured"
    return Recommendation(n, reason)


def _aimed(search: ClassSearch, numbers: list[int]) -> tuple[int, str]:
    """The number that the policy aims at, among those that are admitted and in time."""
    aim, jobs = search.scenario.policy.aim, search.scenario.classes[search.c].jobs
    if aim == "most":
        return numbers[-1], "as many as the rules admit"
    if aim == "knee":
        knee = edge_of(search, search.top).knee_n
        below = [n for n in numbers if n <= max(1.0, knee)]
        return (below or numbers[:1])[-1], f"no more than the knee, {knee:.1f}"
    if jobs > 1:
        seconds = {n: search.mine(n).batch_s for n in numbers}
        best = min(seconds.values())
        told = f"within 2 % of the fastest batch, {format_duration(best)}"
    else:
        seconds = {n: 1 / search.mine(n).throughput_per_s for n in numbers}
        best = min(seconds.values())
        told = "within 2 % of the highest throughput"
    return next(n for n in numbers if seconds[n] <= _NEAR_BEST * best), f"the smallest number {told}"


def edge_of(search: ClassSearch, n: int) -> Bounds:
    """The bounds of a class at a number of jobs, without the classes that always run.

    Args:
        search: the class's search.
        n: jobs at once.

    Returns:
        Knee, and bounds on throughput and burst time.
    """
    demands, c = search.demands, search.c
    return bounds(n, list(demands.demands_s[c]), demands.think_s[c], [float(value) for value in demands.alpha])
