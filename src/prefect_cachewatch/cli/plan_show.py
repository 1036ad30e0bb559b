"""A plan in a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

import click

from prefect_cachewatch.capacity.model.results import ClassPrediction, LimitPlan
from prefect_cachewatch.capacity.page import bound_lines
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes

__all__ = ["lines_of"]

WIDTH = 80


def lines_of(plan: LimitPlan, *, stall_window_s: float, max_slowdown: float, colour: bool) -> Iterator[str]:
    """The lines that `cachewatch plan` prints: answer, bounds, table, bottleneck, assumptions.

    Args:
        plan: the plan.
        stall_window_s: the policy's stall window.
        max_slowdown: the policy's accepted slowdown.
        colour: whether to use bold and dim.

    Yields:
        Lines without their end, none wider than 80 columns.
    """

    def style(line: str, **how: bool) -> str:
        return click.style(line, bold=how.get("bold"), dim=how.get("dim")) if colour else line

    for line in _wrapped(plan.answer):
        yield style(line, bold=True)
    if len(plan.classes) > 1:
        yield ""
        yield from _slots(plan)
    yield ""
    yield style("Bounds", bold=True)
    for line in bound_lines(plan):
        yield from _item(line)
    yield ""
    yield style(_title(plan), bold=True)
    yield "   n     bytes/s    burst      band slowdown  p99 gap  storage      job    batch"
    most, window = f"of {max_slowdown:g}", f"of {_brief(stall_window_s)}"
    yield f"{'':35}{most:>9}{window:>9}{'in use':>9}"
    name = next(iter(plan.classes)).name
    for row in plan.table:
        entry = next(entry for entry in row if entry.name == name)
        line = _row(entry, plan.limit)
        yield (
            style(line, bold=True) if entry.n == plan.limit else style(line, dim=True) if entry.n > plan.limit else line
        )
    others = [entry for entry in _at_limit(plan) if entry.name != name and entry.n]
    if others:
        yield ""
        yield style(f"Beside it, at {plan.limit}", bold=True)
        yield from _beside(others)
    if plan.mix:
        yield ""
        yield style("With the slots shared out evenly", bold=True)
        yield from _beside(plan.mix)
    yield ""
    yield from _wrapped(f"Bottleneck: {plan.bottleneck}.")
    if plan.purchases:
        yield style("What the next purchase would change", bold=True)
        for change in plan.purchases:
            yield from _item(f"{for_terminal(change.change)}: {change.sentence}")
    if plan.simulation:
        yield ""
        yield from _wrapped(plan.simulation.sentence)
    yield ""
    yield style("Assumptions", bold=True)
    for line in plan.assumptions:
        yield from _item(line)


def _beside(entries: Iterable[ClassPrediction]) -> Iterator[str]:
    for entry in entries:
        yield from _item(
            f"{for_terminal(entry.name)}: {entry.n} at once, {format_bytes(entry.bytes_per_s)}/s, a burst takes "
            f"{_brief(entry.burst_s)}, slowdown {entry.slowdown:.2f}"
        )


def _title(plan: LimitPlan) -> str:
    return for_terminal(f"Over n jobs of {plan.classes[0].name} at once", WIDTH)


def _slots(plan: LimitPlan) -> Iterator[str]:
    yield from _wrapped(f"One limit of {plan.slots} slots for all classes:")
    for entry in plan.classes:
        slots = "slot" if entry.occupy == 1 else "slots"
        yield from _item(
            f"{for_terminal(entry.name)}: a job takes {entry.occupy} {slots}, so at most "
            f"{plan.slots // entry.occupy} run; alone on the storage {entry.limit} ({entry.low}-{entry.high}) could"
        )


def _at_limit(plan: LimitPlan) -> tuple[ClassPrediction, ...]:
    name = plan.classes[0].name
    return min(plan.table, key=lambda row: abs(next(e.n for e in row if e.name == name) - plan.limit))


def _row(entry: ClassPrediction, limit: int) -> str:
    mark = ">" if entry.n == limit else " "
    band = f"{_figure(entry.burst_low_s)}-{_figure(entry.burst_high_s)}"
    return (
        f"{mark}{entry.n:>3} {format_bytes(entry.bytes_per_s) + '/s':>11} {_brief(entry.burst_s):>8} {band:>9} "
        f"{entry.slowdown:>8.2f} {_brief(entry.gap_p99_s):>8} {entry.utilisation.get('storage', 0.0):>8.0%} "
        f"{_brief(entry.job_s):>8} {_brief(entry.batch_s):>8}"
    )


def _figure(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def _brief(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 600:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86400:.0f} d"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(for_terminal(text, 2000), WIDTH, break_on_hyphens=False) or [""]


def _item(text: str) -> list[str]:
    return textwrap.wrap(
        for_terminal(text, 2000),
        WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )
