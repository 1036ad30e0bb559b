"""Searches the output for regular expressions, each within a limit of processor time; and cuts a stream into lines for it."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal

WINDOW = 64 << 10
"""The longest text of one search, in bytes."""
_LINE_MAX = 4096
_SHOWN_MAX = 200
_MATCHES_MAX = 200
_LATE_MAX = 8
# Processor time in seconds: elapsed time also grows on a busy machine.
_WINDOW_CPU_S, _LINE_CPU_S, _LINES_CPU_S = 0.5, 0.1, 1.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Match:
    """One match of a pattern: its groups `done` and `total` as text, empty without; the other named ones in `label`."""

    pattern: int
    done: str
    total: str
    label: str
    text: str


class PatternMatcher:
    """Searches texts for regular expressions. Other threads go on meanwhile.

    Args:
        patterns: checked already; ^ and $ are a line's begin and end.

    Example:
        >>> matcher = PatternMatcher(r"ready$", r"shard (?P<done>\\d+)")
        >>> matcher.search(b"ready"), matcher.search(b"ready or not"), matcher.problem
        (True, False, None)
        >>> [(found.pattern, found.done, found.text) for found in matcher.find(b"shard 1; shard 2")]
        [(1, '1', 'shard 1'), (1, '2', 'shard 2')]
    """

    def __init__(self, *patterns: str) -> None:
        self.problem: str | None = None
        """Why a text was not searched to its end, in one sentence; None if all were."""
        import regex  # noqa: PLC0415 - most jobs have no pattern, and it costs 2 MB

        self._patterns = [regex.compile(pattern, regex.MULTILINE) for pattern in patterns]
        self._late = 0

    def search(self, text: bytes) -> bool:
        """Search one text.

        Args:
            text: of any encoding; bytes that are not UTF-8 match no letter.

        Returns:
            Whether a pattern matches; false within seconds if the search takes too long.
        """
        return bool(self._look(text, self._any, only_one=True))

    def find(self, text: bytes) -> list[Match]:
        """Find the different matches in a text, at most the last 200; fewer if the search takes too long."""
        return self._look(text, self._all, only_one=False)

    def _look(self, data: bytes, work: Callable[[str, float], list[Match]], *, only_one: bool) -> list[Match]:
        if self._late >= _LATE_MAX:
            return []
        text = data.decode("utf-8", "replace")
        try:
            return work(text, _WINDOW_CPU_S)
        except TimeoutError:
            self._late += 1
        # One line may be expensive, and another may match: each is searched by itself, as far as the time goes.
        found: list[Match] = []
        end_s = time.thread_time() + _LINES_CPU_S
        lines = text.split("\n")
        for line in itertools.takewhile(lambda _: time.thread_time() < end_s, lines if len(lines) > 1 else ()):
            try:
                found += work(line, _LINE_CPU_S)
            except TimeoutError:
                continue
            if found and only_one:
                self._late -= 1
                return found
        self.problem = self._describe_late()
        return found

    def _any(self, text: str, limit_s: float) -> list[Match]:
        found = (pattern.search(text, concurrent=True, timeout=limit_s) for pattern in self._patterns)
        return [Match(0, "", "", "", "") for match in found if match is not None][:1]

    def _all(self, text: str, limit_s: float) -> list[Match]:
        """The different matches, the last ones."""
        found: dict[tuple[int, str, str, str, str], Match] = {}
        for number, pattern in enumerate(self._patterns):
            for match in pattern.finditer(text, concurrent=True, timeout=limit_s):
                groups = match.groupdict("")
                done, total = groups.pop("done", ""), groups.pop("total", "")
                shown = (
                    _CONTROL.sub(" ", part)[:_SHOWN_MAX] for part in (done, total, " ".join(groups.values()), match[0])
                )
                one = Match(number, *shown)
                key = (number, one.done, one.total, one.label, "" if done else one.text)
                found.pop(key, None)
                found[key] = one
                if len(found) > _MATCHES_MAX:
                    del found[next(iter(found))]
        return list(found.values())

    def _describe_late(self) -> str:
        shown = " or ".join(repr(for_terminal(redact(one.pattern), _SHOWN_MAX)) for one in self._patterns[:3])
        then = (
            "it is not searched for any more" if self._late >= _LATE_MAX else "what took so long counts as not matched"
        )
        return (
            f"the pattern {shown} takes too long to search for, and {then}: write it with the words that are printed and "
            "fewer .*"
        )


class OutputLines:
    """Cuts a stream of output, in chunks of any size, into lines for a search; of each line its first 4,096 bytes.

    Example:
        >>> lines = OutputLines()
        >>> lines.add(b"12 %\\r13 %\\r1"), lines.rest
        (b'12 %\\n13 %', b'1')
    """

    def __init__(self) -> None:
        self.rest = b""
        """The line that has not ended yet."""

    def add(self, data: bytes) -> bytes:
        """Take in output, at most a window of it; returns the lines that have ended."""
        # A progress bar that is redrawn ends its lines with this alone.
        whole, _, last = (self.rest + data.replace(b"\r", b"\n")).rpartition(b"\n")
        self.rest = last[:_LINE_MAX]
        if len(whole) > _LINE_MAX:
            lines = whole.split(b"\n")
            if max(map(len, lines)) > _LINE_MAX:
                # Some patterns take quadratic time: a megabyte without a line end is not searched.
                whole = b"\n".join(line[:_LINE_MAX] for line in lines)
        return whole
