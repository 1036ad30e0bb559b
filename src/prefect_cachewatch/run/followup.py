"""Decides after a failed run, by its cause and the job's last runs, whether it is worth running once more.

A rule over values. `retry` decides on attempts within a run, and whether its cause lasts; this rule decides later, possibly on
another machine.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.common.text import for_terminal

Rerun = Literal["never", "once"]
#: The states that are followed up.
FOLLOWED = ("Stalled", "GeneratorFailed")


@dataclass(frozen=True)
class PastEnd:
    """How one run of a job ended."""

    state_name: str
    message: str = ""
    ended_at: datetime.datetime | None = None
    again: bool = False  # the run was itself started by a follow-up
    part_of: str | None = None  # the run that it is a part of, which is responsible for it
    category: str = ""  # of the cause
    told: str = ""  # the cause in short
    lasting: str = ""  # why a later run would end in the same way; by the table of `evidence.causes`


@dataclass(frozen=True)
class FollowUp:
    """The decision after a failed run."""

    run_again: bool
    failures_in_a_row: int
    sentence: str


def decide_follow_up(ends: Sequence[PastEnd], rerun: Rerun) -> FollowUp:
    """Decide what follows a failed run: a first one may be chance if its cause may end, a second in a row needs a person.

    Args:
        ends: how the job's last runs ended, the failed one first, then back in time.
        rerun: whether a first failure is run again.

    Returns:
        Whether to run the job again, and the reason as a sentence.

    Example:
        >>> decide_follow_up([PastEnd("Stalled"), PastEnd("Completed")], "once").sentence
        'It stalled for the first time in a row: it is run again once.'
        >>> decide_follow_up([PastEnd("Stalled", lasting="the disk is as full as before")], "once").sentence
        'It stalled for the first time in a row: it is not run again, because the disk is as full as before.'
    """
    last = ends[0]
    row = next((i for i, end in enumerate(ends) if end.state_name not in FOLLOWED), len(ends))
    if last.part_of is not None:
        return FollowUp(False, row, f"It is a part of {for_terminal(last.part_of)}, which decides what follows.")
    what = "stalled" if all(end.state_name == "Stalled" for end in ends[:row]) else "failed"
    if row > 1:
        why = _common_cause(ends[:row])
        return FollowUp(False, row, f"It {what} {row} times in a row{why}: it is not run again, a person must look.")
    if last.again:
        return FollowUp(False, row, "It was run again already: it is not run a third time, a person must look.")
    first = f"It {what} for the first time in a row"
    if last.lasting:
        return FollowUp(False, row, f"{first}: it is not run again, because {for_terminal(last.lasting, 300)}.")
    if rerun == "never":
        return FollowUp(False, row, f"{first}: run it again when the cause is mended.")
    return FollowUp(True, row, f"{first}: it is run again once.")


def _common_cause(ends: Sequence[PastEnd]) -> str:
    """The cause that all of them have, as a part of a sentence; empty if one has another or none is known of it."""
    sentences = {"" if end.category == "unknown" else end.told for end in ends}
    categories = {"" if end.category == "unknown" else end.category for end in ends}
    for found in (sentences, categories):
        if len(found) == 1 and "" not in found:
            return f" with the same cause ({for_terminal(found.pop(), 300)})"
    return ""
