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

from prefect_cachewatch.capacity.inputs import WorkloadClass
from prefect_cachewatch.capacity.results import ClassRow

# How far the think times of a job lie around their mean: evenly, up to half of it to either side.
_THINK_SPREAD = 0.5
_WARM_UP = 0.1  # of the bursts; before it, the storage fills
_FEWEST = 8  # bursts of a shortened job: its length then varies as little as that of the whole one
_FOREVER = -1


@dataclass(frozen=True)
class Outcome:
    """What became of a batch, or of the time simulated."""

    classes: tuple[ClassRow, ...]
    streams: float  # that move a burst, on average
    streams_p99: int


def simulate(
    jobs: Sequence[WorkloadClass], one_burst_s: Sequence[Sequence[float]], limit: int, bursts: int = 5000
) -> Outcome:
    """Run the classes' jobs, at most `limit` at once, until the batch is done; the same input gives the same answer.

    Args:
        jobs: the classes; of those without `running`, either all or none have `jobs`.
        one_burst_s: for each class the seconds of its burst while 1, 2, ... streams of any class move theirs.
        limit: jobs at once, those that always run not counted; a job that ends makes room for the next one in turn.
        bursts: about so many are simulated; of a larger batch every job is shortened, and the time is scaled.

    Returns:
        The batch; without one, a stretch of so many bursts.

    Example:
        Two jobs of three bursts, one after the other, each burst 2 s after 1 s of thinking: about 18 s.

        >>> job = WorkloadClass(name="a", burst_bytes=1, think_s=1, bursts_per_job=3, jobs=2)
        >>> (done,) = simulate([job], [[2.0]], 1).classes
        >>> 15 < done.batch_s < 21, done.burst_s
        (True, 2.0)
    """
    run = _Run(jobs, one_burst_s, limit, bursts)
    run.go()
    return run.outcome()


class _Run:
    def __init__(
        self, jobs: Sequence[WorkloadClass], one_burst_s: Sequence[Sequence[float]], limit: int, bursts: int
    ) -> None:
        self.jobs, self.one_burst_s = jobs, one_burst_s
        self.draw = random.Random(0)  # noqa: S311 - the same answer each time
        asked = [(job.jobs or 0) * job.bursts_per_job for job in self.jobs]
        short = min(1.0, bursts / (sum(asked) or bursts))
        self.length = [max(min(job.bursts_per_job, _FEWEST), round(job.bursts_per_job * short)) for job in self.jobs]
        shorter = sum((job.jobs or 0) * length for job, length in zip(self.jobs, self.length, strict=True))
        fewer = min(1.0, bursts / (shorter or bursts))
        self.wanted = [max(min(n, 4 * limit), round(n * fewer)) for n in (job.jobs or 0 for job in self.jobs)]
        self.endless = not any(asked)
        self.most = bursts * (1 if self.endless else 8)  # bursts of what always runs may be many more than the batch's
        # The jobs that wait, in turn, as they come from several users.
        turns = sorted(((i + 0.5) / n, c) for c, n in enumerate(self.wanted) for i in range(n))
        if self.endless:
            turns = [(0, c) for c, job in enumerate(self.jobs) if job.running is None for _ in range(limit)]
        self.queue = deque(c for _, c in turns)
        self.limit, self.left = min(limit, len(turns)), len(turns)
        self.clock, self.ends_s = [0.0] * len(jobs), [0.0] * len(jobs)
        self.active: list[list[tuple[float, int, float, float, int]]] = [[] for _ in jobs]
        self.thinking: list[tuple[float, int, int, float, int]] = []
        self.done: list[list[tuple[float, float]]] = [[] for _ in jobs]  # time and silence of each burst
        self.number, self.now_s = 0, 0.0
        self.seen: list[float] = []  # seconds with so many streams

    def go(self) -> None:
        for c, job in enumerate(self.jobs):
            for _ in range(job.running or 0):
                self._think(c, _FOREVER)
        for _ in range(self.limit):
            self._start()
        finished = 0
        while finished < self.most and (self.endless or self.left):
            if (ended := self._step()) is None:
                continue
            finished += 1
            c, bursts_left = ended
            if bursts_left:
                self._think(c, bursts_left)
                continue
            self.left -= 1
            self.ends_s[c] = self.now_s
            if self.queue:
                self._start()
        if self.left and not self.endless:  # what always runs took all bursts: the batch goes on at the rate so far
            whole = sum(n * length for n, length in zip(self.wanted, self.length, strict=True))
            made = sum(len(done) for n, done in zip(self.wanted, self.done, strict=True) if n)
            self.ends_s = [self.now_s * whole / max(1, made) if n else 0.0 for n in self.wanted]

    def _step(self) -> tuple[int, int] | None:
        """Go to the next event; return class and bursts left of a job whose burst ended there."""
        streams = sum(map(len, self.active))
        at_s, who = (self.thinking[0][0] if self.thinking else math.inf), -1
        for c, mine in enumerate(self.active):
            if mine:
                ends_s = self.now_s + max(0.0, mine[0][0] - self.clock[c]) * self.one_burst_s[c][streams - 1]
                if ends_s < at_s:
                    at_s, who = ends_s, c
        passed_s = at_s - self.now_s
        while len(self.seen) <= streams:
            self.seen.append(0.0)
        self.seen[streams] += passed_s
        for c, mine in enumerate(self.active):
            if mine:
                self.clock[c] += passed_s / self.one_burst_s[c][streams - 1]
        self.now_s = at_s
        if who < 0:
            _, number, c, thought_s, left = heappop(self.thinking)
            heappush(self.active[c], (self.clock[c] + 1.0, number, at_s, thought_s, left))
            return None
        _, _, began_s, thought_s, left = heappop(self.active[who])
        burst_s = at_s - began_s
        self.done[who].append((burst_s, thought_s + burst_s / self.jobs[who].files_per_burst))
        return who, left - 1

    def _start(self) -> None:
        c = self.queue.popleft()
        self._think(c, _FOREVER if self.endless else self.length[c])

    def _think(self, c: int, left: int) -> None:
        think_s = self.jobs[c].think_s * self.draw.uniform(1 - _THINK_SPREAD, 1 + _THINK_SPREAD)
        self.number += 1
        heappush(self.thinking, (self.now_s + think_s, self.number, c, think_s, left))

    def outcome(self) -> Outcome:
        gone_s = list(accumulate(self.seen))
        streams = math.fsum(n * seconds for n, seconds in enumerate(self.seen)) / gone_s[-1]
        at = max(0, round(streams) - 1)
        rows = tuple(self._row(c, self.one_burst_s[c][at]) for c in range(len(self.jobs)))
        return Outcome(rows, streams, bisect_left(gone_s, 0.99 * gone_s[-1]))

    def _row(self, c: int, otherwise_s: float) -> ClassRow:
        """What became of a class; where none of its bursts ended yet, one takes `otherwise_s`."""
        job, done = self.jobs[c], self.done[c]
        ended = done[int(len(done) * _WARM_UP) :] or [(otherwise_s, job.think_s + otherwise_s / job.files_per_burst)]
        bursts, silences = sorted(burst for burst, _ in ended), sorted(silence for _, silence in ended)
        p99 = min(len(ended) - 1, int(0.99 * len(ended)))
        batch_s = None
        if job.jobs is not None:
            batch_s = self.ends_s[c] * job.bursts_per_job * job.jobs / (self.length[c] * self.wanted[c])
        return ClassRow(
            name=job.name,
            bytes_per_s=max(1, len(done)) * job.wire_bytes / min(self.ends_s[c] or self.now_s, self.now_s),
            burst_s=math.fsum(bursts) / len(bursts),
            burst_p99_s=bursts[p99],
            silence_p99_s=silences[p99],
            batch_s=batch_s,
        )
