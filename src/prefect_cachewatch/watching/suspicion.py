"""Whether a silence is its storage's: how the runs on one storage stand, in; a suspicion, and how long it is borne, out. Pure.

The rule: runs that fell silent within one window of one another are one group. The storage is suspected if the group is
a majority of the active runs on it, has at least three of them, and the probe does not find the storage well; or if all
runs, two at least, are silent and the probe finds it slow or dead. A run alone is judged as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.text import for_terminal

#: What a small write with fsync finds: well, slow, no answer, or it cannot be made (no permission, no space).
Probed = Literal["well", "slow", "dead", "unknown"]
#: Of a run's storage, in its present silence.
Fate = Literal["never suspected", "suspected before", "suspected"]
_LEAST = 3
_NAMED = 12
_EPSILON_S = 1e-3


@dataclass(frozen=True)
class Standing:
    """How one run stands on a storage; `silent_since_s` on a clock that all share, None while it moves."""

    run: str
    job: str
    silent_since_s: float | None = None


@dataclass(frozen=True)
class Suspected:
    """A storage that is suspected: the silent runs, how many are active on it, and what the probe found."""

    storage: str
    silent: tuple[Standing, ...]
    active: int
    probed: Probed

    @property
    def sentence(self) -> str:
        """What is suspected, and why; without an end of the sentence, safe for a terminal."""
        jobs = [for_terminal(one.job, 60) for one in self.silent]
        named = ", ".join(jobs[:_NAMED]) + (f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else "")
        write = {
            "dead": "a write to it does not return",
            "slow": "a write of 1 MiB to it takes seconds",
            "unknown": "it could not be probed",
            "well": "a write to it succeeds",
        }[self.probed]
        count = f"{len(jobs)} of {self.active} runs on it"
        return f"storage {for_terminal(self.storage, 200)} is suspected: {count} fell silent together ({named}), and {write}"


def fell_silent(me: str, standings: Iterable[Standing], window_s: float) -> tuple[Standing, ...]:
    """Return the largest group of silent runs, this one among them, whose silences began within one window.

    Args:
        me: this run.
        standings: of all active runs on the storage.
        window_s: this run's stall window.

    Returns:
        The group, sorted by run; nothing if this run is not silent.

    Example:
        >>> runs = [Standing("a", "x", 0.0), Standing("b", "y", 4.0), Standing("c", "z", 9.0), Standing("d", "w")]
        >>> [one.run for one in fell_silent("b", runs, window_s=5)]
        ['a', 'b']
    """
    silent = sorted((one.silent_since_s, one.run, one) for one in standings if one.silent_since_s is not None)
    mine = next((since_s for since_s, run, _ in silent if run == me), None)
    if mine is None:
        return ()
    begins = [since_s for since_s, *_ in silent if mine - window_s <= since_s <= mine]
    groups = [[one for since_s, _, one in silent if begin <= since_s <= begin + window_s] for begin in begins]
    largest = max(groups, key=len)
    return tuple(sorted(largest, key=lambda one: one.run))


def is_majority(silent: int, active: int) -> bool:
    """Say whether so many silent runs are worth a probe: all of two, or three at least and more than half."""
    return silent >= 2 and (silent == active or (silent >= _LEAST and 2 * silent > active))


def is_suspected(silent: int, active: int, probed: Probed) -> bool:
    """Say whether the storage is suspected.

    Args:
        silent: runs that fell silent together.
        active: runs on the storage, those included.
        probed: what a write to it found.

    Example:
        >>> is_suspected(3, 5, "dead"), is_suspected(3, 6, "dead"), is_suspected(3, 5, "well"), is_suspected(2, 2, "slow")
        (True, False, False, True)
    """
    if not is_majority(silent, active):
        return False
    return probed in ("slow", "dead") or (silent >= _LEAST and probed == "unknown")


class Patience:
    """By how much a window is longer while its storage is suspected.

    While it is suspected the verdict waits, for `most_s` at most. Then the run has one whole window more, since a
    storage that has come back must be written to first. A silence gets this once, blind or seen: its budget counts
    from the first verdict that waits, and only growth or a told line gives another.

    Args:
        most_s: the longest wait; None: two windows.
    """

    def __init__(self, most_s: float | None) -> None:
        self._most_s = most_s
        self.extra_s = 0.0
        self._spent = self._renewed = False
        self._left_s: float | None = None  # of the silence's budget; None: no verdict has waited

    def bears(self, silence_s: float, window_s: float, step_s: float, fate: Fate) -> bool:
        """Say whether a verdict that is due waits; if so, `extra_s` is how much longer than the window.

        Args:
            silence_s: so far.
            window_s: the run's own.
            step_s: how soon it is to be asked again while it waits.
            fate: of the storage in this silence.
        """
        most_s = 2 * window_s if self._most_s is None else self._most_s
        if self._spent or fate == "never suspected" or not most_s:
            return False
        if self._left_s is None:
            self._left_s = most_s + window_s
        if self._left_s < _EPSILON_S:
            return False
        left_s = window_s + most_s - silence_s
        self._spent = fate != "suspected" or left_s < _EPSILON_S
        extra_s = silence_s if self._spent else silence_s + min(step_s, left_s) - window_s
        self.extra_s = min(extra_s, silence_s + self._left_s - window_s)
        return True

    def pass_by(self, seconds: float) -> None:
        """Take in time of the silence, seen or blind."""
        if self._left_s is not None:
            self._left_s -= seconds

    def begin_anew(self) -> None:
        """Forget a silence that is over."""
        self.extra_s, self._spent, self._renewed, self._left_s = 0.0, False, False, None

    def see_again(self, pause_s: float) -> None:
        """Give a whole window, once, to a silence that can be measured again and of which so much is known."""
        if not self.extra_s:
            return
        self.extra_s = min(self.extra_s, pause_s) if self._renewed else pause_s
        self._spent, self._renewed = self._spent and pause_s > 0, True
