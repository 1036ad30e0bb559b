"""Several classes under one concurrency limit: how many slots there are and how many a job occupies.

occupy_c = ceil(G / L_c), so that sum N_c / L_c <= 1 for every mix the slots admit; the extreme
mixes are checked exactly, since the rule is an approximation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.prediction import predict

__all__ = ["choose_slots"]

_MOST_SLOTS = 240
_STATES = 60_000
_LOSS = 0.05
_MOST_MIXES = 400


def choose_slots(scenario: Scenario, asked: Sequence[int], limits: Sequence[int]) -> tuple[int, tuple[int, ...], str]:
    """The value of the shared limit and the slots of each class.

    Args:
        scenario: what is planned for.
        asked: indexes of the classes whose limits were wanted.
        limits: their limits, each alone beside the classes that always run, 1 or more.

    Returns:
        Slots in all, slots that a job of each asked class occupies, and what was checked, in a
        sentence.

    Example:
        >>> _weights(120, (10, 24))
        (12, 5)
    """
    if len(asked) == 1:
        return limits[0], (1,), ""
    headroom = scenario.policy.headroom
    candidates = range(max(limits), max(_MOST_SLOTS, *limits) + 1)
    use = {slots: _use(slots, limits, headroom) for slots in candidates}
    # The smallest limit that loses little to rounding: small numbers are easier to reason about.
    total = next(slots for slots in candidates if use[slots] >= max(use.values()) - _LOSS * len(limits))
    occupy = _weights(total, limits)
    slots = max(*occupy, math.floor(total * (1 - headroom)))
    check = _MixCheck(scenario, asked, occupy, slots)
    if not check.possible:
        return slots, occupy, "the mixes are too many to be solved exactly: slots go by each class's limit alone"
    while (bad := check.failing(slots)) is not None:
        if slots <= max(occupy):
            mix = ", ".join(f"{n} {scenario.classes[c].name}" for n, c in zip(bad, asked, strict=True))
            return slots, occupy, f"even the smallest limit admits a mix beyond the policy ({mix}): isolate the classes"
        slots -= 1
    return slots, occupy, f"{len(_mixes(occupy, slots))} extreme mixes were solved exactly and hold"


def _weights(slots: int, limits: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.ceil(slots / limit) for limit in limits)


def _use(slots: int, limits: Sequence[int], headroom: float) -> float:
    """How much of each class's own limit survives the rounding to whole slots."""
    left = math.floor(slots * (1 - headroom))
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


class _MixCheck:
    """Exact answers for the mixes that so many slots, or fewer, admit."""

    def __init__(self, scenario: Scenario, asked: Sequence[int], occupy: Sequence[int], slots: int) -> None:
        self._scenario, self._asked, self._occupy = scenario, asked, occupy
        self._base = [w.running or 0 for w in scenario.classes]
        most = [*self._base]
        for c, weight in zip(asked, occupy, strict=True):
            most[c] = slots // weight
        self.possible = math.prod(n + 1 for n in most) <= _STATES
        if self.possible:
            self._demands = demands_of(scenario, sum(most))
            self._network = self._demands.network(most)

    def failing(self, slots: int) -> tuple[int, ...] | None:
        """The first extreme mix at which a class is beyond the policy."""
        return next((mix for mix in _mixes(self._occupy, slots) if not self._holds(mix)), None)

    def _holds(self, mix: tuple[int, ...]) -> bool:
        classes, policy = self._scenario.classes, self._scenario.policy
        counts = [*self._base]
        for c, n in zip(self._asked, mix, strict=True):
            counts[c] = n
        for c, entry in enumerate(predict(self._demands, self._network, counts)[0]):
            if entry.n and c in self._asked and entry.slowdown > policy.max_slowdown:
                return False
            if entry.n and classes[c].is_watched and entry.gap_p99_s > policy.stall_window_s:
                return False
        return True
