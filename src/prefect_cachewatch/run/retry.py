"""Decides whether a failed attempt is made again, by its outcome and by the cause of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.evidence.causes import Known, find_following
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.outcomes import is_verdict
from prefect_cachewatch.watching.sections import NextAttempt
from prefect_cachewatch.watching.stall import MIN_GROWTH_BYTES

#: So many attempts in a row that do not take the cache beyond its largest size so far are the last ones.
BARREN_MOST = 2
_SHOWN = 200
_LONGEST_PAUSE_S, _JITTER = 600.0, 0.2
_NEVER = frozenset({126, 127})  # a command that cannot be executed now cannot be executed in a minute
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ +File "[^"]*", line \d+', re.MULTILINE)


@dataclass(frozen=True)
class RetryDecision:
    """Whether there is another attempt, and the reason, for the log.

    An `extra` attempt follows at once, with the configured windows, and does not count as one of the policy's.

    Attributes:
        again: whether there is one.
        reason: why, or why not.
        category: of the cause; empty where the cause was not asked.
        pause_s: the pause that the cause asks for; None for the policy's back-off.
        lasting: why a later run would end in the same way; empty if it may end otherwise.
    """

    again: bool
    reason: str
    category: str = ""
    pause_s: float | None = None
    extra: bool = False
    lasting: str = ""


def count_attempts(outcomes: Sequence[Outcome]) -> int:
    """Count the attempts that use up one of the policy's: all but one that a learned window has stopped."""
    return sum(outcome.learned_stop is None for outcome in outcomes)


def decide_retry(
    policy: RetryPolicy,
    outcomes: Sequence[Outcome],
    start_bytes: int,
    tracebacks: Sequence[str] = (),
) -> RetryDecision:
    """Decide after an attempt whether to make another.

    Args:
        policy: the user's policy.
        outcomes: outcomes of the attempts so far, the last one included.
        start_bytes: bytes that were in the directories before the first of them.
        tracebacks: the last traceback of each attempt, by `last_traceback`; default none.

    Returns:
        The decision.
    """
    last, attempt = outcomes[-1], count_attempts(outcomes)
    if last.learned_stop is not None:
        return RetryDecision(True, "the window was learned: once more with the configured one", extra=True)
    if last.name in ("completed", "cancelled"):
        return RetryDecision(False, f"the attempt was {last.name}")
    if last.name == "nothing_written":
        return RetryDecision(False, "a directory that is not the one it writes to stays so")
    barren = _count_barren(outcomes, start_bytes)
    category, following = find_following(last.diagnosis)
    lasting = _refusal(policy, last, following)
    if not (lasting or following.outside) and barren and _repeats(tracebacks):
        lasting = "it failed with the same traceback as before, and the cache did not grow"

    def no(reason: str) -> RetryDecision:
        return RetryDecision(False, reason, category, lasting=lasting or "")

    if attempt >= policy.attempts:
        return no(f"attempt {attempt} of {policy.attempts} was the last")
    if lasting:
        return no(lasting)
    if is_verdict(last.name) and not policy.retry_stalls:
        return no("stalls are not retried (retry_stalls)")
    if barren >= BARREN_MOST:
        return no(f"{barren} attempts in a row did not take the cache beyond its largest size so far")
    reason = f"attempt {attempt} of {policy.attempts} ended {last.name}"
    return RetryDecision(True, reason, category, following.pause_s)


def _count_barren(outcomes: Sequence[Outcome], start_bytes: int) -> int:
    """Count the last attempts in a row that did not take the cache beyond its largest size, apparent or on disk."""
    size_mark, disk_mark, barren = start_bytes, 0, 0
    for outcome in outcomes:
        growth = outcome.growth
        if max(growth.bytes_present - size_mark, growth.allocated_present - disk_mark) >= MIN_GROWTH_BYTES:
            barren = 0
        else:
            barren += outcome.learned_stop is None
        size_mark = max(size_mark, growth.bytes_present)
        disk_mark = max(disk_mark, growth.allocated_present)
    return barren


def _refusal(policy: RetryPolicy, last: Outcome, following: Known) -> str | None:
    if last.kind == "filesystem_unresponsive":
        return "the file system does not answer"
    if last.name == "failed" and last.exit_code is not None:
        codes = policy.retry_exit_codes
        if last.exit_code in _NEVER if codes is None else last.exit_code not in codes:
            return f"exit code {last.exit_code} is not retried"
        if codes is not None:
            return None  # named by the user
    return None if following.again else following.why


def describe_next(decision: RetryDecision, policy: RetryPolicy, attempt: int, why: str, random: float) -> NextAttempt:
    """Say in one sentence what follows an attempt.

    Args:
        decision: from `decide_retry`.
        policy: the user's policy, for the pause and the command before the attempt.
        attempt: how many of the policy's attempts are used up.
        why: the reason by the cause.
        random: uniform in [0, 1), for the jitter.

    Returns:
        The report's section.
    """
    if not decision.again:
        return NextAttempt(False, decision.category or None, f"no further attempt: {decision.reason}")
    command = f", after {for_terminal(' '.join(policy.before_retry), _SHOWN)}" if policy.before_retry else ""
    if decision.extra:
        return NextAttempt(True, None, f"again at once{command}, because {decision.reason}", 0.0)
    pause_s = backoff_before(policy.backoff_s, attempt + 1, random) if decision.pause_s is None else decision.pause_s
    wait = format_duration(pause_s)
    when = "again at once" if wait == "0 s" else f"again after {wait}"
    return NextAttempt(True, decision.category, f"{when}{command}, because {why}", round(pause_s, 3))


def backoff_before(backoff_s: float, attempt: int, random: float) -> float:
    """Return how long to wait before an attempt: doubled for each one, capped, a fifth longer or shorter by chance.

    Args:
        backoff_s: the pause before the second attempt.
        attempt: the next attempt, 2 or more.
        random: uniform in [0, 1).

    Returns:
        Seconds.

    Example:
        >>> backoff_before(30, 4, 0.5)
        120.0
    """
    raw = min(max(_LONGEST_PAUSE_S, backoff_s), backoff_s * 2.0 ** min(attempt - 2, 200))  # a float holds no 2^10000
    return float(raw * (1 + _JITTER * (2 * random - 1)))


def last_traceback(log_tail: str) -> str:
    """Return the frames and the kind of the last Python traceback, without what differs between two runs.

    Args:
        log_tail: the end of a log.

    Returns:
        Empty if there is none.

    Example:
        >>> last_traceback('Traceback (most recent call last):\\n  File "a.py", line 3, in f\\n    g()\\nKeyError: 7')
        '  File "a.py", line 3\\nKeyError'
    """
    _, found, after = log_tail.rpartition(_TRACEBACK)
    if not found:
        return ""
    lines = after.splitlines()
    last = next((line for line in lines[1:] if line and not line[0].isspace()), "")
    return "\n".join((*_FRAME.findall(after), last.partition(":")[0])) if last else ""


def _repeats(tracebacks: Sequence[str]) -> bool:
    return len(tracebacks) > 1 and bool(tracebacks[-1]) and tracebacks[-1] == tracebacks[-2]
