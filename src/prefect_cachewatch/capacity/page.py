"""A plan as sections for terminal, artifact and page; and the page: self-contained, no script, charts inline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.capacity.charts import brief_band, brief_time, plan_charts
from prefect_cachewatch.capacity.model.results import ClassPrediction, LimitPlan
from prefect_cachewatch.capacity.rollout import decide_limit
from prefect_cachewatch.common.text import for_html
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import InputError

#: A plan's table: the heading of each column, and how a prediction is written in it.
COLUMNS: dict[str, Callable[[ClassPrediction], str]] = {
    "n": lambda entry: str(entry.n),
    "bytes/s": lambda entry: f"{format_bytes(entry.bytes_per_s)}/s",
    "burst": lambda entry: brief_time(entry.burst_s),
    "band": lambda entry: brief_band(entry.burst_low_s, entry.burst_high_s),
    "slowdown": lambda entry: f"{entry.slowdown:.2f}",
    "I/O": lambda entry: f"{entry.io_slowdown:.2f}",
    "p99 gap": lambda entry: brief_time(entry.gap_p99_s),
    "storage": lambda entry: f"{entry.utilisation.get('storage', 0.0):.0%}",
    "job": lambda entry: brief_time(entry.job_s),
    "batch": lambda entry: brief_time(entry.batch_s),
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.3}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e4e8ec}
th:first-child,td:first-child{text-align:left}
tr.limit{background:#fdf3d7;font-weight:600}tr.beyond{color:#7b8794}
.wide{overflow-x:auto}svg{max-width:100%;height:auto}
"""


@dataclass(frozen=True)
class Section:
    """A part of a plan: a paragraph, a table with a row for each prediction, a list; a missing part is empty."""

    title: str = ""
    text: str = ""
    table: Sequence[ClassPrediction] = ()
    items: Sequence[str] = ()


def plan_sections(plan: LimitPlan) -> Iterator[Section]:
    """List the sections below a plan's answer, in the order in which they are shown.

    Args:
        plan: the plan, with or without a simulation.

    Yields:
        The sections; their texts are not escaped.
    """
    name = plan.classes[0].name
    mine = [entry for row in plan.table for entry in row if entry.name == name]
    nearest = min(plan.table, key=lambda row: min(abs(entry.n - plan.limit) for entry in row if entry.name == name))
    beside = [entry for entry in nearest if entry.name != name and entry.n]
    try:
        decide_limit(plan)
    except InputError as error:
        yield Section(text=f"plan-capacity sets no limit by this plan: {error.message}")
    if len(plan.classes) > 1:
        slots = [
            f"{entry.name}: a job takes {entry.occupy} slot{'' if entry.occupy == 1 else 's'}, so at most "
            f"{plan.slots // entry.occupy} run; alone on the storage {entry.limit} would be recommended"
            for entry in plan.classes
        ]
        yield Section("Shared limit", f"One limit of {plan.slots} slots for all classes:", items=slots)
    yield Section("Bounds", items=_bounds(plan))
    yield Section(f"Over n jobs of {name} at once", table=mine)
    if beside:
        yield Section(f"Beside it, at {plan.limit}", items=_shares(beside))
    if plan.mix:
        yield Section("With the slots shared out evenly", items=_shares(plan.mix))
    yield Section("The most that the rules admit", items=_bindings(plan))
    yield Section(text=f"Bottleneck: {plan.bottleneck}.")
    if plan.what_if:
        changes = [f"{change.change}: {change.sentence}" for change in plan.what_if]
        alone = f", for {name} alone" if len(plan.classes) > 1 else ""
        yield Section(f"What the next purchase would change{alone}", items=changes)
    if plan.simulation:
        yield Section("Simulation", plan.simulation.sentence)
    yield Section("Assumptions", items=plan.assumptions)


def html_page(plan: LimitPlan) -> str:
    """The plan as a page.

    Args:
        plan: the plan, with or without a simulation.

    Returns:
        An HTML document that needs nothing beside itself.
    """
    said = [_text(plan.answer, "h1"), *(f"<figure>{chart}</figure>" for chart in plan_charts(plan).values())]
    for section in plan_sections(plan):
        said += [_text(section.title, "h2")] if section.title else []
        said += [_text(section.text, "p")] if section.text else []
        said += [_table(section.table, plan.limit)] if section.table else []
        said += ["<ul>", *(_text(item, "li") for item in section.items), "</ul>"] if section.items else []
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
    )
    title = f"<title>{for_html(plan.storage)}: how many at once</title>"
    return f"{head}{title}<style>{_STYLE}</style></head><body>{''.join(said)}</body></html>\n"


def _bounds(plan: LimitPlan) -> list[str]:
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


def _shares(entries: Sequence[ClassPrediction]) -> list[str]:
    return [
        f"{entry.name}: {entry.n} at once, {format_bytes(entry.bytes_per_s)}/s, a burst takes "
        f"{brief_time(entry.burst_s)}, slowdown {entry.slowdown:.2f}"
        for entry in entries
    ]


def _bindings(plan: LimitPlan) -> list[str]:
    return [
        f"{entry.name}: {entry.most} ({entry.low}-{entry.high}), by {entry.binding}: "
        + "; ".join(rule.sentence for rule in entry.rules if rule.sentence != "does not bind")
        for entry in plan.classes
    ]


def _text(value: str, tag: str) -> str:
    return f"<{tag}>{for_html(value, 2000)}</{tag}>"


def _table(entries: Sequence[ClassPrediction], limit: int) -> str:
    rows = ["<tr>" + "".join(_text(head, "th") for head in COLUMNS) + "</tr></thead><tbody>"]
    for entry in entries:
        kind = ' class="limit"' if entry.n == limit else ' class="beyond"' if entry.n > limit else ""
        rows.append(f"<tr{kind}>" + "".join(_text(write(entry), "td") for write in COLUMNS.values()) + "</tr>")
    return f'<div class="wide"><table><thead>{"".join(rows)}</tbody></table></div>'
