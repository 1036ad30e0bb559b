"""The planner's results: predictions by class, the limit and its reason, the check against history.

Frozen dataclasses of plain values, so that they pickle, become JSON and cross into Prefect.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

Binding = Literal[
    "slowdown", "stall", "latency", "usl_peak", "deadline", "capacity", "measured_n", "max_concurrency"
]  # fmt: skip
Verdict = Literal["ok", "slower", "faster", "insufficient data"]


@dataclass(frozen=True)
class ClassPrediction:
    """One class at one mix: what each job of it will see."""

    name: str
    n: int  # jobs of this class running
    throughput_per_s: float  # bursts per second, all its jobs together
    bytes_per_s: float  # bytes per second before compression, all its jobs together
    burst_s: float  # mean seconds of one burst (R)
    burst_low_s: float  # the band of burst_s: rates higher by the policy's band
    burst_high_s: float  # and lower
    io_slowdown: float  # R / R alone
    slowdown: float  # (Z + R) / (Z + R alone)
    gap_p99_s: float  # 99th percentile of the silence between two growths
    job_s: float  # wall clock of one job
    batch_s: float  # wall clock of all jobs of the batch, n at a time, the last ones at their own rate
    utilisation: dict[str, float] = field(default_factory=dict)  # by station: link, storage, cpu


@dataclass(frozen=True)
class LimitRule:
    """One reason to stop adding jobs; `n` is the largest concurrency it accepts, None: it does not bind."""

    rule: Binding
    n: int | None
    sentence: str


@dataclass(frozen=True)
class ClassLimit:
    """How many jobs of a class may run, and how many slots of the shared limit each occupies."""

    name: str
    limit: int  # recommended, alone, beside the classes that always run
    most: int  # what the rules admit
    low: int  # the band of `most`
    high: int
    occupy: int  # slots of the shared limit that one job takes
    binding: Binding
    rules: tuple[LimitRule, ...] = ()


@dataclass(frozen=True)
class Purchase:
    """What one change of the equipment or the files would do to the limit."""

    change: str
    limit: int
    batch_s: float
    sentence: str


@dataclass(frozen=True)
class SimulationCheck:
    """The exact answer beside a simulation of the same network."""

    seed: int
    events: int
    throughput_deviation: float  # (simulated - exact) / exact, the largest over the classes
    burst_deviation: float
    gap_p99_s: float  # simulated, of the answered class
    gap_max_s: float
    agrees: bool
    sentence: str


@dataclass(frozen=True)
class LimitPlan:
    """The answer: how many at once, within which band, and why not more."""

    storage: str
    link: str
    answer: str  # the one sentence
    limit: int  # jobs of the first class that asks: recommended, and what plan-capacity sets
    reason: str  # why this number and no other
    most: int  # jobs of that class that the rules admit
    low: int  # the band of `most`
    high: int
    binding: Binding  # the rule that admits no more than `most`
    slower_n: int | None  # from here on a burst takes 10 % longer than with one job; None: not within the plan
    doubled_n: int | None  # and twice as long
    slots: int  # value of the shared (global) concurrency limit
    classes: tuple[ClassLimit, ...]
    measured_n: int | None  # largest n measured; None: a vendor ceiling or given numbers
    derate: float
    band: float
    knee_n: float  # N* of the first class, without the classes that always run
    bounds: dict[str, float]
    table: tuple[tuple[ClassPrediction, ...], ...]  # rows over n of the first class; all classes in each
    bottleneck: str
    what_if: tuple[Purchase, ...]
    assumptions: tuple[str, ...]
    feasible: bool = True  # False: not even one job meets the policy; the limit is 1 all the same, never 0
    small_files: tuple[tuple[int, float], ...] = ()  # files of a burst -> its seconds alone
    mix: tuple[ClassPrediction, ...] = ()  # all classes at once, those that ask with equal shares of the slots
    kinds: dict[str, str] = field(default_factory=dict)  # class -> generation, inference, training
    simulation: SimulationCheck | None = None

    def occupy(self, name: str) -> int:
        """The slots that one job of a class takes.

        Args:
            name: the class.

        Returns:
            Slots, at least 1.

        Raises:
            KeyError: if the plan has no limit for such a class.
        """
        return {entry.name: entry.occupy for entry in self.classes}[name]


@dataclass(frozen=True)
class HourCheck:
    """One hour of history beside the plan."""

    start: str  # ISO 8601, UTC
    runs: int
    concurrency: float  # L, runs in progress on average
    arrivals_per_s: float  # lambda
    duration_s: float  # W, without the wait for a slot
    bytes_per_s: float | None


@dataclass(frozen=True)
class LittleLaw:
    """L = lambda W over a window, and how far the window's edges spoil it."""

    window_s: float
    runs: int  # that touch the window
    concurrency: float  # L: runs on the storage on average, clipped to the window
    arrivals_per_s: float  # lambda: runs that entered in the window
    duration_s: float  # W: mean time on the storage of those that entered in it and ended
    slot_wait_s: float  # mean, beside W
    edge_effect: float  # (lambda W - L) / L: what runs cut by the window's edges make of it

    @property
    def windows_per_run(self) -> float:
        """How many mean durations the window is long; below 10 the edges matter."""
        return self.window_s / self.duration_s if self.duration_s else math.inf


@dataclass(frozen=True)
class HistoryCheck(LittleLaw):
    """Past runs on one storage against the plan (Little's Law: L = lambda W)."""

    storage: str
    verdict: Verdict
    reason: str
    bytes_per_s: float | None = None
    expected_bytes_per_s: float | None = None
    burst_s: float | None = None
    expected_burst_s: float | None = None
    derate: float | None = None  # calibrated; None: not enough data
    suggested_stall_window_s: float | None = None
    hours: tuple[HourCheck, ...] = ()


def as_json(result: Any) -> Any:
    """Turn a result into values that JSON has; what is not finite becomes None.

    Args:
        result: a dataclass of this module, or any value inside one.

    Returns:
        Dicts, lists, strings, numbers and None.

    Example:
        >>> as_json(LimitRule("stall", 9, "x"))
        {'rule': 'stall', 'n': 9, 'sentence': 'x'}
    """
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {entry.name: as_json(getattr(result, entry.name)) for entry in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {str(key): as_json(value) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [as_json(value) for value in result]
    if isinstance(result, float) and not math.isfinite(result):
        return None
    return result
