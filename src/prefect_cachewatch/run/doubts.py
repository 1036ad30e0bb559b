"""What speaks against a generation that ended well: writes that failed, a full file system, a cache that is not whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.store.checks import Finding, summarize_findings
from prefect_cachewatch.store.contents import look_over
from prefect_cachewatch.watching.attempt import Outcome, Watch

_LOOK_S = 20.0
#: Categories of warnings that a message tells of.
DOUBTS = frozenset(
    {"failed_write", "failed_download", "full_filesystem", "not_written_again", "incomplete_set", "broken_content"}
)
_BEFORE_S = 1.0  # the file system's clock is not ours


def find_doubts(
    files: Files, watch: Watch, outcome: Outcome, secrets: Sequence[str] = (), *, look: bool = True
) -> Outcome:
    """Add to a completed attempt what speaks against it, and tell of it.

    Args:
        files: the helper process that reads the cache, which may hang.
        watch: the attempt, ended.
        outcome: its outcome; one that did not complete is returned unchanged.
        secrets: values that must not appear.
        look: whether to look over the cache; not where it is checked before it is published.

    Returns:
        The outcome with its `doubts`.
    """
    if outcome.name != "completed":
        return outcome
    found = [*_failed(watch, secrets), *_full(watch)]
    notes = outcome.notes
    if look:
        since_ns = int((outcome.started_at - _BEFORE_S) * 1e9)
        try:
            found += files.run(look_over, list(outcome.paths), since_ns, list(watch.job.ignore), timeout_s=_LOOK_S)
        except OSError as error:
            notes = (*notes, f"whether the cache is whole was not looked at: {error.strerror or error}")
    if not found:
        return replace(outcome, notes=notes)
    facts = f"{outcome.facts} {describe_doubts(found)}"
    return replace(outcome, notes=notes, doubts=(*outcome.doubts, *found), facts=facts)


def describe_doubts(found: Sequence[Finding]) -> str:
    """Tell of doubts in one sentence.

    Example:
        >>> describe_doubts([Finding("full_filesystem", "the file system of /c was full")])
        'It may not be whole: the file system of /c was full.'
    """
    return f"It may not be whole: {summarize_findings(found)}."


def _failed(watch: Watch, secrets: Sequence[str]) -> list[Finding]:
    told, found = watch.failed_writes, list[Finding]()
    for category, what, lines in (
        ("failed_write", "a write", told.writes),
        ("failed_download", "a download", told.downloads),
    ):
        if lines:
            said = f"its output tells of {what} that failed: {redact(lines[0], secrets)}"
            found.append(Finding(category, said, "warn"))
    return found


def _full(watch: Watch) -> list[Finding]:
    state = watch.state
    return [
        Finding(
            "full_filesystem",
            f"the file system of {for_terminal(path)} was full, {format_duration(round(at_s, 1))} after the start",
            "warn",
        )
        for path, at_s in state.was_full.items()
    ]
