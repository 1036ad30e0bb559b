"""Progress that the generator's output tells of: which match is news, how much is done, and how long the rest takes.

`News` is the rule, a pure one; `LogProgress` searches the output in a thread, so that the output is never held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.watching.matcher import WINDOW, Match, OutputLines, PatternMatcher
from prefect_cachewatch.watching.sections import LoggedProgress

_SEEN_MAX = 4096
_WAITING_MAX = 4 << 20
_QUIET_S = 0.3
_END_S = 2.0
_DIGITS_MAX = 20
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def read_count(text: str) -> float | None:
    """Read a number as progress bars print it; None if it is none.

    Example:
        >>> read_count("1,204"), read_count("2.1G"), read_count("many")
        (1204.0, 2100000000.0, None)
    """
    text = text.strip().replace(",", "").replace("_", "")
    scale = _SCALES.get(text[-1:], 1.0)
    digits = text[:-1] if text[-1:] in _SCALES else text
    is_number = len(digits) <= _DIGITS_MAX and digits.replace(".", "", 1).isdecimal()
    return float(digits) * scale if is_number else None


class News:
    """Says which match is progress: a count beyond its highest so far, or without a count a text that is new.

    Counts are told apart by pattern, total and label. Of 4,096 counts and texts the one that was not seen for longest
    is forgotten first.

    Example:
        >>> news = News()
        >>> news.take(Match(0, "1", "4", "", "shard 1/4"), 10), news.take(Match(0, "1", "4", "", "shard 1/4"), 20)
        (True, False)
        >>> news.take(Match(0, "2", "4", "", "shard 2/4"), 30), news.last.percent, news.last.left_s
        (True, 50.0, 40.0)
    """

    def __init__(self) -> None:
        self.last: LoggedProgress | None = None
        # By count or text: the highest count, and the first one with its time.
        self._seen: dict[int, tuple[float, float, float]] = {}

    def take(self, match: Match, at_s: float) -> bool:
        """Take in a match.

        Args:
            match: in the order of the output.
            at_s: when it was seen, in seconds since the start.

        Returns:
            Whether it is progress.
        """
        done, total = read_count(match.done), read_count(match.total)
        what = match.text if done is None else f"{match.total}\0{match.label}"
        key = hash((match.pattern, done is None, what))
        known = self._seen.pop(key, None)
        highest, first_done, first_s = known or (done or 0.0, done or 0.0, at_s)
        is_new = known is None or (done is not None and done > highest)
        self._seen[key] = (max(highest, done or 0.0), first_done, first_s)
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        if is_new:
            self._note(match, at_s, done, total, (first_done, first_s))
        return is_new

    def _note(
        self, match: Match, at_s: float, done: float | None, total: float | None, first: tuple[float, float]
    ) -> None:
        before = self.last
        percent = left_s = None
        if done is not None and total:
            percent = round(min(100.0, 100.0 * done / total), 1)
            if done > first[0] and at_s > first[1]:
                left_s = round(max(0.0, (total - done) * (at_s - first[1]) / (done - first[0])), 1)
        self.last = LoggedProgress(
            count=before.count + 1 if before is not None else 1,
            first_at_s=before.first_at_s if before is not None else round(at_s, 3),
            last_at_s=round(at_s, 3),
            text=match.text,
            done=done,
            total=total,
            percent=percent,
            left_s=left_s,
        )


class LogProgress:
    """Searches the output of one attempt for lines of progress, in a thread.

    Args:
        patterns: the job's `progress_log`.
        clock: monotonic seconds.
    """

    def __init__(self, patterns: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._matcher = PatternMatcher(*patterns)
        self._clock = clock
        self._news = News()
        self._lines = OutputLines()
        self._waiting = bytearray()
        self._dropped = 0
        self._torn = False  # what was dropped has cut a line
        self._stopped = False
        self._changed = threading.Condition()
        self._started_s = clock()
        self._thread = threading.Thread(target=self._run, name="cachewatch-progress-log", daemon=True)

    @property
    def last(self) -> LoggedProgress | None:
        """The last progress; None before the first."""
        return self._news.last

    @property
    def problems(self) -> list[str]:
        """What was not searched, one sentence each."""
        found = [self._matcher.problem] if self._matcher.problem is not None else []
        if self._dropped:
            found.append(
                f"{format_bytes(self._dropped)} of output were not searched for progress: it came faster than it could be searched"
            )
        return found

    def prepare(self) -> None:
        """Start the search, before the generator is started."""
        self._thread.start()

    def begin(self, started_s: float) -> None:
        """Take in when the generator was started."""
        self._started_s = started_s

    def feed(self, data: memoryview) -> None:
        """Take in output; never waits for the search: if that is slow, the oldest output is left out."""
        with self._changed:
            self._waiting += data
            if (over := len(self._waiting) - _WAITING_MAX) > 0:
                # Up to a line's end: two halves of lines would make a line that nobody has printed.
                over = self._waiting.find(b"\n", over) + 1 or len(self._waiting)
                del self._waiting[:over]
                self._dropped += over
                self._torn = True
            self._changed.notify()

    def close(self) -> None:
        """Search the rest, within a bound, and end the search."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        with self._changed:
            if self._waiting:  # was not reached in time, and may have begun in the midst of a line
                self._dropped += len(self._waiting)
                self._waiting.clear()
                self._torn = True

    def _run(self) -> None:
        looked_at, since_s = b"", self._clock()
        while True:
            piece, stopped = self._next_piece(wait_on=self._lines.rest == looked_at)
            now_s = self._clock()
            if lines := self._lines.add(piece) if piece else b"":
                since_s = now_s
                self._search(lines)
            # A bar that is redrawn ends its line only with the next one, a row of dots never: what stands there for a
            # moment counts.
            if not piece or (self._lines.rest != looked_at and now_s - since_s >= _QUIET_S):
                looked_at, since_s = self._lines.rest, now_s
                self._search(looked_at)
            if stopped and not piece:
                return

    def _next_piece(self, *, wait_on: bool) -> tuple[bytes, bool]:
        """Wait for output, for ever or for a moment; returns at most a window of it, and whether the output has ended."""
        with self._changed:
            if not self._waiting and not self._stopped:
                self._changed.wait(None if wait_on else _QUIET_S)
            if self._torn:
                self._lines.rest, self._torn = b"", False
            piece = bytes(self._waiting[:WINDOW])
            del self._waiting[:WINDOW]
            return piece, self._stopped

    def _search(self, text: bytes) -> None:
        if text:
            at_s = self._clock() - self._started_s
            for match in self._matcher.find(text):
                self._news.take(match, at_s)
