"""A write trace as values: its rows, and the files that a scan at any moment would have seen. Pure.

A trace has totals, not files. `TraceFiles` makes files that give the ledger the same totals: one that
grows with the bytes that stay, and one for each piece that was deleted later.
It reads and writes no file (see `files`) and judges nothing (see `replay`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Literal, NamedTuple

Event = Literal["", "unreadable", "missing", "exited", "ready", "stopped"]

_BLOCK_BYTES = 512
_MARKER, _START, _STAYING, _FIRST_PIECE = 1, 2, 3, 4
# If a wait ends later than this, beyond a timer's error, the machine or cachewatch was suspended.
_STILL_S = 0.05


@dataclass(frozen=True)
class TraceRow:
    """One sample; bytes, and seconds since the start. None for values that the trace does not have."""

    t_s: float
    total_bytes: int
    file_count: int
    alloc_bytes: int | None = None
    written_bytes: int | None = None
    kept_bytes: int | None = None
    written_alloc_bytes: int | None = None
    kept_alloc_bytes: int | None = None
    grew_at_s: float | None = None
    touched_at_s: float | None = None
    scan_s: float = 0.0
    late_s: float = 0.0
    told_at_s: float | None = None
    event: Event = ""


@dataclass(frozen=True)
class Trace:
    """A whole trace.

    `recorded` is true for a trace of `--record`, which has the run's end; `torn` if its last line was cut off.
    """

    name: str
    rows: tuple[TraceRow, ...]
    recorded: bool = False
    torn: bool = False

    @property
    def start_s(self) -> float:
        return self.rows[0].t_s

    @property
    def end_s(self) -> float:
        return self.rows[-1].t_s

    @property
    def ending(self) -> Literal["exited", "ready", "stopped", "cut_off", "unknown"]:
        """How the recorded run ended; `unknown` if the file has no such column."""
        if not self.recorded:
            return "unknown"
        event = self.rows[-1].event
        return event if event in ("exited", "ready", "stopped") else "cut_off"


class _Totals(NamedTuple):
    """Growth since the start at a moment, all bytes."""

    at_s: float
    written: int
    kept: int
    written_alloc: int
    kept_alloc: int


class _File(NamedTuple):
    """The fields of a file that the ledger reads."""

    st_ino: int
    st_size: int
    st_blocks: int
    st_mtime_ns: int
    st_nlink: int = 1
    st_atime_ns: int = 0
    st_dev: int = 0
    st_mode: int = 0o100644

    @property
    def st_ctime_ns(self) -> int:
        return self.st_mtime_ns


class TraceFiles:
    """The files behind a trace, as a scan at a moment would see them.

    Args:
        trace: with at least one row.
        until_s: later rows are left out; default all of them.
    """

    def __init__(self, trace: Trace, until_s: float = float("inf")) -> None:
        rows = [row for row in trace.rows if row.t_s <= until_s] or [trace.rows[0]]
        # The row that was measured after the freeze may have growth before it.
        following = trace.rows[len(rows)] if len(rows) < len(trace.rows) else None
        if following is not None and following.grew_at_s is not None and following.grew_at_s <= until_s:
            rows.append(following)
        self.totals = _totals_of(rows)
        self._times = [total.at_s for total in self.totals]
        self.touches = sorted(row.touched_at_s for row in rows[1:] if row.touched_at_s is not None)
        self.told = sorted(row.told_at_s for row in rows[1:] if row.told_at_s is not None and row.told_at_s <= until_s)
        self._start_bytes = rows[0].total_bytes
        self._pieces: dict[int, list[_File]] = {}  # existing at one state and deleted at a later one
        self._staying: list[tuple[int, int, int]] = []
        self._divide()
        self.blind = _blind_times([row for row in rows if row.t_s <= until_s])
        self.still = _still_times([row for row in rows if row.t_s <= until_s])

    def state_at(self, t_s: float) -> int:
        """Return the number of the state in `totals` at a moment."""
        return max(0, bisect_right(self._times, t_s) - 1)

    def at(self, t_s: float) -> list[_File]:
        """List the files that exist at a moment."""
        state = self.state_at(t_s)
        size, alloc, changed_ns = self._staying[state]
        touches = bisect_right(self.touches, t_s)
        touched_ns = _nanoseconds(self.touches[touches - 1]) if touches else 1
        files = [
            _File(_MARKER, 0, 0, touched_ns),
            _File(_START, self._start_bytes, 0, 1),
            # No file has a negative size, whatever the totals of a trace say.
            _File(_STAYING, max(0, size), max(0, alloc // _BLOCK_BYTES), changed_ns),
        ]
        files += self._pieces.get(state, ())
        return files

    def observed_s(self, from_s: float, to_s: float) -> float:
        """Say how much of a span was watched: neither blind nor suspended."""
        lost = sum(
            max(0.0, min(to_s, end_s) - max(from_s, begin_s))
            for begin_s, end_s in [*self.still, *((begin_s, end_s) for begin_s, end_s, _ in self.blind)]
        )
        return max(0.0, to_s - from_s - lost)

    def is_blind(self, t_s: float) -> bool | None:
        """Say whether the directory could not be measured: None if it could, else whether it was missing."""
        number = bisect_right(self.blind, t_s, key=lambda span: span[0]) - 1
        if number < 0 or t_s >= self.blind[number][1]:
            return None
        return self.blind[number][2]

    def stands_still_until(self, t_s: float) -> float:
        """Return when a wait that is due at this moment really ends."""
        number = bisect_left(self.still, t_s, key=lambda span: span[0]) - 1
        return max(t_s, self.still[number][1]) if number >= 0 else t_s

    def _divide(self) -> None:
        """Find the bytes that were deleted later, the youngest first, as temporary files are."""
        living: list[list[int]] = []  # [state, bytes], the oldest first
        living_alloc: list[list[int]] = []
        number = itertools.count(_FIRST_PIECE)
        deleted = [0] * len(self.totals)
        deleted_alloc = [0] * len(self.totals)
        for state, (before, now) in enumerate(itertools.pairwise(self.totals), start=1):
            for stack, lost, wrote, kept, unit in (
                (living, deleted, now.written - before.written, now.kept - before.kept, 1),
                (living_alloc, deleted_alloc, now.written_alloc - before.written_alloc,
                 now.kept_alloc - before.kept_alloc, _BLOCK_BYTES),
            ):  # fmt: skip
                gone = wrote - kept
                while gone > 0 and stack:
                    born, size = stack[-1]
                    taken = min(size, gone)
                    gone -= taken
                    stack[-1][1] -= taken
                    if stack[-1][1] == 0:
                        stack.pop()
                    lost[born] += taken
                    changed_ns = _nanoseconds(self.totals[born].at_s)
                    file = _File(next(number), taken if unit == 1 else 0, 0 if unit == 1 else taken // unit, changed_ns)
                    for present in range(born, state):
                        self._pieces.setdefault(present, []).append(file)
                if wrote > 0:
                    stack.append([state, wrote])
        size = alloc = 0
        changed_ns = 1
        self._staying.append((0, 0, changed_ns))
        for state, (before, now) in enumerate(itertools.pairwise(self.totals), start=1):
            grown = now.written - before.written - deleted[state]
            grown_alloc = now.written_alloc - before.written_alloc - deleted_alloc[state]
            size, alloc = size + grown, alloc + grown_alloc
            if grown or grown_alloc:
                changed_ns = _nanoseconds(now.at_s)
            self._staying.append((size, alloc, changed_ns))


def _nanoseconds(t_s: float) -> int:
    return round(t_s * 1e9) + 2  # never 0, which the ledger takes for unknown, nor the start's 1


def _totals_of(rows: list[TraceRow]) -> list[_Totals]:
    """Turn rows into growth, each state dated by when it came about."""
    first = rows[0]
    found = [_Totals(first.t_s, 0, 0, 0, 0)]
    before = first
    for row in rows[1:]:
        last = found[-1]
        at_s = row.t_s if row.grew_at_s is None else min(row.t_s, max(row.grew_at_s, last.at_s))
        if row.written_bytes is not None and row.kept_bytes is not None and row.written_alloc_bytes is not None:
            kept_alloc = row.kept_alloc_bytes if row.kept_alloc_bytes is not None else row.written_alloc_bytes
            now = _Totals(at_s, row.written_bytes, row.kept_bytes, row.written_alloc_bytes, kept_alloc)
        else:
            change = row.total_bytes - before.total_bytes
            written = last.written + max(0, change)
            if row.written_bytes is not None:  # what was written and deleted between two rows is known
                written = max(written, row.written_bytes)
            blocks = (row.alloc_bytes or 0) - (before.alloc_bytes or 0)
            now = _Totals(
                at_s, written, last.kept + change, last.written_alloc + max(0, blocks), last.kept_alloc + blocks
            )
        if now[1:] != last[1:]:
            found.append(now)
        before = row
    return found


def _blind_times(rows: list[TraceRow]) -> list[tuple[float, float, bool]]:
    found = []
    for row, after in itertools.zip_longest(rows, rows[1:]):
        if row.event in ("unreadable", "missing"):
            end_s = row.t_s if after is None else max(row.t_s, after.t_s - after.scan_s)
            found.append((row.t_s - row.scan_s, end_s, row.event == "missing"))
    return found


def _still_times(rows: list[TraceRow]) -> list[tuple[float, float]]:
    return [(row.t_s - row.scan_s - row.late_s, row.t_s - row.scan_s) for row in rows if row.late_s > _STILL_S]
