"""The stall rule: measurements in, verdict out. Pure; time comes in as an argument.

Stall time is accumulated observed time: at most two polls per tick, and nothing for the time by which a wait ended
late, so that a paused machine or a late scan is no stall. A verdict needs a scan that began when the window had already
passed. `next_delay_s` gives the time of the next scan: polls are aligned with the deadlines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.watching.learned import LearnedWindow
from prefect_cachewatch.watching.refusal import Refusal, RefusalKind
from prefect_cachewatch.watching.servers.warmup import Phases, Warmup

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import StallPolicy

Kind = Literal[
    "no_growth",
    "never_started",
    "never_ready",
    "churning",
    "filesystem_unresponsive",
    "cache_directory_missing",
    RefusalKind,
]
Status = Literal["growing", "suspected", "stalled", "deadline_exceeded"]

#: Stalls of a directory that cannot be measured.
BLIND_KINDS: tuple[Kind, ...] = ("filesystem_unresponsive", "cache_directory_missing")
MIN_GROWTH_BYTES = 4096
"""Growth below this since the last progress is no progress."""
_EPSILON_S = 1e-3  # a timer that fires a millisecond early is on time
_GAPS_BEFORE_LEARNING = 8
_CHURN_WINDOWS = 4
# After how much silence the storage is asked whether it takes writes. It must refuse every one at three looks.
_NO_SPACE_AFTER_S, _LOOKS, _LOOK_AGAIN_S = 30.0, 3, 2.0
# If a wait ends later than this, the machine or this process was suspended, perhaps the generator too.
_LATE_S, _LATE_SHARE = 0.25, 0.02


@dataclass(frozen=True)
class Measurement:
    """One scan's counters in bytes; ages in seconds before the scan's end, None if nothing grew."""

    bytes_written: int
    allocated_written: int
    bytes_kept: int = 0
    allocated_kept: int = 0
    newest_age_s: float | None = None
    touched_age_s: float | None = None
    bytes_present: int = 0
    overwriting_age_s: float | None = None
    """Bytes of the last file that existed at the start and is being overwritten, counted once."""
    told_age_s: float | None = None
    """Since the output last told of progress, if it did so since the scan before."""
    refusal: Refusal | None = None
    """Why the storage takes no write, where that was looked at, and the tree neither computes nor reads."""


class Reading(NamedTuple):
    """The last input of the rule, monotonic seconds; `seen` is None if the scan failed or did not answer."""

    ended_s: float
    seen: Measurement | None
    late_s: float = 0.0
    missing: bool = False


class _Kept(NamedTuple):
    """Bytes written, and the least that was kept of them, after so many seconds of writing."""

    at_s: float
    seen: Measurement
    kept: tuple[int, int]


@dataclass(frozen=True)
class Suspicion:
    """A pause longer than this generator's pauses so far, and when it ended, if it did."""

    at_s: float
    pause_s: float
    message: str
    cleared_at_s: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The rule's result after a measurement; `kind` only with status `stalled`."""

    status: Status
    kind: Kind | None = None
    pause_s: float = 0.0
    window_s: float = 0.0
    suspicion: Suspicion | None = None
    refusal: Refusal | None = None

    @property
    def final(self) -> bool:
        return self.status in ("stalled", "deadline_exceeded")


def effective_poll_s(policy: StallPolicy) -> float:
    """Return the interval between measurements: the poll, or half the shortest window if that is less.

    Args:
        policy: windows and poll.

    Returns:
        Seconds.

    Example:
        >>> from prefect_cachewatch.config import StallPolicy
        >>> effective_poll_s(StallPolicy(stall_after_s=10, poll_s=15))
        5.0
    """
    windows = [policy.stall_after_s, policy.first_write_within_s]
    if policy.max_duration_s is not None:
        windows.append(policy.max_duration_s)
    return min(policy.poll_s, min(windows) / 2)


class StallRule:
    """Judges one attempt; a stall is reported within its window + one scan.

    Args:
        policy: the windows.
        started_s: monotonic time at which the generator was started.
        warmup: for a job that starts a server: which silence is its warm-up. None: none is.
        learned: the window learned from earlier runs, in place of the policy's longer one.

    Example:
        >>> from prefect_cachewatch.config import StallPolicy
        >>> rule = StallRule(StallPolicy(stall_after_s=10, first_write_within_s=10, poll_s=5), started_s=0)
        >>> [rule.observe(t, t, Measurement(0, 0)).status for t in (5, 10)]
        ['growing', 'stalled']
    """

    def __init__(
        self,
        policy: StallPolicy,
        started_s: float,
        warmup: Warmup | None = None,
        learned: LearnedWindow | None = None,
    ) -> None:
        self.policy, self.learned = policy, learned
        self.phases = Phases(warmup)
        self.poll_s = effective_poll_s(policy)
        self.started_s = started_s
        self.max_duration_s = policy.max_duration_s
        """The time limit; None where there is none, or once it has been reported and stops nothing."""
        self.pause_s = 0.0
        self.longest_pause_s = 0.0
        self.first_write_s: float | None = None
        self.last_growth_s: float | None = None
        self.suspicions: list[Suspicion] = []
        self.reading: Reading | None = None
        # While it wrote; windows are derived from it, so it is the most that it can have been.
        self._longest_silence_s = 0.0
        self._gaps = 0
        self._silent = True  # whether a scan since the last growth saw none
        self._tick_s = started_s
        self._stood_still = False
        self._refusals = 0
        # The begin of the last scan: later dates can be believed, and all earlier growth has been seen.
        self._seen_all_s = started_s
        self._progress = Measurement(0, 0)
        self._blind_s = 0.0
        self._unwritten_s = 0.0  # the pause, if lines of progress did not count
        self.churn_after_s = _CHURN_WINDOWS * policy.stall_after_s
        """Writing for this long without keeping anything is churning."""
        self._writing_s = 0.0
        self._kept: deque[_Kept] = deque([_Kept(0.0, Measurement(0, 0), (0, 0))])
        self._mark = (self.churn_after_s / 2, self._kept[0])

    @property
    def window_s(self) -> float:
        """The window in force (first write, stall, warm-up), longer by the attribute cache's time."""
        # Growth on another host is seen when this host's cached attributes expire: silence begins that much later.
        unseen_s = self.policy.attribute_cache_s or 0.0
        if self.phases.now == "warm_up":
            return self.phases.warmup_window_s + unseen_s
        if self.first_write_s is None:
            return self.policy.first_write_within_s + unseen_s
        window = self.policy.stall_after_s if self.learned is None else self.learned.window_s
        return window + unseen_s

    @property
    def suspect_after_s(self) -> float:
        """From 8 pauses on min(0.6 W, max(4 polls, 3 x the longest pause)), before that 0.6 W; never where silence is warm-up."""
        if self.phases.silence_expected:
            return self.window_s
        limit = 0.6 * self.window_s
        if self._gaps < _GAPS_BEFORE_LEARNING:
            return limit
        return min(limit, max(4 * self.poll_s, 3 * self._longest_silence_s))

    def asks_for_space(self, now_s: float) -> bool:
        """Say whether a scan that begins now should look whether the storage takes writes: the silence is long enough.

        Args:
            now_s: monotonic time.
        """
        pause_s = self.pause_s + max(0.0, now_s - self._tick_s)
        return pause_s >= _NO_SPACE_AFTER_S - _EPSILON_S and not self.phases.silence_expected

    def _until_look_s(self) -> float:
        """Seconds from the last measurement to the next one that looks at the storage, where no poll is waited for."""
        if self._refusals:
            return _LOOK_AGAIN_S
        left_s = _NO_SPACE_AFTER_S - self.pause_s
        return left_s if left_s > _EPSILON_S and not self.phases.silence_expected else self.poll_s

    def observe(self, began_s: float, ended_s: float, seen: Measurement, late_s: float = 0.0) -> Verdict:
        """Take in one scan.

        Args:
            began_s: monotonic time at which the scan began.
            ended_s: monotonic time at which it ended.
            seen: its counters.
            late_s: seconds by which it began late; more than a timer's error means that the machine or this process
                was suspended.

        Returns:
            The verdict.
        """
        self.reading = Reading(ended_s, seen, late_s)
        credit = self._credit(began_s, late_s)
        self._blind_s = 0.0
        wrote = self._has_written(seen)
        age_s = self._progress_age_s(seen, wrote)
        if age_s is None:
            self._silent = True
            self.pause_s += credit
            self._unwritten_s += credit
        else:
            # Growth is dated by the file's own change time, never before the last scan. If something stood still
            # in between, its date is meaningless, and the growth is taken as new.
            oldest_s = min(began_s - credit, self._seen_all_s)
            grew_s = ended_s if self._stood_still else min(max(ended_s - age_s, oldest_s), ended_s)
            pause_s = min(max(0.0, began_s - grew_s), self.pause_s + credit)
            # Only the last growth of a scan has a date, so this is the most that the pause before its first growth can have
            # been. Where no scan between was silent, what is known of it is the silence at the end of the scan before:
            # the poll's length is no pause to tell of, but a window has to allow for it.
            most_s = self.pause_s + credit - pause_s
            gap_s = most_s if self._silent else self.pause_s
            self._note_silence(most_s)
            if self.first_write_s is not None and wrote:
                # Lines of progress do not make time of writing shorter: churning stays churning.
                self._writing_s += min(self._unwritten_s + credit - pause_s, self.policy.stall_after_s)
            # An old file may be touched and then be loaded for long: only bytes show that writing has begun.
            if wrote or self.first_write_s is not None or self.policy.progress == "any":
                self._note_progress(max(grew_s, self.last_growth_s or grew_s), gap_s, seen)
            else:
                self._clear_suspicion(grew_s)
            self._silent = False
            self.pause_s = self._unwritten_s = pause_s
        if seen.told_age_s is not None:
            self._note_told(began_s, ended_s - seen.told_age_s)
        self.phases.look(self.pause_s, has_written=self.first_write_s is not None, bytes_present=seen.bytes_present)
        churning = self._churning(seen)
        self._seen_all_s = began_s
        silent = age_s is None and seen.told_age_s is None
        self._refusals = self._refusals + 1 if seen.refusal is not None and silent else 0
        if churning and wrote:
            return self._verdict("stalled", "churning")
        if age_s is None and self._silent_too_long(ended_s, seen):
            return self._verdict("stalled", self._silent_kind())
        if seen.refusal is not None and self._refusals >= _LOOKS:
            return self._verdict("stalled", seen.refusal.kind, seen.refusal)
        return self._open_verdict(ended_s)

    def observe_blind(self, now_s: float, tick_limit_s: float, missing: bool) -> Verdict:
        """Take in that a scan failed or did not answer: neither bytes nor silence.

        Args:
            now_s: monotonic time.
            tick_limit_s: the most that this tick may count, normally the scan's deadline.
            missing: whether a cache directory is gone, rather than unreadable.

        Returns:
            The verdict; the time of blindness is never counted as a pause.
        """
        elapsed = max(0.0, now_s - self._tick_s)
        self.reading = Reading(now_s, None, missing=missing)
        self._tick_s = self._seen_all_s = now_s
        blind_s = min(elapsed, max(2 * self.poll_s, tick_limit_s + self.poll_s))
        self._blind_s += blind_s
        if self._blind_s >= self._blind_window_s - _EPSILON_S:
            return self._verdict("stalled", "cache_directory_missing" if missing else "filesystem_unresponsive")
        return self._open_verdict(now_s)

    def pass_over(self, now_s: float) -> None:
        """Let time pass that was not observed, by no fault of the file system: neither silence nor blindness."""
        self._tick_s = self._seen_all_s = now_s

    def begin_anew(self, now_s: float) -> None:
        """Begin the silence anew: the tree was seen writing where no growth shows."""
        self._note_silence(self.pause_s)
        self.pause_s = self._unwritten_s = 0.0
        self._clear_suspicion(now_s)

    @property
    def _blind_window_s(self) -> float:
        return self.policy.unresponsive_after_s or self.policy.stall_after_s

    def next_delay_s(self) -> float:
        """Return the delay from the last measurement's beginning to the next measurement."""
        due = [self.poll_s, self.window_s - self.pause_s, self._until_look_s()]
        if self._blind_s:
            due = [self.poll_s, self._blind_window_s - self._blind_s]
        if self.max_duration_s is not None:
            due.append(self.started_s + self.max_duration_s - self._tick_s)
        suspect_in = self.suspect_after_s - self.pause_s
        if suspect_in > _EPSILON_S:
            due.append(suspect_in)
        return max(0.0, min(due))

    @property
    def longest_silence_s(self) -> float | None:
        """The longest silence while it wrote, the present one included; None if nothing was written.

        Where the scans leave its length open, it is the most that it can have been: up to a poll more than
        `longest_pause_s` tells. A server's last silence is its warm-up, even if it is too short to have begun one.
        """
        if self.first_write_s is None:
            return None
        return max(self._longest_silence_s, self.pause_s if self.phases.warmup is None else 0.0)

    def _note_silence(self, silence_s: float) -> None:
        if self.phases.now == "writing":
            self._longest_silence_s = max(silence_s, self._longest_silence_s)

    def _silent_too_long(self, now_s: float, seen: Measurement) -> bool:
        if self.pause_s < self.window_s - _EPSILON_S:
            return False
        self.phases.note_silence(
            now_s - self.started_s,
            self.pause_s,
            has_written=self.first_write_s is not None,
            bytes_present=seen.bytes_present,
        )
        return self.pause_s >= self.window_s - _EPSILON_S

    def _silent_kind(self) -> Kind:
        if self.phases.now == "warm_up":
            return "never_ready"
        return "never_started" if self.first_write_s is None else "no_growth"

    def _clear_suspicion(self, at_s: float) -> None:
        if self.suspicions and self.suspicions[-1].cleared_at_s is None:
            last = self.suspicions[-1]
            self.suspicions[-1] = Suspicion(last.at_s, last.pause_s, last.message, at_s - self.started_s)

    def _credit(self, now_s: float, late_s: float) -> float:
        elapsed = max(0.0, now_s - self._tick_s)
        self._stood_still = late_s > min(_LATE_S, self.poll_s, _LATE_SHARE * self.window_s)
        if self._stood_still:
            elapsed = max(0.0, elapsed - late_s)
        self._tick_s = now_s
        credit = min(elapsed, 2 * self.poll_s)
        if self._blind_s:  # the blindness until now has been counted
            credit = min(credit, self.poll_s)
        if self._stood_still or credit < elapsed:
            self._seen_all_s = now_s
        return credit

    def _has_written(self, seen: Measurement) -> bool:
        before = self._progress
        return (
            seen.bytes_written - before.bytes_written >= MIN_GROWTH_BYTES
            or seen.allocated_written - before.allocated_written >= MIN_GROWTH_BYTES
        )

    def _progress_age_s(self, seen: Measurement, wrote: bool) -> float | None:
        if wrote:
            return seen.newest_age_s or 0.0
        if self.policy.progress == "any":
            return seen.touched_age_s
        return seen.overwriting_age_s

    def _note_progress(self, grew_s: float, gap_s: float, seen: Measurement) -> None:
        if self.first_write_s is None:
            self.first_write_s = grew_s
        else:
            self._gaps += 1
            self.longest_pause_s = max(self.longest_pause_s, gap_s)
        self.last_growth_s = grew_s
        self.phases.note_growth(grew_s - self.started_s)
        self._progress = seen
        self._clear_suspicion(grew_s)

    def _note_told(self, began_s: float, told_s: float) -> None:
        """Take in that the output told of progress: it ends the pause of any phase, and is no byte."""
        pause_s = 0.0 if self._stood_still else max(0.0, began_s - told_s)
        if pause_s < self.pause_s:
            if self.first_write_s is not None:
                self.longest_pause_s = max(self.longest_pause_s, self.pause_s - pause_s)
            self._note_silence(self.pause_s - pause_s)
            self.pause_s = pause_s
            self._clear_suspicion(told_s)

    def _churning(self, seen: Measurement) -> bool:
        # Time counts only while files are written: a pause, or the load before the first byte, is not churn.
        # The least that was kept over the last half of the churn window is compared with the bytes written before
        # that half. It rises while any written bytes stay. If it falls, older bytes were deleted,
        # and the window begins anew.
        now, half = self._writing_s, self.churn_after_s / 2
        kept = (seen.bytes_kept, seen.allocated_kept)
        if self._kept[-1].at_s == now:
            last = self._kept.pop()
            seen, kept = last.seen, (min(kept[0], last.kept[0]), min(kept[1], last.kept[1]))
        self._kept.append(_Kept(now, seen, kept))
        while len(self._kept) > 1 and self._kept[1].at_s <= now - half:
            self._kept.popleft()
        if now < half:
            return False
        first, mark = self._kept[0], self._mark[1]
        floor = (min(k.kept[0] for k in self._kept), min(k.kept[1] for k in self._kept))
        noise = self._noise(mark.seen, first.seen, seen)
        if floor[0] >= mark.kept[0] + noise[0] or floor[1] >= mark.kept[1] + noise[1]:
            self._mark = (now, _Kept(now, first.seen, floor))
        elif floor[0] <= mark.kept[0] - noise[0] or floor[1] <= mark.kept[1] - noise[1]:
            self._mark = (now + half, _Kept(now, first.seen, floor))
        return now - self._mark[0] >= half - _EPSILON_S

    def _noise(self, mark: Measurement, first: Measurement, now: Measurement) -> tuple[int, int]:
        # Temporary files are seen half-written, so the kept bytes go up and down a little: a thousandth of what was
        # written in the half, or since the mark if that is less (a rate that has just risen must not raise it).
        def part(at_mark: int, at_first: int, at_now: int) -> int:
            return max(MIN_GROWTH_BYTES, min(at_first - at_mark, at_now - at_first) // 1000)

        return (
            part(mark.bytes_written, first.bytes_written, now.bytes_written),
            part(mark.allocated_written, first.allocated_written, now.allocated_written),
        )

    def _open_verdict(self, now_s: float) -> Verdict:
        limit = self.max_duration_s
        if limit is not None and now_s - self.started_s >= limit - _EPSILON_S:
            return self._verdict("deadline_exceeded")
        if self.pause_s >= self.suspect_after_s - _EPSILON_S and not self._blind_s and not self.phases.silence_expected:
            if not self.suspicions or self.suspicions[-1].cleared_at_s is not None:
                self.suspicions.append(Suspicion(now_s - self.started_s, self.pause_s, self._why()))
            return self._verdict("suspected")
        return self._verdict("growing")

    def _why(self) -> str:
        text = f"no growth for {format_duration(self.pause_s)}"
        if self.first_write_s is None:
            return f"no byte written in {format_duration(self.pause_s)}; the first is due within {format_duration(self.window_s)}"
        if self._gaps >= _GAPS_BEFORE_LEARNING:
            return f"{text}; the longest pause so far was {format_duration(self.longest_pause_s)}"
        return f"{text}; a stall after {format_duration(self.window_s)}"

    def _verdict(self, status: Status, kind: Kind | None = None, refusal: Refusal | None = None) -> Verdict:
        suspicion = self.suspicions[-1] if status == "suspected" else None
        pause_s, window_s = self.pause_s, self.window_s if refusal is None else _NO_SPACE_AFTER_S
        if kind in BLIND_KINDS:
            pause_s, window_s = self._blind_s, self._blind_window_s
        return Verdict(status, kind, pause_s, window_s, suspicion, refusal)
