"""A plan in words: six lines that answer, then what they rest on. Lines for a terminal and Markdown for an artifact.

Every number has at most three digits and its meaning beside it. Nothing is computed here but which words hold.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from prefect_cachewatch.capacity.inputs import MOST_JOBS
from prefect_cachewatch.capacity.results import Alternative, Answer, LimitPlan, Part, Row
from prefect_cachewatch.capacity.units import say_bytes, say_number, say_time
from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown, for_terminal

_WIDTH = 80
_HEADS = ("at once", "together", "streams", "a burst", "1 in 100", "batch", "held by")
_INSTEAD = ("if instead", "at once", "result", "held by")
# What keeps a number from being larger: in the first line, and why.
_RULES = {
    "measured": ("the most measured", "beyond the {streams} streams that were measured nothing is known"),
    "most": ("no plan looks at more", "a plan looks at {most} jobs at once at most"),
}


def text_lines(plan: LimitPlan) -> Iterator[str]:
    """Write a plan for a terminal, the answer first.

    Args:
        plan: the plan.

    Yields:
        Lines of at most 80 columns.
    """
    for answer in plan.answers:
        yield from (*answer_lines(plan, answer), "")
    for answer in plan.answers:
        if len(plan.answers) > 1:
            yield f"{for_terminal(answer.classes[0], 60)}:"
        yield from (line for said in _basis(plan, answer) for line in _wrapped(said, "  "))
        yield from ("", *_columns([_HEADS, *_table(plan, answer)]), "")
        yield from (*_columns([_INSTEAD, *_instead(plan, answer)]), "")
    yield from (line for note in plan.notes for line in _wrapped(note, "- "))


def answer_lines(plan: LimitPlan, answer: Answer) -> list[str]:
    """Write the answer: what to run, the zones, what would be faster, and how to check it by hand.

    Args:
        plan: the plan.
        answer: one of its answers.

    Returns:
        Six lines at most, of 80 columns at most.
    """
    return [headline(plan, answer), *_zones(plan, answer), *_faster(answer), _by_hand(plan, answer)]


def headline(plan: LimitPlan, answer: Answer) -> str:
    """The first line: the number, what keeps it from being larger, and the batch.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    row, rule = answer.row, f" ({_RULES[answer.reason][0]})" if answer.reason in _RULES else ""
    if not answer.n:
        return f"Not even 1 at once on {for_terminal(answer.name, 20)}: more streams than were measured."
    time, results = _result(plan, row), [f"{_result(plan, row)} together"]
    if row.batch_s is not None:
        worst_s = (answer.batch_range_s or (0.0, 0.0))[1]
        named = zip(answer.jobs, answer.classes, strict=True)
        jobs = " and ".join(f"{say_number(n or 0)} {for_terminal(name, 100)}" for n, name in named)
        total = f"all {say_number(sum(n or 0 for n in answer.jobs))} jobs"
        worst = f", at worst {say_time(worst_s)}" if worst_s > 1.03 * row.batch_s else ""
        results = [f"{jobs} in {time}{worst}", f"{jobs} in {time}", f"{total} in {time}"]
    return _first_that_fits(
        f"Run {answer.n} at once on {for_terminal(answer.name, most)}{rule}: {result}."
        for most in (100, 30, 16)
        for result in results
    )


def _basis(plan: LimitPlan, answer: Answer) -> Iterator[str]:
    """Sentences on what the six lines rest on: the rule that binds, Z, R and D, and the classes beside the first.

    Args:
        plan: the plan.
        answer: one of its answers.
    """
    hand, binary = answer.by_hand, plan.binary
    # The first class has the first part; its files, where they cost time, are the second.
    own = [hand.parts[0], *(part for part in hand.parts[1:2] if part.unit == "files")]
    ceilings = [f"{_amount(part.rate, part, binary)}/s" for part in own]
    if answer.reason in _RULES:
        streams = say_number(answer.measured_streams or 0)
        yield f"Not more, since {_RULES[answer.reason][1].format(streams=streams, most=MOST_JOBS)}."
    yield (
        f"Z = {say_time(hand.think_s)} between two bursts, R = {say_time(hand.burst_s)} for a burst alone, "
        f"D = {say_time(hand.demand_s)} for one at {' and '.join(ceilings)} ({hand.ceiling})."
    )
    if answer.batch_range_s:
        yield f"The figures allow a batch of {say_time(answer.batch_range_s[0])} to {say_time(answer.batch_range_s[1])}."
    for mine, first in zip(answer.row.classes[1:], answer.rows[0].classes[1:], strict=True):
        yield (
            f"{mine.name} at {answer.row.n}: a burst takes {say_time(mine.burst_s)} ({say_time(first.burst_s)} at 1), "
            f"1 in 100 over {say_time(mine.burst_p99_s)}; {say_bytes(mine.bytes_per_s, binary)}/s together."
        )


def markdown(plan: LimitPlan, change: str, picture: str) -> str:
    """Write a plan for a Markdown artifact.

    Args:
        plan: the plan.
        change: the sentence on what was set from what to what, or would be.
        picture: the plan's SVG.

    Returns:
        Markdown; names from outside are escaped.
    """
    said = "\n".join(text_lines(plan)).replace("`", "'")
    return f"```\n{said}\n```\n\n{for_markdown(change, 1000)}\n\n![The plan]({svg_data_uri(picture)})\n"


def _zones(plan: LimitPlan, answer: Answer) -> list[str]:
    """No waiting, shared, full; with the number at which latency ticks up."""
    tick, full, last = answer.ticks_up_n, answer.full_n, max(row.n for row in answer.rows)
    alone = say_time(answer.rows[0].classes[0].burst_s)
    bursts = [f"a burst of {say_bytes(answer.burst_bytes, plan.binary)}"]
    if len(answer.row.classes) > 1:
        bursts.insert(0, f"{bursts[0]} of {for_terminal(answer.classes[0], 30)}")
    zones: list[tuple[str, list[str]]] = []  # numbers, and words from long to short
    if (calm := min(tick or last + 1, full or last + 1) - 1) >= 1:
        waits = answer.rows[0].classes[0].burst_s > 1.03 * answer.by_hand.burst_s  # for what always runs
        zones.append(
            (
                _span(1, calm),
                [f"no waiting: {burst} takes {alone}, as {'at 1' if waits else 'alone'}" for burst in bursts],
            )
        )
    if tick is not None and (full is None or tick < full):
        end = last if full is None else full - 1
        row = answer.at(end)
        shared = f"shared: {say_time(row.classes[0].burst_s)} at {end}"
        every = f"{_result(plan, row)} together" if row.batch_s is None else f"all in {_result(plan, row)}"
        zones.append((_span(tick, end), [f"{shared}, {every}", shared]))
    if full is not None:
        row = answer.at(full)
        held = f"({say_bytes(row.bytes_per_s, plan.binary)}/s, {row.held_by})"
        word = "full" if row.full else f"no faster up to {last}"
        more = ": more jobs only wait longer" if row.full else ""
        zones.append((f"{full}+", [f"{word} {held}{more}", f"{word} {held}", word]))
    width, lines = max(len(span) for span, _ in zones), []
    for i, (span, words) in enumerate(zones):
        mark = ""
        if tick is not None and i == min(1, len(zones) - 1):
            mark = "  <- latency ticks up" + ("" if span.startswith(str(tick)) else f" at {tick}")
        lines.append(_first_that_fits(f"  {span:<{width}}  {said}".ljust(_WIDTH - len(mark)) + mark for said in words))
    return [line.rstrip() for line in lines]


def _faster(answer: Answer) -> Iterator[str]:
    """What would be faster, the most first, and what would not, as far as a line has room."""
    better = sorted((each for each in answer.alternatives if each.faster > 1), key=lambda each: -each.faster)
    others = [each for each in answer.alternatives if each.faster <= 1 and not each.change.startswith("a link of")]

    def listed(some: Sequence[Alternative]) -> str:
        return ", ".join(for_terminal(each.change, 40) for each in some)

    if answer.alternatives:
        yield _first_that_fits(
            (f"Faster: {listed(better[:most])}." if better else "")
            + (f"{' Not' if better else 'No faster'}: {listed(others[:more])}." if others[:more] else "")
            for most in (3, 2, 1)
            for more in (3, 2, 1)
        )


def _by_hand(plan: LimitPlan, answer: Answer) -> str:
    """How to check the answer with a pencil: what is moved over the ceilings, and (Z + R) / D."""
    hand, what = answer.by_hand, "at least" if answer.row.batch_s is not None else "a burst"
    moved = " + ".join(
        f"{_amount(part.amount, part, plan.binary)} / {_amount(part.rate, part, plan.binary)}/s" for part in hand.parts
    )
    times = " + ".join(say_time(part.amount / part.rate) for part in hand.parts)
    return _first_that_fits(
        f"By hand: {said} = {say_time(hand.least_s)} {what}; (Z + R) / D = {say_number(hand.filling_n)} jobs."
        for said in (moved, times, "bytes / rates")
    )


def _result(plan: LimitPlan, row: Row | Alternative) -> str:
    """What becomes of all jobs: the time of the batch; without one, the bytes a second."""
    return f"{say_bytes(row.bytes_per_s, plan.binary)}/s" if row.batch_s is None else say_time(row.batch_s)


def _amount(amount: float, part: Part, binary: bool) -> str:
    return say_bytes(amount, binary) if part.unit == "bytes" else f"{say_number(amount)} files"


def _table(plan: LimitPlan, answer: Answer) -> list[tuple[str, ...]]:
    """The rows of an answer as words."""
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


def _instead(plan: LimitPlan, answer: Answer) -> Iterator[tuple[str, ...]]:
    for each in answer.alternatives:
        yield each.change, str(each.n or "-"), _result(plan, each) if each.n else "does not fit", each.held_by


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _first_that_fits(lines: Iterator[str]) -> str:
    """The first line that fits; else the last one, cut."""
    every = list(lines)
    return for_terminal(next((line for line in every if len(line) <= _WIDTH), every[-1]), _WIDTH)


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows under their heads, the first column and the last one to the left."""
    shown = [[for_terminal(cell, 36) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    for first, *middle, last in shown:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
        yield f"  {'  '.join([first.ljust(widths[0]), *cells, last])}".rstrip()


def _wrapped(text: str, mark: str) -> list[str]:
    shown, indent = for_terminal(text, 2000), " " * max(2, len(mark))
    return textwrap.wrap(shown, _WIDTH, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)
