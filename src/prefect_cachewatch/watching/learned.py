"""Learned windows: what earlier healthy runs of a job say about how long the next one may be silent. Pure.

Each phase is learned apart: before the first byte, writing, a server's warm-up. Reading and keeping the runs is
`run.learning`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.watching.servers.warmup import PhaseName

if TYPE_CHECKING:  # pydantic stays out of a process that watches for hours
    from prefect_cachewatch.config import StallPolicy

#: Name of the file with the pauses of earlier runs, and the end of its name beside a cache.
PAUSES = ".cachewatch-pauses.log"
LEAST_RUNS, MOST_RUNS = 5, 50
_FACTOR, _POLLS, _FLOOR_S = 1.5, 4, 30.0
PHASES: tuple[PhaseName, ...] = ("before_first_byte", "writing", "warm_up")
_WHERE = {"before_first_byte": "before the first byte", "writing": "while it writes", "warm_up": "in warm-up"}
_ENDS: dict[str | None, PhaseName] = {
    "never_started": "before_first_byte", "no_growth": "writing", "never_ready": "warm_up",
}  # fmt: skip


@dataclass(frozen=True)
class PastPauses:
    """The longest silence of a completed run in each phase, in seconds; None for a phase that it did not have."""

    before_first_byte_s: float | None = None
    writing_s: float | None = None
    warm_up_s: float | None = None

    def of(self, phase: PhaseName) -> float | None:
        """Return the longest silence of a phase."""
        found: float | None = getattr(self, f"{phase}_s")
        return found


@dataclass(frozen=True)
class LearnedWindow:
    """The window of one phase, and the runs that it was learned from."""

    #: before_first_byte, writing or warm_up.
    phase: PhaseName
    window_s: float
    #: The window without learning; a run that the learned one stopped is run once more with it.
    configured_s: float
    #: How many completed runs it was learned from.
    runs: int
    #: The longest silence of this phase in them.
    longest_s: float
    #: The probability that it stops a healthy run as those: at most this, 1 / (runs + 1); see `learn`.
    chance: float

    def __str__(self) -> str:
        """Describe it, with the probability rounded up.

        Example:
            >>> str(LearnedWindow("writing", 62.0, 300.0, 23, 41.3, 1 / 24))
            'window 62 s, learned from 23 runs; a healthy run as those is stopped with probability below 4.2 %'
        """
        percent = math.ceil(1000 * self.chance - 1e-9) / 10
        return (
            f"window {format_duration(self.window_s)}, learned from {self.runs} runs; "
            f"a healthy run as those is stopped with probability below {percent:.1f} %"
        )

    @property
    def where(self) -> str:
        """The phase in words."""
        return _WHERE[self.phase]


@dataclass(frozen=True)
class LearnedWindows:
    """The windows of an attempt that are shorter than the configured ones; none if nothing was learned.

    `note` says why, where windows were asked for and none was learned.
    """

    windows: tuple[LearnedWindow, ...] = ()
    note: str = ""

    def shorten(self, phase: PhaseName, configured_s: float) -> float:
        """Return the window of a phase: the learned one, or the configured one if that is shorter or alone."""
        found = self.of(phase)
        return configured_s if found is None else min(configured_s, found.window_s)

    def of(self, phase: PhaseName | None) -> LearnedWindow | None:
        """Return the learned window of a phase, if there is one."""
        return next((window for window in self.windows if window.phase == phase), None)

    def behind(self, kind: str | None) -> LearnedWindow | None:
        """Return the learned window that a stall of this kind was decided by; None if no learned one was.

        Example:
            >>> LearnedWindows((LearnedWindow("writing", 62.0, 300.0, 23, 41.3, 1 / 24),)).behind("never_started") is None
            True
        """
        return self.of(_ENDS.get(kind))


def configured_window_s(policy: StallPolicy, phase: PhaseName) -> float:
    """Return the window of a phase without learning."""
    if phase == "before_first_byte":
        return policy.first_write_within_s
    return policy.stall_after_s if phase == "writing" else policy.warmup_within_s


def refuse_learned(policy: StallPolicy) -> None:
    """Refuse learned windows for work that leaves no history of its runs; raises InputError."""
    if policy.learned:
        raise InputError(
            "stall_after_s learned is for generators that cachewatch starts, by exec, generate or a fleet: here no run is "
            "known to have completed; give a duration such as 5m"
        )


def least_window_s(poll_s: float) -> float:
    """Return the shortest window that is ever learned: 4 polls, and not less than 30 s."""
    return max(_POLLS * poll_s, _FLOOR_S)


def learn(
    runs: Sequence[PastPauses], policy: StallPolicy, floor_s: float, *, least_runs: int = LEAST_RUNS
) -> LearnedWindows:
    """Learn the windows of the next run from the last completed runs of the same job on the same storage.

    A window is 1.5 x the longest silence of its phase in the last 50 runs, within the floor and the configured window.
    Of n + 1 exchangeable runs each is as likely as any other to have the longest silence, whatever the distribution:
    the next one exceeds the longest of the n before it with probability at most 1/(n + 1), and a window that is not
    shorter than that longest silence stops it with no higher one. With k phases learned, a whole run is stopped with
    probability at most the sum of their k chances. Exchangeable means that nothing but chance tells the next run from
    the earlier ones: a changed command, cache key or storage is another job.

    Source: the rank of one of n + 1 exchangeable values is uniform (V. Vovk, A. Gammerman, G. Shafer: Algorithmic
    Learning in a Random World, Springer 2005, section 2.2); for independent values it is the one-sided tolerance limit
    by the largest order statistic (S. S. Wilks: Determination of sample sizes for setting tolerance limits, Annals of
    Mathematical Statistics 12, 1941, pp. 91-96).

    Args:
        runs: the longest silences of completed runs, the newest last.
        policy: the configured windows.
        floor_s: no window is shorter; see `least_window_s`.
        least_runs: with fewer runs a phase keeps its configured window.

    Returns:
        The windows that are shorter than the configured ones.

    Example:
        >>> from prefect_cachewatch.config import StallPolicy
        >>> found = learn([PastPauses(writing_s=s) for s in (20, 31, 24, 40, 28)], StallPolicy(), 30)
        >>> [(each.phase, each.window_s, each.runs) for each in found.windows]
        [('writing', 60.0, 5)]
    """
    found = []
    for phase in PHASES:
        silences = [each for run in runs if (each := run.of(phase)) is not None][-MOST_RUNS:]
        configured_s = configured_window_s(policy, phase)
        if len(silences) < max(1, least_runs):
            continue
        window_s = max(floor_s, math.ceil(10 * _FACTOR * max(silences)) / 10)
        if window_s < configured_s:
            chance = 1 / (len(silences) + 1)
            found.append(LearnedWindow(phase, window_s, configured_s, len(silences), max(silences), chance))
    return LearnedWindows(tuple(found))
