"""`cachewatch history`: the last runs of a job, and whether the last one was slower than usual."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from prefect_cachewatch.cli.live import sparkline
from prefect_cachewatch.cli.tables import aligned, short_moment, with_last
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.run.past import JobRun, PastRuns, job_key, read_past_runs
from prefect_cachewatch.run.regression import Regression, find_regression

__all__ = ["command", "render_history", "slower_than_before"]

_HEADS = ["WHEN (UTC)", "OUTCOME", "SIZE", "DURATION", "PAUSE", "STALLS"]
_RIGHT = {2, 3, 4, 5}
# The words of an outcome in the table, where its own name is too long for it.
_SHORT = {"deadline_exceeded": "over deadline", "verification_failed": "not verified"}


def _complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = read_past_runs().names().values()
    except (CachewatchError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


@click.command("history")
@click.argument("name", required=False, shell_complete=_complete_name)
@click.option("--last", type=click.IntRange(min=1), default=50, show_default=True, help="How many runs are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, last: int, as_json: bool) -> None:
    """Show the last runs of the job NAME, the newest first; without NAME the jobs that have a history.

    It knows the runs of flows and of `cachewatch generate` of this user on this machine, and of `exec` and `watch`
    those that left a bundle.
    """
    if name is None:
        _list(read_past_runs(), as_json)
        return
    found = read_past_runs(name)
    runs = found.runs.get(job_key(name))
    if not runs:
        raise InputError(_unknown(name, read_past_runs()))
    slower = slower_than_before(runs)
    if as_json:
        told = None if slower is None else {**asdict(slower), "slower": slower.slower, "sentence": slower.sentence()}
        shown = [asdict(run) for run in runs[:last]]
        print(json.dumps({"name": runs[0].name, "runs": shown, "regression": told, "unread": found.unread}, indent=1))
        return
    width = max(80, min(100, shutil.get_terminal_size((80, 24)).columns))
    for line in render_history(runs[:last], width, blocks=_shows_blocks()):
        print(line)
    if slower is not None:
        print(f"\n{slower.sentence()}")
    _tell_unread(found)


def slower_than_before(runs: Sequence[JobRun]) -> Regression | None:
    """Say whether the last run was slower than the completed ones before it.

    Args:
        runs: of one job, the newest first.

    Returns:
        The regression; None also if the last run did not complete, or wrote nothing.
    """
    if not runs or not _is_measure(runs[0]):
        return None
    return find_regression(_durations(runs))


def render_history(runs: Sequence[JobRun], width: int = 80, *, blocks: bool = False) -> Iterator[str]:
    """Lay runs out as a table.

    Args:
        runs: of one job, the newest first.
        width: columns; a cause that does not fit beside its run stands below it.
        blocks: whether the terminal shows block characters, for the chart of the durations.

    Yields:
        Lines, safe for a terminal.
    """
    causes = [for_terminal(run.cause or "", 60) for run in runs]
    yield from with_last([_HEADS, *map(_cells, runs)], ["CAUSE", *causes], _RIGHT, width, label="cause: ")
    durations = _durations(runs)
    if blocks and len(durations) > 1:
        low, high = (format_duration(each) for each in (min(durations), max(durations)))
        yield ""
        yield f"{sparkline(durations, width - 40)}  {low} to {high}"


def _durations(runs: Sequence[JobRun]) -> list[float]:
    """Return the durations of the runs that are compared, the oldest first."""
    return [run.duration_s or 0.0 for run in reversed(runs) if _is_measure(run)]


def _is_measure(run: JobRun) -> bool:
    return run.outcome == "completed" and bool(run.bytes_written) and run.duration_s is not None


def _cells(run: JobRun) -> list[str]:
    outcome = _SHORT.get(run.outcome, run.outcome.replace("_", " "))
    return [
        short_moment(run.started_at),
        for_terminal(outcome, 15),
        "-" if run.bytes_present is None else format_bytes(run.bytes_present),
        "-" if run.duration_s is None else format_duration(run.duration_s),
        "-" if run.longest_pause_s is None else format_duration(run.longest_pause_s),
        "-" if run.stalls is None else str(run.stalls),
    ]


def _list(found: PastRuns, as_json: bool) -> None:
    names = found.names()
    rows = [(names[key], len(runs), runs[0].ended_at or runs[0].started_at) for key, runs in found.runs.items()]
    rows.sort(key=lambda row: row[2], reverse=True)
    if as_json:
        print(json.dumps([{"name": name, "runs": count, "last_end": end} for name, count, end in rows], indent=1))
        return
    if not rows:
        print(f"no run in {for_terminal(str(state_home()), 1000)} yet")
    else:
        cells = [[for_terminal(name), str(count), short_moment(end)] for name, count, end in rows]
        for line in aligned([["NAME", "RUNS", "LAST END (UTC)"], *cells], {1}):
            print(line)
    _tell_unread(found)


def _tell_unread(found: PastRuns) -> None:
    if found.unread:
        files = "1 file" if found.unread == 1 else f"{found.unread} files"
        print(f"cachewatch: {files} in the state directory could not be read as a report", file=sys.stderr)


def _unknown(name: str, found: PastRuns) -> str:
    shown = f"there is no run of {for_terminal(name, 100)!r} in {for_terminal(str(state_home()), 1000)}"
    if not found.runs:
        return f"{shown}, nor of any other job: the first run of a flow or of cachewatch generate begins its history"
    hint = nearest(name, [for_terminal(each, 100) for each in found.names().values()])
    return f"{shown}{hint}" if "did you mean" in hint else f"{shown}: cachewatch history lists the jobs that have one"


def _shows_blocks() -> bool:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return sys.stdout.isatty() and encoding == "utf8" and os.environ.get("TERM", "") not in ("", "dumb")
