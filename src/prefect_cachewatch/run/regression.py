"""Says whether the last run of a job was slower than those before. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.run.past import JobRun

#: The most earlier runs that a run is compared with, and the fewest.
COMPARED_RUNS, LEAST_EARLIER_RUNS = 10, 5
_SLOWER = 0.25
_SPREADS = 4.0
_LEAST_S = 1.0


@dataclass(frozen=True)
class Regression:
    """A run that was slower than those before."""

    duration_s: float
    #: Of the earlier runs that it was compared with.
    median_s: float
    runs: int

    @property
    def slower(self) -> float:
        """By which part of the median it was slower: 0.4 for 40 %."""
        return self.duration_s / self.median_s - 1 if self.median_s else float("inf")

    def sentence(self) -> str:
        """Describe it.

        Example:
            >>> Regression(840, 600, 10).sentence()
            'The last run took 14 minutes, 40 % slower than the median of the 10 before (10 minutes).'
        """
        return (
            f"The last run took {format_duration(self.duration_s)}, {self.slower:.0%} slower than the median of the "
            f"{self.runs} before ({format_duration(self.median_s)})."
        ).replace("%", " %", 1)


def find_regression(durations_s: Sequence[float]) -> Regression | None:
    """Compare the last completed run of a job with up to ten before it.

    It is a regression if it took at least 25 % and 1 s longer than their median, and also more than four times the
    median deviation of these runs: one slow run among noisy ones is none.

    Args:
        durations_s: of completed runs in seconds, the oldest first; the last one is judged.

    Returns:
        The regression; None if there is none, or fewer than five runs before.

    Example:
        >>> find_regression([60, 61, 60, 59, 60, 90])
        Regression(duration_s=90, median_s=60, runs=5)
    """
    earlier = durations_s[:-1][-COMPARED_RUNS:]
    if len(earlier) < LEAST_EARLIER_RUNS:
        return None
    last_s, median_s = durations_s[-1], statistics.median(earlier)
    spread_s = statistics.median(abs(each - median_s) for each in earlier)
    margin_s = max(_SLOWER * median_s, _LEAST_S)
    if median_s <= 0 or last_s - median_s < margin_s or last_s - median_s <= _SPREADS * spread_s:
        return None
    return Regression(last_s, median_s, len(earlier))


def slower_than_before(runs: Sequence[JobRun]) -> Regression | None:
    """Say whether the last run was slower than the completed ones before it.

    Args:
        runs: of one job, the newest first.

    Returns:
        The regression; None also if the last run did not complete, or wrote nothing.
    """
    if not runs or not _is_measure(runs[0]):
        return None
    return find_regression(measured_durations(runs))


def measured_durations(runs: Sequence[JobRun]) -> list[float]:
    """Return the durations of the runs that are compared, the oldest first.

    Args:
        runs: of one job, the newest first.

    Returns:
        Seconds.
    """
    return [run.duration_s or 0.0 for run in reversed(runs) if _is_measure(run)]


def _is_measure(run: JobRun) -> bool:
    return run.outcome == "completed" and bool(run.bytes_written) and run.duration_s is not None
