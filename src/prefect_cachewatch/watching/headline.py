"""The sentence that tells how an attempt failed: job, verdict, cause, for how long. It begins the message. Pure."""

from __future__ import annotations

import re

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.watching.sections import Diagnosis

#: Begins the first fact of a message, which follows its headline.
_FIRST_FACT = "Tensor cache generation "
#: Ends the summary of a cause that is not known.
NOT_KNOWN = "; the cause is not known"
#: Ends the summary of a crash of a process that another program started.
UNSEEN = "its output is not seen by an observer"
#: Ends the summary of a crash of a part.
WAITS = "and the rest waits for it"
_VERBS = {"stalled": "stalled", "deadline_exceeded": "exceeded its time limit", "failed": "failed"}
_LEAD = re.compile(rf" (?:{'|'.join(_VERBS.values())})(?:, probably)?: ")
_LONG = {
    "never_started": "Nothing was written for",
    "never_ready": "Not ready, and nothing written for",
    "cache_directory_missing": "Missing for",
    "filesystem_unresponsive": "No answer for",
}
# Their summaries are what was seen, and no guess.
_SEEN = ("unknown", "never_started", "never_ready", "generator_failed")


def make_headline(name: str, outcome: str, diagnosis: Diagnosis | None, lasted: str) -> str:
    """Say how an attempt failed, the cause before the numbers.

    Args:
        name: of the job.
        outcome: stalled, deadline_exceeded or failed.
        diagnosis: its cause; without one, what is known stands in its place.
        lasted: from `how_long` or `how_it_ended`.

    Returns:
        One or two sentences, safe for a terminal.

    Example:
        >>> lock = Diagnosis("waiting_for_lock", "pid 7 (python3) waits for a lock")
        >>> make_headline("llama", "stalled", lock, how_long("no_growth", 360.2))
        'llama stalled: pid 7 (python3) waits for a lock. No growth for 6 minutes.'
    """
    lead = f"{for_terminal(name, 100)} {_VERBS[outcome]}"
    if diagnosis is None:
        return f"{lead}: {lasted[:1].lower()}{lasted[1:]}."
    sure = diagnosis.confidence == "high" or diagnosis.category in _SEEN
    return f"{lead}{'' if sure else ', probably'}: {describe_cause(diagnosis)}. {lasted}."


def describe_cause(diagnosis: Diagnosis) -> str:
    """Return the cause as the end of a sentence: the summary; of a crash of the whole without a known cause, its last line.

    Example:
        >>> describe_cause(Diagnosis("generator_failed", "it ended", ("log: step 1", "log: no such layer.")))
        'no such layer (its last line)'
    """
    if diagnosis.category != "generator_failed":
        return diagnosis.summary.rstrip(".")
    if diagnosis.summary.endswith(WAITS):
        return diagnosis.summary
    said = [line.removeprefix("log: ") for line in diagnosis.evidence if line.startswith("log: ")]
    last = said[-1].rstrip(".") if said else ""
    silent = UNSEEN if diagnosis.summary.endswith(UNSEEN) else f"it {diagnosis.summary.rpartition(' and ')[2]}"
    return f"{last} (its last line)" if last else silent


def how_long(kind: str | None, seconds: float) -> str:
    """Say for how long a stall lasted, as the beginning of a sentence; without a kind, how long the attempt ran.

    Example:
        >>> how_long("never_started", 1200.4), how_long(None, 7200)
        ('Nothing was written for 20 minutes', 'It ran for 2 h')
    """
    lead = "It ran for" if kind is None else _LONG.get(kind, "No growth for")
    return f"{lead} {format_duration(round(seconds, 1) if seconds < 10 else float(round(seconds)))}"


def how_it_ended(exit_code: int | None, signal: str | None) -> str:
    """Say how a generator that failed ended, as the beginning of a sentence.

    Example:
        >>> how_it_ended(1, None), how_it_ended(None, "SIGKILL")
        ('Exit code 1', 'Killed by SIGKILL')
    """
    if signal is not None:
        return f"Killed by {signal}"
    return "Its exit code is not known" if exit_code is None else f"Exit code {exit_code}"


def put_first(first: str, message: str) -> str:
    """Put a headline before a message, whose first fact begins with `Tensor cache generation`.

    Example:
        >>> put_first("llama failed: boom. Exit code 1.", "Tensor cache generation failed: ...")
        'llama failed: boom. Exit code 1. Tensor cache generation failed: ...'
    """
    return f"{first} {message}"


def split_message(message: str) -> tuple[str, str]:
    """Split a message into its headline and the facts below it.

    Args:
        message: of a report or a state.

    Returns:
        The headline and the facts; the whole message and an empty text if it has no headline.

    Example:
        >>> split_message("llama failed: boom. Exit code 1. Tensor cache generation failed: 0 B.")
        ('llama failed: boom. Exit code 1.', 'Tensor cache generation failed: 0 B.')
    """
    first, found, facts = message.partition(f". {_FIRST_FACT}")
    return (f"{first}.", f"{_FIRST_FACT}{facts}") if found else (message, "")


def headline_of(message: str) -> str:
    """Return the headline of a message; the whole message if it has none."""
    return split_message(message)[0]


def named_cause(message: str) -> str:
    """Return the cause that the message of a failed run names.

    Args:
        message: message of the state.

    Returns:
        The cause, or an empty text if it is not known.

    Example:
        >>> named_cause("llama stalled: the disk is full. No growth for 6 minutes. Tensor cache generation stalled: ...")
        'the disk is full'
    """
    told = _told_first(message)
    return "" if told.endswith(NOT_KNOWN) else told


def told_first(message: str) -> str:
    """Return what a message tells first of a failure: its cause, else what is known, else its headline.

    Example:
        >>> told_first("llama stalled: pid 7 (python3) sleeps; the cause is not known. No growth for 3 s. Tensor cache generation ...")
        'pid 7 (python3) sleeps; the cause is not known'
    """
    return _told_first(message) or headline_of(message)


def _told_first(message: str) -> str:
    first, facts = split_message(message)
    told = first.rpartition(". ")[0] if facts else ""
    found = _LEAD.search(told)
    return told[found.end() :] if found else ""
