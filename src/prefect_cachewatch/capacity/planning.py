"""From the law, the chain and the simulation to the number of jobs to run, the zones around it, and what would change it.

Every row that is looked at is computed once. The number is the smallest that is as good as the best (within 2 %) and
that the policy, the free space and the measured streams admit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from itertools import pairwise

from prefect_cachewatch.capacity.chain import steady
from prefect_cachewatch.capacity.inputs import MOST_JOBS, PlanInput, WorkloadClass
from prefect_cachewatch.capacity.law import (
    Side,
    binding,
    burst_seconds,
    curve_of,
    shared_ceilings,
    whole_burst_s,
)
from prefect_cachewatch.capacity.results import Alternative, Answer, ByHand, ClassRow, LimitPlan, Measured, Reason, Row
from prefect_cachewatch.capacity.simulation import Load, simulate
from prefect_cachewatch.capacity.units import LINE_RATES, say_bytes, say_number, say_time
from prefect_cachewatch.errors import InputError

AS_GOOD = 1.02
TICK = 1.1
_BUSY = 0.8
_BURSTS, _FEWER_BURSTS = 5000, 1000
_LONGEST_BURST_S = 30 * 86400.0
_ONE_MB = 10**6


def plan(inputs: PlanInput, *, beyond_measured: bool = False) -> LimitPlan:
    """Say how many jobs to run at once on a storage.

    Args:
        inputs: storage, link, classes and policy.
        beyond_measured: whether the number may be one at which more streams move than were measured.

    Returns:
        The plan; one answer for all classes, or one for each where the policy isolates them.

    Raises:
        InputError: the storage says nothing of such a class, the batch does not fit into the free space, or a burst
            would take a month.

    Example:
        >>> from prefect_cachewatch.capacity import PlanInput
        >>> nas = {"name": "nas", "write": {"one_bytes_per_s": "250MB/s", "all_bytes_per_s": "600MB/s"}}
        >>> jobs = {"name": "caches", "burst_bytes": "2GB", "think_s": "10s", "bursts_per_job": 40, "jobs": 20}
        >>> answer = plan(PlanInput(storage=nas, link="10G", workloads=[jobs])).answers[0]
        >>> answer.n, answer.ticks_up_n, answer.row.held_by
        (10, 4, 'storage')
    """
    for each in _apart(inputs):
        _refuse_what_cannot_be(each)
    searches = [_Search(each, _BURSTS, beyond_measured) for each in _apart(inputs)]
    answers = tuple(search.answer() for search in searches)
    return LimitPlan(
        storage=inputs.storage.name,
        measured=inputs.storage.basis == "measured" and all(answer.measured_streams for answer in answers),
        binary=inputs.binary,
        answers=answers,
        alternatives=tuple(_alternatives(inputs, answers[0], beyond_measured)),
        notes=tuple(_notes(inputs, answers)),
    )


def expected_burst_s(inputs: PlanInput, n: float) -> float:
    """Say how long the mean burst of the first class that asks takes, with so many of its jobs at once.

    Args:
        inputs: the plan's input.
        n: jobs at once; between two whole numbers a straight line is taken.

    Returns:
        Seconds.
    """
    job = inputs.asking[0].model_copy(update={"jobs": None, "deadline_s": None})
    always = [workload for workload in inputs.workloads if workload.running is not None and not inputs.policy.isolated]
    most = min(MOST_JOBS, max(1, math.ceil(n)))
    policy = inputs.policy.model_copy(update={"max_jobs": most, "isolated": False})
    search = _Search(inputs.model_copy(update={"workloads": [job, *always], "policy": policy}), _FEWER_BURSTS, True)
    low = max(1, min(most, math.floor(n)))
    first_s, last_s = (search.row(at).classes[0].burst_s for at in (low, most))
    return first_s + (last_s - first_s) * max(0.0, min(n, most) - low)


class _Search:
    """One limit on one storage: its rows, and the number among them."""

    def __init__(self, inputs: PlanInput, bursts: int, beyond_measured: bool) -> None:
        self.inputs, self.bursts, self.beyond = inputs, bursts, beyond_measured
        self.main = inputs.asking[0]
        self.workloads = [self.main, *(w for w in inputs.workloads if w is not self.main and w.running != 0)]
        self.always = sum(workload.running or 0 for workload in self.workloads)
        self.jobs = sum(workload.jobs or 0 for workload in self.workloads)
        self.most = min(inputs.policy.max_jobs, self.jobs or inputs.policy.max_jobs)
        self.measured = min(
            (reach for workload in self.workloads if (reach := curve_of(inputs.storage, workload).measured_n)),
            default=None,
        )
        self.row: Callable[[int], Row] = lru_cache(maxsize=None)(self._row)

    def _loads(self, side: Side) -> list[Load]:
        streams = range(1, self.most + self.always + 1)
        return [
            Load(
                one_burst_s=[whole_burst_s(burst_seconds(self.inputs, workload, n, side)) for n in streams],
                think_s=workload.think_s,
                bursts=workload.bursts_per_job,
                jobs=workload.jobs,
                running=workload.running,
                files=workload.files_per_burst,
                appears_while_moving=workload.bytes_appear == "while_moving",
                burst_cv=workload.burst_cv,
            )
            for workload in self.workloads
        ]

    @cached_property
    def loads(self) -> list[Load]:
        return self._loads("middle")

    def _row(self, n: int) -> Row:
        done = simulate(self.loads, n, self.bursts)
        classes = [
            ClassRow(
                name=workload.name,
                bytes_per_s=mine.bursts_per_s * workload.wire_bytes,
                burst_s=mine.burst_s,
                burst_p99_s=mine.burst_p99_s,
                silence_p99_s=mine.silence_p99_s,
                batch_s=mine.end_s if workload.jobs else None,
            )
            for workload, mine in zip(self.workloads, done.classes, strict=True)
        ]
        streams, p99 = done.streams, done.streams_p99
        if len(classes) == 1:  # exact where it can be
            exact = steady(self.loads[0].one_burst_s, self.main.think_s, n)
            streams, p99 = exact.streams, exact.streams_p99
            classes[0] = ClassRow(
                name=self.main.name,
                bytes_per_s=exact.bursts_per_s * self.main.wire_bytes,
                burst_s=exact.burst_s,
                burst_p99_s=max(classes[0].burst_p99_s, exact.burst_s),
                silence_p99_s=classes[0].silence_p99_s,
                batch_s=classes[0].batch_s,
            )
        together = sum(mine.bytes_per_s for mine in classes)
        return Row(
            n=n,
            bytes_per_s=together,
            streams=streams,
            streams_p99=p99,
            batch_s=done.wall_s if self.jobs else None,
            held_by=self._held_by(classes, streams),
            classes=tuple(classes),
        )

    def _held_by(self, classes: list[ClassRow], streams: float) -> str:
        at = max(1, round(streams))
        ceilings = [min(shared_ceilings(self.inputs, workload, at).values()) for workload in self.workloads]
        busy = sum(mine.bytes_per_s / most for mine, most in zip(classes, ceilings, strict=True))
        if busy < _BUSY and self.main.think_s > classes[0].burst_s:
            return "computing"
        seconds = burst_seconds(self.inputs, self.main, at)
        name = binding(seconds)
        alone_s = burst_seconds(self.inputs, self.main, 1)["storage"]
        return "one stream" if name == "storage" and seconds["storage"] < 1.05 * alone_s else name

    def score(self, n: int) -> float:
        """Seconds for the batch; without one, seconds for a byte: less is better."""
        row = self.row(n)
        return (
            row.batch_s
            if row.batch_s is not None
            else 1
            / sum(
                mine.bytes_per_s
                for mine, workload in zip(row.classes, self.workloads, strict=True)
                if workload.running is None
            )
        )

    @cached_property
    def best_n(self) -> int:
        """The smallest number that is as good as the best of all that are looked at."""
        tried: list[int] = []
        best, since = float("inf"), 0
        for n in _grid(self.most):
            tried.append(n)
            since = 0 if self.score(n) < best * 0.995 else since + 1
            best = min(best, self.score(n))
            if since >= 5 and n > 4 * self.filling:
                break
        return self._smallest(tried, lambda n: self.score(n) <= AS_GOOD * best)

    def _smallest(self, tried: list[int], holds: Callable[[int], bool]) -> int:
        """The smallest number for which something holds: the first of those tried, or one in the gap before it."""
        at = next(i for i, n in enumerate(tried) if holds(n))
        gap = range(tried[at - 1] + 1 if at else tried[at], tried[at] + 1)
        return gap[bisect_left(gap, True, key=holds)]

    @property
    def filling(self) -> float:
        return self.by_hand.filling_n

    def _ceilings(self, workload: WorkloadClass) -> dict[str, float]:
        """What all streams may move at most, at the number of streams that moves the most."""
        most = max(self.most, self.measured or 1) + self.always
        every = (shared_ceilings(self.inputs, workload, n) for n in range(1, most + 1))
        return max(every, key=lambda some: min(some.values()))

    @cached_property
    def by_hand(self) -> ByHand:
        main, ceilings = self.main, self._ceilings(self.main)
        least = min(ceilings, key=lambda name: ceilings[name])
        batch = tuple(
            (w.wire_bytes * w.bursts_per_job * w.jobs, min(self._ceilings(w).values()))
            for w in self.workloads
            if w.jobs
        )
        return ByHand(
            parts=batch or ((main.wire_bytes, ceilings[least]),),
            ceiling=least,
            think_s=main.think_s,
            burst_s=self.loads[0].one_burst_s[0],
            demand_s=main.wire_bytes / ceilings[least],
        )

    def _measured_points(self, rows: tuple[Row, ...]) -> Iterator[Measured]:
        """The curve's points, each where the rows have so many streams on average."""
        units = self.inputs.storage.units
        for point in curve_of(self.inputs.storage, self.main).points:
            for left, right in pairwise(rows):
                if left.streams <= point.n * units <= right.streams:
                    share = (point.n * units - left.streams) / max(1e-9, right.streams - left.streams)
                    yield Measured(left.n + share * (right.n - left.n), point.bytes_per_s * units, point.spread)
                    break

    @cached_property
    def ticks_up_n(self) -> int | None:
        accepted_s = TICK * self.row(1).classes[0].burst_s
        if len(self.workloads) == 1:
            found = bisect_left(
                range(1, self.most + 1), True,
                key=lambda n: steady(self.loads[0].one_burst_s, self.main.think_s, n).burst_s > accepted_s,
            ) + 1  # fmt: skip
        else:
            found = (
                bisect_left(range(1, self.most + 1), True, key=lambda n: self.row(n).classes[0].burst_s > accepted_s)
                + 1
            )
        return found if found <= self.most else None

    def _caps(self) -> Iterator[tuple[Reason, Callable[[int], bool]]]:
        """The rules, each with what it admits; what it does not admit at some number, it does not at larger ones."""
        policy, free = self.inputs.policy, self.inputs.storage.free_bytes
        if self.measured is not None and not self.beyond:
            reach = self.measured * self.inputs.storage.units
            yield "measured", lambda n: self.row(n).streams_p99 <= reach
        watched = [i for i, w in enumerate(self.workloads) if w.kind == "generation" and w.running is None]
        if watched:
            yield "stall", lambda n: all(self.row(n).classes[i].silence_p99_s <= policy.stall_window_s for i in watched)
        if policy.max_burst_s is not None:
            most_s = policy.max_burst_s
            yield "burst", lambda n: self.row(n).classes[0].burst_s <= most_s
        if free is not None and not self.jobs:
            yield "space", lambda n: n * self.main.kept_bytes <= free
        if policy.aim == "latency":
            tick = self.ticks_up_n
            yield "latency", lambda n: tick is None or n < tick

    def number(self) -> tuple[int, Reason, bool]:
        """The number, what binds it, and whether even one job keeps the rules."""
        n = self.most if self.inputs.policy.aim == "latency" else self.best_n
        reason: Reason = "best"
        for name, admits in self._caps():
            if not admits(n):
                n, reason = _last_admitted(admits, n), name
                if n == 0:
                    return 1, name, False
        if reason == "best":
            return n, "jobs" if n == self.jobs else "looked" if n == self.most and not self._is_full else "best", True
        lower = [*_grid(n)]
        if self.inputs.policy.aim == "batch":
            best = min(map(self.score, lower))
            n = self._smallest(lower, lambda m: self.score(m) <= AS_GOOD * best)
        return n, reason, True

    @property
    def _is_full(self) -> bool:
        return self.row(self.best_n).held_by != "computing" and self.best_n < self.most

    def answer(self) -> Answer:
        n, reason, feasible = self.number()
        best_n = self.best_n
        full_n = best_n if best_n < self.most else None
        shown = {
            1,
            n,
            best_n,
            *(m for m in (self.ticks_up_n, full_n) if m),
            *(m for m in _grid(self.most) if m <= 2 * best_n),
        }
        if full_n is not None and full_n > 1:
            shown.add(full_n - 1)
        storage = self.inputs.storage.name
        rows = tuple(self.row(m) for m in sorted(shown) if m <= self.most)
        missed = [
            mine.batch_s - workload.deadline_s
            for mine, workload in zip(self.row(n).classes, self.workloads, strict=True)
            if workload.deadline_s is not None and mine.batch_s is not None
        ]
        return Answer(
            name=f"{storage}-{self.main.name}" if self.inputs.policy.isolated else storage,
            classes=tuple(w.name for w in self.workloads if w.running is None),
            jobs=tuple(w.jobs for w in self.workloads if w.running is None),
            burst_bytes=self.main.burst_bytes,
            n=n,
            reason=reason,
            why=self._why(n, reason, feasible),
            feasible=feasible,
            best_n=best_n,
            ticks_up_n=self.ticks_up_n,
            full_n=full_n,
            measured_streams=self.measured,
            deadline_missed_s=max(0.0, *missed, 0.0),
            batch_range_s=self._range(n),
            by_hand=self.by_hand,
            ceilings=tuple(self._ceilings(self.main).items()),
            measured=tuple(self._measured_points(rows)),
            rows=rows,
        )

    def _range(self, n: int) -> tuple[float, float] | None:
        """The batch by the edges of what the figures allow; None where they are one."""
        if not self.jobs:
            return None
        edges: tuple[Side, Side] = ("high", "low")
        low, high = (simulate(self._loads(side), n, self.bursts).wall_s for side in edges)
        return (low, high) if high > 1.01 * low else None

    def _why(self, n: int, reason: Reason, feasible: bool) -> str:
        policy, at = self.inputs.policy, 1 if not feasible else n + 1
        first = self.row(min(at, self.most)).classes[0] if reason in ("stall", "burst") else None
        if reason == "measured":
            return f"beyond {say_number((self.measured or 0) * self.inputs.storage.units)} streams nothing was measured"
        if reason == "stall" and first is not None:
            return (
                f"at {at}, 1 in 100 silences is longer than {say_time(first.silence_p99_s)}, and the watch stops a "
                f"generation after {say_time(policy.stall_window_s)}"
            )
        if reason == "burst" and first is not None:
            return f"at {at} a burst takes {say_time(first.burst_s)}, and the plan accepts {say_time(policy.max_burst_s or 0)}"
        if reason == "space":
            free, binary = self.inputs.storage.free_bytes or 0, self.inputs.binary
            return f"each leaves {say_bytes(self.main.kept_bytes, binary)}, and {say_bytes(free, binary)} are free"
        if reason == "looked":
            return "the plan looks at no more (policy.max_jobs)"
        return ""


def _last_admitted(admits: Callable[[int], bool], refused: int) -> int:
    """The largest number below a refused one that is admitted; 0 where none is."""
    return bisect_left(range(1, refused + 1), True, key=lambda n: not admits(n))


def _grid(most: int) -> Iterator[int]:
    """Numbers of jobs to look at: each from 1 to 6, then a quarter more each time, and the last."""
    n = 1
    while n < most:
        yield n
        n = max(n + 1, round(n * 1.25))
    yield most


def _apart(inputs: PlanInput) -> list[PlanInput]:
    """The plans that the classes make: one for all, or one for each."""
    if not inputs.policy.isolated:
        return [inputs]
    return [inputs.model_copy(update={"workloads": [workload]}) for workload in inputs.asking]


def _refuse_what_cannot_be(inputs: PlanInput) -> None:
    storage, binary = inputs.storage, inputs.binary
    for workload in inputs.workloads:
        alone_s = whole_burst_s(burst_seconds(inputs, workload, 1))
        if alone_s > _LONGEST_BURST_S:
            raise InputError(
                f"a burst of {workload.name!r}, {say_bytes(workload.burst_bytes, binary)}, would take "
                f"{say_time(alone_s)} alone on {storage.name!r}: check the units"
            )
    wanted = sum(workload.kept_bytes * workload.jobs for workload in inputs.workloads if workload.jobs)
    one = max(workload.kept_bytes for workload in inputs.asking)
    free = storage.free_bytes
    if free is not None and max(wanted, one) > free:
        jobs = " and ".join(f"{w.jobs or 1} {w.name}" for w in inputs.asking if w.kept_bytes)
        raise InputError(
            f"{jobs} do not fit on {storage.name}: they leave {say_bytes(max(wanted, one), binary)} and "
            f"{say_bytes(free, binary)} are free, so {say_bytes(max(wanted, one) - free, binary)} are missing: "
            "make room, or plan fewer jobs"
        )


def _alternatives(inputs: PlanInput, answer: Answer, beyond: bool) -> Iterator[Alternative]:
    """What each change would make of the answer: its share of the same, shorter simulation without the change."""

    def short(changed: PlanInput) -> Row:
        search = _Search(changed, _FEWER_BURSTS, beyond)
        return search.row(search.number()[0])

    before = _score_of(short(_apart(inputs)[0]))
    for change, changed in _changes(inputs):
        row = short(changed)
        faster = before / _score_of(row)
        batch_s = None if answer.row.batch_s is None else answer.row.batch_s / faster
        yield Alternative(change, row.n, batch_s, row.bytes_per_s, row.held_by, faster)


def _score_of(row: Row) -> float:
    return row.batch_s if row.batch_s is not None else 1 / row.bytes_per_s


def _changes(inputs: PlanInput) -> Iterator[tuple[str, PlanInput]]:
    """The questions of the field, each as the plan with one thing changed."""
    storage, link, main = inputs.storage, inputs.link, inputs.asking[0]
    others = [workload for workload in inputs.workloads if workload is not main]
    here = inputs.model_copy(update={"workloads": [main]}) if inputs.policy.isolated else inputs

    def with_main(**changes: object) -> PlanInput:
        changed = main.model_copy(update=changes)
        return here.model_copy(update={"workloads": [changed if w is main else w for w in here.workloads]})

    yield (
        "twice the storage",
        here.model_copy(update={"storage": storage.model_copy(update={"units": 2 * storage.units})}),
    )
    if link.bytes_per_s is not None:
        rates = {name: rate for name, rate in LINE_RATES.items() if abs(rate / link.bytes_per_s - 1) > 0.01}
        for name, rate in rates.items():
            yield f"a link of {name}", here.model_copy(update={"link": link.model_copy(update={"bytes_per_s": rate})})
        doubled = link.model_copy(update={"bytes_per_s": 2 * link.bytes_per_s})
        yield "twice the link", here.model_copy(update={"link": doubled})
        yield "twice the hosts", here.model_copy(update={"link": link.model_copy(update={"hosts": 2 * link.hosts})})
    if main.compression is not None:
        used = main.compression.used
        name = f"{'without' if used else 'with'} {main.compression.name}"
        yield name, with_main(compression=main.compression.model_copy(update={"used": not used}))
    counts_files = storage.small_file_s is not None or storage.files_per_s is not None
    if counts_files and main.files_per_burst > 1:
        yield "one file a burst", with_main(files_per_burst=1)
    elif counts_files and main.burst_bytes >= 2 * _ONE_MB:
        yield "files of 1 MB", with_main(files_per_burst=main.burst_bytes // _ONE_MB)
    if others and inputs.policy.isolated:
        if all(workload.jobs is not None or workload.running is not None for workload in inputs.workloads):
            shared = inputs.policy.model_copy(update={"isolated": False})
            yield "all on one storage", inputs.model_copy(update={"policy": shared})
    elif others:
        yield f"{main.name} alone", inputs.model_copy(update={"workloads": [main]})


def _notes(inputs: PlanInput, answers: tuple[Answer, ...]) -> Iterator[str]:
    storage = inputs.storage
    if storage.basis != "measured":
        what = "the vendor's" if storage.basis == "vendor" else "given by hand"
        yield (
            f"The figures of {storage.name} are {what}, not measured: plan-capacity sets no limit by them. "
            "Measure with cachewatch probe."
        )
    yield f"{say_number(100 * inputs.policy.derate)} % are taken off every rate (policy.derate)."
    for answer in answers:
        reach = (answer.measured_streams or 0) * storage.units
        if reach and answer.row.streams_p99 > reach:
            yield f"Up to {answer.row.streams_p99} streams move at once, and {reach} were measured: beyond, as much is taken."
    for workload in inputs.workloads:
        if workload.kind != "generation" and (workload.access == "random") != (
            curve_of(storage, workload) is storage.random_read
        ):
            taken = "reads from start to end" if workload.access == "random" else "random reads"
            yield f"For {workload.name} the curve of {taken} is taken: {storage.name} has no other."
    if any(workload.kind == "generation" for workload in inputs.asking):
        yield f"Silences of generations stay within {say_time(inputs.policy.stall_window_s)} (policy.stall_window_s)."
    yield from (f"The probe: {note}" for note in storage.notes)
