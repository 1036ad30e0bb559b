"""`cachewatch fleet jobs.yaml`: many generations in one run, in processes of this host or on workers."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from prefect_cachewatch.cli.api import api_url, check_api, prepare_api
from prefect_cachewatch.cli.api_patience import logging_filtered
from prefect_cachewatch.cli.fleet_view import TerminalView, render_summary
from prefect_cachewatch.cli.live import wants_colour
from prefect_cachewatch.cli.options.fields import Fields
from prefect_cachewatch.cli.options.sections import Section, SectionedCommand, option, verbose_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.common.aside import Aside, look_ahead
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_count
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.host import check_host
from prefect_cachewatch.fleet.jobs import FleetPlan, FleetPolicy
from prefect_cachewatch.fleet.jobsfile import read_jobs_file
from prefect_cachewatch.run.exposure import check_exposure
from prefect_cachewatch.run.places import require_places

NOT_ALL = 1


_POLICY = Fields(FleetPolicy, "max_parallel N")
_SECTIONS = [
    Section("Basics", "--check --max-parallel --deployment --name", [
        option("--check", is_flag=True, help="Only see whether the file, this host and Prefect have what the jobs need."),
        _POLICY["max_parallel"],
        option("--deployment", metavar="FLOW/NAME", help="Run the jobs on the workers of this deployment."),
        option("--name", help="Name of the fleet; default the file's."),
    ]),
    Section("Output", "--quiet --verbose --json", [
        option("-q", "--quiet", is_flag=True, help="Say nothing but how it ended."),
        verbose_option("Show Prefect's log, and no live table."),
        option("--json", "as_json", is_flag=True, help="Print the jobs as JSON in place of the table; with --check what was looked at."),
    ]),
]  # fmt: skip


@click.command(
    "fleet",
    cls=SectionedCommand,
    sections=_SECTIONS,
    needed={},
    examples=[
        "cachewatch fleet jobs.yaml --check",
        "cachewatch fleet jobs.yaml --deployment generate-cache/fleet-member",
    ],
)
@click.argument("jobs_file", metavar="JOBS.yaml", type=click.Path(path_type=Path))
def command(
    jobs_file: Path,
    check: bool,
    name: str | None,
    deployment: str | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Generate the caches that JOBS.yaml lists, each under a guard of its own.

    Exit status: 0 when every cache is there, 1 when some are not, 125 for bad input, 130 after Ctrl-C, 143 after SIGTERM.
    """
    with contextlib.closing(Aside.fork()) as files:  # before any thread is started
        require_places(files)
        look_ahead(files, f"jobs file {jobs_file}", os.path.exists, jobs_file.absolute())
    plan = read_jobs_file(jobs_file, name=name, deployment=deployment, policy=_POLICY.given(options))
    if (warning := check_exposure({job.name: job for job in plan.jobs})) is not None:
        say(warning)
    if plan.jobs[0].deployment is None:
        check_host(plan.jobs)
    if check:
        _check(plan, for_terminal(str(jobs_file)), as_json)
        return 0
    return _run(jobs_file.absolute(), plan, deployment, quiet, as_json, verbose)


def _check(plan: FleetPlan, shown: str, as_json: bool) -> None:
    """Look at what Prefect has for the fleet; change nothing."""
    say: Callable[[str], None] = functools.partial(click.echo, err=as_json)
    named = sorted({job.storage_name for job in plan.jobs if job.storage_name is not None})
    deployments = sorted({job.deployment for job in plan.jobs if job.deployment is not None})
    where = f"by {', '.join(map(for_terminal, deployments))}" if deployments else "on this host"
    facts: dict[str, Any] = {"name": plan.name, "jobs": [job.name for job in plan.jobs], "deployments": deployments}
    say(f"{shown}: fleet '{for_terminal(plan.name)}', {format_count(len(plan.jobs), 'job')} {where}")
    unprotected: Collection[str] = ()
    looked = bool(api_url()) and bool(named or deployments)
    if looked:
        unprotected = _look_at_prefect(plan)
    elif named or deployments:
        say("Storages and deployments were not looked at: PREFECT_API_URL is not set")
    for storage in named if looked else ():
        made = (
            f"would be made with {plan.policy.created_limit} slots"
            if plan.policy.created_limit
            else "is missing, and ignored"
        )
        say(f"Storage {for_terminal(storage)}: its concurrency limit {made if storage in unprotected else 'is there'}")
    if as_json:
        limits = {storage: storage not in unprotected if looked else None for storage in named}
        print(json.dumps(facts | {"looked_at_prefect": looked, "limits": limits}))


def _look_at_prefect(plan: FleetPlan) -> Collection[str]:
    """Check the deployments and limits; return the storages without a limit."""
    check_api(60.0)
    from prefect.client.orchestration import get_client  # noqa: PLC0415 - a second of imports

    from prefect_cachewatch.tasks.prefect_api.fleet_checks import check_deployments, check_limits  # noqa: PLC0415

    logger = logging.getLogger("cachewatch.fleet")
    # A limit that the fleet would make is not reported as missing; a dry run does not make it.
    lenient = plan.policy.model_copy(update={"missing_limit": "ignore"}) if plan.policy.created_limit else plan.policy
    with get_client(sync_client=True) as client:
        check_deployments(client, plan.jobs, logger)
        return check_limits(client, plan.jobs, lenient, logger)


def _run(
    jobs_file: Path,
    plan: FleetPlan,
    deployment: str | None,
    quiet: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    prepare_api(60.0)
    if not quiet and not api_url():
        say("starting a temporary Prefect server, since PREFECT_API_URL is not set")
    from prefect_cachewatch.flows.fleet.flow import fleet_view, generate_fleet  # noqa: PLC0415
    from prefect_cachewatch.flows.fleet.loop import SHOWN  # noqa: PLC0415

    view = TerminalView(quiet, verbose)
    token = fleet_view.set(view)
    with logging_filtered(lambda record: view.passes(record, SHOWN)):
        try:
            # The path, not the jobs: Prefect takes 512 KiB of parameters, and some hundred jobs would exceed that.
            state: Any = generate_fleet(
                jobs_file,
                name=plan.name,
                deployment=deployment,
                policy=plan.policy,
                return_state=True,
            )
        finally:
            fleet_view.reset(token)
            view.close()
    if state.name == "Refused":
        raise InputError(state.message or "the fleet was refused")
    if as_json:
        print(json.dumps({"state": state.name, "jobs": [asdict(row) for row in view.rows]}, indent=1))
    elif not quiet:
        width = shutil.get_terminal_size((80, 24)).columns - 1 if sys.stdout.isatty() else 200
        colour = sys.stdout.isatty() and wants_colour()
        console = Console(width=width, color_system="auto" if colour else None, highlight=False, soft_wrap=True)
        for line in render_summary(view.rows, width):
            console.print(line)
    sys.stdout.flush()
    if not state.is_completed() or not quiet:
        print(state.message, file=sys.stderr, flush=True)
    return 0 if state.is_completed() else NOT_ALL
