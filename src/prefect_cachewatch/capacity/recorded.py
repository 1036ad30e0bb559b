"""A recorded run as a class of jobs: its bursts, the time from one to the next, its files. Reads no file.

The time from one burst to the next contains the burst itself, of which a trace may show the end only. So the think time
is what is left of it after the time that a burst takes alone on the storage that is planned for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.common.inputs import validate
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import InputError

# A pause longer than this many samples parts two bursts; below it, a burst may just have been measured in the middle.
_PAUSE_SAMPLES = 1.5
_MOST_CV = 10.0


@dataclass(frozen=True)
class RecordedJob:
    """What one recorded run did, alone: `cycle_s` from the end of one burst to the end of the next, on average."""

    name: str
    bursts: int
    burst_bytes: int
    burst_cv: float
    files_per_burst: int
    cycle_s: float
    first_write_s: float
    pauses: bool  # whether pauses were seen; else each file is taken for a burst


def read_bursts(name: str, growth: Sequence[tuple[float, int]], files: int, step_s: float) -> RecordedJob:
    """Find the bursts of a run in its growth.

    Args:
        name: what the run is called in messages.
        growth: seconds since the start and bytes written by then, in order; the first is the state at the start.
        files: files that were made.
        step_s: seconds between two measurements.

    Returns:
        The run's bursts; where no pause was seen, one burst for each file.

    Raises:
        InputError: there is no second burst, so that no think time can be told.

    Example:
        >>> job = read_bursts("run.csv", [(0, 0), (12, 100), (13, 200), (24, 400), (36, 600)], 6, 1)
        >>> job.bursts, job.burst_bytes, job.files_per_burst, job.cycle_s
        (3, 200, 2, 11.5)
    """
    events = [(t, now - before) for (_, before), (t, now) in itertools.pairwise(growth) if now > before]
    bursts: list[tuple[float, int]] = []  # end, bytes
    last_s = -math.inf
    for t, size in events:
        if t - last_s <= _PAUSE_SAMPLES * step_s and bursts:
            bursts[-1] = (t, bursts[-1][1] + size)
        else:
            bursts.append((t, size))
        last_s = t
    total = sum(size for _, size in events)
    first_s = events[0][0] - growth[0][0] if events else 0.0
    if len(bursts) >= 2:
        count, sizes = len(bursts), [size for _, size in bursts]
        cycle_s = (bursts[-1][0] - bursts[0][0]) / (count - 1)
        mean = total / count
        cv = math.sqrt(sum((size - mean) ** 2 for size in sizes) / count) / mean
    elif files >= 2 and len(events) >= 2 and events[-1][0] > events[0][0]:
        count, mean, cv = files, total / files, 0.0
        cycle_s = (events[-1][0] - events[0][0]) / (files - 1)
    else:
        raise InputError(
            f"trace {for_terminal(name)} shows no second burst, so that no think time can be told: record a whole run "
            "with a shorter --poll, or write burst_bytes and think_s by hand"
        )
    return RecordedJob(
        name=name,
        bursts=count,
        burst_bytes=max(1, round(mean)),
        burst_cv=round(min(_MOST_CV, cv), 3),
        files_per_burst=min(max(1, round(files / count)), max(1, round(mean))),
        cycle_s=cycle_s,
        first_write_s=first_s,
        pauses=len(bursts) >= 2,
    )


def workload_of(
    job: RecordedJob, base: WorkloadClass | None, storage: StorageProfile, link: LinkProfile
) -> tuple[WorkloadClass, str]:
    """Make a recorded run a class of a plan.

    Args:
        job: the run, recorded alone on the storage that is planned for.
        base: the class whose other fields hold; None: a class with the run's name.
        storage: the storage that is planned for.
        link: the link that is planned for.

    Returns:
        The class, and a sentence on where its figures are from.

    Raises:
        InputError: the figures do not fit a class.
    """
    given = base.model_dump() if base is not None else {"name": job.name[:100]}
    given |= {
        "burst_bytes": job.burst_bytes,
        "think_s": job.cycle_s,
        "files_per_burst": job.files_per_burst,
        "bursts_per_job": job.bursts,
        "burst_cv": job.burst_cv,
    }
    shown = f"trace {for_terminal(job.name)}"
    draft = validate(WorkloadClass, given, shown, "")
    alone_s = demands_of(Scenario(storage, link, (draft,), Policy(derate=0.0)), 1).alone_s[0]
    think_s = round(max(0.0, job.cycle_s - alone_s), 3)
    said = (
        f"{shown}: {job.bursts} bursts of {format_bytes(job.burst_bytes)} in {job.files_per_burst} "
        f"file{'' if job.files_per_burst == 1 else 's'}, one every {format_duration(job.cycle_s)}, of which a burst alone "
        f"takes {format_duration(alone_s)} here: burst_bytes: {job.burst_bytes}, think_s: {think_s:g}, files_per_burst: "
        f"{job.files_per_burst}, bursts_per_job: {job.bursts}, burst_cv: {job.burst_cv:g}; "
        f"{format_duration(job.first_write_s)} before the first write are left out"
    )
    if not job.pauses:
        said += "; no pause was seen, so each file counts as a burst"
    if alone_s > job.cycle_s:
        said += f"; it wrote faster than {storage.name} does: recorded on another storage, or into the page cache"
    return draft.model_copy(update={"think_s": think_s}), said
