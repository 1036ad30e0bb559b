"""Figures of earlier runs of a cache: a short file per cache, for estimates and advice.

One JSON line per completed run, the newest last, in the user's state directory. If it is lost,
only estimates are lost: no error here fails a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory, open_own_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.postmortem.report import Report
from prefect_cachewatch.publish.durable import read_small_file

KEEP_RUNS = 50
#: A larger file is none of ours.
HISTORY_BYTES = 1 << 20
_SAFETY = 2.0


@dataclass(frozen=True)
class PastRun:
    """The figures of a completed run."""

    ended_at: str
    duration_s: float
    bytes_written: int
    bytes_present: int
    first_write_s: float | None
    longest_pause_s: float


def history_path(name: str, cache_dirs: Sequence[str]) -> Path:
    """Return the path of a cache's history; the same for the same name and directories."""
    key = hashlib.sha256("\0".join(sorted(cache_dirs)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return state_home() / "history" / f"{slugify(name)[:60]}-{key}.jsonl"


def past_runs(path: Path, limit: int = 10) -> list[PastRun]:
    """Read the last completed runs that wrote something, the newest first.

    Args:
        path: from `history_path`.
        limit: the most runs to return.

    Returns:
        The runs; none if the file is missing or damaged.

    Example:
        >>> past_runs(Path("/nowhere"))
        []
    """
    text = ""
    with contextlib.suppress(OSError, StoreError), Opened(open_own_directory(path.parent)) as here:
        text = _read(here, path.name)
    return [run for run in reversed(parse_history(text)) if run.bytes_written > 0][:limit]


def last_run(name: str, cache_dirs: Sequence[str]) -> PastRun | None:
    """Return the last completed run of a cache that wrote something; None if none is known."""
    return next(iter(past_runs(history_path(name, [os.path.realpath(path) for path in cache_dirs]), 1)), None)


def parse_history(text: str) -> list[PastRun]:
    """Read the text of a history, the newest run last; lines that are damaged are left out.

    Example:
        >>> parse_history("[1]")
        []
    """
    runs = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            runs.append(PastRun(**json.loads(line)))
    return runs


def remember_run(path: Path, report: Report) -> None:
    """Add a completed run to the history; keeps the last 50.

    Args:
        path: from `history_path`.
        report: report of the run.
    """
    growth = report.growth
    run = PastRun(
        report.started_at,
        report.duration_s,
        growth.bytes_written,
        growth.bytes_present,
        growth.first_write_s,
        growth.longest_pause_s,
    )
    with contextlib.suppress(OSError, StoreError), Opened(make_own_directory(path.parent)) as here:
        lines = _read(here, path.name).splitlines()
        lines = [*lines[-(KEEP_RUNS - 1) :], json.dumps(asdict(run))]
        write_entry(here, path.name, ("\n".join(lines) + "\n").encode())


def _read(here: int, name: str) -> str:
    """Read a history that is a regular file of a bounded size, so that no pipe in its place is waited for."""
    try:
        return read_small_file(here, name, HISTORY_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def enough_window_s(runs: Sequence[PastRun], poll_s: float) -> float | None:
    """Return the stall window that would have been enough: twice the longest pause, at least two polls.

    Args:
        runs: earlier completed runs.
        poll_s: time between two measurements; a pause is not known more exactly than that.

    Returns:
        Seconds, rounded up to whole ones; None without any run.

    Example:
        >>> enough_window_s([PastRun("", 60, 1, 1, 2.0, 12.4), PastRun("", 60, 1, 1, 2.0, 3.0)], 5)
        25.0
    """
    if not runs:
        return None
    return float(math.ceil(max(2 * poll_s, _SAFETY * max(run.longest_pause_s for run in runs))))
