"""A plan in words: six lines that answer, then what they rest on. Lines for a terminal and Markdown for an artifact.

Every number has at most three digits and its meaning beside it. Nothing is computed here but which words hold.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from prefect_cachewatch.capacity.results import Alternative, Answer, LimitPlan, Row
from prefect_cachewatch.capacity.units import say_bytes, say_number, say_time
from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown, for_terminal

_WIDTH = 80
# An alternative within this share of the plan changes nothing.
_SAME = 0.03
_HEADS = ("at once", "together", "streams", "a burst", "1 in 100", "batch", "held by")


def text_lines(plan: LimitPlan) -> Iterator[str]:
    """Write a plan for a terminal, the answer first.

    Args:
        plan: the plan.

    Yields:
        Lines of at most 80 columns.
    """
    for answer in plan.answers:
        yield from answer_lines(plan, answer)
        yield ""
    for answer in plan.answers:
        if len(plan.answers) > 1:
            yield f"{for_terminal(answer.classes[0], 60)}:"
        yield from _columns([_HEADS, *table(plan, answer)], marked=1 + [row.n for row in answer.rows].index(answer.n))
        yield from (line for other in beside(plan, answer) for line in _wrapped(other, "  "))
        yield ""
    yield from _alternative_lines(plan)
    yield from (line for note in plan.notes for line in _wrapped(note, "- "))


def answer_lines(plan: LimitPlan, answer: Answer) -> Iterator[str]:
    """Write the answer: what to run, the zones, what would be faster, and how to check it by hand.

    Args:
        plan: the plan.
        answer: one of its answers.

    Yields:
        Six lines; a long first one takes two.
    """
    yield from _wrapped(headline(plan, answer), "")
    yield from zones(plan, answer)
    faster, not_faster = _sorted_out(plan)
    if answer is plan.answers[0] and (faster or not_faster):
        said = (
            f"Faster: {', '.join(_with_result(plan, each) for each in faster[:3])}." if faster else "Nothing is faster."
        )
        said += f" Not: {', '.join(each.change for each in not_faster[:3])}." if not_faster else ""
        yield from _wrapped(said, "")
    yield from _wrapped(by_hand(plan, answer), "")


def headline(plan: LimitPlan, answer: Answer) -> str:
    """The first sentence: the number, the batch, and what keeps the number from being larger.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    where = for_terminal(answer.name if len(plan.answers) > 1 else plan.storage, 100)
    if not answer.feasible:
        return f"Not even 1 at once on {where} keeps the policy: {answer.why}."
    row = answer.row
    if row.batch_s is None:
        result = f"{say_bytes(row.bytes_per_s, plan.binary)}/s together"
    else:
        jobs = " and ".join(
            f"{say_number(n or 0)} {for_terminal(name, 60)}"
            for n, name in zip(answer.jobs, answer.classes, strict=True)
        )
        result = f"{jobs} in about {say_time(row.batch_s)}"
        if answer.batch_range_s and answer.batch_range_s[1] > 1.03 * row.batch_s:
            result += f" (at worst {say_time(answer.batch_range_s[1])})"
    said = f"Run {answer.n} at once on {where}: {result}"
    if answer.reason == "latency":
        said += f"; at {answer.n + 1} latency ticks up"
    elif answer.why:
        said += f"; no more, since {answer.why}"
    if answer.reason not in ("best", "jobs"):
        best = next((each for each in answer.rows if each.n == answer.best_n), row)
        if best.batch_s is not None and row.batch_s is not None and best.batch_s < 0.97 * row.batch_s:
            said += f" ({best.n} would take {say_time(best.batch_s)})"
    if answer.deadline_missed_s:
        said += f". The deadline is missed by {say_time(answer.deadline_missed_s)}"
    return said + "."


def zones(plan: LimitPlan, answer: Answer) -> list[str]:
    """The zones: no waiting, shared, full; with the number at which latency ticks up.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    tick, full, last = answer.ticks_up_n, answer.full_n, max(row.n for row in answer.rows)
    name = f" of {for_terminal(answer.classes[0], 40)}" if len(answer.rows[0].classes) > 1 else ""
    burst = f"a burst of {say_bytes(answer.burst_bytes, plan.binary)}{name}"
    alone = say_time(next(iter(answer.rows[0].classes)).burst_s)
    parts: list[tuple[str, str]] = []
    calm = min(last, (tick or last + 1) - 1, (full or last + 1) - 1)
    if calm >= 1:
        parts.append((_span(1, calm), f"no waiting: {burst} takes {alone}, as alone"))
    if tick is not None and (full is None or tick < full):
        end = last if full is None else full - 1
        shown = say_time(answer.at(end).classes[0].burst_s)
        words = "shared" if calm >= 1 else f"shared: {burst} takes {alone} alone"
        gain = "the batch still gets faster" if answer.rows[0].batch_s is not None else "more is still moved"
        parts.append((_span(tick, end), f"{words}: {shown} at {end}; {gain}"))
    if full is not None:
        row = answer.at(full)
        if row.held_by in ("computing", "one stream"):
            parts.append((f"{full}+", "no faster: the jobs come out even with fewer rounds"))
        else:
            parts.append(
                (
                    f"{full}+",
                    f"full ({say_bytes(row.bytes_per_s, plan.binary)}/s, {row.held_by}): more jobs only wait longer",
                )
            )
    else:
        whole = sum(jobs or 0 for jobs in answer.jobs)
        parts.append((f"{last}", "the whole batch at once" if last == whole else "the most that was looked at"))
    width = max(len(span) for span, _ in parts)
    lines = [f"  {span:<{width}}  {words}" for span, words in parts]
    if tick is not None:
        at = next(i for i, (span, _) in enumerate(parts) if _holds(span, tick))
        mark = "<- latency ticks up" if parts[at][0].startswith(str(tick)) else f"<- latency ticks up at {tick}"
        if len(lines[at]) + 2 + len(mark) <= _WIDTH:
            lines[at] = f"{lines[at]}  {mark:>{_WIDTH - 2 - len(lines[at])}}"
        else:
            lines.insert(at + 1, f"{mark:>{_WIDTH}}")
    return lines


def by_hand(plan: LimitPlan, answer: Answer) -> str:
    """How to check the answer with a pencil: bytes over the ceiling, and (Z + R) / D.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    hand, binary = answer.by_hand, plan.binary
    moved = " + ".join(f"{say_bytes(size, binary)} / {say_bytes(rate, binary)}/s" for size, rate in hand.parts)
    return (
        f"By hand: {moved} ({hand.ceiling}) = {say_time(hand.bytes_s)} "
        f"{'of bytes' if answer.row.batch_s is not None else 'a burst'}; ({say_time(hand.think_s)} + "
        f"{say_time(hand.burst_s)}) / {say_time(hand.demand_s)} = {say_number(hand.filling_n)} jobs fill it."
    )


def table(plan: LimitPlan, answer: Answer) -> list[tuple[str, ...]]:
    """The rows of an answer as words: at once, together, streams, a burst, 1 in 100, batch, held by.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    return [
        (
            str(row.n),
            f"{say_bytes(row.bytes_per_s, plan.binary)}/s",
            say_number(row.streams),
            say_time(row.classes[0].burst_s),
            say_time(row.classes[0].burst_p99_s),
            "-" if row.batch_s is None else say_time(row.batch_s),
            row.held_by,
        )
        for row in answer.rows
    ]


def beside(plan: LimitPlan, answer: Answer) -> Iterator[str]:
    """A sentence for each further class, at the number to run.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    alone: Row = answer.rows[0]
    for mine, first in zip(answer.row.classes[1:], alone.classes[1:], strict=True):
        yield (
            f"{mine.name} at {answer.n}: a burst takes {say_time(mine.burst_s)} ({say_time(first.burst_s)} at 1), "
            f"1 in 100 over {say_time(mine.burst_p99_s)}; {say_bytes(mine.bytes_per_s, plan.binary)}/s together"
        )


def markdown(plan: LimitPlan, change: str, picture: str, notes: Sequence[str] = ()) -> str:
    """Write a plan for a Markdown artifact.

    Args:
        plan: the plan.
        change: the sentence on what was set from what to what, or would be.
        picture: the plan's SVG.
        notes: further sentences.

    Returns:
        Markdown; names from outside are escaped.
    """
    lines = []
    for answer in plan.answers:
        said = "\n".join(answer_lines(plan, answer)).replace("`", "'")
        lines += ["```", said, "```", ""]
    lines += [for_markdown(change, 1000), "", f"![The plan]({svg_data_uri(picture)})", ""]
    for answer in plan.answers:
        lines += ["| " + " | ".join(_HEADS) + " |", "|" + "---:|" * len(_HEADS)]
        lines += ["| " + " | ".join(map(for_markdown, row)) + " |" for row in table(plan, answer)]
        lines += ["", *(f"- {for_markdown(sentence, 500)}" for sentence in beside(plan, answer)), ""]
    if plan.alternatives:
        lines += ["| if instead | at once | result | held by |", "|---|---:|---:|---|"]
        lines += [
            f"| {for_markdown(each.change)} | {each.n} | {_result(plan, each)} | {each.held_by} |"
            for each in plan.alternatives
        ]
        lines.append("")
    lines += [f"- {for_markdown(note, 600)}" for note in (*plan.notes, *notes)]
    return "\n".join(lines) + "\n"


def _sorted_out(plan: LimitPlan) -> tuple[list[Alternative], list[Alternative]]:
    """What would be faster, the most first, and what would not."""
    faster = sorted((each for each in plan.alternatives if each.faster > 1 + _SAME), key=lambda each: -each.faster)
    rest = [each for each in plan.alternatives if each.faster <= 1 + _SAME and not each.change.startswith("a link of")]
    return faster, rest


def _alternative_lines(plan: LimitPlan) -> Iterator[str]:
    if not plan.alternatives:
        return
    changed = [each for each in plan.alternatives if abs(each.faster - 1) > _SAME]
    same = [each.change for each in plan.alternatives if abs(each.faster - 1) <= _SAME]
    heads = ("if instead", "at once", "result", "held by")
    if changed:
        yield from _columns(
            [heads, *((each.change, str(each.n), _result(plan, each), each.held_by) for each in changed)]
        )
    if same:
        yield from _wrapped(f"no change by: {', '.join(same)}", "  ")
    yield ""


def _result(plan: LimitPlan, each: Alternative) -> str:
    return f"{say_bytes(each.bytes_per_s, plan.binary)}/s" if each.batch_s is None else say_time(each.batch_s)


def _with_result(plan: LimitPlan, each: Alternative) -> str:
    return f"{each.change} ({_result(plan, each)})"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _holds(span: str, n: int) -> bool:
    first, _, last = span.removesuffix("+").partition("-")
    return int(first) <= n and (span.endswith("+") or n <= int(last or first))


def _columns(rows: Sequence[Sequence[str]], marked: int = 0) -> Iterator[str]:
    """Rows under their heads, the first and the last column to the left where they are words."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    words = not rows[-1][0].isdigit()
    for number, row in enumerate(rows):
        cells = [
            for_terminal(cell).ljust(width) if (i == 0 and words) or i == len(row) - 1 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"{'>' if number and number == marked else ' '} {'  '.join(cells)}".rstrip()


def _wrapped(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        for_terminal(text, 2000),
        _WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * max(2, len(mark)),
        break_on_hyphens=False,
    )
