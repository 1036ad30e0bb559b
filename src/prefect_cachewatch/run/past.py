"""The past runs of a job, from what runs leave in the state directory: reports, bundles, remembered figures.

It reads own, regular files of a bounded size only, and takes nothing in them on trust.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY, FileRefused, open_own_directory
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.common.units import format_moment
from prefect_cachewatch.errors import InputError, StoreError
from prefect_cachewatch.postmortem.bundlestore import END
from prefect_cachewatch.publish.durable import read_small_file
from prefect_cachewatch.run.history import HISTORY_BYTES, parse_history

_REPORT_BYTES = 64 << 20
_REPORT = re.compile(r"report(?:-[0-9]{1,6})?\.json")
_HISTORY = re.compile(r"(.+)-[0-9a-f]{12}\.jsonl")
_MOST = 1e15


@dataclass(frozen=True)
class JobRun:
    """One run of a job; what is not known is None.

    Size, duration and pause are those of its last attempt, the cause that of the last attempt which has one.
    """

    name: str
    #: ISO 8601 in UTC; `started_at` of the last attempt.
    started_at: str
    ended_at: str | None
    outcome: str
    attempts: int | None
    #: How many of them were stopped by a stall, or would have been with `--on-stall stop`.
    stalls: int | None
    bytes_present: int | None
    bytes_written: int | None
    duration_s: float | None
    longest_pause_s: float | None
    cause: str | None = None


@dataclass
class PastRuns:
    """What was found; the runs of each job are under its `job_key`, the newest first."""

    runs: dict[str, list[JobRun]] = field(default_factory=dict)
    #: Files that could not be read, wholly or in part, by their paths in the state directory.
    unread: list[str] = field(default_factory=list)

    def names(self) -> dict[str, str]:
        """Return the name of each job as its newest report has it, by key."""
        return {key: runs[0].name for key, runs in sorted(self.runs.items())}


def job_key(name: str) -> str:
    """Return what names the job in the state directory: two names with the same key have one history."""
    return slugify(name)[:60].strip("-")


def read_past_runs(name: str | None = None) -> PastRuns:
    """Read the past runs of one job or of all.

    A run is in up to three places. Its directory has the reports of all attempts; if that was pruned, its bundles have
    the reports of those that failed, each as a run, and the history has the figures of a completed one.

    Args:
        name: of the job; default all jobs.

    Returns:
        The runs.

    Raises:
        InputError: a directory in the state directory cannot be read, or is not trusted.
    """
    found, key = PastRuns(), None if name is None else job_key(name)
    attempts: set[tuple[str, float]] = set()
    for kind in ("generations", "bundles"):
        with _opened(state_home() / kind) as here:
            for entry in _names(here):
                # A bundle's name has 40 characters of the job's at most.
                if key is None or key[:40].strip("-") in entry:
                    _add_reports(found, attempts, _reports_in(here, kind, entry, found))
    with _opened(state_home() / "history") as here:
        for entry in _names(here):
            match = _HISTORY.fullmatch(entry)
            if match and here is not None and (key is None or match[1].strip("-") == key):
                _add_remembered(found, attempts, here, entry, match[1].strip("-"))
    if key is not None:
        found.runs = {each: runs for each, runs in found.runs.items() if each == key}
    for runs in found.runs.values():
        runs.sort(key=lambda run: _seconds(run.started_at) or 0.0, reverse=True)
    return found


def last_runs(name: str, limit: int = 50) -> list[JobRun]:
    """Read the last runs of one job, the newest first; see `read_past_runs`.

    Args:
        name: of the job.
        limit: the most runs to return.

    Returns:
        The runs.

    Raises:
        InputError: see `read_past_runs`.
    """
    return read_past_runs(name).runs.get(job_key(name), [])[:limit]


def read_report_in(directory_fd: int, name: str = "report.json") -> dict[str, Any]:
    """Read a report by descriptor; waits for no pipe, follows no link, and reads no more than 64 MiB.

    Raises:
        ValueError: it is no report.
        OSError: it cannot be read.
    """
    try:
        report = json.loads(read_small_file(directory_fd, name, _REPORT_BYTES))
    except (StoreError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(report, dict):
        raise ValueError("it is no object")
    return report


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        fd = open_own_directory(path)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        why = str(error) if isinstance(error, FileRefused) else error.strerror
        raise InputError(
            f"{for_terminal(str(path), 1000)} is not read: {why}; CACHEWATCH_STATE names another state directory"
        ) from None
    with Opened(fd):
        yield fd


def _names(here: int | None) -> list[str]:
    return [] if here is None else sorted(os.listdir(here))


def _reports_in(here: int | None, kind: str, entry: str, found: PastRuns) -> list[tuple[str, Mapping[str, Any]]]:
    """Read the reports of a run's directory or of a bundle, each with its path, in the order of the attempts."""
    try:
        fd = os.open(entry, OPEN_DIRECTORY, dir_fd=here)
    except (FileNotFoundError, NotADirectoryError):  # also a link, which is not followed
        return []
    except OSError:
        found.unread.append(f"{kind}/{entry}")
        return []
    reports: list[tuple[str, Mapping[str, Any]]] = []
    with Opened(fd):
        if os.fstat(fd).st_uid != os.geteuid():
            return []
        names = _names(fd)
        # The stall of this bundle stopped nothing: what counts is how the run ended.
        for name in [END] if END in names else filter(_REPORT.fullmatch, names):
            path = f"{kind}/{entry}/{name}"
            try:
                reports.append((path, read_report_in(fd, name)))
            except (OSError, ValueError):
                found.unread.append(path)
    return sorted(reports, key=lambda one: _seconds(one[1].get("started_at")) or 0.0)


def _add_reports(
    found: PastRuns, attempts: set[tuple[str, float]], reports: list[tuple[str, Mapping[str, Any]]]
) -> None:
    whole = []
    for path, report in reports:
        at = _seconds(report.get("started_at"))
        if at is None or not isinstance(report.get("name"), str) or not isinstance(report.get("outcome"), str):
            found.unread.append(path)
        elif (mark := (job_key(report["name"]), round(at, 3))) not in attempts:
            attempts.add(mark)
            whole.append(report)
    if whole:
        run = _run_of(whole)
        found.runs.setdefault(job_key(run.name), []).append(run)


def _add_remembered(found: PastRuns, attempts: set[tuple[str, float]], here: int, entry: str, key: str) -> None:
    try:
        text = read_small_file(here, entry, HISTORY_BYTES).decode()
    except (OSError, ValueError, StoreError):
        found.unread.append(f"history/{entry}")
        return
    name = found.runs[key][-1].name if key in found.runs else key
    remembered = parse_history(text)
    if len(remembered) < len(text.splitlines()):
        found.unread.append(f"history/{entry}")
    for past in remembered:
        # Its `ended_at` is the report's `started_at`.
        figures = asdict(past)
        at = _seconds(figures["ended_at"])
        if at is not None and (key, round(at, 3)) not in attempts:
            attempts.add((key, round(at, 3)))
            report = {"name": name, "outcome": "completed", "duration_s": past.duration_s, "growth": figures}
            run = _run_of([{**report, "started_at": figures["ended_at"]}], remembered=True)
            found.runs.setdefault(key, []).append(run)


def _run_of(reports: list[Mapping[str, Any]], remembered: bool = False) -> JobRun:
    last = reports[-1]
    growth, began_s = _mapping(last.get("growth")), _seconds(last["started_at"]) or 0.0
    duration_s = _number(last.get("duration_s"))
    causes = [each for each in map(_cause, reports) if isinstance(each, str)]
    return JobRun(
        name=last["name"],
        started_at=_moment(began_s) or "",
        ended_at=None if duration_s is None else _moment(began_s + duration_s),
        outcome=last["outcome"],
        attempts=None if remembered else len(reports),
        stalls=None if remembered else sum(map(_stalls, reports)),
        bytes_present=_whole(growth.get("bytes_present")),
        bytes_written=_whole(growth.get("bytes_written")),
        duration_s=duration_s,
        longest_pause_s=_number(growth.get("longest_pause_s")),
        cause=causes[-1] if causes else None,
    )


def _cause(report: Mapping[str, Any]) -> Any:
    category = _mapping(report.get("diagnosis")).get("category")
    return None if category == report["outcome"] else category  # of a cancelled one its bundle has only that


def _stalls(report: Mapping[str, Any]) -> int:
    left_alone = (report.get("would_be_stops"), _mapping(report.get("attached")).get("stalls"))
    counts = [len(each) for each in left_alone if isinstance(each, list)]
    return max([int(report["outcome"] == "stalled"), *counts])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None  # also what is not a number: each comparison with it is false
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else math.floor(number)


def _or_none(of: Callable[[], Any]) -> Any:
    try:
        return of()
    except (ValueError, OverflowError, OSError):
        return None


def _moment(seconds: float) -> str | None:
    text: str | None = _or_none(lambda: format_moment(seconds))
    return text


def _seconds(moment: Any) -> float | None:
    def read() -> float:
        at = datetime.fromisoformat(moment)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

    seconds: float | None = _or_none(read) if isinstance(moment, str) else None
    return seconds if seconds is None or _moment(seconds) is not None else None
