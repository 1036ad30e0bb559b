"""`cachewatch doctor`: what a run will need here, what is missing, which feature that costs, and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

import click

from prefect_cachewatch import __version__
from prefect_cachewatch.cli.doctor_checks import (
    Check,
    check_engine,
    check_home,
    check_kernel,
    check_leftovers,
    check_limits,
    check_prefect,
    check_ptrace,
    check_py_spy,
    check_state,
    check_working_directory,
)
from prefect_cachewatch.cli.doctor_directory import check_directory
from prefect_cachewatch.cli.options.profile_choice import complete_profile, profile_from
from prefect_cachewatch.cli.options.sections import complete_directory, json_option
from prefect_cachewatch.common.aside import Aside, Files
from prefect_cachewatch.common.units import format_count

_WIDTH, _LINES = 80, 24
_API_S = 10.0
_MARKS = {"ok": "ok", "warning": "warn", "missing": "FAIL"}


@click.command("doctor", epilog=(
    "Exit status: 0 if a run would work, with warnings or without; 1 if something that a run needs is missing; "
    "125 for bad usage."
))  # fmt: skip
@click.option(
    "--cache-dir",
    "cache_dirs",
    multiple=True,
    metavar="DIR",  # no click.Path, which asks the file system, here and without a deadline
    shell_complete=complete_directory,
    help="Look at it too; repeatable.",
)
@click.option(
    "--profile",
    metavar="NAME[,K=V...]",
    shell_complete=complete_profile,
    help="Look at the directories of a known generator too: see cachewatch profiles.",
)
@click.option("--no-prefect", is_flag=True, help="Leave Prefect out: exec and watch do without it.")
@json_option()
def command(
    cache_dirs: tuple[str, ...],
    profile: str | None,
    no_prefect: bool,
    as_json: bool,
) -> int:
    """Say what a run would find here, what is missing, which feature that costs, and what to do.

    No look takes longer than 10 s, whatever hangs. In a cache directory it makes an empty file and a link, and removes
    them; nothing stays. Processes and containers of runs whose guards have died are stopped, as at
    the start of each run.
    """
    settings = profile_from({"profile": profile})
    directories = [*cache_dirs, *(map(str, settings.cache_dirs) if settings is not None else ())]
    with contextlib.closing(Aside.fork()) as files:  # before any thread is started
        checks = examine(files, directories, with_prefect=not no_prefect)
    works = all(check.state != "missing" for check in checks)
    if as_json:
        found = {"version": __version__, "works": works, "checks": [asdict(check) for check in checks]}
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join(render(checks)))
    return 0 if works else 1


def examine(files: Files, directories: Sequence[str], *, with_prefect: bool) -> list[Check]:
    """Look at everything, one after the other.

    Args:
        files: the helper process that looks at files.
        directories: cache directories, looked at too.
        with_prefect: whether Prefect is looked at.
    """
    checks = [check_kernel(), check_limits()]
    if (here := check_working_directory(files)) is not None:
        checks.append(here)  # relative paths lead nowhere, and Prefect reads its settings there
    else:
        state = check_state(files)
        checks += [state, *([check_leftovers(files)] if state.state == "ok" else [])]
        for directory in dict.fromkeys(map(os.path.abspath, directories)):
            checks += check_directory(files, directory)
        if with_prefect:
            home = check_home(files)
            checks.append(check_prefect(str(home.facts["path"]), _API_S) if home.state == "ok" else home)
    return [*checks, check_ptrace(files), check_py_spy(files), check_engine()]


def render(checks: Sequence[Check]) -> list[str]:
    """Lay the checks out for a terminal of 80 columns.

    Args:
        checks: what was found. If they do not fit on a screen, what is well is named in one paragraph.
    """
    lines = [line for check in checks for line in _rows(check)]
    if len(lines) >= _LINES:
        well = ", ".join(dict.fromkeys(check.subject for check in checks if check.state == "ok"))
        lines = _fill("ok", "", well) if well else []
        lines += [line for check in checks if check.state != "ok" for line in _rows(check)]
    return [*lines, *textwrap.wrap(_verdict(checks), _WIDTH)]


def _rows(check: Check) -> list[str]:
    said = [check.found.rstrip("."), *([f"Costs: {check.costs}"] if check.costs else [])]
    said += [f"Do: {check.advice}"] if check.advice else []
    return _fill(_MARKS[check.state], check.subject, ". ".join(said))


def _fill(mark: str, subject: str, text: str) -> list[str]:
    head = f"{mark:<5}{subject:<8} "
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)


def _verdict(checks: Sequence[Check]) -> str:
    missing = [check.subject for check in checks if check.state == "missing"]
    warnings = sum(check.state == "warning" for check in checks)
    if missing:
        return f"A run would not work: {', '.join(dict.fromkeys(missing))}."
    noted = f", with {format_count(warnings, 'warning')}" if warnings else ""
    return f"A run would work{noted}."
