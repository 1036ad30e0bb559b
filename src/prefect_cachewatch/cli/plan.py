"""`cachewatch plan PLAN.yaml`: how many jobs at once a storage carries, and why not more."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from prefect_cachewatch.cli.plan_show import lines_of
from prefect_cachewatch.common.files import PUBLIC, write_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

__all__ = ["command"]


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
@click.option("--presets", is_flag=True, help="List the storages and links known by name, and stop.")
def command(
    plan_file: Path | None,
    as_json_: bool,
    simulated: bool,
    events: int,
    seed: int,
    html: Path | None,
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

    given = read_plan(plan_file)
    answer = plan(given.storage, given.link, given.workloads, given.policy)
    if simulated:
        from prefect_cachewatch.capacity.model.agreement import with_simulation  # noqa: PLC0415

        answer = with_simulation(
            answer, given.storage, given.link, given.workloads, given.policy, events=events, seed=seed
        )
    if html is not None:
        from prefect_cachewatch.capacity.page import html_page  # noqa: PLC0415

        page = html_page(answer, given.policy.max_slowdown, given.policy.stall_window_s)
        try:
            write_file(html, page.encode(), mode=PUBLIC)
        except OSError as error:
            raise InputError(
                f"{for_terminal(str(html))} cannot be written ({error.strerror}): choose another path for --html"
            ) from None
    if as_json_:
        print(json.dumps(as_json(answer), indent=2, allow_nan=False))
        return 0
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    policy = given.policy
    for line in lines_of(answer, stall_window_s=policy.stall_window_s, max_slowdown=policy.max_slowdown, colour=colour):
        print(line)
    return 0


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
