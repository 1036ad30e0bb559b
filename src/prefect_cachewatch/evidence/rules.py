"""From evidence to cause: tries every rule and takes the most certain one; pure, no clock and no files.

The rules are in `rules_storage`, `rules_process` and, for a generator that ended by
itself, `rules_crash` with its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from prefect_cachewatch.evidence import rules_crash as crash
from prefect_cachewatch.evidence import rules_process as process
from prefect_cachewatch.evidence import rules_storage as storage
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.deadlock import cannot_go_on
from prefect_cachewatch.evidence.model import Evidence
from prefect_cachewatch.evidence.view import View

# In order of precedence: of two equally certain rules, the earlier one names the cause.
RULES: tuple[Callable[[View], Cause | None], ...] = (
    process.oom_killed,
    storage.filesystem_unresponsive,
    storage.cache_directory_missing,
    process.stopped_by_signal,
    storage.read_only_filesystem,
    storage.inodes_exhausted,
    storage.quota_exceeded,
    storage.disk_full,
    storage.permission_denied,
    storage.still_writing,
    process.stale_lock,
    process.waiting_for_lock,
    crash.part_died,
    process.memory_pressure,
    process.waiting_for_device,
    process.waiting_for_input,
    process.blocked_on_output_pipe,
    storage.churning,
    storage.in_place_writes,
    storage.writing_elsewhere,
    storage.reading_checkpoint,
    process.compute_bound,
    process.blocked_on_io,
    process.waiting_for_network,
    process.deadlocked,
    process.waiting_for_child,
    crash.generator_failed,
    process.never_started,
    process.never_ready,
)
_SURENESS = {"high": 0, "medium": 1, "low": 2}
_MAX_LINES = 20
# Rules about one moment: they do not explain a generator that ended by itself with a message of its own.
_SEEN_NOW_ONLY = ("filesystem_unresponsive",)


def find_cause(evidence: Evidence) -> Cause:
    """Name the cause of a stall, or of a generator that failed.

    Args:
        evidence: what `collect_evidence` found, or any literal of the same kind.

    Returns:
        The cause; the same one for the same evidence, `unknown` where no rule fits. Other rules that fit are named in its
        last evidence lines.

    Example:
        >>> from prefect_cachewatch.evidence.model import ProcessFacts, ThreadFacts
        >>> generator = ProcessFacts(7, 1, "convert", state="T", threads=(ThreadFacts(7, state="T"),))
        >>> find_cause(Evidence(processes=(generator,))).category
        'stopped_by_signal'
    """
    view = View(evidence)
    found: list[Cause] = []
    for rule in RULES:
        cause = rule(view)
        if cause is None or cause.category in {one.category for one in found}:
            continue  # what the machine shows of the same cause says more than the log does
        found.append(cause if rule in (crash.part_died, crash.generator_failed) else _weigh(view, cause))
    found.sort(key=lambda cause: _SURENESS[cause.confidence])  # stable: keeps the order of precedence
    best = found[0] if found else process.unknown(view)
    others = [
        f"also seen: {cause.category}: {cause.summary}"
        for cause in found[1:4]
        if cause.category not in ("never_started", "generator_failed")
    ]
    lines = tuple(line for line in (*best.evidence, *others) if line)[:_MAX_LINES]
    return replace(best, evidence=lines, is_final=best.known.certain and cannot_go_on(evidence))


def _weigh(view: View, cause: Cause) -> Cause:
    """If the generator ended by itself, weigh the other findings by its last message."""
    killed = cause.category == "oom_killed" and view.evidence.exit_signal is not None
    if not view.ended_itself or killed:
        return cause
    words = view.last_words
    if words is not None and words.rule.category == cause.category:
        return cause
    # It ended by itself, and its message does not mention this: a disk that is full or slow now is only a guess.
    unsure = cause.category in _SEEN_NOW_ONLY or words is not None or cause.confidence != "high"
    return replace(cause, confidence="low" if unsure else "medium")
