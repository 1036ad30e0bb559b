"""Past runs: their records as JSON, Little's law over a window, hours, pauses.

Pure functions over run records; `tasks.capacity` reads the records, and `history_check`
compares them with a plan.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_cachewatch.capacity.model.results import HourCheck, LittleLaw
from prefect_cachewatch.errors import InputError

RECORD_VERSION = 1
MIN_RUNS = 5
PAUSE_FACTOR = 3.0
MIN_STALL_WINDOW_S = 60.0
_MAX_HOURS = 24 * 31
_HOUR_S = 3600.0
_FENCE = re.compile(r"^\s*```[a-z]*\n(.*)\n```\s*$", re.DOTALL)


@dataclass(frozen=True)
class RunRecord:
    """One generation as it went; times are seconds since 1970, UTC."""

    run_id: str
    storage: str
    job: str
    started_s: float  # start of the flow run, before it waited for a slot
    ended_s: float | None  # None while it runs
    slot_wait_s: float = 0.0
    bytes_written: int | None = None
    longest_pause_s: float | None = None  # longest time without growth, once writing had begun
    first_write_s: float | None = None  # from the end of the slot wait to the first growth
    state: str = "Completed"  # final state's name: Completed, Cached, Stalled, GeneratorFailed, ...
    slots: int = 1  # of the storage's concurrency limit
    attempts: int = 1
    bytes_present: int | None = None  # at the end
    rate_bytes_per_s: float | None = None  # mean of the last attempt, from its first growth to its last
    cause: str | None = None  # why it did not complete, in a sentence
    advice: str | None = None  # what to do next

    @property
    def entered_s(self) -> float:
        """When it had its slot and began to use the storage."""
        return self.started_s + self.slot_wait_s

    @property
    def service_s(self) -> float | None:
        """Seconds on the storage, without the wait for a slot; None while it runs."""
        return None if self.ended_s is None else max(0.0, self.ended_s - self.entered_s)

    @property
    def counts(self) -> bool:
        """Whether it ran to the end in one attempt and wrote: then its rate says something."""
        return (
            self.state == "Completed"
            and self.attempts == 1
            and bool(self.bytes_written)
            and (self.service_s or 0.0) > 0
        )


def run_record_json(record: RunRecord) -> str:
    """Write a record as the JSON text that a generation stores in its artifact.

    Args:
        record: the run.

    Returns:
        One JSON object: the fields of `RunRecord`, and `cachewatch_run_record`, the version.

    Example:
        >>> record = RunRecord("r1", "nfs-a", "llama", 1000.0, 1060.0, bytes_written=10**9)
        >>> read_run_record(run_record_json(record)) == record
        True
    """
    fields = {"cachewatch_run_record": RECORD_VERSION, **dataclasses.asdict(record)}
    return json.dumps({key: value for key, value in fields.items() if value is not None})


def read_run_record(data: Any) -> RunRecord | None:
    """Read a record from an artifact's data.

    Args:
        data: JSON text, bare or in a Markdown fence, or what it stands for.

    Returns:
        The record; None for anything that is no such record, since artifacts come from strangers.

    Example:
        >>> read_run_record("not json") is None
        True
    """
    if isinstance(data, str):
        fenced = _FENCE.match(data)
        try:
            data = json.loads(fenced[1] if fenced else data)
        except (ValueError, RecursionError):
            return None
    if not isinstance(data, dict) or not isinstance(data.get("cachewatch_run_record"), int):
        return None
    values: dict[str, Any] = {"ended_s": None}
    try:
        for field in dataclasses.fields(RunRecord):
            if (value := data.get(field.name)) is not None:
                values[field.name] = _READERS[str(field.type).removesuffix(" | None")](value)
        record = RunRecord(**values)
    except (TypeError, ValueError):
        return None
    negative = record.slot_wait_s < 0 or (record.bytes_written or 0) < 0 or record.slots < 1
    backwards = record.ended_s is not None and record.ended_s < record.started_s
    return None if negative or backwards else record


def little_law(records: Sequence[RunRecord], start_s: float, end_s: float) -> LittleLaw:
    """Compute Little's law, L = lambda W, over a window.

    L is the time integral of the runs in progress, each clipped to the window, over the window's
    length; W counts whole durations without the wait for a slot. Runs cut by an edge make the two
    sides differ: of a window of 1.5 W by about a quarter, of 10 W by some percent. The difference
    is reported, not hidden (J. D. C. Little, Operations Research 9 (1961) 383).

    Args:
        records: runs, also ones outside the window.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.

    Returns:
        L, lambda, W and the edge effect; zeros where no run touches the window.

    Raises:
        InputError: if the window is empty.

    Example:
        >>> runs = [RunRecord(str(i), "s", "j", 100.0 * i, 100.0 * i + 50) for i in range(10)]
        >>> law = little_law(runs, 0, 1000)
        >>> law.concurrency, law.arrivals_per_s, law.duration_s, law.edge_effect
        (0.5, 0.01, 50.0, 0.0)
    """
    window_s = end_s - start_s
    if not window_s > 0:
        raise InputError("the window of the check is empty: let it end after it begins")
    inside = [record for record in records if overlap_s(record, start_s, end_s) > 0]
    concurrency = math.fsum(overlap_s(record, start_s, end_s) for record in inside) / window_s
    entered = [record for record in inside if start_s <= record.entered_s < end_s]
    durations_s = [record.service_s for record in entered if record.service_s is not None]
    duration_s = statistics.fmean(durations_s) if durations_s else 0.0
    arrivals_per_s = len(entered) / window_s
    return LittleLaw(
        window_s=window_s,
        runs=len(inside),
        concurrency=concurrency,
        arrivals_per_s=arrivals_per_s,
        duration_s=duration_s,
        slot_wait_s=statistics.fmean(r.slot_wait_s for r in entered) if entered else 0.0,
        edge_effect=(arrivals_per_s * duration_s - concurrency) / concurrency if concurrency else 0.0,
    )


def hours_of(records: Sequence[RunRecord], start_s: float, end_s: float) -> tuple[HourCheck, ...]:
    """Split a window into hours of UTC, each with its L, lambda, W and bytes per second.

    Args:
        records: runs of one storage.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.

    Returns:
        The hours in which something ran, the latest 31 days at most; a run's bytes are spread
        evenly over its time on the storage.

    Example:
        >>> runs = [RunRecord("r", "s", "j", 1800.0, 5400.0, bytes_written=3600)]
        >>> [(hour.start[11:16], hour.concurrency, hour.bytes_per_s) for hour in hours_of(runs, 0, 7200)]
        [('00:00', 0.5, 0.5), ('01:00', 0.5, 0.5)]
    """
    hours = []
    first = max(math.floor(start_s / _HOUR_S), math.ceil(end_s / _HOUR_S) - _MAX_HOURS)
    for number in range(first, math.ceil(end_s / _HOUR_S)):
        begin_s, until_s = max(start_s, number * _HOUR_S), min(end_s, (number + 1) * _HOUR_S)
        inside = [record for record in records if overlap_s(record, begin_s, until_s) > 0]
        if not inside:
            continue
        law = little_law(inside, begin_s, until_s)
        ended_s = [record.service_s for record in inside if record.service_s is not None]
        moved = [
            record.bytes_written * overlap_s(record, begin_s, until_s) / record.service_s
            for record in inside
            if record.bytes_written is not None and record.service_s
        ]
        hours.append(
            HourCheck(
                start=datetime.datetime.fromtimestamp(number * _HOUR_S, datetime.UTC).isoformat(),
                runs=len(inside),
                concurrency=law.concurrency,
                arrivals_per_s=law.arrivals_per_s,
                duration_s=statistics.fmean(ended_s) if ended_s else 0.0,
                bytes_per_s=math.fsum(moved) / law.window_s if moved else None,
            )
        )
    return tuple(hours)


def suggest_stall_window(records: Sequence[RunRecord]) -> float | None:
    """Suggest a stall window from the pauses of runs that completed: 3 x the longest, in whole 10 s.

    Args:
        records: runs; only those that completed on a storage that was well, and reported their longest pause, count.

    Returns:
        Seconds, at least 60; None with fewer than 5 such runs.

    Example:
        >>> runs = [RunRecord(str(i), "s", "j", 0, 900, longest_pause_s=i + 20.0) for i in range(5)]
        >>> suggest_stall_window(runs)
        80.0
    """
    well = [r for r in records if r.state == "Completed"]
    pauses_s = [r.longest_pause_s for r in well if r.longest_pause_s is not None]
    if len(pauses_s) < MIN_RUNS:
        return None
    return max(MIN_STALL_WINDOW_S, math.ceil(PAUSE_FACTOR * max(pauses_s) / 10) * 10.0)


def overlap_s(record: RunRecord, start_s: float, end_s: float) -> float:
    """Say for how long a run was on the storage within a window.

    Args:
        record: the run.
        start_s: begin of the window, seconds since 1970.
        end_s: its end, at which a run under way is cut.

    Returns:
        Seconds, the wait for a slot left out.
    """
    until_s = end_s if record.ended_s is None else min(end_s, record.ended_s)
    return max(0.0, until_s - max(start_s, record.entered_s))


def _finite(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(value)
    return number


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "float": _finite,
    "int": lambda value: int(_finite(value)),
    "bool": lambda value: value is True,
}
