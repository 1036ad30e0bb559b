"""The watch over a recorded trace in simulated time: the real ledger and the real rule, no clock. Pure.

It answers when a policy would have stopped the generation, what it would have suspected, and which windows would
have been enough. `rows` defines a trace.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.walk import Part
from prefect_cachewatch.run.trace.rows import Trace, TraceFiles
from prefect_cachewatch.watching.servers.warmup import PhaseChange, Warmup
from prefect_cachewatch.watching.stall import (
    MIN_GROWTH_BYTES,
    Kind,
    Measurement,
    StallRule,
    Suspicion,
    Verdict,
    effective_poll_s,
)

Status = Literal["ended", "stalled", "deadline_exceeded"]

_LONGEST_S = 7 * 86400.0  # the policy's own bound on a window
_SHORTEST_S = 0.2
_MAX_POLLS = 5_000_000
_LEAST_STEP_S = 1e-3
_MAX_TRIES = 40


@dataclass(frozen=True)
class Enough:
    """The shortest windows that never stop a trace's run; None if no window up to a week is enough."""

    stall_after_s: float | None
    first_write_within_s: float | None


@dataclass(frozen=True)
class Replay:
    """What a policy does on a trace; times in seconds since the trace's first row.

    `status` is `ended` if the trace came to its end without a final verdict. `grew_again_s` is set if the trace goes on
    growing after the verdict: then the policy would have stopped a healthy generation.
    """

    status: Status
    kind: Kind | None
    at_s: float
    window_s: float
    pause_s: float
    first_write_s: float | None
    last_growth_s: float | None
    longest_pause_s: float
    suspicions: tuple[Suspicion, ...]
    grew_again_s: float | None
    bytes_written: int
    hang_at_s: float | None
    measurements: int
    phases: tuple[PhaseChange, ...] = ()

    @property
    def after_last_growth_s(self) -> float:
        """Seconds from the last growth that was seen to the end; from the start if there was none."""
        return self.at_s - (self.last_growth_s or 0.0)

    @property
    def false_suspicions(self) -> tuple[Suspicion, ...]:
        """The suspicions that growth refuted."""
        return tuple(each for each in self.suspicions if each.cleared_at_s is not None)


def replay_trace(
    trace: Trace,
    policy: StallPolicy,
    hang_at_s: float | None = None,
    warmup: Warmup | None = None,
) -> Replay:
    """Watch a trace with a policy.

    Args:
        trace: with at least one row.
        policy: windows and poll.
        hang_at_s: seconds after the trace's first row at which the generator freezes and never ends; None: it goes
            on to the trace's end, and has ended there.
        warmup: for the trace of a server: which silence is its warm-up.

    Returns:
        The result. As in a real watch, a stall is reported within its window + one poll.

    Raises:
        InputError: trace and windows are too long for the poll.

    Example:
        >>> from prefect_cachewatch.run.trace.rows import TraceRow
        >>> trace = Trace("t", (TraceRow(0, 0, 0), TraceRow(10, 5000, 1), TraceRow(400, 15000, 2)))
        >>> found = replay_trace(trace, StallPolicy())
        >>> found.status, found.at_s, found.grew_again_s
        ('stalled', 310.0, 400)
    """
    _require_few_polls(trace, policy, hang_at_s, 0.0 if warmup is None else warmup.within_s)
    start_s = trace.start_s
    until_s = math.inf if hang_at_s is None else start_s + hang_at_s
    files = TraceFiles(trace, until_s)
    watch, verdict, now_s = _run(trace, files, policy, trace.end_s if hang_at_s is None else math.inf, warmup)
    rule = watch.rule
    return Replay(
        status="ended" if not verdict.final else "stalled" if verdict.status == "stalled" else "deadline_exceeded",
        kind=verdict.kind if verdict.final else None,
        at_s=now_s - start_s,
        window_s=verdict.window_s if verdict.final else rule.window_s,
        pause_s=verdict.pause_s if verdict.final else rule.pause_s,
        first_write_s=None if rule.first_write_s is None else rule.first_write_s - start_s,
        last_growth_s=None if rule.last_growth_s is None else rule.last_growth_s - start_s,
        longest_pause_s=rule.longest_pause_s,
        suspicions=tuple(rule.suspicions),
        grew_again_s=_next_progress_s(files, policy, now_s, start_s) if verdict.final else None,
        bytes_written=watch.growth.bytes_written,
        hang_at_s=hang_at_s,
        measurements=watch.measurements,
        phases=tuple(rule.phases.changes),
    )


def find_enough(trace: Trace, policy: StallPolicy, hang_at_s: float | None = None) -> Enough:
    """Find the shortest windows with which a policy stops nothing that the trace shows going on.

    Args:
        trace: with at least one row.
        policy: its poll, least growth and kind of progress; its windows do not matter.
        hang_at_s: as for `replay_trace`; the silence after it asks for no window.

    Returns:
        The windows, checked by a replay with them. The silence before the trace's end counts where the
        generator ended by itself, or the trace does not say how it ended.

    Raises:
        InputError: as `replay_trace`.

    Example:
        >>> from prefect_cachewatch.run.trace.rows import TraceRow
        >>> trace = Trace("t", (TraceRow(0, 0, 0), TraceRow(10, 5000, 1), TraceRow(400, 15000, 2)))
        >>> find_enough(trace, StallPolicy())
        Enough(stall_after_s=390.1, first_write_within_s=10.1)
    """
    until_s = math.inf if hang_at_s is None else trace.start_s + hang_at_s
    files = TraceFiles(trace, until_s)
    times = _progress_times(files, policy)
    ends = hang_at_s is None and trace.ending in ("exited", "unknown")
    if not times:
        first = _longest_s(files, [trace.start_s, *files.told, trace.end_s]) if ends else None
        return Enough(None, None if first is None else _rounded_up(first))
    # Lines of progress end pauses in every phase.
    before = [told_s for told_s in files.told if told_s < times[0]]
    last: list[float] = [trace.end_s] if ends else []
    after: list[float] = sorted({*times, *files.told[len(before) :], *last})
    first_s: float | None = _rounded_up(_longest_s(files, [trace.start_s, *before, times[0]]))
    stall_s: float | None = _rounded_up(_longest_s(files, after))
    last_s = trace.end_s if ends else times[-1]
    free = policy.model_copy(update={"max_duration_s": None})
    for _ in range(_MAX_TRIES):
        if first_s is None or stall_s is None:
            break
        asked = free.model_copy(update={"stall_after_s": stall_s, "first_write_within_s": first_s})
        _, verdict, _ = _run(trace, files, asked, last_s, churns=False)
        if verdict.kind == "never_started":
            first_s = _rounded_up(first_s * 1.02)
        elif verdict.kind == "no_growth":
            stall_s = _rounded_up(stall_s * 1.02)
        else:
            break
    return Enough(stall_s, first_s)


def _run(
    trace: Trace,
    files: TraceFiles,
    policy: StallPolicy,
    end_s: float,
    warmup: Warmup | None = None,
    *,
    churns: bool = True,
) -> tuple[_Watch, Verdict, float]:
    """Measure until a verdict is final or the trace ends; returns the time, too."""
    now_s, verdict = trace.start_s, Verdict("growing")
    watch = _Watch(policy, now_s, warmup)
    if not churns:
        watch.rule.churn_after_s = math.inf
    watch.scan(files, now_s)
    # Where the watch itself ended the run, its last measurement belongs to it.
    last_s = end_s + _LEAST_STEP_S if trace.ending == "stopped" else math.nextafter(end_s, 0)
    while not verdict.final:
        due_s = now_s + max(watch.rule.next_delay_s(), _LEAST_STEP_S)
        began_s = files.stands_still_until(due_s)
        if began_s > last_s:
            now_s = end_s
            watch.look(files, now_s)  # a generator's end brings one last scan, and no verdict
            return watch, Verdict("growing"), now_s
        now_s = began_s
        verdict = watch.look(files, now_s, now_s - due_s)
    return watch, verdict, now_s


class _Watch:
    """A ledger and a rule, fed with a trace's files."""

    def __init__(self, policy: StallPolicy, started_s: float, warmup: Warmup | None) -> None:
        self.rule = StallRule(policy, started_s, warmup)
        self.growth = Growth()
        self.measurements = 0
        self._ledger = Ledger()
        self._told = 0  # lines of progress that the rule knows of

    def scan(self, files: TraceFiles, at_s: float) -> None:
        present = files.at(at_s)
        self._ledger.begin()
        self._ledger.take("/", [Part("/", "", [str(file.st_ino) for file in present], present)])
        self.growth = self._ledger.end()

    def look(self, files: TraceFiles, at_s: float, late_s: float = 0.0) -> Verdict:
        self.measurements += 1
        missing = files.is_blind(at_s)
        if missing is not None:
            return self.rule.observe_blind(at_s, 0.0, missing)
        self.scan(files, at_s)
        growth = self.growth
        seen = Measurement(
            growth.bytes_written,
            growth.allocated_written,
            growth.bytes_kept,
            growth.allocated_kept,
            _age_s(growth.newest_changed_ns, at_s),
            _age_s(growth.touched_ns, at_s),
            growth.bytes_present,
            told_age_s=self._told_age_s(files, at_s),
        )
        return self.rule.observe(at_s, at_s, seen, late_s)

    def _told_age_s(self, files: TraceFiles, at_s: float) -> float | None:
        """The last line of progress since the measurement before."""
        seen, self._told = self._told, bisect_right(files.told, at_s)
        return max(0.0, at_s - files.told[self._told - 1]) if self._told > seen else None


def _age_s(changed_ns: int | None, at_s: float) -> float | None:
    return None if changed_ns is None else max(0.0, round(at_s - changed_ns / 1e9, 6))


def _require_few_polls(trace: Trace, policy: StallPolicy, hang_at_s: float | None, warmup_s: float = 0.0) -> None:
    span_s = trace.end_s - trace.start_s
    if hang_at_s is not None:
        longest_s = max(policy.first_write_within_s, 4 * policy.stall_after_s)
        span_s = hang_at_s + longest_s + warmup_s
    poll_s = effective_poll_s(policy)
    if span_s / poll_s > _MAX_POLLS:
        raise InputError(
            f"{format_duration(span_s)} at a poll of {format_duration(poll_s)} are more than {_MAX_POLLS:,} measurements: "
            "give a longer --poll"
        )


def _progress_times(files: TraceFiles, policy: StallPolicy) -> list[float]:
    """When a counter had advanced by the least growth since the last time."""
    found: list[float] = []
    written, alloc = 0, 0
    for total in files.totals[1:]:
        if total.written - written >= MIN_GROWTH_BYTES or total.written_alloc - alloc >= MIN_GROWTH_BYTES:
            found.append(total.at_s)
            written, alloc = total.written, total.written_alloc
    return sorted({*found, *files.touches}) if policy.progress == "any" else found


def _next_progress_s(files: TraceFiles, policy: StallPolicy, after_s: float, start_s: float) -> float | None:
    state = files.state_at(after_s)
    now = files.totals[state]
    for total in files.totals[state + 1 :]:
        if (
            total.written - now.written >= MIN_GROWTH_BYTES
            or total.written_alloc - now.written_alloc >= MIN_GROWTH_BYTES
        ):
            return total.at_s - start_s
    return None


def _longest_s(files: TraceFiles, edges: list[float]) -> float:
    longest_s = 0.0
    for begin_s, end_s in itertools.pairwise(edges):
        if end_s - begin_s > longest_s:
            longest_s = max(longest_s, files.observed_s(begin_s, end_s))
    return longest_s


def _rounded_up(seconds: float) -> float | None:
    """At least a tenth of a second more than the pause: a pause as long as the window is a stall."""
    window_s = max(_SHORTEST_S, math.floor(seconds * 10 + 1 + 1e-6) / 10)
    return window_s if window_s <= _LONGEST_S else None
