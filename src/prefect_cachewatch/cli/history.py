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
from prefect_cachewatch.cli.options.sections import json_option
from prefect_cachewatch.cli.saying import say
from prefect_cachewatch.cli.tables import aligned, with_last
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_count, format_duration, short_moment
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.run.history_page import RUN_HEADS, run_cells
from prefect_cachewatch.run.past import JobRun, PastRuns, job_key, read_past_runs
from prefect_cachewatch.run.regression import measured_durations, slower_than_before

_RIGHT = {2, 3, 4, 5}
_NAMED = 3


def _complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = read_past_runs().names().values()
    except (CachewatchError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


@click.command("history")
@click.argument("name", required=False, shell_complete=_complete_name)
@click.option("--last", type=click.IntRange(min=1), default=50, show_default=True, help="How many runs are shown.")
@json_option("Print JSON.")
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
    yield from with_last([RUN_HEADS, *map(run_cells, runs)], ["CAUSE", *causes], _RIGHT, width, label="cause: ")
    durations = measured_durations(runs)
    if blocks and len(durations) > 1:
        low, high = (format_duration(each) for each in (min(durations), max(durations)))
        yield ""
        yield f"{sparkline(durations, width - 40)}  {low} to {high}"


def _list(found: PastRuns, as_json: bool) -> None:
    names = found.names()
    rows = [(names[key], len(runs), runs[0].ended_at or runs[0].started_at) for key, runs in found.runs.items()]
    rows.sort(key=lambda row: row[2], reverse=True)
    if as_json:
        print(json.dumps([{"name": name, "runs": count, "last_end": end} for name, count, end in rows], indent=1))
        _tell_unread(found)
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
        shown = ", ".join(for_terminal(path, 300) for path in found.unread[:_NAMED])
        more = f" and {len(found.unread) - _NAMED} more" if len(found.unread) > _NAMED else ""
        files, where = format_count(len(found.unread), "file"), for_terminal(str(state_home()), 1000)
        say(f"{files} in {where} could not be read as a report: {shown}{more}")


def _unknown(name: str, found: PastRuns) -> str:
    shown = f"there is no run of {for_terminal(name, 100)!r} in {for_terminal(str(state_home()), 1000)}"
    if not found.runs:
        return f"{shown}, nor of any other job: the first run of a flow or of cachewatch generate begins its history"
    hint = nearest(name, [for_terminal(each, 100) for each in found.names().values()])
    if "did you mean" in hint:
        return f"{shown}{hint}"
    return (
        f"{shown}: exec and watch leave one only if they stall or fail; cachewatch history lists the jobs that have one"
    )


def _shows_blocks() -> bool:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return sys.stdout.isatty() and encoding == "utf8" and os.environ.get("TERM", "") not in ("", "dumb")
