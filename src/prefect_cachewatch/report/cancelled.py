"""What is told of an attempt that was cancelled: what is known without a look at its tree. Pure."""

from __future__ import annotations

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.evidence.causes import CANCELLED, Cause
from prefect_cachewatch.evidence.model import Missing
from prefect_cachewatch.evidence.view import quoted

NOT_LOOKED_AT = Missing("processes", "a cancelled run is stopped at once: its processes were not looked at")
_LINES = 3


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
        said=quoted(*[line for line in log.splitlines() if line.strip(" ~^")][-_LINES:]),
    )


def _rounded(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 10 else float(round(seconds)))
