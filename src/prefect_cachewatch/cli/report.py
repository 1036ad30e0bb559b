"""`cachewatch report`: shows a bundle in a terminal, its page in a browser, or the last runs of a job."""

from __future__ import annotations

import json
import shutil
import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.tables import with_last
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration, short_moment
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.report.bundle import (
    default_bundle_root,
    find_bundles,
    load_end,
    load_report,
)
from prefect_cachewatch.report.report import read_report
from prefect_cachewatch.report.sections import make_verdict, sections
from prefect_cachewatch.report.terminal import write_terminal
from prefect_cachewatch.run.history import PastRun, known_jobs, read_history

_MAX_JOBS = 20


@click.command("report")
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--open", "open_page", is_flag=True, help="Open its report.html in a browser.")
@click.option("--list", "list_all", is_flag=True, help="List the bundles there are, the newest first.")
@click.option("--history", "job", metavar="NAME", help="Show the last runs of the job NAME, the newest first.")
@json_option("Write its report.json as it is, or the list or the history as one JSON object.")
def command(bundle: Path | None, open_page: bool, list_all: bool, job: str | None, as_json: bool) -> None:
    """Show the post-mortem of a generation that stalled or failed; without BUNDLE the newest one.

    BUNDLE is its directory, or its name as --list shows it.
    """
    if job is not None:
        _show_history(job, as_json)
        return
    root = default_bundle_root()
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    if list_all:
        if as_json:
            click.echo(
                json.dumps({"directory": str(root), "bundles": [_facts_of(path) for path in find_bundles(root)]})
            )
            return
        for line in list_bundles(root, max(80, width)):
            click.echo(line)
        return
    if bundle is None:
        newest = find_bundles(root)
        if not newest:
            raise InputError(
                f"there is no bundle in {for_terminal(str(root))} yet: one is written when a generation stalls or "
                "fails; "
                "name one that lies elsewhere"
            )
        bundle = newest[0]
    elif len(bundle.parts) == 1 and not bundle.exists() and (root / bundle).is_dir():
        bundle = root / bundle  # as --list names it
    report = load_report(bundle)
    directory, file = (bundle, bundle / "report.json") if bundle.is_dir() else (bundle.parent, bundle)
    if as_json:
        click.echo(file.read_bytes(), nl=False)
        return
    try:
        lines = list(describe_bundle(report, directory, width, load_end(directory)))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{for_terminal(str(file))} is not a bundle's report: its fields have other values than cachewatch writes; "
            "name another bundle"
        ) from None
    for line in lines:
        click.echo(line)
    if open_page:
        page = directory / "report.html"
        if not page.is_file():
            raise InputError(f"{for_terminal(str(page))} is missing: the bundle is not complete")
        if not webbrowser.open(page.resolve().as_uri()):
            raise InputError(f"no browser was found on this machine: open {for_terminal(str(page))} in one")


def _show_history(job: str, as_json: bool) -> None:
    runs = read_history(job)
    if not runs:
        shown, known = for_terminal(job, 100), ", ".join(for_terminal(name, 100) for name in known_jobs()[:_MAX_JOBS])
        if not known:
            raise InputError(f"there is no run of {shown!r} yet, nor of any other job: each run adds itself at its end")
        raise InputError(f"there is no run of {shown!r} yet: known are {known}")
    if as_json:
        click.echo(json.dumps({"name": job, "runs": [asdict(run) for run in runs]}))
        return
    rows = [["WHEN (UTC)", "OUTCOME", "SIZE", "DURATION", "PAUSE", "STALLS"], *map(_cells_of, runs)]
    causes = [for_terminal(run.cause or "", 40) for run in runs]
    width = max(80, min(100, shutil.get_terminal_size((80, 24)).columns))
    for line in with_last(rows, ["CAUSE", *causes], {2, 3, 4, 5}, width, label="cause: "):
        click.echo(line)


def _cells_of(run: PastRun) -> list[str]:
    pause = "-" if run.longest_pause_s is None else format_duration(run.longest_pause_s)
    outcome, duration = for_terminal(run.outcome.replace("_", " "), 20), format_duration(run.duration_s)
    return [short_moment(run.started_at), outcome, format_bytes(run.bytes_present), duration, pause, str(run.stalls)]


def describe_bundle(
    data: Mapping[str, Any], directory: Path, width: int = 80, end: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Write a bundle's report for a terminal.

    Args:
        data: its JSON object, from `load_report`.
        directory: directory of the bundle.
        width: columns.
        end: from `load_end`.

    Yields:
        Lines without line ends, safe for a terminal.
    """
    report = read_report(data)
    verdict = make_verdict(report, read_report(end).facts if end is not None else "")
    yield from write_terminal(verdict, sections(report, cut=data.get("cut") or ()), width)
    yield ""
    yield f"page    {for_terminal(str(directory / 'report.html'), 4096)}"


def list_bundles(root: Path, width: int = 80) -> Iterator[str]:
    """List the bundles below a directory as a table, the newest first.

    Args:
        root: directory of bundles.
        width: columns; if the bundle's name does not fit beside its cause, it stands below.

    Yields:
        Lines, safe for a terminal.

    Example:
        >>> list(list_bundles(Path("/nowhere")))
        ['no bundle in /nowhere']
    """
    found = find_bundles(root)
    if not found:
        yield f"no bundle in {for_terminal(str(root))}"
        return
    rows = [["WHEN (UTC)", "JOB", "CAUSE"], *map(_listed, found)]
    yield from with_last(rows, ["BUNDLE", *(path.name for path in found)], width=width, indent=4)
    yield ""
    yield f"They are in {for_terminal(str(root), 4096)}; cachewatch report BUNDLE shows one."


def _facts_of(path: Path) -> dict[str, Any]:
    """Return what a list has of a bundle; only where it lies, if it cannot be read."""
    day, time = path.name[:8], path.name[9:13]
    facts: dict[str, Any] = {"path": str(path), "written": f"{day[:4]}-{day[4:6]}-{day[6:]} {time[:2]}:{time[2:]}"}
    try:
        report = load_report(path)
    except InputError:
        return facts | {"readable": False}
    end, category = load_end(path), report["diagnosis"].get("category")
    then = None if end is None else end.get("outcome")
    told = {"name": report.get("name"), "outcome": report.get("outcome"), "category": category, "then": then}
    return facts | {"readable": True} | told


def _listed(path: Path) -> list[str]:
    facts = _facts_of(path)
    if not facts["readable"]:
        return [facts["written"], "-", "report not readable"]
    then = "" if facts["then"] is None else f", then {for_terminal(str(facts['then']), 24)}"
    return [facts["written"], for_terminal(str(facts["name"]), 24), f"{for_terminal(str(facts['category']), 36)}{then}"]
