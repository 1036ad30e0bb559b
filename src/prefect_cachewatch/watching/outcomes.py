"""How attempts and runs end, said once: each end's state in Prefect, exit status, urgency and what to do next. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ENDINGS", "OWN_FAILURE", "STOPPED", "Ending", "OutcomeName",
    "ending_named", "ending_of", "exit_status", "is_failure", "is_verdict",
]  # fmt: skip

# The last two of adopted processes only: ended, and nobody could say how; still running when the watch was ended.
OutcomeName = Literal[
    "completed", "nothing_written", "failed", "stalled", "deadline_exceeded", "cancelled", "ended", "detached"
]

STOPPED = 124
OWN_FAILURE = 125
_UNKNOWN_END = 123
_NOT_WHOLE = 1
_NEVER_READY = 1


@dataclass(frozen=True)
class Ending:
    """One way to end; `status` is None where the generator or a signal decides, `kind` that of a stall."""

    outcome: str
    state: str
    status: int | None = None
    advice: str = ""
    kind: str | None = None
    failure: bool = True


_STALLS = {
    "no_growth": "Look at the last lines of the log and at the file that grew last. If the generator pauses this long "
    "in normal work, raise stall_after_s above its longest pause.",
    "never_started": "See whether the generator loads its model or waits for a device or lock. If it needs longer "
    "before its first byte, raise first_write_within_s.",
    "never_ready": "The cache was written and the server did not come up: read the end of its log, and ask its address "
    "by hand. If its warm-up needs longer, raise warmup_within_s.",
    "churning": "The generator writes temporary files and deletes them: see whether it retries a step that fails.",
    "cache_directory_missing": "Find out who removed the cache directory; the generator's files went with it.",
}

# The first of several rows with one outcome stands for it. Those come first that nothing but a person will mend.
ENDINGS = (
    Ending("refused", "Refused"),
    Ending("verification_failed", "VerificationFailed", _NOT_WHOLE,
           "Look at the build in quarantine: cachewatch store list says where it lies."),
    Ending("nothing_written", "NothingWritten", _NOT_WHOLE,
           "Name the directory that the command writes to (--cache-dir, cache_dirs). Where an empty cache is right, allow "
           "it with --allow-empty (allow_empty)."),
    Ending("failed", "GeneratorFailed", None, "Read the last lines of the generator's log; its exit code is its own."),
    Ending("stalled", "Stalled", STOPPED),
    *(Ending("stalled", "Stalled", STOPPED, advice, kind) for kind, advice in _STALLS.items()),
    Ending("stalled", "FilesystemUnresponsive", STOPPED,
           "Check the mount of the cache directory and its server; nothing can be said about the cache until it answers.",
           "filesystem_unresponsive"),
    Ending("deadline_exceeded", "DeadlineExceeded", STOPPED,
           "Compare bytes written with what was expected: raise max_duration_s if it was merely slow."),
    Ending("failed", "Crashed", None,
           "The process or its worker died: look at the worker's log and the kernel's (out of memory), then start again."),
    Ending("cancelled", "Cancelled", failure=False),
    Ending("detached", "Detached", failure=False),
    Ending("ended", "Ended", _UNKNOWN_END, failure=False),
    Ending("cached", "Cached", 0, failure=False),
    Ending("completed", "Completed", 0, failure=False),
)  # fmt: skip


def ending_of(outcome: str, kind: str | None = None) -> Ending:
    """Find the row of an outcome, and of the kind of its stall.

    Example:
        >>> ending_of("stalled", "filesystem_unresponsive").state, ending_of("completed").advice
        ('FilesystemUnresponsive', '')
    """
    rows = [row for row in ENDINGS if row.outcome == outcome] or [Ending(outcome, "GeneratorFailed")]
    return next((row for row in rows if row.kind == kind), rows[0])


def ending_named(state: str) -> Ending | None:
    """Find the first row of a state's name; None for one that is not of a generation.

    Example:
        >>> ending_named("FilesystemUnresponsive").outcome
        'stalled'
    """
    return next((row for row in ENDINGS if row.state == state), None)


def is_failure(outcome: str) -> bool:
    """Say whether an outcome is one that somebody has to see to."""
    return ending_of(outcome).failure


def is_verdict(outcome: str) -> bool:
    """Say whether an outcome is a verdict of the stall rule."""
    return ending_of(outcome).status == STOPPED


def exit_status(
    outcome: str,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    by_itself: bool = False,
    received: int | None = None,
) -> int:
    """Say how a command of ours ends after an outcome.

    Args:
        outcome: of the attempt, or of the run.
        exit_code: the generator's.
        signal: that ended the generator.
        by_itself: whether the generator ended without a stop.
        received: the signal that ended our command, if one did.

    Returns:
        The exit status.

    Example:
        >>> exit_status("stalled"), exit_status("cancelled", received=2), exit_status("failed", exit_code=3, by_itself=True)
        (124, 130, 3)
    """
    ending = ending_of(outcome)
    if ending.status is not None:
        return ending.status
    if outcome != "failed":
        return 128 + received if received else OWN_FAILURE
    if by_itself and signal is not None:
        return 128 + signal
    if by_itself and exit_code is not None:
        return exit_code or _NEVER_READY
    return OWN_FAILURE
