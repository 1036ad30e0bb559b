"""Tells what happens to a watch as events: it compares the watch with what it has told, and keeps no other state."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prefect_cachewatch.common.secrets import redact, redact_all
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.engine.events import (
    Cleared,
    Event,
    Gone,
    Note,
    Phase,
    Progress,
    Started,
    Stopping,
    Suspected,
    Verdict,
)
from prefect_cachewatch.watching.outcomes import describe_count

if TYPE_CHECKING:
    from prefect_cachewatch.watching import stall
    from prefect_cachewatch.watching.attempt import Watch
    from prefect_cachewatch.watching.sections import LoggedProgress

_RATE_OVER_S = 60.0


class Narrator:
    """Tells the events of one attempt, each without the secrets of its generator.

    Args:
        number: of the attempt, from 1.
        tell: takes each event; must not block.
        secrets: values that no event may hold.
    """

    def __init__(self, number: int, tell: Callable[[Event], None], secrets: tuple[str, ...]) -> None:
        self.expected: tuple[int | None, str] = None, ""
        """The size of the finished cache, if it is known, and where that comes from."""
        self._number, self._tell_on, self._secrets = number, tell, secrets
        self._points: deque[tuple[float, int]] = deque()
        self._suspected = self._warned = self._phases = 0
        self._is_suspected = self._has_started = self._has_gone = False
        self._stopping: str | None = None

    def tell(self, event: Event) -> None:
        """Tell an event."""
        self._tell_on(redact_all(event, self._secrets))

    def sampled(self, watch: Watch) -> None:
        """Tell what is new after a measurement, or before the first one."""
        for text in watch.state.warnings[self._warned :]:
            self._warned += 1
            self.tell(Note(text))
        for change in watch.state.rule.phases.changes[self._phases :] if watch.serving is not None else ():
            self._phases += 1
            self.tell(Phase(change.at_s, change.phase, change.why))
        for event in self._suspicions(watch):
            self.tell(event)
        if (progress := self._progress(watch)) is not None:
            self.tell(progress)

    def decided(self, watch: Watch, verdict: stall.Verdict, *, stops: bool) -> None:
        """Tell of a verdict that is final."""
        at_s = (watch.state.began_s if watch.decided_s is None else watch.decided_s) - watch.started_s
        never_ready = watch.serving is not None and verdict.kind == "never_ready"
        unready = watch.serving.unready if watch.serving is not None and never_ready else ""
        self.tell(Verdict(at_s, verdict.status, verdict.kind, verdict.pause_s, verdict.window_s, stops, unready))

    def stopping(self, why: str) -> None:
        """Tell, once, that the tree is told to end."""
        if self._stopping is None:
            self._stopping = why
            self.tell(Stopping(why))

    def gone(self, watch: Watch) -> None:
        """Tell, once, that the tree has ended; nothing if it never ran, or its end is not known."""
        end = watch.supervisor.report if watch.supervisor is not None else None
        if self._has_gone or end is None or watch.monitor_state is None:
            return
        self._has_gone = True
        ready = watch.serving is not None and watch.serving.ends_well(end)
        survivors = tuple(int(one["pid"]) for one in end.survivors if one["pid"])
        at_s = watch.elapsed_s()
        server = watch.serving.handed_over if watch.serving is not None else None
        self.tell(
            Gone(
                at_s, end.why, end.exit_code, end.signal, ready, survivors,
                gone_after_s=end.gone_after_s, terminated=len(end.terminated), killed=len(end.killed),
                left_running=server.record.who if server is not None else None,
            )
        )  # fmt: skip

    def start(self, watch: Watch) -> None:
        """Tell, once, that the generator runs."""
        if self._has_started:
            return
        self._has_started, policy, first = True, watch.stall, watch.state.samples[0]
        windows = {
            "stall_after_s": policy.stall_after_s,
            "first_write_within_s": policy.first_write_within_s,
            "warmup_within_s": policy.warmup_within_s if watch.serving is not None else None,
            "max_duration_s": policy.max_duration_s,
        }
        pid = watch.supervisor.pid if watch.supervisor is not None else None
        self.tell(
            Started(self._number, pid, first.bytes_present, first.files_present, windows, *self.expected, watch.run_id)
        )

    def _suspicions(self, watch: Watch) -> Iterator[Event]:
        suspicions = watch.state.rule.suspicions
        if self._is_suspected and (cleared_s := suspicions[self._suspected - 1].cleared_at_s) is not None:
            self._is_suspected = False
            yield Cleared(cleared_s)
        for one in suspicions[self._suspected :]:
            self._suspected += 1
            yield Suspected(one.at_s, one.pause_s, one.message)
            self._is_suspected = one.cleared_at_s is None
            if one.cleared_at_s is not None:
                yield Cleared(one.cleared_at_s)

    def _progress(self, watch: Watch) -> Progress | None:
        state, rule = watch.state, watch.state.rule
        growth, reading, started_s = state.growth, rule.reading, watch.started_s
        if reading is None:
            return None
        seen, ended_s = reading.seen, reading.ended_s

        def moment(age_s: float | None) -> float | None:
            return None if age_s is None else max(0.0, ended_s - age_s - started_s)

        told, rate = watch.told(), self._rate(ended_s, growth.bytes_written)
        warming_up = watch.serving is not None and rule.phases.now == "warm_up"
        expected, left_s = watch.job.expected_bytes, None
        if expected and rate > 0 and growth.bytes_present < expected and rule.pause_s < 0.2 * rule.window_s:
            left_s = (expected - growth.bytes_present) / rate
        return Progress(
            at_s=ended_s - started_s,
            bytes_written=growth.bytes_written,
            allocated_written=growth.allocated_written,
            bytes_kept=growth.bytes_kept,
            allocated_kept=growth.allocated_kept,
            bytes_present=growth.bytes_present,
            files_present=growth.files_present,
            rate_bytes_per_s=rate,
            left_s=left_s,
            pause_s=rule.pause_s,
            window_s=rule.window_s,
            phase=rule.phases.now,
            grew_at_s=moment(seen.newest_age_s if seen else None),
            overwritten_at_s=moment(seen.overwriting_age_s if seen else None),
            touched_at_s=moment(seen.touched_age_s if seen else None),
            told_at_s=moment(seen.told_age_s if seen else None),
            scan_s=max(0.0, ended_s - state.began_s),
            late_s=max(0.0, reading.late_s),
            blind="" if seen is not None else "missing" if reading.missing else "unreadable",
            last_file=state.last_path,
            told=describe_told(told, ended_s - started_s) if told is not None else None,
            waiting_for=watch.serving.waiting_for if watch.serving is not None and warming_up else None,
        )

    def _rate(self, now_s: float, written: int) -> float:
        self._points.append((now_s, written))
        while len(self._points) > 2 and self._points[1][0] < now_s - _RATE_OVER_S:
            self._points.popleft()
        (t0, b0), (t1, b1) = self._points[0], self._points[-1]
        return (b1 - b0) / (t1 - t0) if t1 > t0 else 0.0


def describe_told(told: LoggedProgress, at_s: float) -> str:
    """Write the progress that an output told of: its counts and the time left, else the text.

    Args:
        told: the last progress.
        at_s: the present moment, in seconds since the start.

    Example:
        >>> from prefect_cachewatch.watching.sections import LoggedProgress
        >>> describe_told(LoggedProgress(2, 5.0, 65.0, "shard 2/4", 2.0, 4.0, 50.0, 60.0), 75.0)
        'told 2 of 4 (50 %), 50 s left'
    """
    left_s = None if told.left_s is None else told.left_s - (at_s - told.last_at_s)
    left = f", {format_duration(float(round(left_s)))} left" if left_s is not None and left_s > 0 else ""
    return f"told {describe_count(told) or redact(told.text)}{left}"
