"""Decides after a stall, by the job's last runs, whether it is worth running once more.

A rule over values. `retry` decides on attempts within a run; this rule decides later, possibly on another machine.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.text import for_terminal

__all__ = ["FollowUp", "PastEnd", "Rerun", "decide_follow_up", "named_cause"]

Rerun = Literal["never", "once"]
_CAUSE = "ause: "  # "Cause: " of a sure diagnosis, "Probable cause: " of another


@dataclass(frozen=True)
class PastEnd:
    """How one run of a job ended."""

    state_name: str
    message: str = ""
    ended_at: datetime.datetime | None = None
    again: bool = False  # the run was itself started by a follow-up
    part_of: str | None = None  # the run that it is a part of, which is responsible for it


@dataclass(frozen=True)
class FollowUp:
    """The decision after a stall."""

    run_again: bool
    stalls_in_a_row: int
    sentence: str


def named_cause(message: str) -> str:
    """Return the cause that the message of a stalled run names.

    Args:
        message: message of the state.

    Returns:
        The cause, or an empty text.

    Example:
        >>> named_cause("stalled: no growth for 5 min. Cause: the disk is full.")
        'the disk is full'
    """
    return message.partition(_CAUSE)[2].strip().rstrip(".")


def decide_follow_up(ends: Sequence[PastEnd], rerun: Rerun) -> FollowUp:
    """Decide what follows a stall: a first one may be chance, a second in a row needs a person.

    Args:
        ends: how the job's last runs ended, the stalled one first, then back in time.
        rerun: whether a first stall is run again.

    Returns:
        Whether to run the job again, and the reason as a sentence.

    Example:
        >>> decide_follow_up([PastEnd("Stalled"), PastEnd("Completed")], "once").sentence
        'It stalled for the first time in a row: it is run again once.'
    """
    last = ends[0]
    row = next((i for i, end in enumerate(ends) if end.state_name != "Stalled"), len(ends))
    if last.part_of is not None:
        return FollowUp(False, row, f"It is a part of {for_terminal(last.part_of)}, which decides what follows.")
    causes = {named_cause(end.message) for end in ends[:row]} - {""}
    why = f" with the same cause ({for_terminal(causes.pop(), 300)})" if row > 1 and len(causes) == 1 else ""
    if row > 1:
        return FollowUp(False, row, f"It stalled {row} times in a row{why}: it is not run again, a person must look.")
    if last.again:
        return FollowUp(False, row, "It was run again already: it is not run a third time, a person must look.")
    if rerun == "never":
        return FollowUp(False, row, "It stalled for the first time in a row: run it again when the cause is mended.")
    return FollowUp(True, row, "It stalled for the first time in a row: it is run again once.")
