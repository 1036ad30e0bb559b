"""Several classes under one concurrency limit: how many slots there are and how many a job occupies.

occupy_c = ceil(G / L_c), so that sum N_c / L_c <= 1 for every mix the slots admit; the extreme
mixes are checked exactly, since the rule is an approximation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from prefect_cachewatch.capacity.model.demands import Scenario
from prefect_cachewatch.capacity.model.limits import ROUNDING
from prefect_cachewatch.capacity.model.together import Together

_MOST_SLOTS = 240
_LOSS = 0.05
_MOST_MIXES = 400


def choose_slots(scenario: Scenario, asked: Sequence[int], limits: Sequence[int]) -> tuple[int, Together, str]:
    """The most slots of the shared limit that the rules admit, and the slots of each class.

    Args:
        scenario: what is planned for.
        asked: indexes of the classes whose limits were wanted.
        limits: the most of each, alone beside the classes that always run, 1 or more.

    Returns:
        Slots in all, the classes with the slots that a job of each occupies, and what was checked, in a sentence.

    Example:
        >>> _weights(120, (10, 24))
        (12, 5)
    """
    headroom = scenario.policy.headroom
    candidates = range(max(limits), max(_MOST_SLOTS, *limits) + 1)
    use = {slots: _use(slots, limits, headroom) for slots in candidates}
    # The smallest limit that loses little to rounding: small numbers are easier to reason about.
    total = next(slots for slots in candidates if use[slots] >= max(use.values()) - _LOSS * len(limits))
    occupy = _weights(total, limits)
    slots = max(*occupy, math.ceil(total * (1 - headroom)))
    together = Together(scenario, asked, occupy, slots)
    if not together.possible:
        told = "the mixes are too many to be solved exactly: slots go by each class's limit alone"
        return slots, together, told
    while (bad := _failing(together, slots)) is not None:
        if slots <= max(occupy):
            mix = ", ".join(f"{n} {scenario.classes[c].name}" for n, c in zip(bad, asked, strict=True))
            return (
                slots,
                together,
                f"even the smallest limit admits a mix beyond the policy ({mix}): isolate the classes",
            )
        slots -= 1
    return slots, together, f"{len(_mixes(occupy, slots))} extreme mixes were solved exactly and hold"


def _weights(slots: int, limits: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.ceil(slots / limit) for limit in limits)


def _use(slots: int, limits: Sequence[int], headroom: float) -> float:
    """How much of each class's own limit survives the rounding to whole slots."""
    left = math.ceil(slots * (1 - headroom))
    return round(sum(left // w / limit for w, limit in zip(_weights(slots, limits), limits, strict=True)), 3)


def _mixes(occupy: Sequence[int], slots: int) -> list[tuple[int, ...]]:
    """The mixes to which no job can be added, thinned out where there are too many."""
    ranges = [range(slots // weight + 1) for weight in occupy[:-1]]
    found = []
    for head in itertools.product(*ranges):
        left = slots - sum(n * w for n, w in zip(head, occupy, strict=False))
        if left < 0:
            continue
        tail = left // occupy[-1]
        if all(left - tail * occupy[-1] < w for w in occupy):
            found.append((*head, tail))
    step = max(1, len(found) // _MOST_MIXES)
    return found[::step]


def _failing(together: Together, slots: int) -> tuple[int, ...] | None:
    """The first extreme mix at which a class is beyond the policy."""
    return next((mix for mix in _mixes(together.occupy, slots) if not _holds(together, mix)), None)


def _holds(together: Together, mix: tuple[int, ...]) -> bool:
    classes, policy = together.scenario.classes, together.scenario.policy
    for c, entry in enumerate(together.at(mix)):
        if entry.n and c in together.asked and entry.slowdown > (1 + ROUNDING) * policy.max_slowdown:
            return False
        if entry.n and c in together.asked and entry.burst_s > (policy.max_burst_s or math.inf):
            return False
        if entry.n and classes[c].is_watched and entry.gap_p99_s > policy.stall_window_s:
            return False
    return True
