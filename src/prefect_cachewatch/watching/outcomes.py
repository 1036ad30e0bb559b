"""How attempts and runs end: each end's state in Prefect, exit status, urgency, sentence and advice. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration
from prefect_cachewatch.evidence.causes import CAUSES
from prefect_cachewatch.measure.growth import Rewriting
from prefect_cachewatch.watching.sections import LoggedProgress
from prefect_cachewatch.watching.stall import Verdict

# The last two are of attached processes only: ended with an unknown exit code; running when the watch was ended.
OutcomeName = Literal[
    "completed", "nothing_written", "failed", "stalled", "deadline_exceeded", "cancelled", "ended", "detached"
]

STOPPED = 124
OWN_FAILURE = 125
_UNKNOWN_END = 123
_NOT_WHOLE = 1
_NEVER_READY = 1
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class Ending:
    """One way to end; `status` is None if the generator or a signal decides it; `kind` is that of a stall."""

    outcome: str
    state: str
    status: int | None = None
    advice: str = ""
    kind: str | None = None
    failure: bool = True


# The first of several rows with one outcome stands for it. Rows that need a person come first.
ENDINGS = (
    Ending("refused", "Refused"),
    Ending("verification_failed", "VerificationFailed", _NOT_WHOLE,
           "Look at the refused build: cachewatch store list says where it lies."),
    Ending("nothing_written", "NothingWritten", _NOT_WHOLE,
           "Name the directory that the command writes to (--cache-dir, cache_dirs). Where an empty cache is right, allow "
           "it with --allow-empty (allow_empty)."),
    Ending("failed", "GeneratorFailed", None, CAUSES["generator_failed"].next_step),
    Ending("stalled", "Stalled", STOPPED,
           "Look at the last lines of the log and at the file that grew last. If the generator pauses this long in normal work, "
           "raise stall_after_s above its longest pause."),
    Ending("stalled", "FilesystemUnresponsive", STOPPED,
           CAUSES["filesystem_unresponsive"].next_step, "filesystem_unresponsive"),
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
    row = next((row for row in rows if row.kind == kind), rows[0])
    # The kinds of stalls that say why are categories of causes, too.
    return replace(row, kind=kind, advice=CAUSES[kind].next_step) if kind is not None and kind in CAUSES else row


def ending_named(state: str) -> Ending | None:
    """Find the first row of a state's name; None if no generation ends in that state.

    Example:
        >>> ending_named("FilesystemUnresponsive").outcome
        'stalled'
    """
    return next((row for row in ENDINGS if row.state == state), None)


def is_failure(outcome: str) -> bool:
    """Say whether an outcome needs a person."""
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
    """Return the exit status of a command after an outcome.

    Args:
        outcome: outcome of the attempt or of the run.
        exit_code: the generator's.
        signal: the signal that ended the generator.
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


def describe_growth(bytes_present: int, files_present: int, last_path: str | None = None) -> str:
    """Describe the contents of a cache: bytes, files, and the file that grew last.

    Example:
        >>> describe_growth(1159641170, 43, "/mnt/cache/layers.7.w2.tensorbin")
        '1.08 GiB in 43 files; last growth layers.7.w2.tensorbin'
    """
    text = f"{format_bytes(bytes_present)} in {format_count(files_present, 'file')}"
    if last_path:
        text += f"; last growth {for_terminal(last_path.rsplit('/', 1)[-1], 120)}"
    return text


def describe_nothing(paths: Sequence[str], bytes_written: int) -> str:
    """Say that a cache was empty and stayed so; the caller adds how the work ended.

    Example:
        >>> describe_nothing(["/mnt/cache"], 0)
        'Tensor cache generation wrote nothing: /mnt/cache was empty before it and is empty now, and it ended'
    """
    where = ", ".join(for_terminal(path) for path in paths)
    wrote = "kept nothing of what it wrote" if bytes_written else "wrote nothing"
    return f"Tensor cache generation {wrote}: {where} was empty before it and is empty now, and it ended"


def describe_stall(
    verdict: Verdict,
    paths: Sequence[str],
    growth: str,
    *,
    problem: str | None = None,
    touched: bool = False,
    rewritten: bool = False,
    unready: str = "it was not ready",
    told: str = "",
    stopped: bool = True,
) -> str:
    """Describe in one sentence what was seen when an attempt was stopped.

    Args:
        verdict: a final one.
        paths: the cache directories.
        growth: from `describe_growth`.
        problem: what the last failed scan said, for a directory that cannot be measured.
        touched: whether files changed in place during the pause, without growing.
        rewritten: whether the tree was seen writing into them.
        unready: for a server that was never ready, the missing sign of readiness, as the end of a sentence.
        told: from `describe_told`; for a silence.
        stopped: whether the attempt is over by it.

    Returns:
        One line, safe for a terminal.
    """
    where = ", ".join(for_terminal(path) for path in paths)
    window = format_duration(verdict.window_s)
    tail = f" in {where} ({growth})." if where else "; no directory was watched."
    if verdict.status == "deadline_exceeded":
        return f"Tensor cache generation exceeded its time limit{' and was stopped' if stopped else ''}{tail}"
    if verdict.kind == "never_started":
        return f"Tensor cache generation never started: no byte written within {window}{tail}{told}"
    if verdict.kind == "never_ready":
        pause = format_duration(round(verdict.pause_s, 1))
        return f"Tensor cache generation never became ready: {pause} without a byte written, and {unready};{tail}{told}"
    if verdict.kind == "churning":
        return f"Tensor cache generation stalled: files are written and deleted, but nothing is kept{tail}"
    if verdict.kind == "cache_directory_missing":
        return (
            f"Tensor cache generation stalled: cache directory missing for {format_duration(verdict.pause_s)}: {where}."
        )
    if verdict.kind == "filesystem_unresponsive":
        why = f" ({for_terminal(problem)})" if problem else ""
        return (
            f"Tensor cache generation stalled: {where} could not be measured for "
            f"{format_duration(verdict.pause_s)}{why}."
        )
    if verdict.refusal is not None:
        pause = format_duration(round(verdict.pause_s, 1))
        return (
            f"Tensor cache generation stalled: no disk write activity detected for {pause}{tail[:-1]}, and no write can "
            f"succeed: {verdict.refusal.text}."
        )
    hint = " Files change in place without growing: consider progress=any." if touched else ""
    seen = "nothing grew" if rewritten else "no disk write activity detected"
    return f"Tensor cache generation stalled: {seen} for {window}{tail}{hint}{told}"


def describe_link(link: str, target: str) -> str:
    """Say that a link to a directory is not followed.

    Example:
        >>> describe_link("/c/hub", "/nvme")
        '/c/hub is a link to the directory /nvme, which is not watched: links to directories are not followed; add --cache-dir /nvme'
    """
    link, target = for_terminal(link), for_terminal(target)
    return (
        f"{link} is a link to the directory {target}, which is not watched: links to directories are not followed; "
        f"add --cache-dir {target}"
    )


def describe_shared(path: str) -> str:
    """Say that a cache directory is everybody's.

    Example:
        >>> describe_shared("/tmp")
        'cache directory /tmp is shared: what other programs write there counts as growth and hides a stall; name a directory of its own below it'
    """
    return (
        f"cache directory {for_terminal(path)} is shared: what other programs write there counts as growth and hides a stall; "
        "name a directory of its own below it"
    )


def describe_told(told: LoggedProgress | None, at_s: float) -> str:
    """Describe in a further sentence what the output had told of progress by a moment.

    Args:
        told: the last progress; None if no line matched.
        at_s: the moment, in seconds since the start.

    Example:
        >>> describe_told(LoggedProgress(2, 5.0, 65.0, "2/4", 2.0, 4.0, 50.0), 365.0)
        ' Its output last told of progress 5 minutes before: 2 of 4 (50 %).'
    """
    if told is None:
        return " Its output told of no progress."
    counted = "" if told.done is None else f": {describe_count(told)}"
    if told.last_at_s > at_s:
        return f" Its output told of progress once more after that{counted}."
    return f" Its output last told of progress {format_duration(float(round(at_s - told.last_at_s)))} before{counted}."


def describe_last(told: LoggedProgress) -> str:
    """Write the last line of progress and its time.

    Example:
        >>> describe_last(LoggedProgress(2, 5.0, 65.0, "shard 2/4", 2.0, 4.0, 50.0))
        '2 of 4 (50 %), 65 s after the start'
    """
    return f"{describe_count(told) or told.text}, {format_duration(float(round(told.last_at_s)))} after the start"


def describe_count(told: LoggedProgress) -> str:
    """Write the counts of a line of progress; empty if it has none.

    Example:
        >>> describe_count(LoggedProgress(2, 5.0, 65.0, "2/4", 2.0, 4.0, 50.0))
        '2 of 4 (50 %)'
    """
    if told.done is None:
        return ""
    if told.total is None:
        return f"{told.done:,.12g}"
    percent = "" if told.percent is None else f" ({told.percent:.0f} %)"
    return f"{told.done:,.12g} of {told.total:,.12g}{percent}"


def describe_rewriting(found: Rewriting) -> str:
    """Say that most of the cache that was there at the start was written anew; empty if it was not.

    Example:
        >>> describe_rewriting(Rewriting(start_bytes=3 << 29, rewritten_bytes=3 << 29))
        ' 1.50 GiB was there at the start, and 1.50 GiB of it was written anew.'
    """
    # A smaller cache is an index or a state file, which may well be written in each run.
    if found.start_bytes < _LEAST_BYTES or found.rewritten_bytes < found.start_bytes / 2:
        return ""
    there, anew = format_bytes(found.start_bytes), format_bytes(found.rewritten_bytes)
    return f" {there} was there at the start, and {anew} of it was written anew."
