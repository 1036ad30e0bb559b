"""Past runs: their records as JSON, and Little's law over a window.

Pure functions over run records; `tasks.run_records` reads the records, and `against` compares them with a plan.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from prefect_cachewatch.errors import InputError

RECORD_VERSION = 1
_FENCE = re.compile(r"^\s*```[a-z]*\n(.*)\n```\s*$", re.DOTALL)


_Moment = Annotated[float, Field(ge=0, le=1e11)]
_Seconds = Annotated[float, Field(ge=0, le=1e9)]
_Bytes = Annotated[int, Field(ge=0, le=10**18)]


@checked_dataclass(frozen=True, config={"strict": True, "allow_inf_nan": False, "extra": "ignore"})
class RunRecord:
    """One generation as it went; times are seconds since 1970, UTC."""

    run_id: str
    storage: str
    job: str
    started_s: _Moment  # start of the flow run, before it waited for a slot
    ended_s: _Moment | None = None  # None while it runs
    slot_wait_s: _Seconds = 0.0
    bytes_written: _Bytes | None = None
    longest_pause_s: _Seconds | None = None  # longest time without growth, once writing had begun
    first_write_s: _Seconds | None = None  # from the end of the slot wait to the first growth
    state: str = "Completed"  # final state's name: Completed, Cached, Stalled, GeneratorFailed, ...
    slots: Annotated[int, Field(ge=1, le=10**6)] = 1  # of the storage's concurrency limit
    attempts: Annotated[int, Field(ge=0, le=10**6)] = 1
    bytes_present: _Bytes | None = None  # at the end
    rate_bytes_per_s: Annotated[float, Field(ge=0, le=1e18)] | None = None  # of the last attempt while it grew
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
    try:
        record = RunRecord(**data)
    except (ValidationError, RecursionError):
        return None
    return None if record.ended_s is not None and record.ended_s < record.started_s else record


@dataclass(frozen=True)
class LittleLaw:
    """L = lambda W over a window."""

    window_s: float
    runs: int  # that touch it
    concurrency: float  # L: runs at once, on average
    arrivals_per_s: float  # lambda
    duration_s: float  # W, without the wait for a slot
    slot_wait_s: float


def little_law(records: Sequence[RunRecord], start_s: float, end_s: float) -> LittleLaw:
    """Compute Little's law over a window.

    L is the time integral of the runs in progress, each clipped to the window, over the window's length; W counts whole
    durations. Runs cut by an edge make the two sides differ: of a window of 1.5 W by about a quarter, of 10 W by some
    percent (J. D. C. Little, Operations Research 9 (1961) 383).

    Args:
        records: runs, also ones outside the window.
        start_s: begin of the window, seconds since 1970.
        end_s: its end.

    Returns:
        L, lambda and W; zeros where no run touches the window.

    Raises:
        InputError: if the window is empty.

    Example:
        >>> runs = [RunRecord(str(i), "s", "j", 100.0 * i, 100.0 * i + 50) for i in range(10)]
        >>> law = little_law(runs, 0, 1000)
        >>> law.concurrency, law.arrivals_per_s, law.duration_s
        (0.5, 0.01, 50.0)
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
    )


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
