"""`cachewatch janitor`: stop what dead runs left behind; every start of a guarded run does the same first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.janitor import clear_leftovers, describe_leftovers
from prefect_cachewatch.text import for_terminal, redact_argv

__all__ = ["command"]

_NEEDS_A_LOOK = 1


@click.command("janitor", epilog=(
    "Exit status: 0 if nothing is left that a person has to look at; 1 if a process could not be killed "
    "(or, with --dry-run, has not been) or a state file was refused; 125 for bad usage."
))  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the state files; default $XDG_STATE_HOME/cachewatch/runs.",
)
def command(dry_run: bool, as_json: bool, state_dir: Path | None) -> int:
    """Find the processes of runs whose guards have both died, by the state files of this user, and kill them."""
    if state_dir is not None and not state_dir.is_dir():
        raise InputError(
            f"--state-dir {for_terminal(str(state_dir))} is not a directory: name the one with the .run files"
        )
    report = clear_leftovers(str(state_dir.absolute()) if state_dir else None, dry_run)
    if as_json:
        data = asdict(report)
        for one in data["leftovers"]:
            one["argv"] = redact_argv(one["argv"])
        print(json.dumps(data))
    else:
        for line in describe_leftovers(report):
            print(line)
        stale = (
            "" if dry_run else f", {report.removed} stale state {'file' if report.removed == 1 else 'files'} removed"
        )
        print(
            f"{report.running} running, {len(report.leftovers)} left over{stale}, "
            f"{len(report.refusals)} refused in {for_terminal(report.directory)}"
        )
    return _NEEDS_A_LOOK if report.survivors or report.refusals else 0
