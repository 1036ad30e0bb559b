"""Rules for a generator that ended by itself: what its last output says, else the signal that ended it; pure."""

from __future__ import annotations

import os
from dataclasses import replace

from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.crash_table import CRASH_RULES
from prefect_cachewatch.evidence.last_words import LastWords, readable_lines
from prefect_cachewatch.evidence.readings import EndedProcess
from prefect_cachewatch.evidence.view import View, quoted, shown
from prefect_cachewatch.supervise.proc import signal_name

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
_RACE = next(rule for rule in CRASH_RULES if rule.category == "cache_race")
_WAITS = "and the rest waits for it"
#: Of a process that another program started.
UNSEEN = "its output is not seen by an observer"


def generator_failed(view: View) -> Cause | None:
    """The generator ended by itself: with the category of what it said last or of its signal, else of this rule."""
    if not view.ended_itself:
        return None
    found = _by_its_end(view)
    died = tuple(_how_it_died(one) for one in view.evidence.ended if one.status)
    return replace(found, evidence=(*found.evidence, *died))


def _by_its_end(view: View) -> Cause:
    words, number = view.last_words, _signal_of(view)
    by_signal = _BY_SIGNAL.get(number or 0)
    if words is not None and (by_signal is None or words.rule.weight >= _BETTER_WEIGHT):
        return _by_words(view, words)
    lines, how = _last_lines(view), _how_it_ended(view)
    last, seen = lines[-1].rstrip(".") if lines else "", view.evidence.output_seen
    silent = "printed nothing" + (" that can be read" if view.evidence.log_tail.strip() else "")
    if by_signal is not None:
        told = (
            f"{how}, and its last line was: {shown(last, 200)}" if last else f"{how} and {silent if seen else UNSEEN}"
        )
        return Cause(by_signal, told, (), "medium", quoted(*lines))
    told = f"{shown(last, 240)} (its last line)" if last else f"it {silent}" if seen else UNSEEN
    facts = (how, "" if view.reports_error else _NO_ERROR)
    return Cause("generator_failed", told, facts, "medium", quoted(*lines))


def part_died(view: View) -> Cause | None:
    """A process of the tree died, by its output or its end, and the rest waits for it: with the category of what it said last."""
    if not view.alive:
        return None
    words, growth = view.last_words, view.evidence.growth
    known = words if words is not None and words.rule.weight >= _SURE_WEIGHT else None
    lately = [one for one in view.evidence.ended if one.ago_s <= growth.pause_s + 1.0]
    dead = next((one for one in lately if one.status), None)
    if dead is None and known:
        dead = next((one for one in lately if one.status is None), None)
    how, lines = _how_it_died(dead) if dead else "", tuple(map(_how_it_died, view.evidence.ended))
    if known and (dead or growth.kind == "never_ready"):
        told = _by_words(view, known)
        summary = f"{told.summary}; {how}, {_WAITS}" if how else f"{told.summary}, {_WAITS}"
        return replace(told, summary=summary, evidence=lines, confidence="high" if dead and dead.status else "medium")
    if dead is None or dead.status is None:
        return None
    number = os.WTERMSIG(dead.status) if os.WIFSIGNALED(dead.status) else None
    if number in _ASKED_TO_END or (number is None and dead.lived_s <= 0):
        return None
    category = _BY_SIGNAL.get(number or 0, "generator_failed")
    return Cause(category, f"{how}, {_WAITS}", lines, "medium", quoted(*_last_lines(view)))


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
    return Cause(
        rule.category,
        f"{rule.what}: {shown(words.line, 240)}{where}",
        (_how_it_ended(view),),
        "high" if sure else "medium",
        quoted(*words.context),
    )


def _signal_of(view: View) -> int | None:
    code = view.evidence.exit_code or 0
    return view.evidence.exit_signal or (code - 128 if 128 < code <= 192 else None)


def _last_lines(view: View) -> list[str]:
    return [line.strip() for line in readable_lines(view.evidence.log_tail)][-_LINES:]
