"""The batches of several classes at once under one limit: when the last job ends.

Jobs wait for slots in turn and run at the exact rates of the mix that they meet; nothing is chosen here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.prediction import predict
from prefect_cachewatch.capacity.model.results import ClassPrediction

_STATES = 60_000
_ROUNDS = 5  # a class without a batch counts as so many times what may run of it
_MOST_JOBS = 1000  # of larger batches an equal share is looked at


class Together:
    """The classes that ask, under one limit, beside those that always run.

    Args:
        scenario: what is planned for.
        asked: indexes of the classes that share the limit.
        occupy: slots that a job of each takes.
        slots: the largest value of the limit that will be asked for.

    Attributes:
        scenario: as given.
        asked: as given.
        occupy: as given.
        possible: whether the mixes are few enough to be solved exactly; if not, nothing else may be asked.
    """

    def __init__(self, scenario: Scenario, asked: Sequence[int], occupy: Sequence[int], slots: int) -> None:
        self.scenario, self.asked, self.occupy = scenario, asked, occupy
        self._base = [w.running or 0 for w in scenario.classes]
        self._most = [slots // weight for weight in occupy]
        most = self._counts(self._most)
        self.possible = math.prod(n + 1 for n in most) <= _STATES
        if self.possible:
            self._demands = demands_of(scenario, sum(most))
            self._network = self._demands.network(most)
        self._rates: dict[tuple[int, ...], list[float]] = {}

    def at(self, mix: Sequence[int]) -> tuple[ClassPrediction, ...]:
        """What all classes see at a mix of those that ask."""
        return predict(self._demands, self._network, self._counts(mix))[0]

    def batch_s(self, slots: int) -> float:
        """Say how long the batches of all classes take at once.

        Args:
            slots: value of the limit, enough for one job of each class.

        Returns:
            Seconds from the first job's start to the last one's end; of very large batches, for an equal share of each.
        """
        waiting, free, now = self._turns(), slots, 0.0
        done = [0.0] * len(self.occupy)  # jobs that one without end would have done
        ends: list[deque[float]] = [deque() for _ in self.occupy]  # of the running ones: `done` at their end
        while waiting or any(ends):
            while waiting and self.occupy[waiting[0]] <= free:
                i = waiting.popleft()
                free -= self.occupy[i]
                ends[i].append(done[i] + 1)
            rates = self._jobs_per_s(tuple(map(len, ends)))
            step = min((end[0] - done[i]) / rates[i] for i, end in enumerate(ends) if end)
            now += step
            for i, end in enumerate(ends):
                done[i] += step * rates[i]
                while end and end[0] <= done[i] + 1e-9:
                    end.popleft()
                    free += self.occupy[i]
        return now

    def _turns(self) -> deque[int]:
        """The jobs of all batches in the order in which they wait: evenly mixed, as they come from several users."""
        classes = [self.scenario.classes[c] for c in self.asked]
        wanted = [w.jobs if w.jobs > 1 else _ROUNDS * n for w, n in zip(classes, self._most, strict=True)]
        share = min(1.0, _MOST_JOBS / sum(wanted))
        jobs = [math.ceil(share * n) for n in wanted]
        return deque(i for _, i in sorted(((k + 0.5) / n, i) for i, n in enumerate(jobs) for k in range(n)))

    def _jobs_per_s(self, mix: tuple[int, ...]) -> list[float]:
        """The rate of one job of each class at a mix."""
        if mix not in self._rates:
            entries = self.at(mix)
            self._rates[mix] = [1 / entries[c].job_s for c in self.asked]
        return self._rates[mix]

    def _counts(self, mix: Sequence[int]) -> list[int]:
        counts = [*self._base]
        for c, n in zip(self.asked, mix, strict=True):
            counts[c] = n
        return counts
