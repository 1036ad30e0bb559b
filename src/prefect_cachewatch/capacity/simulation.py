"""Batches of jobs by events: mixes of classes under one limit, how long the batch takes, and how long the slowest bursts.

All streams of a class get the same at each moment, so each class has one clock of work done for each of its streams, and
a stream is done when the clock has gone its burst further: an event costs the logarithm of the streams, not their number.

What is too much for the budget of events is made coarser, never cut short: bursts that follow each other are moved as one,
with their pauses before them, so are jobs that follow each other in a slot, and of hundreds of jobs several run abreast. The
bytes and the pauses stay the same, so no time is scaled.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

from prefect_cachewatch.capacity.inputs import WorkloadClass
from prefect_cachewatch.capacity.results import ClassRow, Row

# How far the think times of a job lie around their mean: evenly, up to half of it to either side.
_THINK_SPREAD = 0.5
_WARM_UP = 0.1  # of the bursts; before it, the storage fills
_PARTS = 4  # of a job at least: its bursts and those of others still meet by chance
_TIMES = 4
_SEEN = 128  # bursts of another class in a cycle of the slowest
_FEWEST = 40  # bursts of each class, where there is no end
_FEW = 4  # bursts in one at most, for its time to say something of one of them
_ROUNDS = 6  # of jobs in a slot: the end of the batch, where slots are empty, stays a small part
_HAIR = 1e-9  # sums of weights are off by as much


def simulate(
    jobs: Sequence[WorkloadClass], one_burst_s: Sequence[Sequence[float]], limit: int, bursts: int = 5000
) -> Row:
    """Run the classes' jobs, at most `limit` at once, until the batch is done; the same input gives the same answer.

    Args:
        jobs: the classes; of those without `running`, either all or none have `jobs`.
        one_burst_s: for each class the seconds of its burst while 1, 2, ... streams of any class move theirs.
        limit: jobs at once, those that always run not counted; a job that ends makes room for the next one in turn.
        bursts: about so many are simulated, shared by the classes; of more, several are moved as one.

    Returns:
        The batch; without one, a stretch in which each class has its share of the bursts. What holds it is not said.

    Example:
        Two jobs of three bursts, one after the other, each burst 2 s after 1 s of thinking: about 18 s.

        >>> job = WorkloadClass(name="a", burst_bytes=1, think_s=1, bursts_per_job=3, jobs=2)
        >>> (done,) = simulate([job], [[2.0]], 1).classes
        >>> 15 < done.batch_s < 21, done.burst_s
        (True, 2.0)
    """
    return _Run(jobs, one_burst_s, limit, bursts).row(limit)


class _Class:
    """A class of jobs while it is simulated."""

    def __init__(self, job: WorkloadClass, one_burst_s: Sequence[float], limit: int, most: int) -> None:
        self.job, self.one_burst_s = job, one_burst_s
        self.cycle_s = job.think_s + one_burst_s[0]
        lasting = job.running or 0 if job.jobs is not None or job.running is not None else limit
        self.lasting = min(lasting, most)
        self.columns = math.ceil((job.jobs or 0) / max(1.0, limit / most))
        # So many jobs run abreast: they think and move their bursts together.
        self.weight = (job.jobs or lasting) / (self.columns or self.lasting or 1)
        self.turns = 0  # slots that its batch takes, one column of jobs or several in each
        self.length, self.parts = 0.0, 0  # bursts of such a turn, and the parts that they are moved in
        self.size = 1.0  # bursts of one part
        self.clock, self.ends_s, self.finished = 0.0, 0.0, 0
        # Of each stream where the clock is at its end, size and begin of the part, pauses that its turn has left.
        self.active: list[tuple[float, int, float, float, list[float] | None]] = []
        self.work = [0.0] * len(one_burst_s)  # bursts moved while 1, 2, ... streams were
        self.bursts_s: list[float] = []  # of each part of few bursts

    def row(self, whole_s: float, times: int) -> ClassRow:
        """What became of the class."""
        moved, by_time = math.fsum(self.work), sorted(self.bursts_s[int(len(self.bursts_s) * _WARM_UP) :])
        pairs = sorted(zip(self.one_burst_s, self.work, strict=True))
        burst_s = math.fsum(each_s * work for each_s, work in pairs) / moved if moved else self.one_burst_s[0]
        if self.size <= _FEW and by_time:
            p99_s = by_time[int(0.99 * (len(by_time) - 1))]
        else:  # small beside what others do: while one is moved, nothing changes
            p99_s = pairs[bisect_left(list(accumulate(work for _, work in pairs)), 0.99 * moved)][0]
        return ClassRow(
            name=self.job.name,
            bytes_per_s=moved * self.job.wire_bytes / whole_s,
            burst_s=burst_s,
            burst_p99_s=max(p99_s, burst_s),
            batch_s=None if self.job.jobs is None else self.ends_s / times,
        )


class _Run:
    def __init__(
        self, jobs: Sequence[WorkloadClass], one_burst_s: Sequence[Sequence[float]], limit: int, bursts: int
    ) -> None:
        self.draw = random.Random(0)  # noqa: S311 - the same answer each time
        self.most = max(1, bursts // (_ROUNDS * _PARTS))  # columns at once
        self.classes = [_Class(job, each_s, limit, self.most) for job, each_s in zip(jobs, one_burst_s, strict=True)]
        self.bursts, self.share = bursts, bursts / len(jobs)
        self.thinking: list[tuple[float, int, _Class, float, list[float] | None]] = []
        self.number, self.now_s = 0, 0.0
        self.seen = [0.0] * (len(one_burst_s[0]) + 1)  # seconds with so many streams
        self._make_coarser(limit)
        for each in self.classes:
            for _ in range(each.lasting):
                self._think(each, self.draw.random() * each.size * each.job.think_s, None)
        # The jobs that wait, in turn, as they come from several users.
        turns = sorted(((i + 0.5) / each.turns, c) for c, each in enumerate(self.classes) for i in range(each.turns))
        # A small batch is as long as chance makes its slowest job, so it is run several times.
        total = sum(each.turns * each.parts for each in self.classes)
        self.times = max(1, min(_TIMES, bursts // total)) if total else 1
        self.batch_s: float | None = None
        for _ in range(self.times):
            self._go(deque(self.classes[c] for _, c in turns), limit)
        if turns:
            self.batch_s = self.now_s / self.times

    def _make_coarser(self, limit: int) -> None:
        """Say how many columns of jobs are joined in a turn, and how many bursts in a part."""
        slots = min(limit, self.most)
        rounds = max(_ROUNDS, self.bursts // _PARTS // slots)  # whole ones, as of many jobs the last one matters little
        joined = max(1.0, sum(each.columns for each in self.classes) / (rounds * slots))
        work_s, slowest_s = 0.0, max(each.cycle_s for each in self.classes)
        for each in self.classes:
            if each.columns:
                each.turns = max(1, round(each.columns / joined))
                each.length = each.job.bursts_per_job * each.columns / each.turns
                each.parts = math.ceil(min(each.length, max(_PARTS, self.share / each.turns)))
                each.size = each.length / each.parts
                work_s += each.turns * each.weight * each.length * each.cycle_s
        for each in self.classes:
            if work_s and each.lasting:
                each.size = max(1.0, each.lasting * work_s / limit / each.cycle_s / self.share)
            elif each.lasting:  # a long burst sees many short ones, as it does where none are joined
                each.size = max(1.0, min(1.0, each.lasting / _SEEN) * slowest_s / each.cycle_s)

    def _go(self, queue: deque[_Class], limit: int) -> None:
        began_s, left, wanted = self.now_s, len(queue), 0 if queue else self.bursts
        ends_s = dict[_Class, float]()
        free = self._fill(queue, limit + _HAIR)
        while left or wanted > 0:
            if (ended := self._step()) is None:
                continue
            each, pauses_s = ended
            each.finished += 1
            if pauses_s is None:
                wanted -= 1
                if wanted == 0 and min(each.finished for each in self.classes) < _FEWEST:
                    wanted = self.bursts // 10
                if each.finished % (2 * math.ceil(self.share)) == 0:  # more than was thought, since others are slow
                    each.size *= 2
                self._think(each, each.size * each.job.think_s * self._spread(), None)
            elif pauses_s:
                self._think(each, pauses_s.pop(), pauses_s)
            else:
                left -= 1
                ends_s[each] = self.now_s - began_s
                free = self._fill(queue, free + each.weight)

        for each, end_s in ends_s.items():
            each.ends_s += end_s

    def _fill(self, queue: deque[_Class], free: float) -> float:
        """Start the turns that have room; return the slots that stay free."""
        while queue and queue[0].weight <= free:
            free -= queue[0].weight
            self._start(queue.popleft())
        return free

    def _step(self) -> tuple[_Class, list[float] | None] | None:
        """Go to the next event; where a part ended there, return its class and the pauses that its turn has left."""
        moving = [each for each in self.classes if each.active]
        streams = math.ceil(sum(each.weight * len(each.active) for each in moving) - _HAIR)
        at_s, who = (self.thinking[0][0] if self.thinking else math.inf), None
        for each in moving:
            ends_s = self.now_s + max(0.0, each.active[0][0] - each.clock) * each.one_burst_s[streams - 1]
            if ends_s < at_s:
                at_s, who = ends_s, each
        passed_s = at_s - self.now_s
        self.seen[streams] += passed_s
        for each in moving:
            moved = passed_s / each.one_burst_s[streams - 1]
            each.clock += moved
            each.work[streams - 1] += each.weight * len(each.active) * moved
        self.now_s = at_s
        if who is None:
            _, number, each, size, pauses_s = heappop(self.thinking)
            heappush(each.active, (each.clock + size, number, size, at_s, pauses_s))
            return None
        _, _, size, began_s, pauses_s = heappop(who.active)
        if size <= _FEW:
            who.bursts_s.append((at_s - began_s) / size)
        return who, pauses_s

    def _spread(self) -> float:
        return self.draw.uniform(1 - _THINK_SPREAD, 1 + _THINK_SPREAD)

    def _start(self, each: _Class) -> None:
        pauses = [self._spread() for _ in range(each.parts)]
        if each.size > 1:
            # Jobs that begin together drift apart within some bursts, and the whole turn varies less than its parts.
            pauses[-1] *= 1 - self.draw.random() * (1 - 1 / each.size)
            varied = self.draw.gauss(1, _THINK_SPREAD / math.sqrt(3 * each.length))
            pauses = [pause * max(0.0, varied) * each.parts / sum(pauses) for pause in pauses]
        pauses_s = [pause * each.size * each.job.think_s for pause in pauses]
        self._think(each, pauses_s.pop(), pauses_s)

    def _think(self, each: _Class, think_s: float, pauses_s: list[float] | None) -> None:
        self.number += 1
        heappush(self.thinking, (self.now_s + think_s, self.number, each, each.size, pauses_s))

    def row(self, limit: int) -> Row:
        gone_s = list(accumulate(self.seen))
        streams = math.fsum(n * seconds for n, seconds in enumerate(self.seen)) / gone_s[-1]
        classes = tuple(each.row(self.now_s, self.times) for each in self.classes)
        rate, streams_p99 = math.fsum(each.bytes_per_s for each in classes), bisect_left(gone_s, 0.99 * gone_s[-1])
        return Row(limit, rate, streams, streams_p99, self.batch_s, classes)
