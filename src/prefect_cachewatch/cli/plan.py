"""`cachewatch plan PLAN.yaml`: how many jobs a storage carries at once, and why not more."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prefect_cachewatch.common.files import PUBLIC, write_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

if TYPE_CHECKING:
    from prefect_cachewatch.capacity.model.results import LimitPlan
    from prefect_cachewatch.capacity.planfile import PlanInput

_WIDTH = 80


@click.command("plan", short_help="How many jobs at once a storage carries, and why not more.")
@click.argument("plan_file", metavar="PLAN.yaml", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json_", is_flag=True, help="The plan as JSON on stdout, nothing else.")
@click.option("--simulate", "simulated", is_flag=True, help="Simulate the plan at its limit too, and show agreement.")
@click.option(
    "--events", default=400_000, show_default=True, type=click.IntRange(1_000, 100_000_000),
    help="Events of the simulation.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Seed of the simulation.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a self-contained page with charts."
)
@click.option(
    "--from-trace", "trace_file", metavar="RUN.csv", type=click.Path(path_type=Path, dir_okay=False),
    help="Take burst, think time and files of the first class from a run recorded with --record.",
)  # fmt: skip
@click.option("--presets", is_flag=True, help="List the storages and links known by name, and stop.")
def command(
    plan_file: Path | None,
    as_json_: bool,
    simulated: bool,
    events: int,
    seed: int,
    html: Path | None,
    trace_file: Path | None,
    presets: bool,
) -> int:
    """Plan how many jobs may run at once on the storage that PLAN.yaml describes.

    The exit status is 0 also when not even one job meets the policy: that is an answer.
    """
    if presets:
        _list_presets()
        return 0
    if plan_file is None:
        raise click.UsageError("give a PLAN.yaml, or --presets to see what can be planned for by name")
    # numpy takes a tenth of a second, which --help need not wait for.
    from prefect_cachewatch.capacity import plan  # noqa: PLC0415
    from prefect_cachewatch.capacity.model.results import as_json  # noqa: PLC0415
    from prefect_cachewatch.capacity.planfile import read_plan  # noqa: PLC0415

    given, recorded = (read_plan(plan_file), ()) if trace_file is None else _from_trace(plan_file, trace_file)
    answer = plan(given.storage, given.link, given.workloads, given.policy)
    answer = dataclasses.replace(answer, assumptions=(*recorded, *answer.assumptions))
    if simulated:
        from prefect_cachewatch.capacity.model.agreement import with_simulation  # noqa: PLC0415

        answer = with_simulation(
            answer, given.storage, given.link, given.workloads, given.policy, events=events, seed=seed
        )
    if html is not None:
        from prefect_cachewatch.capacity.page import html_page  # noqa: PLC0415

        page = html_page(answer)
        try:
            write_file(html, page.encode(), mode=PUBLIC)
        except OSError as error:
            raise InputError(
                f"{for_terminal(str(html))} cannot be written ({error.strerror}): choose another path for --html"
            ) from None
    if as_json_:
        print(json.dumps(as_json(answer), indent=2, allow_nan=False))
        return 0
    for line in _lines(answer, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ):
        print(line)
    return 0


def _from_trace(plan_file: Path, trace_file: Path) -> tuple[PlanInput, tuple[str]]:
    """The plan's input with the first class that asks as a recorded run had it, and a sentence on it."""
    from prefect_cachewatch.capacity.planfile import read_plan  # noqa: PLC0415
    from prefect_cachewatch.capacity.recorded import read_bursts, workload_of  # noqa: PLC0415
    from prefect_cachewatch.run.trace.files import read_trace  # noqa: PLC0415
    from prefect_cachewatch.run.trace.rows import TraceFiles  # noqa: PLC0415

    trace = read_trace(trace_file)
    growth = [(total.at_s, total.written) for total in TraceFiles(trace).totals]
    rows = list(itertools.pairwise(trace.rows))
    files = sum(max(0, now.file_count - before.file_count) for before, now in rows)
    step_s = statistics.median([now.t_s - before.t_s for before, now in rows] or [0.0])
    job = read_bursts(trace.name, growth, files, step_s)
    given = read_plan(plan_file, needs_workloads=False)
    first = next((i for i, workload in enumerate(given.workloads) if workload.running is None), None)
    base = None if first is None else given.workloads[first]
    workload, said = workload_of(job, base, given.storage, given.link)
    others = tuple(w for i, w in enumerate(given.workloads) if i != first)
    return dataclasses.replace(given, workloads=(workload, *others)), (said,)


def _lines(plan: LimitPlan, *, colour: bool) -> Iterator[str]:
    from prefect_cachewatch.capacity.page import COLUMNS, plan_sections  # noqa: PLC0415 - as above

    def style(line: str, **how: bool) -> str:
        return click.style(line, **how) if colour else line

    yield from (style(line, bold=True) for line in _wrapped(plan.answer))
    for section in plan_sections(plan):
        yield ""
        if section.title:
            yield style(for_terminal(section.title, _WIDTH), bold=True)
        if section.text:
            yield from _wrapped(section.text)
        if section.table:
            drawn = {head: [head, *map(write, section.table)] for head, write in COLUMNS.items() if head != "I/O"}
            widths = [max(map(len, column)) for column in drawn.values()]
            for entry, *cells in zip((None, *section.table), *drawn.values(), strict=True):
                n = 0 if entry is None else entry.n
                line = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
                line = f"{'>' if n == plan.limit else ' '} {line}"
                yield style(line, bold=n == plan.limit, dim=n > plan.limit)
        for item in section.items:
            yield from _wrapped(item, "  - ")


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(
        for_terminal(text, 2000), _WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False
    )


def _list_presets() -> None:
    from prefect_cachewatch.capacity.presets import LINKS, STORAGES  # noqa: PLC0415
    from prefect_cachewatch.common.units import format_bytes  # noqa: PLC0415

    def shown(rates: tuple[float, float] | None) -> str:
        return "-" if rates is None else f"{format_bytes(rates[0])}/s, {format_bytes(rates[1])}/s"

    print("Storages, as vendor ceilings: one stream, all together (t: for each TiB)")
    print(f"  {'preset':<16} {'read':<26} {'write':<26}")
    for name, row in STORAGES.items():
        print(f"  {name:<16} {shown(row.read):<26} {shown(row.write):<26} {'t' if row.per_tib else ''}".rstrip())
    print("Links, raw: " + ", ".join(f"{name} {format_bytes(rate)}/s" for name, rate in LINKS.items()))
