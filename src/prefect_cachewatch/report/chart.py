"""The growth curve as an SVG: bytes over time, the stall, its window and earlier pauses marked; pure, numbers only.

No name of a file or process is ever drawn, so that nothing in it needs escaping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from prefect_cachewatch.common.svg import svg_document
from prefect_cachewatch.common.units import format_bytes, format_duration

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 14, 16, 30
_MAX_POINTS = 240
_MAX_PAUSES = 40
# Read with this module: later its directory may be on a file system that hangs.
CHART_STYLE = Path(__file__).with_name("chart.css").read_text("utf-8").partition("*/")[2].replace("\n", "")
_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def draw_growth(
    samples: Sequence[tuple[float, int, int]],
    *,
    end_s: float,
    stall_from_s: float | None = None,
    window_s: float | None = None,
    pauses: Sequence[tuple[float, float]] = (),
) -> str:
    """Draw the growth curve of one attempt.

    Args:
        samples: (seconds, bytes written, allocated bytes written), in time order.
        end_s: end of the attempt in seconds, where the curve ends.
        stall_from_s: beginning of the pause that was judged a stall, shaded up to `end_s`; None for none.
        window_s: the window that had passed then, drawn from the beginning of that pause.
        pauses: beginning and end of earlier pauses that looked like a stall and were over, shaded in another colour.

    Returns:
        An SVG document of 720 x 260 units that scales, light and dark.

    Example:
        >>> draw_growth([(0, 0, 0), (1, 10, 10)], end_s=2, stall_from_s=1).startswith("<svg ")
        True
    """
    points = _thin([(t, b, a) for t, b, a in samples if math.isfinite(t)])
    if not points or points[0][0] > 0:
        points = [(0.0, 0, 0), *points]
    end_s = max(end_s, points[-1][0], 0.001)
    if stall_from_s is not None and stall_from_s <= end_s:
        # The last growth was seen at a sample, and is dated before it by the file's own time.
        last = points[-1]
        points = [*(point for point in points if point[0] < stall_from_s), (max(0.0, stall_from_s), last[1], last[2])]
    points.append((end_s, points[-1][1], points[-1][2]))
    top = max(1, *(max(b, a) for _, b, a in points))
    byte_step, time_step = _byte_step(top), _time_step(end_s)
    ceiling, base = math.ceil(top / byte_step) * byte_step, HEIGHT - _BOTTOM

    def x(t: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, t / end_s)), 1)

    def y(value: float) -> float:
        return round(base - (base - _TOP) * value / ceiling, 1)

    def text(kind: str, at: float, height: float, anchor: str, words: str) -> str:
        return f'<text class="{kind}" x="{at}" y="{height}" text-anchor="{anchor}">{words}</text>'

    def shade(kind: str, from_s: float, to_s: float) -> str:
        place = f'x="{x(from_s)}" y="{_TOP}" width="{max(0.0, round(x(to_s) - x(from_s), 1))}" height="{base - _TOP}"'
        return f'<rect class="{kind}" {place}/>'

    def line(column: int) -> str:
        return "L".join(f"{x(point[0])} {y(point[column])}" for point in points)

    parts = [f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}" rx="8"/>']
    for value in range(0, int(ceiling) + 1, int(byte_step)):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(text("axis bytes", _LEFT - 8, y(value) + 4, "end", _tick(value)))
    for index in range(int(end_s / time_step + 1e-9) + 1):
        at = index * time_step
        anchor = "start" if index == 0 else "end" if x(at) > WIDTH - 40 else "middle"
        parts.append(text("axis", x(at), base + 18, anchor, _clock(at)))
    parts += [shade("pause", begin_s, pause_end_s) for begin_s, pause_end_s in list(pauses)[-_MAX_PAUSES:]]
    note = ""
    if stall_from_s is not None and stall_from_s < end_s:
        left = x(stall_from_s)
        parts.append(shade("stall", stall_from_s, end_s))
        parts.append(f'<line class="edge" x1="{left}" x2="{left}" y1="{_TOP}" y2="{base}"/>')
        note = f"no growth for {format_duration(end_s - stall_from_s)}"
        # Beside the shade where that has more room for the words, which are large on a phone.
        at, anchor = (left + 6, "start") if x(end_s) - left > left - _LEFT else (left - 6, "end")
        parts.append(text("note", at, base - 8, anchor, note))
        if window_s is not None:
            right, height = x(stall_from_s + window_s), base - 40
            ends = (f"M{end} {height - 5}V{height + 5}" for end in (left, right))
            parts.append(f'<path class="window" d="{f"M{left} {height}H{right}".join(ends)}"/>')
            parts.append(text("note", at, base - 46, anchor, f"window {format_duration(window_s)}"))
    parts.append(f'<path class="area" d="M{x(0)} {base}L{line(1)}L{x(end_s)} {base}Z"/>')
    parts.append(f'<path class="line" d="M{line(1)}"/>')
    if any(abs(a - b) > 0.02 * top for _, b, a in points):
        parts.append(f'<path class="disk" d="M{line(2)}"><title>allocated on disk</title></path>')
    words = f"Bytes written: {format_bytes(points[-1][1])} after {format_duration(end_s)}{note and f', {note}'}"
    return svg_document(WIDTH, HEIGHT, [f"<style>{CHART_STYLE}</style>", *parts], f'aria-label="{words}"')


def _thin(points: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    if len(points) <= _MAX_POINTS:
        return points
    stride = len(points) / _MAX_POINTS
    return [points[int(index * stride)] for index in range(_MAX_POINTS)] + [points[-1]]


def _byte_step(top: float) -> int:
    # A power of two is a round number in powers of 1024; at most five lines.
    return int(2 ** max(0, math.ceil(math.log2(top / 5))))


def _time_step(end_s: float) -> float:
    return next((step for step in _TIME_STEPS if step * 8 >= end_s), 86400.0 * math.ceil(end_s / 86400 / 8))


def _tick(value: float) -> str:
    return format_bytes(value).replace(".00 ", " ").replace(".0 ", " ")


def _clock(at_s: float) -> str:
    if at_s < 60:
        return f"{at_s:g} s"
    minutes, seconds = divmod(int(at_s), 60)
    return f"{minutes}:{seconds:02d}" if at_s < 3600 else f"{minutes // 60}h{minutes % 60:02d}"
