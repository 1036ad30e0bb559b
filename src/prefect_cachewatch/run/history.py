"""How the last runs of each job went: a file of JSON lines a job, the newest last, in the user's state directory.

Estimates, learned windows and `cachewatch report --history` read it. If it is lost, only these are lost: no error here
fails a run.
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
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import make_own_directory, open_own_directory
from prefect_cachewatch.common.files import write_entry
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.layout import read_small_file

KEEP_RUNS = 50
_MOST_BYTES = 1 << 20  # a larger file is none of ours
_MOST = 1 << 80  # no figure of a run is as large, nor can a larger one be shown
_SAFETY = 2.0


@dataclass(frozen=True)
class PastRun:
    """How one run went; times, sizes and pause are those of its last attempt."""

    started_at: str
    outcome: str
    duration_s: float
    bytes_written: int
    bytes_present: int
    #: While it wrote, the silence at its end included; None: it wrote nothing.
    longest_pause_s: float | None = None
    cause: str | None = None
    attempts: int = 1
    #: Attempts that stalled, and stalls that stopped nothing.
    stalls: int = 0
    #: Whether bytes were in its directories at the start.
    warm: bool = False
    #: Digest of its directories.
    place: str = ""
    #: Digest of its command, and of whatever else its pauses depend on.
    kind: str = ""

    @property
    def wrote(self) -> bool:
        """Whether it completed and wrote: then its figures say something about the next run."""
        return self.outcome == "completed" and self.bytes_written > 0


def digest_of(*parts: str) -> str:
    """Return a short digest of texts, in this order."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def place_of(cache_dirs: Sequence[str]) -> str:
    """Return the digest of directories, in any order."""
    return digest_of(*sorted(cache_dirs))


def history_path(name: str) -> Path:
    """Return the path of a job's history; names that differ in capitals and signs alone have one."""
    return state_home() / "history" / f"{slugify(name)[:60].strip('-')}.jsonl"


def read_history(name: str) -> list[PastRun]:
    """Read the last runs of a job, the newest first; none if there is no file, and no line that is damaged.

    Example:
        >>> read_history("a job that never ran")
        []
    """
    path, text = history_path(name), ""
    with contextlib.suppress(OSError, StoreError), Opened(open_own_directory(path.parent)) as here:
        text = _read(here, path.name)
    return [run for line in reversed(text.splitlines()) if (run := _run_of(line)) is not None]


def known_jobs() -> list[str]:
    """List the jobs that have a history, by the names of their files."""
    with contextlib.suppress(OSError):
        return sorted(path.stem for path in (state_home() / "history").glob("*.jsonl"))
    return []


def last_run(name: str, cache_dirs: Sequence[str]) -> PastRun | None:
    """Return the last run in these directories that completed and wrote; None if none is known."""
    place = place_of([os.path.realpath(path) for path in cache_dirs])
    return next((run for run in read_history(name) if run.wrote and run.place == place), None)


def add_run(name: str, run: PastRun) -> None:
    """Add a run to a job's history, which keeps the last 50.

    Raises:
        OSError: it cannot be written, or something else stands in its place.
    """
    path = history_path(name)
    try:
        with Opened(make_own_directory(path.parent)) as here:
            lines = _read(here, path.name).splitlines()
            lines = [*lines[-(KEEP_RUNS - 1) :], json.dumps(asdict(run))]
            write_entry(here, path.name, ("\n".join(lines) + "\n").encode())
    except StoreError as error:
        raise OSError(str(error)) from None


def enough_window_s(pauses_s: Sequence[float], poll_s: float) -> float | None:
    """Return the stall window that would have been enough: twice the longest pause, at least two polls.

    Args:
        pauses_s: the longest pauses of completed runs.
        poll_s: time between two measurements; a pause is not known more exactly than that.

    Returns:
        Seconds, rounded up to whole ones; None without any run.

    Example:
        >>> enough_window_s([12.4, 3.0], 5)
        25.0
    """
    return float(math.ceil(max(2 * poll_s, _SAFETY * max(pauses_s)))) if pauses_s else None


def _read(here: int, name: str) -> str:
    """Read a history that is a regular file of a bounded size, so that no pipe in its place is waited for."""
    try:
        return read_small_file(here, name, _MOST_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _run_of(line: str) -> PastRun | None:
    try:
        found: dict[str, Any] = json.loads(line)
        pause_s, cause = found["longest_pause_s"], found["cause"]
        run = PastRun(
            str(found["started_at"]), str(found["outcome"]), float(found["duration_s"]), int(found["bytes_written"]),
            int(found["bytes_present"]), None if pause_s is None else float(pause_s), None if cause is None else str(cause),
            int(found["attempts"]), int(found["stalls"]), found["warm"] is True, str(found["place"]), str(found["kind"]),
        )  # fmt: skip
        figures = (
            run.duration_s,
            run.bytes_written,
            run.bytes_present,
            run.longest_pause_s or 0,
            run.attempts,
            run.stalls,
        )
        return run if all(0 <= figure < _MOST for figure in figures) else None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
