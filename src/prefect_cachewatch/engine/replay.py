"""The stall rule over a recorded attempt in simulated time: the real rule, no clock. Pure.

It answers when a policy would have stopped the generation, what it would have suspected, and which windows would
have been enough. What was measured is dated by when it came about, so that other polls see it at other moments.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.engine.events import Progress
from prefect_cachewatch.engine.recording import Recording
from prefect_cachewatch.errors import InputError
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
# If a wait ends later than this, beyond a timer's error, the machine or cachewatch was suspended.
_STILL_S = 0.05


@dataclass(frozen=True)
class Enough:
    """The shortest windows that never stop a recorded run; None if no window up to a week is enough."""

    stall_after_s: float | None
    first_write_within_s: float | None


@dataclass(frozen=True)
class Replay:
    """What a policy does on a recorded attempt; times in seconds since its start.

    `status` is `ended` if it came to its end without a final verdict. `grew_again_s` is set if it goes on
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

    @property
    def after_last_growth_s(self) -> float:
        """Seconds from the last growth that was seen to the end; from the start if there was none."""
        return self.at_s - (self.last_growth_s or 0.0)

    @property
    def false_suspicions(self) -> tuple[Suspicion, ...]:
        """The suspicions that growth refuted."""
        return tuple(each for each in self.suspicions if each.cleared_at_s is not None)


def replay_recording(recording: Recording, policy: StallPolicy, hang_at_s: float | None = None) -> Replay:
    """Watch a recorded attempt with a policy.

    Args:
        recording: the attempt.
        policy: windows and poll.
        hang_at_s: seconds after the start at which the generator freezes and never ends; None: it goes on to the
            recording's end, and has ended there.

    Returns:
        The result. As in a real watch, a stall is reported within its window + one poll.

    Raises:
        InputError: recording and windows are too long for the poll.

    Example:
        >>> samples = (Progress(0), Progress(10, bytes_written=5000), Progress(400, bytes_written=15000))
        >>> found = replay_recording(Recording("t", samples, end_s=400), StallPolicy())
        >>> found.status, found.at_s, found.grew_again_s
        ('stalled', 310.0, 400)
    """
    _require_few_polls(recording, policy, hang_at_s)
    until_s = math.inf if hang_at_s is None else hang_at_s
    past = _Past(recording, until_s)
    watch, verdict, now_s = _run(recording, past, policy, recording.end_s if hang_at_s is None else math.inf)
    rule = watch.rule
    return Replay(
        status="ended" if not verdict.final else "stalled" if verdict.status == "stalled" else "deadline_exceeded",
        kind=verdict.kind if verdict.final else None,
        at_s=now_s,
        window_s=verdict.window_s if verdict.final else rule.window_s,
        pause_s=verdict.pause_s if verdict.final else rule.pause_s,
        first_write_s=rule.first_write_s,
        last_growth_s=rule.last_growth_s,
        longest_pause_s=rule.longest_pause_s,
        suspicions=tuple(rule.suspicions),
        grew_again_s=_next_progress_s(past, now_s) if verdict.final else None,
        bytes_written=watch.bytes_written,
        hang_at_s=hang_at_s,
        measurements=watch.measurements,
    )


def find_enough(recording: Recording, policy: StallPolicy, hang_at_s: float | None = None) -> Enough:
    """Find the shortest windows with which a policy stops nothing that went on.

    Args:
        recording: the attempt.
        policy: its poll, least growth and kind of progress; its windows do not matter.
        hang_at_s: as for `replay_recording`; the silence after it asks for no window.

    Returns:
        The windows, checked by a replay with them. The silence before the end counts where the
        generator ended by itself.

    Raises:
        InputError: as `replay_recording`.

    Example:
        >>> samples = (Progress(0), Progress(10, bytes_written=5000), Progress(400, bytes_written=15000))
        >>> find_enough(Recording("t", samples, end_s=400), StallPolicy())
        Enough(stall_after_s=390.1, first_write_within_s=10.1)
    """
    until_s = math.inf if hang_at_s is None else hang_at_s
    past = _Past(recording, until_s)
    times = _progress_times(past, policy)
    ends = hang_at_s is None and recording.ending == "exited"
    if not times:
        first = _longest_s(past, [0.0, *past.told, recording.end_s]) if ends else None
        return Enough(None, None if first is None else _rounded_up(first))
    # Lines of progress end pauses in every phase.
    before = [told_s for told_s in past.told if told_s < times[0]]
    last: list[float] = [recording.end_s] if ends else []
    after: list[float] = sorted({*times, *past.told[len(before) :], *last})
    first_s: float | None = _rounded_up(_longest_s(past, [0.0, *before, times[0]]))
    stall_s: float | None = _rounded_up(_longest_s(past, after))
    last_s = recording.end_s if ends else times[-1]
    free = policy.model_copy(update={"max_duration_s": None})
    for _ in range(_MAX_TRIES):
        if first_s is None or stall_s is None:
            break
        asked = free.model_copy(update={"stall_after_s": stall_s, "first_write_within_s": first_s})
        _, verdict, _ = _run(recording, past, asked, last_s, churns=False)
        if verdict.kind == "never_started":
            first_s = _rounded_up(first_s * 1.02)
        elif verdict.kind == "no_growth":
            stall_s = _rounded_up(stall_s * 1.02)
        else:
            break
    return Enough(stall_s, first_s)


def _run(
    recording: Recording,
    past: _Past,
    policy: StallPolicy,
    end_s: float,
    *,
    churns: bool = True,
) -> tuple[_Watch, Verdict, float]:
    """Measure until a verdict is final or the recording ends; returns the time, too."""
    now_s, verdict = 0.0, Verdict("growing")
    watch = _Watch(policy)
    if not churns:
        watch.rule.churn_after_s = math.inf
    # Where the watch itself ended the run, its last measurement belongs to it.
    last_s = end_s + _LEAST_STEP_S if recording.ending == "stopped" else math.nextafter(end_s, 0)
    while not verdict.final:
        due_s = now_s + max(watch.rule.next_delay_s(), _LEAST_STEP_S)
        began_s = past.stands_still_until(due_s)
        if began_s > last_s:
            now_s = end_s
            watch.look(past, now_s)  # a generator's end brings one last scan, and no verdict
            return watch, Verdict("growing"), now_s
        now_s = began_s
        verdict = watch.look(past, now_s, now_s - due_s)
    return watch, verdict, now_s


class _Watch:
    """A rule, fed with what a scan at any moment would have seen."""

    def __init__(self, policy: StallPolicy) -> None:
        self.rule = StallRule(policy, 0.0)
        self.bytes_written = self.measurements = 0
        self._seen_s = 0.0

    def look(self, past: _Past, at_s: float, late_s: float = 0.0) -> Verdict:
        self.measurements += 1
        missing = past.is_blind(at_s)
        if missing is not None:
            return self.rule.observe_blind(at_s, 0.0, missing)
        grew_s, now = past.state_at(at_s)
        grown = past.state_at(self._seen_s)[1] is not now

        def age_s(times: Sequence[float]) -> float | None:
            last = bisect_right(times, at_s)
            return max(0.0, at_s - times[last - 1]) if last > bisect_right(times, self._seen_s) else None

        seen = Measurement(
            now.bytes_written,
            now.allocated_written,
            now.bytes_kept,
            now.allocated_kept,
            max(0.0, round(at_s - grew_s, 6)) if grown else None,
            age_s(past.touched),
            now.bytes_present,
            age_s(past.overwritten),
            age_s(past.told),
        )
        self._seen_s, self.bytes_written = at_s, now.bytes_written
        return self.rule.observe(at_s, at_s, seen, late_s)


class _Past:
    """What was recorded, by the moment at which it came about.

    Args:
        recording: the attempt.
        until_s: what came later is left out; default nothing.
    """

    def __init__(self, recording: Recording, until_s: float = math.inf) -> None:
        samples = [each for each in recording.samples if each.at_s <= until_s]
        # The first measurement after the freeze may have growth before it.
        after = recording.samples[len(samples) :][:1]
        grown = [*samples, *(each for each in after if each.grew_at_s is not None and each.grew_at_s <= until_s)]
        self.states: list[tuple[float, Progress]] = [(0.0, recording.samples[0])]
        for each in grown:
            last_s, last = self.states[-1]
            if _totals(each) != _totals(last):
                at_s = each.at_s if each.grew_at_s is None else min(each.at_s, max(each.grew_at_s, last_s))
                self.states.append((at_s, each))
        self._times = [at_s for at_s, _ in self.states]
        self.touched = _times(grown, "touched_at_s", until_s)
        self.overwritten = _times(grown, "overwritten_at_s", until_s)
        self.told = _times(grown, "told_at_s", until_s)
        self._blind = [
            (each.at_s - each.scan_s, max(each.at_s, later.at_s - later.scan_s), each.blind == "missing")
            for each, later in itertools.zip_longest(samples, samples[1:], fillvalue=samples[-1])
            if each.blind
        ]
        self._still = [
            (each.at_s - each.scan_s - each.late_s, each.at_s - each.scan_s)
            for each in samples
            if each.late_s > _STILL_S
        ]

    def state_at(self, at_s: float) -> tuple[float, Progress]:
        """Return what was there at a moment, and since when."""
        return self.states[max(0, bisect_right(self._times, at_s) - 1)]

    def observed_s(self, from_s: float, to_s: float) -> float:
        """Say how much of a span was watched: neither blind nor suspended."""
        spans = [*self._still, *((begin_s, end_s) for begin_s, end_s, _ in self._blind)]
        lost_s = sum(max(0.0, min(to_s, end_s) - max(from_s, begin_s)) for begin_s, end_s in spans)
        return max(0.0, to_s - from_s - lost_s)

    def is_blind(self, at_s: float) -> bool | None:
        """Say whether the directory could not be measured: None if it could, else whether it was missing."""
        number = bisect_right(self._blind, at_s, key=lambda span: span[0]) - 1
        return None if number < 0 or at_s >= self._blind[number][1] else self._blind[number][2]

    def stands_still_until(self, at_s: float) -> float:
        """Return when a wait that is due at this moment really ends."""
        number = bisect_left(self._still, at_s, key=lambda span: span[0]) - 1
        return max(at_s, self._still[number][1]) if number >= 0 else at_s


def _totals(one: Progress) -> tuple[int, int, int, int]:
    return one.bytes_written, one.allocated_written, one.bytes_kept, one.allocated_kept


def _times(samples: Sequence[Progress], field: str, until_s: float) -> list[float]:
    found = [getattr(each, field) for each in samples]
    return sorted(at_s for at_s in found if at_s is not None and at_s <= until_s)


def _require_few_polls(recording: Recording, policy: StallPolicy, hang_at_s: float | None) -> None:
    span_s = recording.end_s
    if hang_at_s is not None:
        longest_s = max(policy.first_write_within_s, 4 * policy.stall_after_s)
        span_s = hang_at_s + longest_s
    poll_s = effective_poll_s(policy)
    if span_s / poll_s > _MAX_POLLS:
        raise InputError(
            f"{format_duration(span_s)} at a poll of {format_duration(poll_s)} are more than {_MAX_POLLS:,} measurements: "
            "give a longer --poll"
        )


def _progress_times(past: _Past, policy: StallPolicy) -> list[float]:
    """When a counter had advanced by the least growth since the last time."""
    found: list[float] = []
    before = past.states[0][1]
    for at_s, now in past.states[1:]:
        if _has_grown(before, now):
            found.append(at_s)
            before = now
    return sorted({*found, *past.overwritten, *(past.touched if policy.progress == "any" else ())})


def _next_progress_s(past: _Past, after_s: float) -> float | None:
    _, now = past.state_at(after_s)
    for at_s, later in past.states:
        if at_s > after_s and _has_grown(now, later):
            return at_s
    return None


def _has_grown(before: Progress, now: Progress) -> bool:
    grown = (now.bytes_written - before.bytes_written, now.allocated_written - before.allocated_written)
    return max(grown) >= MIN_GROWTH_BYTES


def _longest_s(past: _Past, edges: list[float]) -> float:
    longest_s = 0.0
    for begin_s, end_s in itertools.pairwise(edges):
        if end_s - begin_s > longest_s:
            longest_s = max(longest_s, past.observed_s(begin_s, end_s))
    return longest_s


def _rounded_up(seconds: float) -> float | None:
    """At least a tenth of a second more than the pause: a pause as long as the window is a stall."""
    window_s = max(_SHORTEST_S, math.floor(seconds * 10 + 1 + 1e-6) / 10)
    return window_s if window_s <= _LONGEST_S else None
