"""Which number of jobs is recommended, of all that the rules admit, and why.

`plan` shows this number and `plan-capacity` sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prefect_cachewatch.capacity.model.limits import ClassSearch, Found
from prefect_cachewatch.capacity.model.queueing import Bounds, bounds
from prefect_cachewatch.capacity.model.together import Together
from prefect_cachewatch.common.units import format_duration

_NEAR_BEST = 1.02


@dataclass(frozen=True)
class Recommendation:
    """Jobs of one class at once; `reason` ends a sentence that begins with the number."""

    n: int
    reason: str
    most: int  # that may be recommended: admitted, and no more than were measured


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
        return Recommendation(1, "fewer is none", 1)
    room = search.measured_room
    reach = found.most if room is None or policy.beyond_measured else min(found.most, room)
    numbers = range(1, reach + 1)
    in_time = [n for n in numbers if search.in_time(n)] or list(numbers)
    n, reason = _aimed(search, in_time)
    if n == reach < found.most:
        more = f"{n} were measured" if n == search.demands.measured_n else f"{n} fit into what was measured"
        return Recommendation(n, f"the rules admit {found.most}, but no more than {more}", reach)
    if room is not None and n > room:
        reason += f", beyond the n = {search.demands.measured_n} that were measured"
    return Recommendation(n, reason, reach)


def _aimed(search: ClassSearch, numbers: list[int]) -> tuple[int, str]:
    """The number that the policy aims at, among those that are admitted and in time."""
    aim, jobs = search.scenario.policy.aim, search.scenario.classes[search.c].jobs
    if aim == "most":
        return numbers[-1], "as many as the rules admit"
    if aim == "knee":
        knee = edge_of(search, search.top).knee_n
        below = [n for n in numbers if n <= max(1.0, knee)]
        return (below or numbers[:1])[-1], f"no more than the knee, {knee:.1f}"
    seconds = {n: _seconds(search, n) for n in numbers}
    fastest = f"fastest batch, {format_duration(min(seconds.values()))}"
    told = fastest if jobs > 1 else "highest throughput"
    return _smallest_near_best(seconds), f"the smallest number within 2 % of the {told}"


def _seconds(search: ClassSearch, n: int) -> float:
    """What a number of jobs is judged by: seconds of the batch, or of each burst where there is no batch."""
    mine = search.mine(n)
    return mine.batch_s if search.scenario.classes[search.c].jobs > 1 else 1 / mine.throughput_per_s


def _smallest_near_best(cost: Mapping[int, float]) -> int:
    """The smallest number whose cost is within 2 % of the least."""
    most = _NEAR_BEST * min(cost.values())
    return min(n for n, spent in cost.items() if spent <= most)


def recommend_slots(searches: Mapping[int, ClassSearch], together: Together, slots: int) -> tuple[int, str]:
    """Choose the value of a limit that several classes share, of all that the rules admit.

    Args:
        searches: by index, of the classes that share it.
        together: these classes at once.
        slots: the most that the rules admit.

    Returns:
        The fewest slots within 2 % of the best for each class alone and for all at once, and why; where they want
        different numbers, for what is then furthest behind its best. All slots, and "", where the policy aims at another
        number or the mixes are not solved.
    """
    if together.scenario.policy.aim != "batch" or not together.possible:
        return slots, ""
    occupy = together.occupy
    pairs = [(searches[c], weight) for c, weight in zip(together.asked, occupy, strict=True)]
    # Only at the multiples of a class's slots does one more job of it find room.
    candidates = sorted({n for w in occupy for n in range(w, slots + 1, w) if n >= max(occupy)})
    in_time = [n for n in candidates if all(search.in_time(n // w) for search, w in pairs)] or candidates
    seconds = [{n: _seconds(search, n // w) for n in in_time} for search, w in pairs]
    seconds.append({n: together.batch_s(n) for n in in_time})
    behind = {n: max(each[n] / min(each.values()) for each in seconds) for n in in_time}
    most = 100 * (_NEAR_BEST * min(behind.values()) - 1)
    told = f"the fewest with which no class alone, nor all at once, takes over {most:.0f} % longer than it could"
    return _smallest_near_best(behind), told


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
