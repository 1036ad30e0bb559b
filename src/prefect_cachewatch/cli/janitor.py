"""`cachewatch janitor`: stops what dead runs left behind; every start of a guarded run does the same first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.common.secrets import redact_argv
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_count
from prefect_cachewatch.containers.janitor import ContainerReport, clear_containers, describe_containers
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.janitor import clear_leftovers, describe_leftovers

_NEEDS_A_LOOK = 1


@click.command("janitor", epilog=(
    "Exit status: 0 if nothing is left that a person has to look at; 1 if a process could not be killed "
    "or a container could not be removed (or, with --dry-run, has not been), a state file was refused or an engine that "
    "a run used gives no answer; 125 for bad usage."
))  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what is there.")
@json_option()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the state files; default $XDG_STATE_HOME/cachewatch/runs. No containers are looked for then.",
)
@click.option("--engine", metavar="URL", help="One more container engine to ask, as unix:///path or tcp://host:port.")
def command(dry_run: bool, as_json: bool, state_dir: Path | None, engine: str | None) -> int:
    """Find the processes and containers of runs whose guards have died, and stop them.

    Processes are found by the state files of this user, containers by their labels.
    """
    if engine is not None and not engine.startswith(("unix:///", "tcp://")):
        raise InputError(
            f"--engine {for_terminal(engine)!r} is not an engine's URL: write unix:///path or tcp://host:port"
        )
    if state_dir is not None and not state_dir.is_dir():
        raise InputError(
            f"--state-dir {for_terminal(str(state_dir))} is not a directory: name the one with the .run files"
        )
    report = clear_leftovers(str(state_dir.absolute()) if state_dir else None, dry_run)
    containers = ContainerReport() if state_dir else clear_containers(engine, dry_run=dry_run)
    if as_json:
        data: dict[str, Any] = asdict(report) | {"containers": asdict(containers)}
        for one in data["leftovers"]:
            one["argv"] = redact_argv(one["argv"])
        print(json.dumps(data))
    else:
        for line in [*describe_leftovers(report), *describe_containers(containers)]:
            print(line)
        stale = "" if dry_run else f", {format_count(report.removed, 'stale state file')} removed"
        print(
            f"{report.running + containers.running} running, "
            f"{len(report.leftovers) + len(containers.leftovers)} left over{stale}, "
            f"{len(report.refusals)} refused in {for_terminal(report.directory)}"
        )
    needs_a_look = report.survivors or report.refusals or containers.survivors or containers.problems
    return _NEEDS_A_LOOK if needs_a_look else 0
