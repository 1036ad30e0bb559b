"""A recorded run as a class of jobs: its bursts, the time from one to the next, its files. Reads no file.

The time from one burst to the next contains the burst itself, of which a recording may show the end only. So the think time
is what is left of it after the time that a burst takes alone on the storage that is planned for.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from prefect_cachewatch.capacity.inputs import PlanInput
from prefect_cachewatch.capacity.law import burst_seconds, whole_burst_s
from prefect_cachewatch.capacity.units import say_bytes, say_time
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.events import Progress
from prefect_cachewatch.errors import InputError

# A pause longer than this many samples parts two bursts; below it, a burst may just have been measured in the middle.
_PAUSE_SAMPLES = 1.5


def with_recorded(inputs: PlanInput, name: str, samples: Sequence[Progress]) -> tuple[PlanInput, str]:
    """Take burst, think time and files of the first class that asks from a run.

    Args:
        inputs: the plan; the class's other fields stay.
        name: what the run is called in messages.
        samples: the run, recorded alone on the storage that is planned for.

    Returns:
        The plan, and a sentence with the figures.

    Raises:
        InputError: there is no second burst, so that no think time can be told.
    """
    shown, old, storage = f"recording {for_terminal(name)}", inputs.asking[0], inputs.storage
    pairs = list(itertools.pairwise(samples))
    step_s = statistics.median([now.at_s - before.at_s for before, now in pairs] or [0.0])
    files = sum(max(0, now.files_present - before.files_present) for before, now in pairs)
    grown = [(now.at_s, size) for before, now in pairs if (size := now.bytes_written - before.bytes_written) > 0]
    ends_s: list[float] = []
    for t_s, _ in grown:
        if ends_s and t_s - ends_s[-1] <= _PAUSE_SAMPLES * step_s:
            ends_s.pop()  # the same burst goes on
        ends_s.append(t_s)
    if (count := len(ends_s)) < 2:
        raise InputError(
            f"{shown} shows no second burst, so that no think time can be told: record a whole run with a shorter "
            "--poll, or write burst_bytes and think_s by hand"
        )
    cycle_s, mean = (ends_s[-1] - ends_s[0]) / (count - 1), max(1, round(sum(size for _, size in grown) / count))
    took = {"burst_bytes": mean, "files_per_burst": max(1, round(files / count)), "bursts_per_job": count}
    workload = old.model_copy(update=took)
    plain = inputs.model_copy(update={"policy": inputs.policy.model_copy(update={"derate": 0.0})})
    alone_s = whole_burst_s(burst_seconds(plain, workload, 1, 1))
    workload = workload.model_copy(update={"think_s": round(max(0.0, cycle_s - alone_s), 3)})
    said = (
        f"{shown}: {count} bursts of {say_bytes(mean, inputs.binary)}, one every {say_time(cycle_s)}, of which a burst "
        f"alone takes {say_time(alone_s)} here: burst_bytes: {mean}, think_s: {workload.think_s:g}, files_per_burst: "
        f"{workload.files_per_burst}, bursts_per_job: {count}"
    )
    if alone_s > cycle_s:
        said += f"; it wrote faster than {storage.name} does: recorded on another storage, or into the page cache"
    others = [other for other in inputs.workloads if other is not old]
    return inputs.model_copy(update={"workloads": [workload, *others]}), said
