"""The figures of a run of the scale test as a part of docs/scale.md; pure, but for putting it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.units import format_bytes, format_duration
from tests.scale.arithmetic import work_out

BEGIN, END = "<!-- figures: written by make scale -->", "<!-- end of figures -->"
PER_DAY = 10_000
DURATIONS_S = (20.0, 300.0, 1800.0, 3600.0)
_ROLES = {
    "flow": "flow processes, Prefect's supervisor of each among them (import of Prefect, run, report)",
    "guard": "guards",
    "scanner": "scanner",
    "run": "all processes of a run together, the generator not",
    "worker": "worker",
    "server": "Prefect server",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "generator": "the generator itself",
}


def put(path: Path, data: Mapping[str, Any]) -> None:
    """Put the figures into the page, in the place of the last ones.

    Args:
        path: the page, which has the two marks.
        data: what `make scale` writes as JSON.
    """
    text = path.read_text()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for figures: it needs the lines {BEGIN} and {END}")
    path.write_text(f"{head}{BEGIN}\n\n{render(data)}\n{END}{tail}")


def render(data: Mapping[str, Any]) -> str:
    """Write the figures as Markdown.

    Args:
        data: what `make scale` writes as JSON.

    Returns:
        The text.
    """
    return "\n".join(
        [
            *_facts(data), *_ends(data), *_figures(data["figures"]), *_routes(data["figures"]), *_needs(data),
            *(line for name, found in sorted(data.get("beside", {}).items()) for line in beside_lines(name, found)),
        ]
    )  # fmt: skip


def beside_lines(database: str, found: Mapping[str, Any]) -> list[str]:
    """Write what a guarded run costs beside a bare one as Markdown; a figure of ours has its ratio with it.

    Args:
        database: its name.
        found: what `measure_beside` returns, with `started_at`.

    Returns:
        The lines.
    """
    sizes, kinds = found["sizes"], [kind for kind in found if kind not in ("sizes", "started_at", "load_average")]

    def row(name: str, values: Sequence[float], form: str) -> str:
        cells = [format(values[0], form)]
        cells += [format(v, form) + (f" ({v / values[0]:.2f} x)" if values[0] else "") for v in values[1:]]
        return f"| {name} | {' | '.join(cells)} |"

    def part(section: str, name: str) -> list[float]:
        return [found[kind][section].get(name, 0.0) for kind in kinds]

    def rows(section: str, *, added: bool = False) -> list[str]:
        names = dict.fromkeys(name for kind in reversed(kinds) for name in found[kind][section])
        told = [(name, part(section, name)) for name in names]
        return [row(f"`{name}`", each, ".1f") for name, each in told if max(each) >= 0.05 and not (added and each[0])]

    def total(section: str) -> list[float]:
        return [sum(found[kind][section].values()) for kind in kinds]

    head = [f"| a run, on {database} | {' | '.join(kinds)} |", "|---|" + "---|" * len(kinds)]
    return [
        f"### Beside a bare flow, on {database}",
        "",
        f"Measured {found['started_at']}: {sizes['runs']} runs of each kind in {sizes['batches']} batches, in turn on one server; {sizes['workers']} process "
        f"workers of {sizes['limit']} runs each, generators of {sizes['seconds']:g} s, {sum(found[kind]['ended_badly'] for kind in kinds)} not Completed. "
        f"Load average {found['load_average']['median']:.1f} (median). The bare flow has two tasks side by side, one of which runs the same generator.",
        "",
        *head,
        row("runs a minute", [found[kind]["runs_per_minute"] for kind in kinds], ".1f"),
        row("processor seconds of the run's processes", part("processor_s", "runs"), ".2f"),
        row("processor seconds of all processes", total("processor_s"), ".2f"),
        row("requests", total("requests"), ".1f"),
        row("rows", total("rows"), ".1f"),
        row("KiB of database", [size / 1024 for size in part("bytes", "total")], ".0f"),
        "",
        head[0].replace("a run", "requests of a run", 1), head[1], *rows("requests"), "",
        head[0].replace("a run", "rows of a run", 1), head[1], *rows("rows"), "",
        head[0].replace("a run", "events that a bare run does not send", 1), head[1], *rows("events", added=True), "",
    ]  # fmt: skip


def _facts(data: Mapping[str, Any]) -> list[str]:
    machine, figures, plan = data["machine"], data["figures"], data["figures"]["plan"]
    load = figures["load_average"]
    ours = sum(figures["processor_s"].values())
    share = ours / figures["machine_busy_s"] if figures["machine_busy_s"] else 0.0
    return [
        f"Measured {data['started_at']} with version {data['cachewatch_version']}: {machine['cores']} cores of {machine['cpu']}, "
        f"{format_bytes(machine['memory_bytes'])}, Linux {machine['kernel']}, Python {machine['python']}, Prefect {machine['prefect']}, "
        f"PostgreSQL {machine['postgresql']}, Redis {machine['redis']}, all on this one machine. "
        f"Load average {load['median']:.1f} (median), {load['most']:.1f} (most); {share:.0%} of the processor time that the "
        "machine spent meanwhile was the test's own, the rest other work on it.",
        "",
        f"{plan['runs']} generations of {plan['seconds']:g} s, {plan['workers']} process workers of {plan['limit']} runs each, "
        f"{plan['slots']} slots of the storage; {plan['stalling']:.0%} fall silent (window {plan['window_s']:g} s), "
        f"{plan['failing']:.0%} fail.",
        "",
        *(f"{note}\n" for note in data.get("notes", [])),
    ]


def _ends(data: Mapping[str, Any]) -> list[str]:
    happened = ", ".join(f"{count} {what}" for what, count in sorted(data["happened"].items(), key=lambda i: -i[1]))
    states = ", ".join(f"{count} {name}" for name, count in sorted(data["states"].items(), key=lambda i: -i[1]))
    problems = [f"- {problem}" for problem in data["problems"]]
    return [
        f"What the generators did, by their own account: {happened}. How the runs ended: {states}.",
        "",
        "**Broken promises: " + (f"{len(problems)}**" if problems else "none.**"),
        *problems,
        "",
        "```",
        *data["events"],
        "```",
        "",
    ]


def _figures(figures: Mapping[str, Any]) -> list[str]:
    runs, base = figures["plan"]["runs"], figures["database"]
    spent, memory, late = figures["processor_s_per_run"], figures["memory_bytes"], figures["decided_late_s"]
    share = figures["watch_share_of_a_core"]
    biggest = ", ".join(f"{name} {format_bytes(size / runs)}" for name, size in list(base["tables_bytes"].items())[:6])
    rows = ", ".join(f"{count / runs:.0f} {name}" for name, count in list(base["rows"].items())[:6])
    lines = [
        ("runs a minute", f"{figures['runs_per_minute']:.1f}"),
        ("from a worker's taking a run to its generator's start", f"{figures['begin_s']:.1f} s (median)"),
        ("generators at work at once, most", f"{figures['generators_at_once']}"),
        ("API requests a run", f"{figures['requests_per_run']:.0f}"),
        ("API requests of a worker a minute, runs or none", f"{figures['requests_of_a_worker_per_minute']:.1f}"),
        ("database growth a run", f"{format_bytes(base['total_bytes'] / runs)} ({biggest})"),
        ("rows a run", rows),
        ("write-ahead log a run", format_bytes(base["wal_bytes"] / runs)),
        ("a stall is decided after its window by", f"{late['median']:.3f} s (median), {late['most']:.3f} s (most)"),
        ("a stalled tree is gone after", f"{figures['gone_after_s']['median']:.3f} s (median), {figures['gone_after_s']['most']:.3f} s (most)"),
        ("a watch takes of a core", f"{sum(share.values()):.2%}: flow process {share['flow']:.2%}, guards {share['guard']:.2%}, scanner {share['scanner']:.2%} (poll 1 s; medians of {figures['watches_measured']} watches)"),
        ("slots of the storage all back after the last run by", f"{figures['slots_back_after_s']:.0f} s"),
        ("workers that died of their own", f"{figures['worker_deaths_of_their_own']}"),
        ("runs that a dead worker had taken, put back into the queue", f"{figures['requeued']}"),
        ("task runs that the server never saw end, two of each killed flow", f"{figures['task_runs_left_open']}"),
    ]  # fmt: skip
    table = ["| figure | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines), ""]
    table += ["| process | processor time a run | memory (PSS), median | most |", "|---|---|---|---|"]
    for role, name in _ROLES.items():
        size = memory.get(role) or {"median": 0.0, "most": 0.0}
        used = f"{spent[role]:.2f} s" if role in spent else ""
        table.append(f"| {name} | {used} | {format_bytes(size['median'])} | {format_bytes(size['most'])} |")
    return [*table, ""]


def _routes(figures: Mapping[str, Any]) -> list[str]:
    runs = figures["plan"]["runs"]
    found = list(figures["requests_by_route"]["of the runs"].items())[:12]
    listed = ", ".join(f"`{route}` {count / runs:.1f}" for route, count in found)
    refused = ", ".join(f"{count} x {status}" for status, count in figures["requests_failed"].items()) or "none"
    return [f"The requests of a run, the most frequent first: {listed}. Answers of 400 and above: {refused}.", ""]


def _needs(data: Mapping[str, Any]) -> list[str]:
    figures = data["figures"]
    lines = [
        f"### {PER_DAY:,} generations a day",
        "",
        "| a generation takes | at once | workers of 16 | cores for them | memory for them | cores for the server, PostgreSQL and Redis | requests | database a day |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for duration_s in DURATIONS_S:
        need = work_out(figures, PER_DAY, duration_s + figures["begin_s"])
        lines.append(
            f"| {format_duration(duration_s)} | {need.at_once:.1f} | {need.workers} | {need.worker_cores:.1f} "
            f"| {format_bytes(need.worker_memory_bytes)} | {need.server_cores:.1f} | {need.requests_per_s:.1f}/s "
            f"| {format_bytes(need.database_bytes_per_day)} |"
        )
    shortest, longest = (work_out(figures, PER_DAY, duration_s) for duration_s in (DURATIONS_S[0], DURATIONS_S[-1]))
    return [
        *lines,
        "",
        f"The write-ahead log is {format_bytes(shortest.wal_bytes_per_day)} a day for the shortest, {format_bytes(longest.wal_bytes_per_day)} for the longest. "
        f"With events kept for 7 days and runs for 30 the database settles at {format_bytes(shortest.database_bytes_kept)} and "
        f"{format_bytes(longest.database_bytes_kept)}.",
        "",
    ]
