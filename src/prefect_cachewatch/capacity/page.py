"""A plan as one self-contained HTML page: no script, no network, charts inline."""

from __future__ import annotations

import math

from prefect_cachewatch.capacity.charts import latency_chart, shares_chart, small_files_chart
from prefect_cachewatch.capacity.model.results import ClassPrediction, LimitPlan
from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.common.units import format_bytes, format_duration

__all__ = ["html_page"]

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.3}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e4e8ec}
th:first-child,td:first-child{text-align:left}
tr.limit{background:#fdf3d7;font-weight:600}tr.beyond{color:#7b8794}
.wide{overflow-x:auto}svg{max-width:100%;height:auto}
"""


def html_page(plan: LimitPlan, max_slowdown: float, stall_window_s: float) -> str:
    """The plan as a page.

    Args:
        plan: the plan, with or without a simulation.
        max_slowdown: the policy's accepted slowdown.
        stall_window_s: the policy's stall window.

    Returns:
        An HTML document that needs nothing beside itself.
    """
    said = [_text(plan.answer, "h1")]
    if len(plan.classes) > 1:
        said += [_text("Shared limit", "h2"), _slots(plan)]
    said += [
        _text("Bounds", "h2"),
        _list(bound_lines(plan)),
        _text("Over the jobs at once", "h2"),
        _table(plan),
    ]
    said.append(
        _text(
            f"A slowdown of {max_slowdown:g} and a silence of {format_duration(stall_window_s)} are accepted. "
            "Rows beyond the limit show what it spares you.",
            "p",
        )
    )
    said += [f"<figure>{chart}</figure>" for chart in _charts(plan) if chart]
    said += [
        _text("Bottleneck, and what the next purchase changes", "h2"),
        _text(f"Bottleneck: {plan.bottleneck}.", "p"),
    ]
    said.append(_list([f"{change.change}: {change.sentence}" for change in plan.purchases]))
    if plan.simulation:
        said += [_text("Simulation", "h2"), _text(plan.simulation.sentence, "p")]
    said += [_text("Assumptions", "h2"), _list(plan.assumptions)]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
    )
    title = f"<title>{for_html(plan.storage)}: how many at once</title>"
    return f"{head}{title}<style>{_STYLE}</style></head><body>{''.join(said)}</body></html>\n"


def bound_lines(plan: LimitPlan) -> list[str]:
    """The bounds in words, for page and terminal.

    Args:
        plan: the plan.

    Returns:
        One line for each.
    """
    edge = plan.bounds
    lines = [
        f"knee N* = {edge['knee_n']:.1f}: beyond it, jobs wait for each other whatever is done",
        f"a burst takes {edge['demand_s']:.3g} s alone; the bottleneck needs {edge['demand_max_s']:.3g} s of it",
        f"at {plan.limit}: at most {edge['throughput_max_per_s']:.3g} bursts/s, "
        f"and {edge['residence_min_s']:.3g} s or more each",
    ]
    if math.isfinite(edge["stall_n"]):
        lines.append(f"by the bound alone, the stall window admits {edge['stall_n']:.0f}")
    return lines


def _charts(plan: LimitPlan) -> tuple[str, str, str]:
    return latency_chart(plan), shares_chart(plan), small_files_chart(plan)


def _text(value: str, tag: str) -> str:
    return f"<{tag}>{for_html(value, 2000)}</{tag}>"


def _list(lines: tuple[str, ...] | list[str]) -> str:
    return "<ul>" + "".join(_text(line, "li") for line in lines) + "</ul>"


def _slots(plan: LimitPlan) -> str:
    lines = [
        f"{entry.name}: {entry.limit} ({entry.low}-{entry.high}) alone, a job takes {entry.occupy} of {plan.slots} slots"
        for entry in plan.classes
    ]
    return _list(lines)


def _table(plan: LimitPlan) -> str:
    name = plan.classes[0].name
    heads = ("n", "bytes/s", "burst", "band", "slowdown", "I/O", "p99 gap", "storage", "job", "batch")
    rows = "".join(_row(entry, plan.limit) for row in plan.table for entry in row if entry.name == name)
    return (
        '<div class="wide"><table><thead><tr>'
        + "".join(_text(head, "th") for head in heads)
        + f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(entry: ClassPrediction, limit: int) -> str:
    cells = (
        str(entry.n),
        f"{format_bytes(entry.bytes_per_s)}/s",
        f"{entry.burst_s:.3g} s",
        f"{entry.burst_low_s:.3g}-{entry.burst_high_s:.3g} s",
        f"{entry.slowdown:.2f}",
        f"{entry.io_slowdown:.2f}",
        f"{entry.gap_p99_s:.0f} s",
        f"{entry.utilisation.get('storage', 0.0):.0%}",
        format_duration(entry.job_s),
        format_duration(entry.batch_s),
    )
    kind = ' class="limit"' if entry.n == limit else ' class="beyond"' if entry.n > limit else ""
    return f"<tr{kind}>" + "".join(_text(cell, "td") for cell in cells) + "</tr>"
