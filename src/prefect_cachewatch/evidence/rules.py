"""From evidence to cause: tries every rule and takes the most certain one; pure, no clock and no files.

The rules are in `rules_storage` and `rules_process`; that of a generator, or a part of it, which ended by itself is here: what
its last output says, else the signal that ended it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.evidence import rules_process, rules_storage
from prefect_cachewatch.evidence.causes import CAUSES, Cause
from prefect_cachewatch.evidence.crash_table import CRASH_RULES
from prefect_cachewatch.evidence.last_words import LastWords, readable_lines
from prefect_cachewatch.evidence.model import EndedProcess, Evidence
from prefect_cachewatch.evidence.view import UNSEEN, View, quoted, shown
from prefect_cachewatch.supervise.proc import signal_name

_SURENESS = {"high": 0, "medium": 1, "low": 2}
_MAX_LINES = 20
# Rules that say only that nothing else is known.
_BY_DEFAULT = ("never_started", "generator_failed")
_RACE = next(rule for rule in CRASH_RULES if rule.category == "cache_race")
# Signals that are a cause themselves, where the log names none that is as good.
_BY_SIGNAL = {4: "wrong_architecture", 7: "segmentation_fault", 9: "killed", 11: "segmentation_fault"}
_ASKED_TO_END = (1, 2, 13, 15)
_BETTER_WEIGHT = 25
# An exception or more: a line that a program writes as it ends.
_SURE_WEIGHT = 20
_LINES = 8
_NO_ERROR = (
    "a server that ends with exit code 0 was asked to end (a signal, an idle limit, the end of its standard input), or goes on "
    "in the background: it is started in the foreground instead"
)


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
    found: dict[str, Cause] = {}
    for rule in RULES:
        if (cause := rule(view)) is not None:
            weighed = cause if rule is generator_failed else _weigh(view, cause)
            found.setdefault(cause.category, weighed)  # what the machine shows of a cause says more than the log does
    ranked = sorted(
        found.values(), key=lambda cause: _SURENESS[cause.confidence]
    )  # stable: keeps the order of precedence
    best, *others = ranked or [rules_process.unknown(view)]
    also = (f"also seen: {one.category}: {one.summary}" for one in others[:3] if one.category not in _BY_DEFAULT)
    return replace(best, evidence=tuple(filter(None, (*best.evidence, *also)))[:_MAX_LINES])


def _weigh(view: View, cause: Cause) -> Cause:
    """If the generator ended by itself, weigh the other findings by its last message."""
    killed = cause.category == "oom_killed" and view.evidence.exit_signal is not None
    words = view.last_words
    if not view.ended_itself or killed or (words is not None and words.rule.category == cause.category):
        return cause
    # Its message does not mention this: a disk that is full now is only a guess, and one that is slow now explains nothing.
    unsure = cause.category == "filesystem_unresponsive" or words is not None or cause.confidence != "high"
    return replace(cause, confidence="low" if unsure else "medium")


def generator_failed(view: View) -> Cause | None:
    """The generator ended by itself, or a part of it did and the rest waits: with the category of what it said last or of its signal."""
    if view.alive:
        return _part_died(view)
    if not view.ended_itself:
        return None
    found = _by_its_end(view)
    died = tuple(_how_it_died(one) for one in view.evidence.ended if one.status)
    return replace(found, evidence=(*found.evidence, *died))


# In order of precedence, which is that of the table: of two equally certain rules, the earlier one names the cause.
_BY_CATEGORY = {**vars(rules_storage), **vars(rules_process), "generator_failed": generator_failed}
RULES: tuple[Callable[[View], Cause | None], ...] = tuple(
    _BY_CATEGORY[category] for category in CAUSES if category in _BY_CATEGORY and category != "unknown"
)


def _by_its_end(view: View) -> Cause:
    words, number = view.last_words, _signal_of(view)
    category = _BY_SIGNAL.get(number or 0)
    if words is not None and (category is None or words.rule.weight >= _BETTER_WEIGHT):
        return _by_words(view, words)
    lines, how, seen = _last_lines(view), _how_it_ended(view), view.evidence.output_seen
    last = shown(lines[-1].rstrip("."), 240) if lines else ""
    silent = "printed nothing" + (" that can be read" if view.evidence.log_tail.strip() else "")
    if category is not None:
        told = f"{how}, and its last line was: {last}" if last else f"{how} and {silent if seen else UNSEEN}"
        return Cause(category, told, (), "medium", quoted(*lines))
    told = f"{last} (its last line)" if last else f"it {silent}" if seen else UNSEEN
    return Cause("generator_failed", told, (how, "" if view.reports_error else _NO_ERROR), "medium", quoted(*lines))


def _part_died(view: View) -> Cause | None:
    """A process of the tree died, by its output or its end, and the rest waits for it."""
    words, growth = view.last_words, view.evidence.growth
    known = words if words is not None and words.rule.weight >= _SURE_WEIGHT else None
    lately = [one for one in view.evidence.ended if one.ago_s <= growth.pause_s + 1.0]
    dead = next((one for one in lately if one.status), None)
    if dead is None and known:
        dead = next((one for one in lately if one.status is None), None)
    how, lines = _how_it_died(dead) if dead else "", tuple(map(_how_it_died, view.evidence.ended))
    waits = f"{how}, and the rest waits for it" if how else "and the rest waits for it"
    if known and (dead or growth.kind == "never_ready"):
        told = _by_words(view, known)
        summary = f"{told.summary}{'; ' if how else ', '}{waits}"
        return replace(told, summary=summary, evidence=lines, confidence="high" if dead and dead.status else "medium")
    if dead is None or dead.status is None:
        return None
    number = os.WTERMSIG(dead.status) if os.WIFSIGNALED(dead.status) else None
    if number in _ASKED_TO_END or (number is None and dead.lived_s <= 0):
        return None
    category = _BY_SIGNAL.get(number or 0, "generator_failed")
    return Cause(category, waits, lines, "medium", quoted(*_last_lines(view)))


def _how_it_died(one: EndedProcess) -> str:
    """Say which process ended, when and how.

    Example:
        >>> _how_it_died(EndedProcess(7, "engine", 40.0, 9.0, 9))
        'pid 7 (engine) was killed by SIGKILL 40 s ago'
    """
    how = "ended, by a status that only its parent knows,"
    if one.status is not None and os.WIFSIGNALED(one.status):
        how = f"was killed by {signal_name(os.WTERMSIG(one.status))}"
    elif one.status is not None:
        how = f"ended with exit code {os.waitstatus_to_exitcode(one.status)}"
    return f"pid {one.pid} ({shown(one.name, 40)}) {how} {format_duration(float(round(one.ago_s)))} ago"


def _how_it_ended(view: View) -> str:
    """Say how a generator that was not stopped ended."""
    evidence, number = view.evidence, _signal_of(view)
    if evidence.exit_signal:
        return f"the generator was killed by {signal_name(evidence.exit_signal)}"
    by_signal = f" ({signal_name(number)})" if number else ""
    return f"the generator ended by itself with exit code {evidence.exit_code or 0}{by_signal}"


def _by_words(view: View, words: LastWords) -> Cause:
    where = f" [{shown(words.where, 120)}]" if words.where else ""
    rule, sure = words.rule, words.sure and view.reports_error
    if rule.category == "missing_file" and view.names_cache(words.line):  # it makes these files itself
        rule, sure = _RACE, False
    summary = f"{rule.what}: {shown(words.line, 240)}{where}"
    return Cause(rule.category, summary, (_how_it_ended(view),), "high" if sure else "medium", quoted(*words.context))


def _signal_of(view: View) -> int | None:
    code = view.evidence.exit_code or 0
    return view.evidence.exit_signal or (code - 128 if 128 < code <= 192 else None)


def _last_lines(view: View) -> list[str]:
    return [line.strip() for line in readable_lines(view.evidence.log_tail)][-_LINES:]
