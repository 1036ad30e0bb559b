"""The learned window: what earlier healthy runs of a job say about how long the next one may be silent while it writes. Pure.

Reading and keeping the runs is `run.history`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import StallPolicy

LEAST_RUNS = 5
_FACTOR, _POLLS, _FLOOR_S = 1.5, 4, 30.0


@dataclass(frozen=True)
class LearnedWindow:
    """A stall window, and the runs that it was learned from."""

    window_s: float
    #: The window without learning; a run that the learned one stopped is run once more with it.
    configured_s: float
    #: How many completed runs it was learned from.
    runs: int
    #: The longest silence in them while they wrote.
    longest_s: float

    def __str__(self) -> str:
        """Describe it, with the chance of a false stop rounded up.

        Example:
            >>> str(LearnedWindow(62.0, 300.0, 23, 41.3))
            'window 62 s, learned from 23 runs; a healthy run as those is stopped with probability below 4.2 %'
        """
        percent = math.ceil(1000 / (self.runs + 1) - 1e-9) / 10
        return (
            f"window {format_duration(self.window_s)}, learned from {self.runs} runs; "
            f"a healthy run as those is stopped with probability below {percent:.1f} %"
        )


def learn_window(pauses_s: Sequence[float], configured_s: float, poll_s: float) -> LearnedWindow | None:
    """Learn the window of the next run from the last completed runs of the same job.

    It is 1.5 x their longest silence, never below 4 polls or 30 s, and never above the configured window. Of n + 1
    exchangeable runs each is as likely as any other to have the longest silence: a window that is not shorter than the
    longest of n runs stops the next one with probability at most 1/(n + 1). Exchangeable means that nothing but chance
    tells the next run from the earlier ones.

    Source: the rank of one of n + 1 exchangeable values is uniform (V. Vovk, A. Gammerman, G. Shafer: Algorithmic
    Learning in a Random World, Springer 2005, section 2.2).

    Args:
        pauses_s: of each run its longest silence while it wrote.
        configured_s: the configured window.
        poll_s: time between two measurements.

    Returns:
        The window; None with fewer than 5 runs, or if it would not be shorter than the configured one.

    Example:
        >>> learn_window([20, 31, 24, 40, 28], 300, 5).window_s
        60.0
    """
    if len(pauses_s) < LEAST_RUNS:
        return None
    longest_s = max(pauses_s)
    window_s = max(_POLLS * poll_s, _FLOOR_S, math.ceil(10 * _FACTOR * longest_s) / 10)
    return LearnedWindow(window_s, configured_s, len(pauses_s), longest_s) if window_s < configured_s else None


def refuse_learned(policy: StallPolicy) -> None:
    """Refuse a learned window for work that leaves no history of its runs; raises InputError."""
    if policy.learned:
        raise InputError(
            "stall_after_s learned is for generators that cachewatch starts, by exec, generate or a fleet: here no run is "
            "known to have completed; give a duration such as 5m"
        )
