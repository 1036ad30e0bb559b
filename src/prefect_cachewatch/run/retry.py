"""Decides whether a failed attempt is made again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.outcomes import is_verdict

__all__ = ["RetryDecision", "decide_retry"]

_NEVER = frozenset({126, 127})  # a command that cannot be executed now cannot be executed in a minute


@dataclass(frozen=True)
class RetryDecision:
    """Whether there is another attempt, and the reason, for the log."""

    again: bool
    reason: str


def decide_retry(
    policy: RetryPolicy, outcomes: Sequence[Outcome], start_bytes: int, min_growth_bytes: int
) -> RetryDecision:
    """Decide after an attempt whether to make another.

    Args:
        policy: the user's policy.
        outcomes: outcomes of the attempts so far, the last one included.
        start_bytes: bytes that were in the directories before the first attempt.
        min_growth_bytes: smaller growth of the high-water mark counts as none.

    Returns:
        The decision.
    """
    last, attempt = outcomes[-1], len(outcomes)
    if last.name in ("completed", "cancelled"):
        return RetryDecision(False, f"the attempt was {last.name}")
    if last.name == "nothing_written":
        return RetryDecision(False, "a directory that is not the one it writes to stays so")
    if attempt >= policy.attempts:
        return RetryDecision(False, f"attempt {attempt} of {policy.attempts} was the last")
    if last.kind == "filesystem_unresponsive":
        return RetryDecision(False, "the file system does not answer")
    if is_verdict(last.name) and not policy.retry_stalls:
        return RetryDecision(False, "stalls are not retried (retry_stalls)")
    if last.name == "failed" and last.exit_code is not None:
        codes = policy.retry_exit_codes
        if last.exit_code in _NEVER if codes is None else last.exit_code not in codes:
            return RetryDecision(False, f"exit code {last.exit_code} is not retried")
    barren = _barren_attempts(outcomes, start_bytes, min_growth_bytes)
    if barren >= policy.no_progress_attempts:
        return RetryDecision(False, f"{barren} attempts in a row did not take the cache beyond its largest size so far")
    return RetryDecision(True, f"attempt {attempt} of {policy.attempts} ended {last.name}")


def _barren_attempts(outcomes: Sequence[Outcome], start_bytes: int, least: int) -> int:
    size_mark, disk_mark, barren = start_bytes, 0, 0
    for outcome in outcomes:
        growth = outcome.growth
        if growth.bytes_present >= size_mark + least or growth.allocated_present >= disk_mark + least:
            barren = 0
        else:
            barren += 1
        size_mark = max(size_mark, growth.bytes_present)
        disk_mark = max(disk_mark, growth.allocated_present)
    return barren
