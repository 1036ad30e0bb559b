"""One picture of a plan: throughput to its ceilings above, a burst's time below, over the number of jobs at once. SVG.

Zones are shaded, measured points have their spread as bars, and past runs are dots on the lower panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.capacity.results import Answer, LimitPlan
from prefect_cachewatch.capacity.units import say_bytes, say_time
from prefect_cachewatch.capacity.wording import headline
from prefect_cachewatch.common.svg import svg_document
from prefect_cachewatch.common.text import for_html

_WIDTH, _LEFT, _RIGHT = 800, 84, 706
_ZONES = (("no waiting", "#e7f5ec"), ("shared", "#fdf5dc"), ("full", "#fbe5e1"))
_LINE, _DARK, _GREY, _SPOT = "#1f5fa8", "#1f2933", "#66727f", "#c2410c"


@dataclass(frozen=True)
class _Panel:
    """A panel from `top` to `bottom` over 1 to `last` jobs and 0 to `highest`."""

    top: float
    bottom: float
    last: int
    highest: float

    def x(self, n: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (n - 1) / max(1, self.last - 1), 1)

    def y(self, value: float) -> float:
        return round(self.bottom - (self.bottom - self.top) * min(1.0, value / self.highest), 1)

    def line(self, points: Sequence[tuple[float, float]], dashes: str = "") -> str:
        path = " ".join(f"{self.x(n)},{self.y(value)}" for n, value in points)
        return f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2" stroke-dasharray="{dashes}"/>'


def draw(plan: LimitPlan, answer: Answer, past: Sequence[tuple[float, float]] = ()) -> str:
    """Draw an answer.

    Args:
        plan: the plan.
        answer: one of its answers.
        past: runs that were: jobs at once that they met, and the seconds of their mean burst.

    Returns:
        An SVG document that needs nothing beside itself.
    """
    last = max(row.n for row in answer.rows)
    measured = [point for point in answer.measured if point.n <= last]
    most = max([row.bytes_per_s for row in answer.rows] + [p.bytes_per_s * (1 + p.spread / 2) for p in measured])
    ceilings = [(name, rate) for name, rate in answer.ceilings if rate <= 2.5 * most]
    upper = _Panel(64, 268, last, 1.12 * max([most] + [rate for _, rate in ceilings]))
    times = [row.classes[0].burst_p99_s for row in answer.rows] + [burst_s for _, burst_s in past]
    lower = _Panel(318, 500, last, 1.12 * max(time for time in times if math.isfinite(time)))
    of = f" ({answer.classes[0]})" if len(answer.rows[0].classes) > 1 else ""
    parts = [
        f'<rect width="{_WIDTH}" height="560" fill="#fff"/>',
        _text(16, 26, headline(plan, answer).partition(";")[0], size=13, weight=600),
        *_zones(answer, upper, lower),
        *_axis(upper, lambda value: f"{say_bytes(value, plan.binary)}/s", "together"),
        *_axis(lower, say_time, "a burst"),
    ]
    for name, rate in ceilings:
        y = upper.y(rate)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" stroke="{_SPOT}" stroke-dasharray="6 4"/>')
        parts.append(_text(_RIGHT + 6, y + 4, f"{name}{of}"[:16], colour=_SPOT))
    parts.append(upper.line([(row.n, row.bytes_per_s) for row in answer.rows]))
    for point in measured:
        x, low, high = (
            upper.x(point.n),
            *(upper.y(point.bytes_per_s * (1 + side * point.spread / 2)) for side in (-1, 1)),
        )
        parts.append(f'<line x1="{x}" x2="{x}" y1="{low}" y2="{high}" stroke="{_DARK}"/>')
        parts.append(f'<circle cx="{x}" cy="{upper.y(point.bytes_per_s)}" r="3.5" fill="{_DARK}"/>')
    parts.append(lower.line([(row.n, row.classes[0].burst_p99_s) for row in answer.rows], "4 4"))
    parts.append(lower.line([(row.n, row.classes[0].burst_s) for row in answer.rows]))
    parts += [
        f'<circle cx="{lower.x(min(max(n, 1), last))}" cy="{lower.y(burst_s)}" r="3" fill="{_SPOT}" fill-opacity="0.6"/>'
        for n, burst_s in past
    ]
    parts += _number(answer, upper, lower)
    legend = ["line: planned, every rate derated", "dashes below: 1 in 100 takes longer"]
    legend += ["black: measured, with its spread"] if measured else []
    legend += ["orange dots: past runs"] if past else []
    parts.append(_text(_LEFT, 548, " · ".join(legend), colour=_GREY))
    return svg_document(_WIDTH, 560, parts)


def _zones(answer: Answer, upper: _Panel, lower: _Panel) -> Iterator[str]:
    last, tick, full = upper.last, answer.ticks_up_n, answer.full_n
    starts = [1, min(tick or last + 1, full or last + 1), full or last + 1, last + 1]
    for (name, colour), first, after in zip(_ZONES, starts, starts[1:], strict=False):
        if first >= after:
            continue
        left, right = (upper.x(min(last, max(1, at - 0.5))) for at in (first, after))
        for panel in (upper, lower):
            yield (
                f'<rect x="{left}" y="{panel.top}" width="{max(1, right - left):.1f}" height="{panel.bottom - panel.top}" '
                f'fill="{colour}"/>'
            )
        if right - left > 7 * len(name):
            yield _text((left + right) / 2, 58, name, anchor="middle", colour=_GREY)


def _axis(panel: _Panel, write: object, name: str) -> Iterator[str]:
    assert callable(write)
    step = _round_step(panel.highest / 6)
    at = 0.0
    while at <= panel.highest:
        y = panel.y(at)
        yield f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}" stroke="#d5dbe1" stroke-width="0.6"/>'
        yield _text(_LEFT - 8, y + 4, str(write(at)) if at else "0", anchor="end", colour=_GREY)
        at += step
    yield _text(16, panel.top - 6, name, colour=_DARK, weight=600)
    jobs = _round_step(max(1.0, panel.last / 10))
    for n in sorted({1, *range(int(jobs), panel.last + 1, max(1, int(jobs)))}):
        yield _text(panel.x(n), panel.bottom + 16, str(n), anchor="middle", colour=_GREY)
    yield _text(_RIGHT + 16, panel.bottom + 16, "jobs at once", colour=_GREY)


def _number(answer: Answer, upper: _Panel, lower: _Panel) -> Iterator[str]:
    x = upper.x(answer.n)
    for panel in (upper, lower):
        yield f'<line x1="{x}" x2="{x}" y1="{panel.top}" y2="{panel.bottom}" stroke="{_DARK}" stroke-width="1.5"/>'
    yield _text(x, 306, f"run {answer.n}", anchor="middle", weight=600)


def _round_step(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", colour: str = _DARK, size: int = 11, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'font-family="system-ui, sans-serif">{for_html(text, 200)}</text>'
    )
