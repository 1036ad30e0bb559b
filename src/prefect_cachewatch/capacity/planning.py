"""From the law, the chain and the simulation to the number of jobs to run, the zones around it, and what would change it.

Every row that is looked at is computed once. The number is the smallest that is as good as the best (within 2 %) and
that the measured streams admit. What does not fit into the free space is refused.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache

from prefect_cachewatch.capacity.chain import steady
from prefect_cachewatch.capacity.inputs import MOST_JOBS, PlanInput, WorkloadClass
from prefect_cachewatch.capacity.law import Side, binding, burst_seconds, curve_of, shared_ceilings, whole_burst_s
from prefect_cachewatch.capacity.results import Alternative, Answer, ByHand, ClassRow, LimitPlan, Part, Reason, Row
from prefect_cachewatch.capacity.simulation import simulate
from prefect_cachewatch.capacity.units import LINE_RATES, say_bytes, say_number
from prefect_cachewatch.errors import InputError

AS_GOOD = 1.02
TICK = 1.1
#: Less of a change is none.
SAME = 0.03
_BUSY = 0.9
_ROUNDS = 8
_BURSTS, _FEWER_BURSTS = 5000, 1000
_ONE_MB = 10**6


def plan(inputs: PlanInput) -> LimitPlan:
    """Say how many jobs to run at once on a storage.

    Args:
        inputs: storage, link, classes and policy.

    Returns:
        The plan; one answer for all classes, or one for each where the policy isolates them.

    Raises:
        InputError: the batch does not fit into the free space, or the storage says nothing of such a class.

    Example:
        >>> from prefect_cachewatch.capacity import PlanInput
        >>> nas = {"name": "nas", "write": {"one_bytes_per_s": "250MB/s", "all_bytes_per_s": "600MB/s"}}
        >>> jobs = {"name": "caches", "burst_bytes": "2GB", "think_s": "10s", "bursts_per_job": 40, "jobs": 20}
        >>> answer = plan(PlanInput(storage=nas, link="10G", workloads=[jobs])).answers[0]
        >>> answer.n, answer.ticks_up_n, answer.row.held_by
        (10, 4, 'storage')
    """
    apart = [inputs]
    if inputs.policy.isolated:
        apart = [inputs.model_copy(update={"workloads": [workload]}) for workload in inputs.asking]
    for each in apart:
        _refuse_what_cannot_be(each)
    answers = tuple(_Search(each, _BURSTS).answer(inputs) for each in apart)
    return LimitPlan(
        storage=inputs.storage.name,
        measured=inputs.storage.basis == "measured" and all(answer.measured_streams for answer in answers),
        binary=inputs.binary,
        answers=answers,
        notes=tuple(_notes(inputs)),
    )


def expected_burst_s(inputs: PlanInput, n: int) -> float:
    """Say how long the mean burst of the first class that asks takes, with so many of its jobs at once.

    Args:
        inputs: the plan's input.
        n: jobs at once.

    Returns:
        Seconds.
    """
    main = inputs.asking[0]
    always = [workload for workload in inputs.workloads if workload.running and not inputs.policy.isolated]
    alone = inputs.model_copy(update={"workloads": [main.model_copy(update={"jobs": None}), *always]})
    n = max(1, min(n, MOST_JOBS))
    return _Search(alone, _FEWER_BURSTS, most=n).burst_s(n)


class _Search:
    """One limit on one storage: its rows, and the number among them."""

    def __init__(self, inputs: PlanInput, bursts: int, most: int = MOST_JOBS) -> None:
        self.inputs, self.bursts = inputs, bursts
        self.main = inputs.asking[0]
        self.workloads = [self.main, *(w for w in inputs.workloads if w is not self.main and w.running != 0)]
        self.jobs = sum(workload.jobs or 0 for workload in self.workloads)
        self.most = min(most, self.jobs or most)
        self.running = sum(workload.running or 0 for workload in self.workloads)
        self.alone_s = whole_burst_s(burst_seconds(inputs, self.main, 1, 1))
        self.capped = self.most == MOST_JOBS != self.jobs
        measured = [curve_of(inputs.storage, workload).measured_n for workload in self.workloads]
        self.measured = min((n * inputs.storage.units for n in measured if n), default=None)
        self.row: Callable[[int], Row] = lru_cache(maxsize=None)(self._row)

        # At n jobs, for each class how long a burst takes while 1, 2, ... streams move theirs.
        self.seconds: Callable[..., list[list[float]]] = lru_cache(maxsize=None)(self._seconds)

    def _seconds(self, n: int, side: Side = "middle") -> list[list[float]]:
        jobs = n + self.running
        if self.inputs.link.hosts == 1 and n < self.most:  # nobody meets on a host
            return [mine[:jobs] for mine in self.seconds(self.most, side)]
        return [
            [whole_burst_s(burst_seconds(self.inputs, w, streams, jobs, side)) for streams in range(1, jobs + 1)]
            for w in self.workloads
        ]

    def _row(self, n: int) -> Row:
        main, row = self.main, simulate(self.workloads, self.seconds(n), n, self.bursts)
        if len(self.workloads) == 1:  # the means are exact, and the simulation has the batch and its slowest bursts
            exact = steady(self.seconds(n)[0], main.think_s, n)
            rate, slowest_s = exact.bursts_per_s * main.wire_bytes, max(exact.burst_s, row.classes[0].burst_p99_s)
            mine = ClassRow(main.name, rate, exact.burst_s, slowest_s, row.batch_s)
            row = Row(n, rate, exact.streams, exact.streams_p99, row.batch_s, (mine,))
        busy = math.fsum(
            mine.bytes_per_s / workload.wire_bytes * self.demands[c][1]
            for c, (workload, mine) in enumerate(zip(self.workloads, row.classes, strict=True))
        )
        held_by = binding(burst_seconds(self.inputs, main, max(1, round(row.streams)), n + self.running))
        if busy >= _BUSY:
            held_by = self.by_hand.ceiling
        elif main.think_s > row.classes[0].burst_s:
            held_by = "computing"
        elif held_by == "storage" and row.classes[0].burst_s < TICK * self.alone_s:
            held_by = "one stream"
        return replace(row, held_by=held_by, full=busy >= _BUSY)

    def _told(self, n: int) -> Row:
        """The row with what 1 in 100 bursts of each class exceed.

        In a mix with a batch small bursts are moved as one, so there a run without an end of jobs tells it, its classes as they
        share the limit.
        """
        if len(self.workloads) == 1:
            return self.row(n)
        row, seconds = self.row(n), self.seconds(n)
        works_s = [
            (w.jobs or 0) * w.bursts_per_job * (w.think_s + burst_s[0])
            for w, burst_s in zip(self.workloads, seconds, strict=True)
        ]
        counts = [w.running or int(n * works_s[c] / sum(works_s)) if c else 0 for c, w in enumerate(self.workloads)]
        counts[0] = n + self.running - sum(counts)  # the first class has the slots that are left
        there = [c for c, count in enumerate(counts) if count]
        lasting = [self.workloads[c].model_copy(update={"jobs": None, "running": counts[c]}) for c in there]
        seconds = [seconds[c] for c in there]
        slowest_s = {each.name: each.burst_p99_s for each in simulate(lasting, seconds, n, self.bursts).classes}
        classes = (replace(mine, burst_p99_s=max(slowest_s.get(mine.name, 0.0), mine.burst_s)) for mine in row.classes)
        return replace(row, classes=tuple(classes))

    def score(self, n: int) -> float:
        """How good a number is; less is better. What always runs is no part of it."""
        return _score(self.row(n) if self.jobs else self.row(n).classes[0])

    def _grid(self, most: int) -> list[int]:
        """Numbers of jobs to look at: each to 6, then a quarter more each time, even rounds of the batch, and the last."""
        found, n = {most}, 1
        while n < most:
            found.add(n)
            n = max(n + 1, round(n * 1.25))
        rounds = (math.ceil(self.jobs / times) for times in range(1, _ROUNDS + 1))
        return sorted(found | {n for n in rounds if 1 <= n <= most})

    @cached_property
    def best_n(self) -> int:
        """The smallest number that is as good as the best of all that are looked at."""
        # Below a third of what fills the storage, jobs move less than two thirds of what it can.
        few = min(self.by_hand.filling_n, self.most) / 3
        found = self._smallest([n for n in self._grid(self.most) if n >= few])
        return found if self.row(found).full or not self.capped else self.most

    def _smallest(self, tried: list[int]) -> int:
        """The smallest number as good as the best of those tried: the first of them, or one in the gap before it."""
        best = min(map(self.score, tried))
        at = next(i for i, n in enumerate(tried) if self.score(n) <= AS_GOOD * best)
        if self.bursts < _BURSTS:  # for what a change would make of the batch, near is enough
            return tried[at]
        gap = range(tried[at - 1] + 1 if at else tried[at], tried[at] + 1)
        return gap[bisect_left(gap, True, key=lambda n: self.score(n) <= AS_GOOD * best)]

    @cached_property
    def demands(self) -> list[tuple[int, float]]:
        """For each class the number of streams that move the most, and what a burst takes of their time."""
        shares = [[burst_s / n for n, burst_s in enumerate(mine, start=1)] for mine in self.seconds(self.most)]
        return [(mine.index(min(mine)) + 1, min(mine)) for mine in shares]

    @cached_property
    def by_hand(self) -> ByHand:
        main, parts = self.main, list[Part]()
        for c, workload in enumerate(self.workloads):
            n, whole_s = self.demands[c]
            files_s = burst_seconds(self.inputs, workload, n, self.most + self.running)["files"] / n
            files_s = files_s if files_s > 0.01 * whole_s else 0.0
            # Without a batch the pencil computes one burst of the first class.
            bursts = (workload.jobs or 0) * workload.bursts_per_job if self.jobs else int(c == 0)
            parts += [Part(bursts * workload.wire_bytes, workload.wire_bytes / (whole_s - files_s), "bytes")]
            if files_s:
                files = workload.files_per_burst
                parts += [Part(bursts * files, files / files_s, "files")]
        n, demand_s = self.demands[0]
        ceiling, alone_s = binding(burst_seconds(self.inputs, main, n, self.most + self.running)), self.alone_s
        wanted = tuple(part for part in parts if part.amount)
        filling_n = (main.think_s + alone_s) / demand_s
        return ByHand(
            wanted, ceiling, main.think_s, alone_s, demand_s, sum(p.amount / p.rate for p in wanted), filling_n
        )

    def burst_s(self, n: int) -> float:
        """The mean burst of the first class; of one class the chain alone has it, which costs less than a row."""
        if len(self.workloads) == 1:
            return steady(self.seconds(n)[0], self.main.think_s, n).burst_s
        return self.row(n).classes[0].burst_s

    @cached_property
    def ticks_up_n(self) -> int | None:
        found = 1 + bisect_left(range(1, self.most + 1), True, key=lambda n: self.burst_s(n) > TICK * self.burst_s(1))
        return found if found <= self.most else None

    def admits(self, n: int) -> bool:
        """Whether so many jobs make no more streams than were measured; then fewer do not either."""
        return self.measured is None or self.row(n).streams_p99 <= self.measured

    def number(self) -> tuple[int, Reason]:
        """The number and what binds it; 0 where the rules do not admit even one job."""
        n = self.best_n
        if self.admits(n):
            return n, "jobs" if n == self.jobs else "most" if self.capped and n == self.most else "best"
        n = bisect_left(range(1, n + 1), True, key=lambda m: not self.admits(m))
        if n:  # a smaller one may be as good as the largest that is admitted
            n = self._smallest(self._grid(n))
        return n, "measured"

    def answer(self, whole: PlanInput) -> Answer:
        """The answer; `whole` is the plan that this limit is one of."""
        n, reason = self.number()
        at, best_n, tick = max(1, n), self.best_n, self.ticks_up_n
        full_n = best_n if best_n < self.most else None
        shown = {at, 1, best_n, tick or 1, max(1, best_n - 1), *(m for m in self._grid(self.most) if m <= 2 * best_n)}
        storage, main, alone = self.inputs.storage, self.main, len(self.workloads) == 1
        asking = [workload for workload in self.workloads if workload.running is None]
        ceilings = shared_ceilings(self.inputs, main, self.demands[0][0], self.most + self.running)
        measured = [
            (p.n * storage.units, p.bytes_per_s * storage.units, p.spread) for p in curve_of(storage, main).points
        ]
        return Answer(
            name=f"{storage.name}-{main.name}" if self.inputs.policy.isolated else storage.name,
            classes=tuple(workload.name for workload in asking),
            jobs=tuple(workload.jobs for workload in asking),
            burst_bytes=self.main.burst_bytes,
            n=n,
            reason=reason,
            ticks_up_n=tick,
            full_n=full_n,
            measured_streams=self.measured,
            batch_range_s=self._range(at),
            by_hand=self.by_hand,
            # In a mix a curve and operations are those of one class, and no ceiling of all.
            ceilings=tuple((k, rate) for k, rate in ceilings.items() if alone or k in ("link", "port")),
            # While so many streams move, the other jobs think: by Little's law as many as bursts end meanwhile.
            measured=tuple((n + rate / main.wire_bytes * main.think_s, rate, w) for n, rate, w in measured if alone),
            rows=tuple(map(self._told, sorted(shown))),
            alternatives=tuple(_alternatives(self.row(at), self.inputs, whole)),
        )

    def _range(self, n: int) -> tuple[float, float] | None:
        """The batch by the edges of what the figures allow; None where they are one."""
        if not self.jobs:
            return None
        edges: tuple[Side, Side] = ("high", "low")
        low, high = (simulate(self.workloads, self._seconds(n, side), n, self.bursts).batch_s or 0.0 for side in edges)
        return (low, high) if high > 1.01 * low else None


def _left_and_free(inputs: PlanInput) -> tuple[float, float]:
    """The bytes that a batch leaves, and those that are free for them."""
    free = inputs.storage.free_bytes
    left = sum(job.kept_bytes * (job.jobs or 1) for job in inputs.asking)
    return left, math.inf if free is None else free * inputs.storage.units


def _refuse_what_cannot_be(inputs: PlanInput) -> None:
    storage, binary, (left, free) = inputs.storage, inputs.binary, _left_and_free(inputs)
    if left > free:
        jobs = " and ".join(f"{w.jobs or 1} {w.name}" for w in inputs.asking if w.kept_bytes)
        raise InputError(
            f"{jobs} do not fit on {storage.name}: they leave {say_bytes(left, binary)} and {say_bytes(free, binary)} are "
            f"free, so {say_bytes(left - free, binary)} are missing: make room, or plan fewer jobs"
        )


def _alternatives(got: Row, here: PlanInput, whole: PlanInput) -> Iterator[Alternative]:
    """What each change would make of the row got: its share of a shorter simulation without the change."""

    def short(changed: PlanInput) -> Row:
        search = _Search(changed, _FEWER_BURSTS)
        found, n = max(1, search.number()[0]), min(got.n, search.most)
        stays = search.score(n) * AS_GOOD < search.score(found) and search.admits(n)
        return search.row(n if stays else found)

    before = _Search(here, _FEWER_BURSTS).row(got.n)
    changes = [(*change, False) for change in _changes(here)]
    # Shared or isolated: what becomes of the first class of this limit, since the other side has other jobs too.
    changes += [(*change, True) for change in _together_or_apart(here.asking[0], whole)]
    for change, changed, first_only in changes:
        left, free = _left_and_free(changed)
        if left > free:
            yield Alternative(change, 0, None, 0.0, "space", 0.0)
            continue
        row = short(changed)
        was, now, shown = (each.classes[0] if first_only else each for each in (before, row, got))
        faster = _score(was) / _score(now)
        if abs(faster - 1) < SAME:  # as near as a simulation is
            faster = 1.0
        yield Alternative(change, row.n, shown.batch_s and shown.batch_s / faster, now.bytes_per_s, row.held_by, faster)


def _score(row: Row | ClassRow) -> float:
    """Seconds of the batch; without one, seconds for a byte: less is better."""
    return row.batch_s or 1 / row.bytes_per_s


def _changes(inputs: PlanInput) -> Iterator[tuple[str, PlanInput]]:
    """The questions of the field, each as the plan with one thing changed."""
    storage, link, main = inputs.storage, inputs.link, inputs.asking[0]

    def with_link(**changes: object) -> PlanInput:
        return inputs.model_copy(update={"link": link.model_copy(update=changes)})

    def with_main(**changes: object) -> PlanInput:
        changed = [w.model_copy(update=changes) if w is main else w for w in inputs.workloads]
        return inputs.model_copy(update={"workloads": changed})

    doubled = storage.model_copy(update={"units": 2 * storage.units})
    yield "twice the storage", inputs.model_copy(update={"storage": doubled})
    if link.bytes_per_s is not None:
        for name, rate in LINE_RATES.items():
            if abs(rate / link.bytes_per_s - 1) > 0.01:
                yield f"a link of {name}", with_link(bytes_per_s=rate)
        yield "twice the link", with_link(bytes_per_s=2 * link.bytes_per_s)
        yield "twice the hosts", with_link(hosts=2 * link.hosts)
    if (packing := main.compression) is not None:
        changed = with_main(compression=packing.model_copy(update={"used": not packing.used}))
        yield f"{'without' if packing.used else 'with'} {packing.name}", changed
    if storage.small_file_s is not None or storage.files_per_s is not None:
        if main.files_per_burst > 1:
            yield "one file a burst", with_main(files_per_burst=1)
        elif main.burst_bytes >= 2 * _ONE_MB:
            yield "files of 1 MB", with_main(files_per_burst=main.burst_bytes // _ONE_MB)


def _together_or_apart(main: WorkloadClass, whole: PlanInput) -> Iterator[tuple[str, PlanInput]]:
    """The same class without the others, or where each has a storage of its own, with them."""
    others = [workload for workload in whole.workloads if workload is not main]
    if others and not whole.policy.isolated:
        yield f"{main.name} alone", whole.model_copy(update={"workloads": [main]})
    elif others and all(workload.jobs for workload in whole.asking):
        shared = whole.policy.model_copy(update={"isolated": False})
        yield "all on one storage", whole.model_copy(update={"workloads": [main, *others], "policy": shared})


def _notes(inputs: PlanInput) -> Iterator[str]:
    storage, policy = inputs.storage, inputs.policy
    if storage.basis != "measured":
        yield f"The figures of {storage.name} were not measured: plan-capacity sets no limit by them. Run cachewatch probe."
    if policy.isolated:
        each = _left_and_free(inputs)[1]
        sizes = [say_bytes(size, inputs.binary) for size in (each, each * len(inputs.asking)) if size < math.inf]
        free = f", with {' free on each, '.join(sizes)} together" if sizes else ""
        yield (
            f"isolated: each class is planned on a whole {storage.name} and links of its own{free}. On one {storage.name} "
            "leave policy.isolated out."
        )
    for workload in inputs.workloads:
        if storage.free_bytes is not None and workload.kept_bytes and workload.jobs is None:
            yield f"{workload.name} has no end of jobs: free_bytes is held against one of them."
        if storage.ops_per_s is not None and "op_bytes" not in workload.model_fields_set:
            size = say_bytes(workload.op_bytes, binary=True)
            yield f"{workload.name}: op_bytes is not given, so each read or write is taken for {size}."
    yield f"{say_number(100 * policy.derate)} % are taken off every rate (policy.derate)."
    yield from (f"The probe: {note}" for note in storage.notes)
