"""The growth curve of an attempt as an SVG: bytes over time, the stall and earlier pauses shaded; pure, numbers only.

No name of a file or process is ever drawn, so that nothing in it needs escaping.
"""

from __future__ import annotations

import math
from pathlib import Path

from prefect_cachewatch.common.svg import svg_document
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.report.report import Report

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BASE = 74, 14, 16, HEIGHT - 30
# Read with this module: later its directory may be on a file system that hangs.
CHART_STYLE = Path(__file__).with_name("chart.css").read_text("utf-8").partition("*/")[2].replace("\n", "")
_TIME_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def draw_report(report: Report) -> str:
    """Draw the growth of an attempt; it ends with the decision, since stop, listing and bundle are no pause.

    Args:
        report: of the attempt.

    Returns:
        An SVG document of 720 x 260 units that scales, light and dark.
    """
    growth, stall = report.growth, report.stall
    points = [(0.0, 0), *((one.at_s, one.bytes_written) for one in growth.samples)]
    end_s, stall_from_s = report.duration_s, math.inf
    if stall.kind is not None and stall.pause_s is not None:
        # The last growth was seen at a sample, and is dated before it by the file's own time.
        stall_from_s = growth.last_growth_s or 0.0
        end_s = stall_from_s + stall.pause_s
        points = [*(point for point in points if point[0] < stall_from_s), (stall_from_s, points[-1][1])]
    end_s = max(end_s, points[-1][0], 0.001)
    points.append((end_s, points[-1][1]))
    top = max(1, *(size for _, size in points))
    byte_step = int(2 ** max(0, math.ceil(math.log2(top / 5))))  # a round number in powers of 1024; at most five lines
    time_step = next((step for step in _TIME_STEPS if step * 8 >= end_s), 86400.0 * math.ceil(end_s / 86400 / 8))
    ceiling = math.ceil(top / byte_step) * byte_step

    def x(t: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, t / end_s)), 1)

    def text(kind: str, at: float, height: float, anchor: str, words: str) -> str:
        return f'<text class="{kind}" x="{at}" y="{height}" text-anchor="{anchor}">{words}</text>'

    def shade(kind: str, from_s: float, to_s: float) -> str:
        width = max(0.0, round(x(to_s) - x(from_s), 1))
        return f'<rect class="{kind}" x="{x(from_s)}" y="{_TOP}" width="{width}" height="{_BASE - _TOP}"/>'

    parts = [f"<style>{CHART_STYLE}</style>", f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}" rx="8"/>']
    for size in range(0, ceiling + 1, byte_step):
        height = round(_BASE - (_BASE - _TOP) * size / ceiling, 1)
        words = format_bytes(size).replace(".00 ", " ").replace(".0 ", " ")
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height}" y2="{height}"/>')
        parts.append(text("axis bytes", _LEFT - 8, height + 4, "end", words))
    for index in range(int(end_s / time_step + 1e-9) + 1):
        at = x(index * time_step)
        anchor = "start" if index == 0 else "end" if at > WIDTH - 40 else "middle"
        parts.append(text("axis", at, _BASE + 18, anchor, _clock(index * time_step)))
    for one in growth.suspected[-40:]:
        if one.cleared_at_s is not None:
            parts.append(shade("pause", one.at_s - one.pause_s, one.cleared_at_s))
    note = ""
    if stall_from_s < end_s:
        note = f"no growth for {format_duration(end_s - stall_from_s)}"
        parts.append(shade("stall", stall_from_s, end_s))
        # Beside the edge where there is more room for the words, which are large on a phone.
        left = x(stall_from_s)
        at, anchor = (left + 6, "start") if x(end_s) - left > left - _LEFT else (left - 6, "end")
        parts.append(text("note", at, _BASE - 8, anchor, note))
    line = "L".join(f"{x(at_s)} {round(_BASE - (_BASE - _TOP) * size / ceiling, 1)}" for at_s, size in points)
    parts.append(f'<path class="line" d="M{line}"/>')
    words = f"Bytes written: {format_bytes(points[-1][1])} after {format_duration(end_s)}{note and f', {note}'}"
    return svg_document(WIDTH, HEIGHT, parts, f'aria-label="{words}"')


def _clock(at_s: float) -> str:
    if at_s < 60:
        return f"{at_s:g} s"
    minutes, seconds = divmod(int(at_s), 60)
    return f"{minutes}:{seconds:02d}" if at_s < 3600 else f"{minutes // 60}h{minutes % 60:02d}"
