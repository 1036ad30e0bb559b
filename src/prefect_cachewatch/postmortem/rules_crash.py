"""Rules for a generator that ended by itself: what its last output says, else the signal that ended it; pure."""

from __future__ import annotations

from dataclasses import replace

from prefect_cachewatch.postmortem.crash_table import CRASH_RULES
from prefect_cachewatch.postmortem.last_words import LastWords, readable_lines
from prefect_cachewatch.postmortem.view import View, cause, shown
from prefect_cachewatch.supervise.proc import signal_name
from prefect_cachewatch.watching.headline import UNSEEN
from prefect_cachewatch.watching.sections import Diagnosis

# Signals that are a cause themselves, where the log names none that is as good.
_BY_SIGNAL = {4: "wrong_architecture", 7: "segmentation_fault", 9: "killed", 11: "segmentation_fault"}
_BETTER_WEIGHT = 25
_LINES = 8
_NO_ERROR = (
    "A server that ends with exit code 0 was asked to end: look in its log for a signal, an idle limit or the end of its "
    "standard input. One that goes on in the background is started in the foreground instead."
)


def generator_failed(view: View) -> Diagnosis | None:
    """The generator ended by itself: with the category of what it said last or of its signal, else of this rule."""
    if not view.ended_itself:
        return None
    words, number = view.last_words, _signal_of(view)
    by_signal = _BY_SIGNAL.get(number or 0)
    if words is not None and (by_signal is None or words.rule.weight >= _BETTER_WEIGHT):
        return _by_words(view, words)
    lines, how = _last_lines(view), _how_it_ended(view)
    silent = "printed nothing" + (" that can be read" if view.evidence.log_tail.strip() else "")
    silent = silent if view.evidence.output_seen else UNSEEN
    found = cause(
        f"{how}, and its last line was: {shown(lines[-1], 200)}" if lines else f"{how} and {silent}",
        tuple(f"log: {shown(line, 240)}" for line in lines),
        "Read the end of its log; its exit status is its own." if view.reports_error else _NO_ERROR,
        "medium",
    )
    if by_signal is None:
        return found
    rule = next(rule for rule in CRASH_RULES if rule.category == by_signal)
    return replace(found, category=rule.category, resolution=rule.resolution)


def _how_it_ended(view: View) -> str:
    """Say how a generator that was not stopped ended."""
    evidence = view.evidence
    if evidence.exit_signal:
        return f"the generator was killed by {signal_name(evidence.exit_signal)}"
    code = evidence.exit_code or 0
    return f"the generator ended by itself with exit code {code}" + (
        f" ({signal_name(code - 128)})" if 128 < code <= 192 else ""
    )


def _by_words(view: View, words: LastWords) -> Diagnosis:
    rule = words.rule
    where = f" [{shown(words.where, 120)}]" if words.where else ""
    return replace(
        cause(
            f"{rule.what}: {shown(words.line, 240)}{where}",
            (_how_it_ended(view), *(f"log: {shown(line, 240)}" for line in words.context)),
            rule.resolution,
            "high" if words.sure and view.reports_error else "medium",
        ),
        category=rule.category,
    )


def _signal_of(view: View) -> int | None:
    code = view.evidence.exit_code or 0
    return view.evidence.exit_signal or (code - 128 if 128 < code <= 192 else None)


def _last_lines(view: View) -> list[str]:
    return [line.strip() for line in readable_lines(view.evidence.log_tail)][-_LINES:]
