"""Which regular expressions people may write for what is searched in a generator's output."""

from __future__ import annotations

import re

__all__ = ["check_pattern"]

_QUANTIFIED = re.compile(r"[*+]|\{\d*,\}")


def check_pattern(pattern: str) -> str:
    """Refuse a regular expression that cannot be searched for, or not in bounded time.

    Args:
        pattern: as people write it.

    Returns:
        The same.

    Raises:
        ValueError: it does not compile, matches nothing at all, or repeats a repetition.

    Example:
        >>> check_pattern(r"Application startup complete")
        'Application startup complete'
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError(
            f"pattern {pattern!r} matches an empty text, so any output at all: write the words that it prints"
        )
    if _repeats_a_repetition(pattern):
        # (a+)+ takes exponential time on a line that almost matches, and nothing else runs in this process meanwhile.
        raise ValueError(f"pattern {pattern!r} repeats a repetition, which may take for ever: write it without (...+)+")
    return pattern


def _repeats_a_repetition(pattern: str) -> bool:
    """Whether a group that holds an unbounded repetition is itself repeated without a bound."""
    holds = [False]
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _after_class(pattern, at)
            continue
        if char == "(":
            holds.append(False)
        elif char == ")":
            inner = holds.pop() if len(holds) > 1 else False
            if inner and _QUANTIFIED.match(pattern, at + 1):
                return True
            holds[-1] = holds[-1] or inner
        elif _QUANTIFIED.match(pattern, at):
            holds[-1] = True
        at += 1
    return False


def _after_class(pattern: str, at: int) -> int:
    """The position behind a character class; a ] right at its beginning is a member."""
    at += 1
    if pattern[at : at + 1] == "^":
        at += 1
    if pattern[at : at + 1] == "]":
        at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
