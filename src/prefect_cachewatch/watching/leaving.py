"""Stalls that stop nothing: each is reported once, the work is watched on, and at the end it shows who was right.

For a generator whose job says `on_stall: report`, and for a process that cachewatch did not start. It never signals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.sections import ReportedStall
from prefect_cachewatch.watching.stall import BLIND_KINDS, Verdict

if TYPE_CHECKING:
    from threading import Event

_LEAD = "It would have been stopped "


class TellStall(Protocol):
    """Reports a stall; returns its message and the directory of its bundle."""

    def __call__(self, verdict: Verdict, /) -> tuple[str, str | None]: ...


@dataclass
class _Open:
    """A stall that was reported and is not over: which it is, and when its verdict was last given."""

    number: int
    pause_s: float
    seen_s: float


class LeftAlone:
    """Watches on after each stall; one silence is reported once, and each other fault in it.

    Args:
        state: the monitor.
        gone: set once the work has ended.
        sampled: called after each measurement.
        tell: called with each stall; until it returns, the stall has no message.
        clock: monotonic time in seconds.
        moot: says that a stall is not to be reported: the work has reached its end and is about to be ended.
    """

    def __init__(
        self,
        state: GrowthMonitor,
        gone: Event,
        *,
        sampled: Callable[[], None],
        tell: TellStall,
        clock: Callable[[], float],
        moot: Callable[[], bool] = lambda: False,
    ) -> None:
        self.stalls: list[ReportedStall] = []
        self._state, self._gone, self._sampled, self._tell, self._clock = state, gone, sampled, tell, clock
        self._moot = moot
        self._open: dict[str, _Open] = {}

    def run(self, wait: Callable[[float], bool]) -> Verdict:
        """Measure until the work ends, and report each stall.

        Args:
            wait: waits at most so many seconds; true once the work has ended.

        Returns:
            The last verdict.
        """
        while True:
            verdict = self._state.run(wait, self._gone.is_set, self._sampled)
            while verdict.final and not self._gone.is_set():
                if self._moot():
                    return verdict
                self._report(verdict)
                verdict = self._wait_until_over(wait)
            if self._gone.is_set():
                return Verdict("growing", None, self._state.rule.pause_s, self._state.rule.window_s)

    def conclude(self, outcome: str) -> None:
        """Note for each stall whether a stop would have been in vain.

        Args:
            outcome: how the work ended; if it was ended by someone else, that is not known.
        """
        silent = {"completed": True, "failed": False, "nothing_written": False}.get(outcome)
        self.stalls = [replace(one, in_vain=True if one.resumed_at_s is not None else silent) for one in self.stalls]

    def _report(self, verdict: Verdict) -> None:
        rule, now_s, kind = self._state.rule, self._clock(), verdict.kind
        if kind is None:  # the time limit is reported once: from now on only silence matters
            rule.max_duration_s = None
        else:
            self._open[kind] = _Open(len(self.stalls), rule.pause_s, now_s)
        self.stalls.append(ReportedStall(round(now_s - rule.started_s, 3), kind, "", None))
        message, bundle = self._tell(verdict)
        self.stalls[-1] = replace(self.stalls[-1], message=message, bundle=bundle)

    def _wait_until_over(self, wait: Callable[[float], bool]) -> Verdict:
        """Measure at each poll until nothing reported is left, another fault occurs, or the work has ended."""
        state, rule = self._state, self._state.rule
        while self._open:
            ended = wait(rule.poll_s)
            verdict = state.measure((lambda: True) if ended else self._gone.is_set)
            self._sampled()
            self._note_what_is_over(verdict)
            if verdict.final and not ended and not self._is_told(verdict):
                return verdict
            if self._gone.is_set():
                break
        return Verdict("growing", None, rule.pause_s, rule.window_s)

    def _is_told(self, verdict: Verdict) -> bool:
        # A silence changes its kind with the window that it has passed, and with what is known of it by then.
        silent = verdict.kind not in (None, "churning", *BLIND_KINDS)
        return verdict.kind in self._open or (
            silent and any(kind not in ("churning", *BLIND_KINDS) for kind in self._open)
        )

    def _note_what_is_over(self, verdict: Verdict) -> None:
        rule, now_s = self._state.rule, self._clock()
        if verdict.kind in self._open:
            self._open[verdict.kind].seen_s = now_s
        if rule.reading is None or rule.reading.seen is None:
            return  # growth cannot be seen now
        # Churning shows only while files are written: a pause does not end it.
        calm_s = rule.churn_after_s
        for kind, one in list(self._open.items()):
            grew = now_s - one.seen_s >= calm_s if kind == "churning" else rule.pause_s < one.pause_s
            if grew or kind in BLIND_KINDS:
                del self._open[kind]
                resumed_s = round(now_s - rule.started_s, 3)
                self.stalls[one.number] = replace(self.stalls[one.number], resumed_at_s=resumed_s)


def describe_left_alone(stalls: Sequence[ReportedStall]) -> str:
    """Say how often the work would have been stopped, and whether rightly.

    Args:
        stalls: those that were reported, with what became of them.

    Returns:
        A sentence; empty without any.

    Example:
        >>> describe_left_alone([ReportedStall(300, "no_growth", "", None, 420, True)] * 2)
        'It would have been stopped 2 times, both in vain.'
    """
    if not stalls:
        return ""
    vain = sum(one.in_vain is True for one in stalls)
    open_ = sum(one.in_vain is None for one in stalls)
    if len(stalls) == 1:
        grew = stalls[0].resumed_at_s is not None
        how = f"in vain: it {'went on' if grew else 'completed'}" if vain else "and rightly: it never grew again"
        how = "and was ended before it showed whether rightly" if open_ else how
        return f"{_LEAD}once, {how}."
    count = f"{_LEAD}{len(stalls)} times"
    if vain == len(stalls):
        return f"{count}, {'both' if vain == 2 else 'all'} in vain."
    if open_:
        return f"{count}, {vain or 'none'} of them in vain so far."
    return f"{count}, {vain or 'none'} of them in vain{'' if vain else ': it never grew again'}."


def describe_would_be_stops(stalls: Sequence[ReportedStall]) -> list[str]:
    """Say of each stall when it was reported, and what became of it.

    Args:
        stalls: those that were reported.

    Returns:
        A clause for each.

    Example:
        >>> describe_would_be_stops([ReportedStall(300, "no_growth", "", None, 420), ReportedStall(900, None, "", None)])
        ['after 5 minutes (no_growth): it went on 2 minutes later', 'after 15 minutes (time limit): not known yet']
    """
    told = []
    for one in stalls:
        fate = {None: "not known yet", True: "it completed", False: "it never grew again"}[one.in_vain]
        if one.resumed_at_s is not None:
            fate = f"it went on {format_duration(round(one.resumed_at_s - one.at_s, 1))} later"
        told.append(f"after {format_duration(round(one.at_s, 1))} ({one.kind or 'time limit'}): {fate}")
    return told
