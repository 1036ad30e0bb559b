"""The last runs of a job as a page: a sentence if the last one was slow, a chart of durations, a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from prefect_cachewatch.common.svg import svg_data_uri, svg_document
from prefect_cachewatch.common.text import for_markdown, for_terminal
from prefect_cachewatch.common.units import format_bytes, format_count, format_duration, short_moment
from prefect_cachewatch.postmortem.chart import CHART_STYLE
from prefect_cachewatch.run.past import JobRun
from prefect_cachewatch.run.regression import measured_durations, slower_than_before

#: The heads of `run_cells`.
RUN_HEADS = ("WHEN (UTC)", "OUTCOME", "SIZE", "DURATION", "PAUSE", "STALLS")
RUNS_MAX = 50
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 170, 8, 8, 30, 8
_STYLE = ".done{fill:#2458c5}.bad{fill:#d9364a}.other{fill:#9aa5b1}.median{stroke:#7a8494;stroke-dasharray:4 3}"
# The words of an outcome in the table, where its own name is too long for it.
_SHORT = {"deadline_exceeded": "over deadline", "verification_failed": "not verified"}
_BAD = {"stalled", "failed", "deadline_exceeded", "verification_failed", "nothing_written"}


def run_cells(run: JobRun) -> list[str]:
    """Return a run as the cells of a table, safe for a terminal; `-` for what is not known."""
    outcome = _SHORT.get(run.outcome, run.outcome.replace("_", " "))
    return [
        short_moment(run.started_at),
        for_terminal(outcome, 15),
        "-" if run.bytes_present is None else format_bytes(run.bytes_present),
        "-" if run.duration_s is None else format_duration(run.duration_s),
        "-" if run.longest_pause_s is None else format_duration(run.longest_pause_s),
        "-" if run.stalls is None else str(run.stalls),
    ]


def history_markdown(name: str, runs: Sequence[JobRun]) -> str:
    """Write the last runs of a job as Markdown.

    Args:
        name: of the job.
        runs: the newest first; at most 50 are shown.

    Returns:
        Markdown; text from outside is escaped.
    """
    shown = runs[:RUNS_MAX]
    slower = slower_than_before(runs)
    lines = [f"## {for_markdown(name, 60)}: the last {f'{len(shown)} runs' if len(shown) != 1 else 'run'}", ""]
    if slower is not None:
        lines += [f"**{slower.sentence()}**", ""]
    lines += [f"![Duration of each run, the oldest first]({svg_data_uri(draw_durations(shown))})", ""]
    # The cause stands where a phone still shows it.
    heads = ["When (UTC)", "Outcome", "Cause", "Size", "Duration", "Longest pause", "Stalls"]
    lines += [f"| {' | '.join(heads)} |", "|---|---|---|--:|--:|--:|--:|"]
    for run in shown:
        when, outcome, *numbers = run_cells(run)
        cells = [when, outcome, run.cause or "", *numbers]
        lines.append(f"| {' | '.join(for_markdown(cell, 100) for cell in cells)} |")
    lines += ["", "Of a run with several attempts: size, duration and pause of its last one, the stalls of all."]
    return "\n".join(lines) + "\n"


def describe_runs(name: str, runs: Sequence[JobRun]) -> str:
    """Describe the last runs of a job in one line of Markdown.

    Example:
        >>> describe_runs("llama", [])
        'llama: 0 runs, 0 of them completed, 0 stalls'
    """
    shown = runs[:RUNS_MAX]
    completed = sum(run.outcome == "completed" for run in shown)
    stalls = sum(run.stalls or 0 for run in shown)
    slower = slower_than_before(runs)
    told = f". {slower.sentence()}" if slower is not None else ""
    counts = f"{format_count(len(shown), 'run')}, {completed} of them completed, {format_count(stalls, 'stall')}"
    return f"{for_markdown(name, 60)}: {counts}{told}"


def draw_durations(runs: Sequence[JobRun]) -> str:
    """Draw a bar for the duration of each run, the oldest first, and the median of those that are compared.

    Args:
        runs: the newest first.

    Returns:
        An SVG document of 720 x 170 units; no text from outside is in it.

    Example:
        >>> draw_durations([]).startswith("<svg ")
        True
    """
    bars = [(run.duration_s or 0.0, run.outcome) for run in reversed(runs)]
    longest_s = max([duration_s for duration_s, _ in bars] + [1e-3])
    room_w, room_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    step = min(room_w / max(1, len(bars)), 48.0)
    parts = [f'<rect class="bg" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>']
    for index, (duration_s, outcome) in enumerate(bars):
        height = max(2.0, room_h * duration_s / longest_s)
        kind = "done" if outcome == "completed" else "bad" if outcome in _BAD else "other"
        place = f'x="{_LEFT + index * step:.1f}" y="{_HEIGHT - _BOTTOM - height:.1f}"'
        parts.append(f'<rect class="{kind}" {place} width="{step * 0.8:.1f}" height="{height:.1f}"/>')
    words = f"longest {format_duration(longest_s)}" if bars else "no runs"
    if measured := measured_durations(runs):
        median_s = statistics.median(measured)
        y = _HEIGHT - _BOTTOM - room_h * min(1.0, median_s / longest_s)
        parts.append(f'<line class="median" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        words += f", median {format_duration(median_s)} (dashed)"
    parts.append(f'<text class="axis" x="{_LEFT}" y="{_TOP - 10}">{words}</text>')
    style = f"<style>{CHART_STYLE}{_STYLE}</style>"
    return svg_document(_WIDTH, _HEIGHT, [style, *parts], f'aria-label="Duration of {len(bars)} runs: {words}"')
