"""Decides whether silence is a server's warm-up: what begins it, and how long it may last. Pure.

It is part of the stall rule (see `stall`), for jobs that are done when a server is ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.units import format_bytes, format_duration

PhaseName = Literal["before_first_byte", "writing", "warm_up"]

# Share of the expected bytes that must exist before silence may be warm-up: expected sizes are round figures.
WHOLE_SHARE = 0.95
_CHANGES_MAX = 200


@dataclass(frozen=True)
class PhaseChange:
    """When a phase began, in seconds since the start, and the reason, for a log."""

    at_s: float
    phase: PhaseName
    why: str


class Warmup:
    """The rule of one attempt's warm-up.

    Args:
        within_s: the longest silence after the last byte until the server is ready.
        expected_bytes: size of the finished cache, if known.
        present_at_start: bytes that were in the cache directories before the start.

    Example:
        >>> Warmup(1800, expected_bytes=100).reason_for_silence(True, 94, 300) is None
        True
        >>> Warmup(1800, expected_bytes=100).reason_for_silence(True, 95, 300)
        'silent for 5 minutes with 95 B of the expected 100 B present'
    """

    def __init__(
        self,
        within_s: float,
        *,
        expected_bytes: int | None = None,
        present_at_start: int = 0,
    ) -> None:
        self.within_s = within_s
        self.expected_bytes = expected_bytes
        self.present_at_start = present_at_start

    def reason_for_silence(self, has_written: bool, bytes_present: int, silent_s: float) -> str | None:
        """Say why a silence of a whole window is warm-up.

        Args:
            has_written: whether anything has been written in this attempt.
            bytes_present: apparent bytes in the cache directories.
            silent_s: how long nothing has been written.

        Returns:
            The reason, or None if such a silence is a stall.
        """
        silent = f"silent for {format_duration(silent_s)}"
        if self.expected_bytes is not None:
            if bytes_present < WHOLE_SHARE * self.expected_bytes:
                return None
            return f"{silent} with {format_bytes(bytes_present)} of the expected {format_bytes(self.expected_bytes)} present"
        if has_written:
            return f"{silent} after its last byte"
        if self.present_at_start > 0:
            return f"{silent} without a byte written, on a cache that was there before"
        return None


class Phases:
    """The phase of one attempt, and the changes before it.

    Args:
        warmup: which silence is warm-up; None: none is.

    Example:
        >>> phases = Phases(Warmup(1800))
        >>> phases.note_growth(12.0)
        >>> phases.note_silence(312.0, 300.0, has_written=True, bytes_present=4096)
        >>> [(change.at_s, change.phase) for change in phases.changes], phases.warmup_window_s
        ([(12.0, 'writing'), (312.0, 'warm_up')], 1800.0)
    """

    def __init__(self, warmup: Warmup | None) -> None:
        self.warmup = warmup
        self.now: PhaseName = "before_first_byte"
        self.changes: list[PhaseChange] = []
        self.warmup_window_s = 0.0
        self.silence_expected = False
        """Whether silence would be warm-up; then no silence is suspicious."""

    def note_growth(self, at_s: float) -> None:
        """Take in that something was written.

        Args:
            at_s: when, in seconds since the start.
        """
        if self.now != "writing":
            self._enter("writing", at_s, "the first byte" if self.now == "before_first_byte" else "it writes again")

    def look(self, pause_s: float, *, has_written: bool, bytes_present: int) -> None:
        """Take in a measurement: whether silence would be warm-up.

        Args:
            pause_s: the present silence.
            has_written: whether anything has been written in this attempt.
            bytes_present: apparent bytes in the cache directories.
        """
        if self.warmup is not None:
            reason = self.warmup.reason_for_silence(has_written, bytes_present, pause_s)
            self.silence_expected = self.now == "warm_up" or reason is not None

    def note_silence(self, at_s: float, pause_s: float, *, has_written: bool, bytes_present: int) -> None:
        """Take in a silence of a whole window, which may be the beginning of warm-up.

        Args:
            at_s: seconds since the start.
            pause_s: the silence.
            has_written: whether anything has been written in this attempt.
            bytes_present: apparent bytes in the cache directories.
        """
        if self.now != "warm_up" and self.warmup is not None:
            reason = self.warmup.reason_for_silence(has_written, bytes_present, pause_s)
            if reason is not None:
                self._enter_warmup(at_s, pause_s, has_written, reason)

    def _enter_warmup(self, at_s: float, pause_s: float, has_written: bool, why: str) -> None:
        assert self.warmup is not None
        # Counted from the last byte; without one, the load before it must not use up the window.
        self.warmup_window_s = self.warmup.within_s + (0.0 if has_written else pause_s)
        self.silence_expected = True
        self._enter("warm_up", at_s, why)

    def _enter(self, phase: PhaseName, at_s: float, why: str) -> None:
        self.now = phase
        if len(self.changes) < _CHANGES_MAX:
            # Growth is dated by the file, which may be slightly before the scan that had shown the silence.
            self.changes.append(PhaseChange(max(0.0, at_s, *(change.at_s for change in self.changes[-1:])), phase, why))
