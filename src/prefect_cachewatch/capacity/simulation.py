"""Batches of jobs by events: mixes of classes under one limit, how long the batch takes, and how long the slowest bursts.

All streams of a class get the same at each moment, so each class has one clock of work done for each of its streams, and
a stream is done when the clock has gone its burst further: an event costs the logarithm of the streams, not their number.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

# How far the think times of a job lie around their mean: evenly, up to half of it to either side.
_THINK_SPREAD = 0.5
_WARM_UP = 0.1  # of the bursts; before it, the storage fills


@dataclass(frozen=True)
class Load:
    """A class as the simulation sees it."""

    one_burst_s: Sequence[float]  # seconds of a burst while 1, 2, ... streams of any class move theirs
    think_s: float
    bursts: int = 1  # of one job
    jobs: int | None = None  # of the batch; None: no end of them
    running: int | None = None  # so many always run, outside the limit
    files: int = 1  # of a burst; the watch sees each when it is whole
    appears_while_moving: bool = False
    burst_cv: float = 0.0


@dataclass(frozen=True)
class Class:
    """What became of one class."""

    end_s: float
    bursts_per_s: float
    burst_s: float
    burst_p99_s: float
    silence_p99_s: float


@dataclass(frozen=True)
class Outcome:
    """What became of a batch, or of the time simulated."""

    wall_s: float
    classes: tuple[Class, ...]
    streams: float  # that move a burst, on average
    streams_p99: int


def simulate(loads: Sequence[Load], limit: int, bursts: int = 6000, seed: int = 0) -> Outcome:
    """Run the classes' jobs, at most `limit` at once, until the batch is done.

    Args:
        loads: the classes; of those without `running`, either all or none have `jobs`.
        limit: jobs at once, those that always run not counted; a job that ends makes room for the next one in turn.
        bursts: about so many are simulated; of a larger batch every job is shortened, and the time is scaled.
        seed: the same seed gives the same answer.

    Returns:
        The batch; without one, a stretch of so many bursts.

    Example:
        Two jobs of three bursts, one after the other, each burst 2 s after 1 s of thinking: about 18 s.

        >>> done = simulate([Load([2.0], 1.0, bursts=3, jobs=2)], 1)
        >>> 15 < done.wall_s < 21, done.classes[0].burst_s
        (True, 2.0)
    """
    return _Run(loads, limit, bursts, seed).outcome()


class _Run:
    def __init__(self, loads: Sequence[Load], limit: int, bursts: int, seed: int) -> None:
        self.loads, self.limit = loads, limit
        self.draw = random.Random(seed)  # noqa: S311 - the same seed gives the same answer
        whole = sum((load.jobs or 0) * load.bursts for load in loads)
        self.endless = not whole
        self.most = bursts * (2 if self.endless else 4)  # bursts of what always runs may be many more than the batch's
        short = min(1.0, bursts / whole) if whole else 1.0
        # A shorter job still has bursts enough for its length to vary as little as that of the whole one does.
        self.length = [max(min(load.bursts, 8), round(load.bursts * short)) for load in loads]
        shorter = sum((load.jobs or 0) * length for load, length in zip(loads, self.length, strict=True))
        fewer = min(1.0, bursts / shorter) if shorter else 1.0
        self.wanted = [
            0 if load.jobs is None else max(min(load.jobs, 4 * limit), round(load.jobs * fewer)) for load in loads
        ]
        self.queue = self._turns()
        self.clock = [0.0] * len(loads)
        self.active: list[list[tuple[float, int, float, float, int]]] = [[] for _ in loads]
        self.thinking: list[tuple[float, int, int, float, int]] = []
        self.number = 0
        self.now_s = 0.0
        self.done: list[list[tuple[float, float]]] = [[] for _ in loads]
        self.ends_s = [0.0] * len(loads)
        self.seen: list[float] = []  # seconds with so many streams

    def _turns(self) -> deque[int]:
        """The classes of the jobs that wait, in turn, as they come from several users."""
        if self.endless:
            asking = [c for c, load in enumerate(self.loads) if load.running is None]
            return deque(asking[i % len(asking)] for i in range(self.limit))
        turns = sorted(((i + 0.5) / wanted, c) for c, wanted in enumerate(self.wanted) for i in range(wanted))
        return deque(c for _, c in turns)

    def outcome(self) -> Outcome:
        left = len(self.queue)
        for c, load in enumerate(self.loads):
            for _ in range(load.running or 0):
                self._think(c, -1)
        for _ in range(min(self.limit, left)):
            self._start()
        finished = 0
        while finished < self.most and (self.endless or left):
            ended = self._step()
            if ended is None:
                continue
            finished += 1
            c, bursts_left = ended
            if bursts_left == 0:
                left -= 1
                self.ends_s[c] = self.now_s
                if self.queue:
                    self._start()
            else:
                self._think(c, bursts_left)
        if left and not self.endless:
            self._go_on()
        return self._told()

    def _step(self) -> tuple[int, int] | None:
        """Go to the next event; return class and bursts left of a job whose burst ended there."""
        streams = sum(map(len, self.active))
        at_s, who = (self.thinking[0][0] if self.thinking else math.inf), -1
        for c, mine in enumerate(self.active):
            if mine:
                ends_s = self.now_s + max(0.0, mine[0][0] - self.clock[c]) * self.loads[c].one_burst_s[streams - 1]
                if ends_s < at_s:
                    at_s, who = ends_s, c
        passed_s = at_s - self.now_s
        while len(self.seen) <= streams:
            self.seen.append(0.0)
        self.seen[streams] += passed_s
        for c, mine in enumerate(self.active):
            if mine:
                self.clock[c] += passed_s / self.loads[c].one_burst_s[streams - 1]
        self.now_s = at_s
        if who < 0:
            _, number, c, thought_s, left = heappop(self.thinking)
            heappush(self.active[c], (self.clock[c] + self._size(c), number, at_s, thought_s, left))
            return None
        _, _, began_s, thought_s, left = heappop(self.active[who])
        load, burst_s = self.loads[who], at_s - began_s
        silence_s = thought_s + (0.0 if load.appears_while_moving else burst_s / load.files)
        self.done[who].append((burst_s, silence_s))
        return who, left - 1

    def _start(self) -> None:
        c = self.queue.popleft()
        self._think(c, -1 if self.endless else self.length[c])

    def _think(self, c: int, left: int) -> None:
        think_s = self.loads[c].think_s * self.draw.uniform(1 - _THINK_SPREAD, 1 + _THINK_SPREAD)
        self.number += 1
        heappush(self.thinking, (self.now_s + think_s, self.number, c, think_s, left))

    def _size(self, c: int) -> float:
        """The size of a burst as a share of the mean: lognormal, since a size is never below nothing."""
        if not self.loads[c].burst_cv:
            return 1.0
        variance = math.log1p(self.loads[c].burst_cv ** 2)
        return self.draw.lognormvariate(-variance / 2, math.sqrt(variance))

    def _go_on(self) -> None:
        """What always runs took all bursts: the batch goes on at the rate so far."""
        batch = [c for c, wanted in enumerate(self.wanted) if wanted]
        whole = sum(self.wanted[c] * self.length[c] for c in batch)
        share = max(1, sum(len(self.done[c]) for c in batch)) / whole
        self.ends_s = [self.now_s / share if wanted else 0.0 for wanted in self.wanted]

    def _told(self) -> Outcome:
        gone_s = list(accumulate(self.seen)) or [0.0]
        streams = math.fsum(n * seconds for n, seconds in enumerate(self.seen)) / gone_s[-1]
        classes = []
        for c, load in enumerate(self.loads):
            # Where none has ended yet, as long as one takes among so many streams.
            one_s = load.one_burst_s[max(0, round(streams) - 1)]
            ended = self.done[c][int(len(self.done[c]) * _WARM_UP) :] or [(one_s, load.think_s + one_s / load.files)]
            bursts, silences = sorted(burst for burst, _ in ended), sorted(silence for _, silence in ended)
            scale = 1.0
            if load.jobs is not None:
                scale = load.bursts * load.jobs / (self.length[c] * self.wanted[c])
            until_s = min(self.ends_s[c] or self.now_s, self.now_s)
            classes.append(
                Class(
                    end_s=self.ends_s[c] * scale,
                    bursts_per_s=max(1, len(self.done[c])) / until_s,
                    burst_s=math.fsum(bursts) / len(bursts),
                    burst_p99_s=_p99(bursts),
                    silence_p99_s=_p99(silences),
                )
            )
        p99 = bisect_left(gone_s, 0.99 * gone_s[-1])
        return Outcome(max(mine.end_s for mine in classes) or self.now_s, tuple(classes), streams, p99)


def _p99(values: Sequence[float]) -> float:
    return values[min(len(values) - 1, int(0.99 * len(values)))]
