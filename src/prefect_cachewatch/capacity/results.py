"""The answer of a plan as values: rows over the number of jobs, one number for each limit, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Why a number is not larger than it is. best: more would not be faster; jobs: the whole batch runs at once; measured:
#: more streams would move than were measured; most: no plan looks at more.
Reason = Literal["best", "jobs", "measured", "most"]


@dataclass(frozen=True)
class ClassRow:
    """One class at one number of jobs at once."""

    name: str
    bytes_per_s: float
    burst_s: float  # mean
    burst_p99_s: float  # 1 in 100 takes longer
    batch_s: float | None  # None: it has no batch


@dataclass(frozen=True)
class Row:
    """Everything at one number of jobs at once."""

    n: int
    bytes_per_s: float  # that reach the storage, of all classes together
    streams: float  # that move a burst, on average
    streams_p99: int  # in 99 of 100 moments no more
    batch_s: float | None  # until the last class is done
    classes: tuple[ClassRow, ...]  # the class that the zones are about first
    held_by: str = ""  # storage, port, operations, link, files, compression, one stream, computing
    full: bool = False  # what holds it is its ceiling, as in `ByHand`


@dataclass(frozen=True)
class Part:
    """Bytes or files, and the most of them that all streams move in a second."""

    amount: float
    rate: float
    unit: Literal["bytes", "files"]


@dataclass(frozen=True)
class ByHand:
    """Figures that a person can compute from the plan file."""

    parts: tuple[Part, ...]  # of each class's batch, or of one burst
    ceiling: str
    think_s: float  # Z
    burst_s: float  # R, alone
    demand_s: float  # D, of a burst at the ceiling
    least_s: float  # in which the ceilings move the parts: no batch is faster
    filling_n: float  # jobs that keep the ceiling busy, (Z + R) / D


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
class Answer:
    """One limit: how many jobs of its classes at once, and what happens below and beyond."""

    name: str  # of the limit in Prefect
    classes: tuple[str, ...]
    jobs: tuple[int | None, ...]
    burst_bytes: float
    n: int  # 0: not even one job is within what was measured
    reason: Reason
    ticks_up_n: int | None  # the first number at which a burst takes over 10 % longer than alone
    full_n: int | None  # the first number beyond which no batch is faster
    measured_streams: int | None
    batch_range_s: tuple[float, float] | None  # by the edges of what the figures allow
    by_hand: ByHand
    ceilings: tuple[tuple[str, float], ...]  # what all streams may move at most, by name; in a mix those of all classes
    measured: tuple[tuple[float, float, float], ...]  # at so many jobs, bytes per second, spread; none in a mix
    rows: tuple[Row, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def row(self) -> Row:
        """The row of the number to run, or of one."""
        return self.at(max(1, self.n))

    def at(self, n: int) -> Row:
        """The row of a number; raises StopIteration if the plan has none."""
        return next(row for row in self.rows if row.n == n)


@dataclass(frozen=True)
class LimitPlan:
    """A whole plan: one answer, or one for each class where each has a storage of its own."""

    storage: str
    measured: bool
    binary: bool
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
