"""The sentence that tells how an attempt failed: job, verdict, cause, for how long. Pure."""

from __future__ import annotations

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.evidence.causes import CANCELLED, Cause
from prefect_cachewatch.evidence.view import quoted

_SAID_LINES = 3
_VERBS = {"stalled": "stalled", "deadline_exceeded": "exceeded its time limit", "failed": "failed"}
_LONG = {
    "never_started": "Nothing was written for",
    "never_ready": "Not ready, and nothing written for",
    "cache_directory_missing": "Missing for",
    "filesystem_unresponsive": "No answer for",
}


def make_headline(name: str, outcome: str, cause: Cause | None, lasted: str) -> str:
    """Say how an attempt failed, the cause before the numbers.

    Args:
        name: of the job.
        outcome: stalled, deadline_exceeded or failed.
        cause: its cause; without one, what is known stands in its place.
        lasted: from `how_long` or `how_it_ended`.

    Returns:
        One or two sentences, safe for a terminal.

    Example:
        >>> lock = Cause("waiting_for_lock", "pid 7 (python3) waits for a lock")
        >>> make_headline("llama", "stalled", lock, how_long("no_growth", 360.2))
        'llama stalled: pid 7 (python3) waits for a lock. No growth for 6 minutes.'
    """
    lead = f"{for_terminal(name, 100)} {_VERBS[outcome]}"
    if cause is None:
        return f"{lead}: {lasted[:1].lower()}{lasted[1:]}."
    return f"{lead}{'' if cause.is_sure else ', probably'}: {cause.summary.rstrip('.')}. {lasted}."


def how_long(kind: str | None, seconds: float) -> str:
    """Say for how long a stall lasted, as the beginning of a sentence; without a kind, how long the attempt ran.

    Example:
        >>> how_long("never_started", 1200.4), how_long(None, 7200)
        ('Nothing was written for 20 minutes', 'It ran for 2 h')
    """
    lead = "It ran for" if kind is None else _LONG.get(kind, "No growth for")
    return f"{lead} {_rounded(seconds)}"


def how_it_ended(exit_code: int | None, signal: str | None) -> str:
    """Say how a generator that failed ended, as the beginning of a sentence.

    Example:
        >>> how_it_ended(1, None), how_it_ended(None, "SIGKILL")
        ('Exit code 1', 'Killed by SIGKILL')
    """
    if signal is not None:
        return f"Killed by {signal}"
    return "Its exit code is not known" if exit_code is None else f"Exit code {exit_code}"


def describe_cancelled(by: str, duration_s: float, pause_s: float | None, window_s: float, log: str) -> Cause:
    """Say who cancelled an attempt, and whether it grew at that time.

    Args:
        by: who or what cancelled it, such as `SIGINT`.
        duration_s: how long it ran.
        pause_s: seconds without growth at the end; None if nothing was written.
        window_s: the window that had not passed.
        log: the redacted end of its output.

    Returns:
        What stands in the place of a cause.

    Example:
        >>> describe_cancelled("SIGINT", 65.2, 8.0, 300, "").summary
        'it was cancelled (SIGINT) after 65 s; it last grew 8 s before its end'
    """
    grew = "it had written nothing" if pause_s is None else f"it last grew {_rounded(pause_s)} before its end"
    still = "no byte" if pause_s is None else "no growth"
    return Cause(
        CANCELLED,
        f"it was cancelled ({by}) after {_rounded(duration_s)}; {grew}",
        (
            f"{still} for {_rounded(duration_s if pause_s is None else pause_s)} of a window of {format_duration(window_s)}",
        ),
        said=quoted(*[line for line in log.splitlines() if line.strip(" ~^")][-_SAID_LINES:]),
    )


def _rounded(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 10 else float(round(seconds)))
