"""One picture of a plan: throughput to its ceilings above, a burst's time below, over the number of jobs at once. SVG.

Zones are shaded, measured points have their spread as bars, and past runs are dots on the lower panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.capacity.results import Answer, LimitPlan
from prefect_cachewatch.capacity.units import say_bytes, say_time
from prefect_cachewatch.capacity.wording import headline
from prefect_cachewatch.common.svg import svg_document
from prefect_cachewatch.common.text import for_html

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 800, 560, 84, 706
_ZONES = (("no waiting", "#e7f5ec"), ("shared", "#fdf5dc"), ("full", "#fbe5e1"))
_LINE, _DARK, _GREY, _PALE, _SPOT = "#1f5fa8", "#1f2933", "#66727f", "#d5dbe1", "#c2410c"


@dataclass(frozen=True)
class _Panel:
    """A panel from `top` to `bottom` over 1 to `last` jobs and 0 to `highest`."""

    top: float
    bottom: float
    last: int
    highest: float

    def x(self, n: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (min(max(n, 1), self.last) - 1) / max(1, self.last - 1), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - (self.bottom - self.top) * min(1.0, value / self.highest), 1)

    def curve(self, points: Sequence[tuple[float, float]], dashes: str = "") -> str:
        path = " ".join(f"{self.x(n)},{self.y(value)}" for n, value in points)
        return f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2" stroke-dasharray="{dashes}"/>'

    def dot(self, n: float, value: float, colour: str) -> str:
        return f'<circle cx="{self.x(n)}" cy="{self.y(value)}" r="3.5" fill="{colour}" fill-opacity="0.7"/>'

    def axes(self, name: str, write: Callable[[float], str]) -> Iterator[str]:
        step, jobs = _round_step(self.highest / 6), int(_round_step(max(1.0, self.last / 10)))
        for at in (i * step for i in range(int(self.highest / step) + 1)):
            yield _rule(_LEFT, self.y(at), _RIGHT, self.y(at), _PALE)
            yield _text(_LEFT - 8, self.y(at) + 4, write(at) if at else "0", "end", _GREY)
        for n in sorted({1, *range(jobs, self.last + 1, jobs)}):
            yield _text(self.x(n), self.bottom + 16, str(n), "middle", _GREY)
        yield _text(16, self.top - 6, name)
        yield _text(_RIGHT + 16, self.bottom + 16, "jobs at once", colour=_GREY)


def draw(plan: LimitPlan, answer: Answer, past: Sequence[tuple[float, float]] = ()) -> str:
    """Draw an answer.

    Args:
        plan: the plan.
        answer: one of its answers.
        past: runs that were: jobs at once that they met, and the seconds of their mean burst.

    Returns:
        An SVG document that needs nothing beside itself.
    """
    rows, last = answer.rows, max(row.n for row in answer.rows)
    measured = [(n, rate * (1 - spread / 2), rate, rate * (1 + spread / 2)) for n, rate, spread in answer.measured]
    most = max([row.bytes_per_s for row in rows] + [high for *_, high in measured])
    ceilings = [(name, rate) for name, rate in answer.ceilings if rate <= 2.5 * most]
    times = [row.classes[0].burst_p99_s for row in rows] + [burst_s for _, burst_s in past if math.isfinite(burst_s)]
    upper = _Panel(64, 268, last, 1.12 * max([most, *(rate for _, rate in ceilings)]))
    lower = _Panel(318, 500, last, 1.12 * max(times))
    one = len(rows[0].classes) == 1
    parts = [f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>', _text(16, 26, headline(plan, answer), size=14)]
    starts = [1, min(answer.ticks_up_n or last + 1, answer.full_n or last + 1), answer.full_n or last + 1, last + 1]
    for (name, colour), first, after in zip(_ZONES, starts, starts[1:], strict=False):
        left, right = (upper.x(at - 0.5) for at in (first, after))
        if first < after:
            parts += [
                f'<rect x="{left}" y="{panel.top}" width="{max(1, right - left):.1f}" height="{panel.bottom - panel.top}" '
                f'fill="{colour}"/>'
                for panel in (upper, lower)
            ]
        if right - left > 7 * len(name):
            parts.append(_text((left + right) / 2, 58, name, "middle", _GREY))
    parts += upper.axes("together", lambda value: f"{say_bytes(value, plan.binary)}/s")
    parts += lower.axes("a burst" if one else f"a burst of {answer.classes[0]}", say_time)
    for name, rate in ceilings:
        parts.append(_rule(_LEFT, upper.y(rate), _RIGHT, upper.y(rate), _SPOT, 'stroke-dasharray="6 4"'))
        parts.append(_text(_RIGHT + 6, upper.y(rate) + 4, name, colour=_SPOT))
    parts.append(upper.curve([(row.n, row.bytes_per_s) for row in rows]))
    for n, low, rate, high in measured:
        parts += [_rule(upper.x(n), upper.y(low), upper.x(n), upper.y(high), _DARK), upper.dot(n, rate, _DARK)]
    parts.append(lower.curve([(row.n, row.classes[0].burst_p99_s) for row in rows], "4 4"))
    parts.append(lower.curve([(row.n, row.classes[0].burst_s) for row in rows]))
    parts += [lower.dot(n, burst_s, _SPOT) for n, burst_s in past]
    parts += [_rule(panel.x(answer.n), panel.top, panel.x(answer.n), panel.bottom, _DARK) for panel in (upper, lower)]
    parts.append(_text(upper.x(answer.n), 306, f"run {answer.n}", "middle"))
    legend = ["line: planned, every rate derated", "dashes below: 1 in 100 takes longer"]
    legend += ["black: measured, with its spread"] if measured else []
    legend += ["orange dots: past runs"] if past else []
    parts.append(_text(_LEFT, 548, " · ".join(legend), colour=_GREY))
    return svg_document(_WIDTH, _HEIGHT, parts)


def _round_step(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" {more}/>'


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = _DARK, size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" '
        f'font-family="system-ui, sans-serif">{for_html(text, 200)}</text>'
    )
