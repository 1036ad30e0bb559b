"""A plan and a check of past runs as Markdown, for Prefect's artifacts.

Charts come in as finished SVG texts; raw SVG is stripped by Prefect's pages, images are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prefect_cachewatch.capacity.charts import brief_band, brief_time
from prefect_cachewatch.capacity.model.results import HistoryCheck, LimitPlan
from prefect_cachewatch.capacity.page import COLUMNS, plan_sections
from prefect_cachewatch.common.svg import svg_data_uri
from prefect_cachewatch.common.text import for_markdown
from prefect_cachewatch.common.units import format_bytes, format_duration

_MAX_HOURS = 200


def plan_rows(limit_plan: LimitPlan) -> list[dict[str, Any]]:
    """Write a plan's table as rows for a table artifact: each class at each concurrency.

    Args:
        limit_plan: the plan.

    Returns:
        One mapping of column to value for each row.
    """
    return [
        {
            "class": entry.name,
            "at once": entry.n,
            "MiB/s together": round(entry.bytes_per_s / 2**20, 1),
            "burst s": round(entry.burst_s, 3),
            "burst band": brief_band(entry.burst_low_s, entry.burst_high_s),
            "I/O slowdown": round(entry.io_slowdown, 2),
            "job slowdown": round(entry.slowdown, 2),
            "p99 silence s": round(entry.gap_p99_s, 2),
            "job s": round(entry.job_s, 1),
            "batch s": round(entry.batch_s, 1),
            "busy": ", ".join(f"{name} {share:.0%}" for name, share in entry.utilisation.items()),
        }
        for row in limit_plan.table
        for entry in row
        if entry.n > 0
    ]


def plan_markdown(
    limit_plan: LimitPlan,
    change: str,
    charts: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Write a plan as a page: answer, change of the limit, charts, sections.

    Args:
        limit_plan: the plan.
        change: the sentence on what was set from what to what, or would be.
        charts: title to SVG text.
        notes: what the probe saw.

    Returns:
        Markdown; names from outside are escaped.
    """
    lines = [f"## {for_markdown(limit_plan.answer, 1000)}", "", for_markdown(change, 1000), ""]
    for title, svg in (charts or {}).items():
        lines += [f"### {for_markdown(title)}", "", f"![{for_markdown(title)}]({svg_data_uri(svg)})", ""]
    for section in plan_sections(limit_plan):
        lines += [f"### {for_markdown(section.title)}", ""] if section.title else []
        lines += [for_markdown(section.text, 1000), ""] if section.text else []
        if section.table:
            lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---:|" * len(COLUMNS)]
            cells = ([for_markdown(write(entry)) for write in COLUMNS.values()] for entry in section.table)
            lines += ["| " + " | ".join(row) + " |" for row in cells]
        lines += [*(f"- {for_markdown(item, 1000)}" for item in section.items), ""]
    lines += [f"- {for_markdown(note, 500)}" for note in notes]
    return "\n".join(lines) + "\n"


def check_markdown(check: HistoryCheck) -> str:
    """Write a check of past runs as a page: verdict, Little's law, rates against the plan, hours.

    Args:
        check: the check.

    Returns:
        Markdown; names from outside are escaped.
    """
    lines = [
        f"## {for_markdown(check.storage)}: {check.verdict}",
        "",
        for_markdown(check.reason, 1000),
        "",
        "| what | measured | plan |",
        "|---|---:|---:|",
        f"| bytes per second of one job | {_rate(check.bytes_per_s)} | {_rate(check.expected_bytes_per_s)} |",
        f"| mean burst | {_time(check.burst_s)} | {_time(check.expected_burst_s)} |",
        f"| at once on average (L) | {check.concurrency:.3g} | |",
        f"| arrivals (lambda) | {check.arrivals_per_s * 3600:.3g} an hour | |",
        f"| time on the storage (W) | {_time(check.duration_s)} | |",
        f"| wait for a slot, not in W | {_time(check.slot_wait_s)} | |",
        f"| lambda W against L (runs cut by the window's edges) | {check.edge_effect:+.1%} | |",
        f"| runs in the window of {format_duration(check.window_s)} | {check.runs} | |",
        "",
    ]
    if check.derate is not None:
        lines += [f"Calibrated derate: **{check.derate:.3f}** (`policy.derate` of the plan).", ""]
    if check.suggested_stall_window_s is not None:
        lines += [
            f"Suggested stall window: **{format_duration(check.suggested_stall_window_s)}**, 3 x the longest "
            "pause of the runs that completed.",
            "",
        ]
    if check.hours:
        shown = check.hours[-_MAX_HOURS:]
        if len(shown) < len(check.hours):
            lines += [f"The last {len(shown)} of {len(check.hours)} hours with runs:", ""]
        lines += [
            "| hour (UTC) | runs | at once | arrivals | W | bytes/s |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {hour.start[:16].replace('T', ' ')} | {hour.runs} | {hour.concurrency:.2f} | "
            f"{hour.arrivals_per_s * 3600:.3g}/h | {_time(hour.duration_s)} | {_rate(hour.bytes_per_s)} |"
            for hour in shown
        ]
    return "\n".join(lines) + "\n"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{format_bytes(value)}/s"


def _time(value: float | None) -> str:
    return "-" if value is None else brief_time(value)
