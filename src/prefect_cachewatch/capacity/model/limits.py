"""The rules that bound how many jobs of a class may run: the most is the least of what they admit.

Which number below the most is recommended is decided in `recommendation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.inputs import WorkloadClass
from prefect_cachewatch.capacity.model.prediction import predict
from prefect_cachewatch.capacity.model.results import Binding, ClassPrediction, LimitRule
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import InputError

BEYOND_MEASURED = 2
ROUNDING = 1e-9  # what is exactly the accepted slowdown may come out a digit above it
_STATES = 300_000  # larger grids would make a plan take seconds


@dataclass(frozen=True)
class Found:
    """What the rules admit of one class."""

    most: int  # 0: not even one job meets the policy
    binding: Binding
    rules: tuple[LimitRule, ...]
    reason: str  # why one more is too many


class ClassSearch:
    """One class beside the classes that always run: predictions over its concurrency, and its limit.

    Args:
        scenario: what is planned for.
        c: index of the class whose limit is wanted.

    Raises:
        InputError: if the parts of the scenario do not fit together, or too many jobs always run.
    """

    def __init__(self, scenario: Scenario, c: int) -> None:
        self.scenario = scenario
        self.c = c
        policy = scenario.policy
        self._beside = [0 if d == c else (w.running or 0) for d, w in enumerate(scenario.classes)]
        beside = sum(self._beside)
        states = math.prod(count + 1 for count in self._beside)
        if 3 * states > _STATES:
            raise InputError(
                f"the classes that always run make {states:,} states, and up to {_STATES // 3:,} are planned "
                "exactly (the product of running + 1): merge classes, or give fewer running jobs"
            )
        first = demands_of(scenario, policy.max_concurrency + beside)
        # No search beyond where the bound alone breaks the slowdown: R >= N Dmax - Z.
        _, dmax = first.largest_demand_s(c)
        own = scenario.classes[c].think_s + first.alone_s[c]
        cycle = max(own, scenario.accepted_alone_s.get(scenario.classes[c].name, 0.0))
        # The same bound says from where on a burst takes twice as long, which a plan speaks of too.
        edge = max(policy.max_slowdown * cycle, cycle + first.alone_s[c]) / dmax
        self._reach = min(policy.max_concurrency, _STATES // states - 1)
        self.top = int(max(2, min(self._reach, 1.3 * edge + 2)))
        self.demands = demands_of(scenario, self.top + beside)
        self._network = self.demands.network(self.counts(self.top))
        self._seen: dict[int, tuple[ClassPrediction, ...]] = {}
        self._at_storage: dict[int, float] = {}
        due = [(i, w.deadline_s) for i, w in enumerate(scenario.classes) if w.deadline_s is not None]
        self._due = [(i, seconds) for i, seconds in due if i == c or self._beside[i]]

    @property
    def measured_room(self) -> int | None:
        """How many jobs of the class fit beside the others below the largest n measured; None: not measured."""
        measured = self.demands.measured_n
        return None if measured is None else max(1, measured - sum(self._beside))

    def in_time(self, n: int) -> bool:
        """Whether every deadline is met with n jobs of the class."""
        return all(self.at(n)[i].batch_s <= seconds for i, seconds in self._due)

    def slower_from(self, factor: float) -> int | None:
        """The smallest n at which a mean burst takes so many times as long as with one job; None: not looked at."""
        accepted = self._largest(lambda n: self.mine(n).burst_s < factor * self.mine(1).burst_s)
        return None if accepted is None else accepted + 1

    def counts(self, n: int) -> list[int]:
        """The mix with n jobs of the class."""
        return [n if d == self.c else count for d, count in enumerate(self._beside)]

    def at(self, n: int) -> tuple[ClassPrediction, ...]:
        """Predictions of all classes with n jobs of this one, without the band."""
        if n not in self._seen:
            self._seen[n], self._at_storage[n] = predict(self.demands, self._network, self.counts(n))
        return self._seen[n]

    def mine(self, n: int) -> ClassPrediction:
        """The prediction of the class itself."""
        return self.at(n)[self.c]

    def find(self) -> Found:
        """The largest concurrency that every rule accepts, and the rule that binds."""
        policy, workload = self.scenario.policy, self.scenario.classes[self.c]
        candidates: list[tuple[Binding, int | None, Callable[[int], str]]] = [
            (
                "slowdown",
                self._largest(lambda n: self.mine(n).slowdown <= (1 + ROUNDING) * policy.max_slowdown),
                self._say_slowdown,
            ),
            (
                "stall",
                self._largest(lambda n: self._worst_gap(n)[1] <= policy.stall_window_s),
                self._say_stall,
            ),
            ("latency", self._latency(), self._say_latency),
            ("usl_peak", self._peak(), self._say_peak),
            ("capacity", self._capacity(workload), self._say_capacity),
            ("measured_n", self._measured(), self._say_measured),
            ("max_concurrency", self._reach, lambda n: f"the plan looks no further than {n - 1}"),
        ]
        rules = [LimitRule(rule, n, "does not bind" if n is None else say(n + 1)) for rule, n, say in candidates]
        most = min(rule.n for rule in rules if rule.n is not None)
        deadline = self._deadline(most)
        rules.append(deadline)
        if deadline.n is not None and deadline.n < most:
            most = deadline.n
        binding = next(rule for rule in rules if rule.n is not None and rule.n <= most)
        return Found(most, binding.rule, tuple(rules), binding.sentence)

    def _largest(self, accepts: Callable[[int], bool]) -> int | None:
        """Bisection: more jobs never wait less, so each rule holds up to some n and no further."""
        if accepts(self.top):
            return None
        low, high = 0, self.top
        while high - low > 1:
            middle = (low + high) // 2
            if accepts(middle):
                low = middle
            else:
                high = middle
        return low

    def _worst_gap(self, n: int) -> tuple[str, float]:
        watched = [
            (p.name, p.gap_p99_s)
            for p, w in zip(self.at(n), self.scenario.classes, strict=True)
            if w.is_watched and p.n > 0
        ]
        return max(watched, key=lambda entry: entry[1], default=("", 0.0))

    def _latency(self) -> int | None:
        most_s = self.scenario.policy.max_burst_s
        return None if most_s is None else self._largest(lambda n: self.mine(n).burst_s <= most_s)

    def _peak(self) -> int | None:
        peak = self.demands.peak_n
        if peak is None:
            return None
        return self._largest(lambda n: bool(self.at(n)) and self._at_storage[n] <= peak)

    def _capacity(self, workload: WorkloadClass) -> int | None:
        free = self.scenario.storage.free_bytes
        if free is None or workload.kept_bytes <= 0:
            return None
        others = sum(w.kept_bytes * count for w, count in zip(self.scenario.classes, self._beside, strict=True))
        return max(0, int((free - others) // workload.kept_bytes))

    def _measured(self) -> int | None:
        measured = self.demands.measured_n
        return None if measured is None else max(0, BEYOND_MEASURED * measured - sum(self._beside))

    def _deadline(self, limit: int) -> LimitRule:
        """Deadlines bind from above for other users of the storage, and from below for the batch itself."""
        if not self._due or limit < 1:
            return LimitRule("deadline", None, "does not bind")
        meets = [n for n in range(1, limit + 1) if self.in_time(n)]
        if not meets:
            n, i, seconds = min(
                ((n, i, seconds) for n in range(1, limit + 1) for i, seconds in self._due),
                key=lambda entry: self.at(entry[0])[entry[1]].batch_s - entry[2],
            )
            took = format_duration(self.at(n)[i].batch_s)
            name = self.scenario.classes[i].name
            return LimitRule("deadline", None, f"missed: {name} takes {took} of {format_duration(seconds)} even at {n}")
        if meets[-1] == limit:
            least = f"met from {meets[0]} on" if meets[0] > 1 else "met"
            return LimitRule("deadline", None, least)
        late = next(i for i, seconds in self._due if self.at(meets[-1] + 1)[i].batch_s > seconds)
        took = format_duration(self.at(meets[-1] + 1)[late].batch_s)
        name, seconds = self.scenario.classes[late].name, self.scenario.classes[late].deadline_s or 0.0
        return LimitRule(
            "deadline", meets[-1], f"at {meets[-1] + 1} {name} takes {took} of its {format_duration(seconds)}"
        )

    def _say_slowdown(self, n: int) -> str:
        accepted = f"{self.scenario.policy.max_slowdown:g} is accepted"
        return f"at {n} a job takes {self.mine(n).slowdown:.2f} times as long as alone, and {accepted}"

    def _say_stall(self, n: int) -> str:
        name, gap = self._worst_gap(n)
        who = "" if name == self.scenario.classes[self.c].name else f" of {name}"
        window = self.scenario.policy.stall_window_s
        return f"at {n} the slowest burst{who} is silent for {gap:.0f} s of a {window:.0f} s stall window"

    def _say_latency(self, n: int) -> str:
        took, asked = self.mine(n).burst_s, self.scenario.policy.max_burst_s or 0.0
        return f"at {n} a burst takes {format_duration(took)} on average, and {format_duration(asked)} were asked for"

    def _say_peak(self, n: int) -> str:
        peak = f"its peak (n = {self.demands.peak_n:.1f})"
        return f"at {n} the storage is past {peak} and moves fewer bytes in all"

    def _say_capacity(self, n: int) -> str:
        kept, free = self.scenario.classes[self.c].kept_bytes, self.scenario.storage.free_bytes or 0.0
        return f"{n} would keep {format_bytes(n * kept)}, and {format_bytes(free)} are free"

    def _say_measured(self, _: int) -> str:
        beside = f", {sum(self._beside)} of them always running" if any(self._beside) else ""
        return f"measured up to n = {self.demands.measured_n}, and nothing is promised beyond twice that{beside}"
