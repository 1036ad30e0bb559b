"""Whether a run works or only speaks to the API: what `cachewatch generate --api-patience` bounds.

The flow notes what it does; whoever runs it in its own process may read that, and leave when the API takes too long.
"""

from __future__ import annotations

import time

from prefect_cachewatch.flows.context_values import ContextValue
from prefect_cachewatch.postmortem.report import Report
from prefect_cachewatch.watching.attempt import Watch

__all__ = ["Telling", "note_end", "note_work", "whom_to_tell"]


class Telling:
    """How far a run is; begins with speaking to the API, which knows nothing of the run yet."""

    def __init__(self) -> None:
        self.since_s: float | None = time.monotonic()
        """Monotonic time since when the run does nothing but speak to the API; None while it works."""
        self.has_begun = False
        self.report: Report | None = None
        """Of the last attempt that has ended."""
        self.watch: Watch | None = None
        self.attempts_left = 0
        self.interrupted = False
        """Whether a signal ended the run at work that no attempt's report tells of: before, between or after them."""

    def work(self, watch: Watch | None = None) -> None:
        """Note that something is done that the API has no part in.

        Args:
            watch: of the attempt that begins, if one does.
        """
        self.has_begun, self.since_s, self.watch = True, None, watch

    def tell(self, report: Report | None = None) -> None:
        """Note that all that is left is to speak to the API.

        Args:
            report: of the attempt that has ended; None where there is no newer one.
        """
        self.report, self.since_s, self.watch = report or self.report, time.monotonic(), None


# Set by whoever wants to know; a worker does not.
whom_to_tell: ContextValue[Telling | None] = ContextValue("whom_to_tell", None)


def note_work(watch: Watch | None = None, attempts_left: int | None = None) -> None:
    """Note, where anybody wants to know, that something is done that the API has no part in.

    Args:
        watch: of the attempt that begins, if one does.
        attempts_left: how many may follow the next one, if that is known anew.
    """
    if (told := whom_to_tell.get()) is not None:
        told.work(watch)
        told.attempts_left = told.attempts_left if attempts_left is None else attempts_left


def note_end(report: Report | None = None, *, last: bool = True) -> None:
    """Note, where anybody wants to know, that an attempt has ended, or the run.

    Args:
        report: of the attempt.
        last: whether nothing is left but to speak to the API; not so where another attempt may follow.
    """
    if (told := whom_to_tell.get()) is None:
        return
    if last and (report is None or report.outcome in ("completed", "cancelled") or not told.attempts_left):
        told.tell(report)
    else:
        told.report = report or told.report
