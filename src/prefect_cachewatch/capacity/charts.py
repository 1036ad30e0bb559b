"""A plan's charts as SVG text: no script, no style sheet, nothing from the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prefect_cachewatch.capacity.model.results import LimitPlan
from prefect_cachewatch.common.svg import svg_document
from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.common.units import format_bytes

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 20, 44, 52
_INK, _FAINT, _LINE = "#1f2933", "#d5dbe1", "#1f5fa8"
_KINDS = {"generation": "#1f5fa8", "inference": "#d9822b", "training": "#3a8f5c"}


@dataclass(frozen=True)
class _Axes:
    x_low: float
    x_high: float
    y_high: float
    y_low: float = 0.0
    log: bool = False

    def x(self, value: float) -> float:
        low, high = (math.log10(self.x_low), math.log10(self.x_high)) if self.log else (self.x_low, self.x_high)
        at = math.log10(value) if self.log else value
        return _LEFT + (at - low) / max(high - low, 1e-9) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_low, self.y_high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return _HEIGHT - _BOTTOM - (value - low) / max(high - low, 1e-9) * (_HEIGHT - _TOP - _BOTTOM)


def plan_charts(plan: LimitPlan) -> dict[str, str]:
    """Draw the charts of a plan, for its page and its artifact.

    Args:
        plan: the plan.

    Returns:
        Title to `<svg>` element, in the order in which they are shown; a chart without data is left out.
    """
    charts = {
        "Burst time over jobs at once": latency_chart(plan),
        "Who moves the bytes": shares_chart(plan),
        "What small files cost": small_files_chart(plan),
    }
    return {title: svg for title, svg in charts.items() if svg}


def latency_chart(plan: LimitPlan) -> str:
    """Mean burst time over the jobs at once, with its band, the bound, the knee and the limit.

    Args:
        plan: the plan.

    Returns:
        An `<svg>` element.
    """
    index = _answered(plan)
    rows = [row[index] for row in plan.table]
    axes = _Axes(rows[0].n, max(rows[-1].n, rows[0].n + 1), 1.05 * max(row.burst_high_s for row in rows))
    upper = [(axes.x(row.n), axes.y(row.burst_high_s)) for row in rows]
    lower = [(axes.x(row.n), axes.y(row.burst_low_s)) for row in rows]
    parts = [
        f'<polygon points="{_points([*upper, *reversed(lower)])}" fill="{_LINE}" fill-opacity="0.15"/>',
        _polyline([(axes.x(row.n), axes.y(row.burst_s)) for row in rows], _LINE),
    ]
    think = plan.bounds["knee_n"] * plan.bounds["demand_max_s"] - plan.bounds["demand_s"]
    bound = [max(plan.bounds["demand_s"], row.n * plan.bounds["demand_max_s"] - think) for row in rows]
    inside = [(axes.x(row.n), axes.y(least)) for row, least in zip(rows, bound, strict=True)]
    parts.append(_polyline(inside, _INK, dash="2 4"))
    marks = [
        (plan.knee_n, f"knee N* {plan.knee_n:.1f}", "#8a6d1f"),
        (float(plan.limit), f"recommended {plan.limit}", "#b3261e"),
        (float(plan.most), f"most {plan.most}", "#7b8794"),
    ]
    for row, (at, label, colour) in enumerate(marks):
        if axes.x_low <= at <= axes.x_high:
            parts.append(_mark(axes.x(at), label, colour, row))
    parts += [_circle(axes.x(row.n), axes.y(row.burst_s), f"n = {row.n}: {brief_time(row.burst_s)}") for row in rows]
    parts += _legend(
        ("mean burst", _LINE, 1.0),
        (f"band: rates {plan.band:.0%} lower and higher", _LINE, 0.15),
        ("dotted: no schedule is faster", _INK, 0.0),
    )
    ticks = [(value, f"{value:g}") for value in _ticks(axes.x_low, axes.x_high, 10, whole=True)]
    return _svg("Burst time over jobs at once", "jobs at once", axes, ticks, brief_time, parts)


def shares_chart(plan: LimitPlan) -> str:
    """Bytes per second of generation, inference and training over the jobs at once, stacked.

    Args:
        plan: the plan.

    Returns:
        An `<svg>` element.
    """
    index = _answered(plan)
    numbers = [row[index].n for row in plan.table]
    rows = [*plan.table]
    if plan.mix:  # the bar at the right: all classes with their share of the slots
        gap = max(2, round((numbers[-1] - numbers[0]) / 10))
        numbers.append(numbers[-1] + gap)
        rows.append(plan.mix)
    kinds = [kind for kind in _KINDS if kind in plan.kinds.values()]
    stacks = [
        [sum(entry.bytes_per_s for entry in row if plan.kinds[entry.name] == kind) for kind in kinds] for row in rows
    ]
    axes = _Axes(numbers[0] - 0.5, numbers[-1] + 0.5, 1.05 * max(1.0, *map(sum, stacks)))
    wide = min(28.0, 0.8 * (_WIDTH - _LEFT - _RIGHT) / (numbers[-1] - numbers[0] + 1))
    parts = []
    for n, stack in zip(numbers, stacks, strict=True):
        below = 0.0
        for kind, rate in zip(kinds, stack, strict=True):
            top, foot = axes.y(below + rate), axes.y(below)
            told = for_html(f"n = {n}, {kind}: {format_bytes(rate)}/s ({rate / max(sum(stack), 1e-9):.0%})")
            parts.append(
                f'<rect x="{axes.x(n) - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{foot - top:.1f}" '
                f'fill="{_KINDS[kind]}"><title>{told}</title></rect>'
            )
            below += rate
    parts += _legend(*((kind, _KINDS[kind], 1.0) for kind in kinds))
    ticks = [(float(n), str(n)) for n in _thin(numbers[: len(plan.table)], 14)]
    if plan.mix:
        ticks.append((float(numbers[-1]), "mix"))
    return _svg("Who moves the bytes", "jobs at once", axes, ticks, _rate, parts, base=1024)


def small_files_chart(plan: LimitPlan) -> str:
    """Seconds of a burst alone over the number of files it is cut into, both axes in powers of ten.

    Args:
        plan: the plan.

    Returns:
        An `<svg>` element, or "" where the cost of a small file was not measured.
    """
    if len(plan.small_files) < 2:
        return ""
    times = [seconds for _, seconds in plan.small_files]
    low, high = 10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times) * 1.01))
    axes = _Axes(1, plan.small_files[-1][0], high, low, log=True)
    spots = [(axes.x(files), axes.y(seconds)) for files, seconds in plan.small_files]
    parts = [_polyline(spots, _LINE)]
    parts += [
        _circle(x, y, f"{files:,} files: {brief_time(seconds)}")
        for (x, y), (files, seconds) in zip(spots, plan.small_files, strict=True)
    ]
    ticks = [(10.0**k, f"{10**k:,}") for k in range(int(math.log10(plan.small_files[-1][0])) + 1)]
    return _svg("What small files cost: one burst, alone", "files in a burst", axes, ticks, brief_time, parts)


def brief_time(seconds: float) -> str:
    """Write seconds for a column or an axis: three digits and one unit.

    Args:
        seconds: not negative.

    Example:
        >>> brief_time(0.0214), brief_time(12.34), brief_time(1500)
        ('21.4 ms', '12.3 s', '25 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0"
    if seconds < 600:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.3g} h" if seconds < 360_000 else f"{seconds / 86400:.0f} d"


def brief_band(low_s: float, high_s: float) -> str:
    """Write a range of seconds in the unit of its upper end, as `brief_time` writes that one.

    Args:
        low_s: not negative.
        high_s: not below it.

    Example:
        >>> brief_band(0.012, 0.0214), brief_band(8.6, 14.2), brief_band(500, 1500)
        ('12-21 ms', '8.6-14 s', '8.3-25 min')
    """
    unit = brief_time(high_s).rpartition(" ")[2]
    size = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}.get(unit, 1.0)
    low, high = (f"{x / size:.0f}" if x / size >= 10 else f"{x / size:.2g}" for x in (low_s, high_s))
    return f"{low}-{high} {unit}"


def _answered(plan: LimitPlan) -> int:
    name = plan.classes[0].name
    return next(i for i, entry in enumerate(plan.table[0]) if entry.name == name)


def _svg(
    title: str,
    x_label: str,
    axes: _Axes,
    x_ticks: Sequence[tuple[float, str]],
    y_format: Callable[[float], str],
    parts: Sequence[str],
    base: int = 1000,
) -> str:
    frame = [_text(_LEFT, 20, title, size=15, weight="bold")]
    if axes.log:
        powers = range(round(math.log10(axes.y_low)), round(math.log10(axes.y_high)) + 1)
        y_ticks = [10.0**k for k in powers]
    else:
        # Round in the unit that the label is in: 200 MiB, not 190.7.
        unit = base ** max(0, int(math.log(max(axes.y_high, 1), base))) if base != 1000 else 1
        y_ticks = [value * unit for value in _ticks(axes.y_low / unit, axes.y_high / unit, 6)]
    for value in y_ticks:
        y = axes.y(value)
        frame.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_FAINT}"/>')
        frame.append(_text(_LEFT - 6, y + 4, y_format(value), anchor="end"))
    for value, label in x_ticks:
        anchor = "end" if axes.x(value) > _WIDTH - 2 * _RIGHT and len(label) > 4 else "middle"
        frame.append(_text(axes.x(value), _HEIGHT - _BOTTOM + 18, label, anchor=anchor))
    frame.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label, anchor="middle"))
    head = [f"<title>{for_html(title)}</title>", f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>']
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    return svg_document(_WIDTH, _HEIGHT, [*head, *frame, *parts], font)


def _text(x: float, y: float, label: str, *, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{_INK}">{for_html(label)}</text>'
    )


def _points(spots: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _polyline(spots: Sequence[tuple[float, float]], colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{_points(spots)}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>'


def _circle(x: float, y: float, told: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_LINE}"><title>{for_html(told)}</title></circle>'


def _mark(x: float, label: str, colour: str, row: int) -> str:
    foot = _HEIGHT - _BOTTOM
    return f'<path d="M{x:.1f} {_TOP}V{foot}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="6 3"/>' + _text(
        min(x + 4, _WIDTH - 110), _TOP + 16 + 14 * row, label
    )


def _ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round values from low to high, at most so many."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-12) / most))
    step = next(step * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (step * factor) <= most)
    if whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _thin(values: Sequence[int], most: int) -> Sequence[int]:
    return values[:: max(1, math.ceil(len(values) / most))]


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s" if value else "0"


def _legend(*entries: tuple[str, str, float]) -> list[str]:
    """A square and a word for each entry: label, colour, opacity."""
    parts, x = [], _LEFT + 8
    for label, colour, opacity in entries:
        square = f'<rect x="{x}" y="{_TOP - 10}" width="10" height="10" fill="{colour}" fill-opacity="{opacity:g}"'
        parts.append(f'{square} stroke="{colour}" stroke-width="0.5"/>')
        parts.append(_text(x + 14, _TOP - 1, label))
        x += 34 + 7 * len(label)
    return parts
