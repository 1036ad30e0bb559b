"""The answer of a plan as values: rows over the number of jobs, zones, one number for each limit, and alternatives."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from prefect_cachewatch.capacity.units import three_digits

#: Why a number is not larger than it is. best: more would not be faster; jobs: the whole batch runs at once.
Reason = Literal["best", "jobs", "latency", "measured", "stall", "burst", "space", "looked"]


@dataclass(frozen=True)
class ClassRow:
    """One class at one number of jobs at once."""

    name: str
    bytes_per_s: float
    burst_s: float  # mean
    burst_p99_s: float  # 1 in 100 takes longer
    silence_p99_s: float  # from the growth of one file to that of the next
    batch_s: float | None  # None: it has no batch


@dataclass(frozen=True)
class Row:
    """Everything at one number of jobs at once."""

    n: int
    bytes_per_s: float  # that reach the storage, of all classes together
    streams: float  # that move a burst, on average
    streams_p99: int
    batch_s: float | None
    held_by: str  # storage, port, operations, link, files, compression, one stream, computing
    classes: tuple[ClassRow, ...]  # the class that the zones are about first


@dataclass(frozen=True)
class ByHand:
    """Figures that a person can compute from the plan file."""

    parts: tuple[
        tuple[float, float], ...
    ]  # bytes of each class's batch, and the ceiling that moves them; else one burst
    ceiling: str
    think_s: float
    burst_s: float  # alone
    demand_s: float  # of a burst at the ceiling

    @property
    def bytes_s(self) -> float:
        """Seconds in which the ceilings move the bytes: no batch is faster."""
        return sum(size / rate for size, rate in self.parts)

    @property
    def filling_n(self) -> float:
        """Jobs that keep the ceiling busy, (Z + R) / D."""
        return (self.think_s + self.burst_s) / self.demand_s


@dataclass(frozen=True)
class Measured:
    """A measured point of the curve, at the number of jobs that makes so many streams."""

    n: float
    bytes_per_s: float
    spread: float


@dataclass(frozen=True)
class Answer:
    """One limit: how many jobs of its classes at once, and what happens below and beyond."""

    name: str  # of the limit in Prefect
    classes: tuple[str, ...]
    jobs: tuple[int | None, ...]
    burst_bytes: float
    n: int
    reason: Reason
    why: str  # a sentence, where the number is smaller than the best one
    feasible: bool  # False: not even one job keeps the policy
    best_n: int
    ticks_up_n: int | None  # the first number at which a burst takes over 10 % longer than alone
    full_n: int | None  # the first number beyond which more jobs only wait longer
    measured_streams: int | None
    deadline_missed_s: float  # 0: it is met, or there is none
    batch_range_s: tuple[float, float] | None  # by the edges of what the figures allow
    by_hand: ByHand
    ceilings: tuple[tuple[str, float], ...]  # what all streams may move at most, by name
    measured: tuple[Measured, ...]
    rows: tuple[Row, ...]

    @property
    def row(self) -> Row:
        """The row of the number to run."""
        return self.at(self.n)

    def at(self, n: int) -> Row:
        """The row of a number; raises StopIteration if the plan has none."""
        return next(row for row in self.rows if row.n == n)


@dataclass(frozen=True)
class Alternative:
    """The same question with one thing changed."""

    change: str
    n: int
    batch_s: float | None
    bytes_per_s: float
    held_by: str
    faster: float  # 2: in half the time


@dataclass(frozen=True)
class LimitPlan:
    """A whole plan: one answer, or one for each class where each has a storage of its own."""

    storage: str
    measured: bool
    binary: bool
    answers: tuple[Answer, ...]
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]


def as_json(value: Any) -> Any:
    """Turn an answer into plain values of at most three digits; what is not a number becomes null.

    Args:
        value: a result.

    Returns:
        Lists, mappings, texts, numbers, null.
    """
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, float):
        return three_digits(value) if math.isfinite(value) else None
    return value
