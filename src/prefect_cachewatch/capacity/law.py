"""The one rate law: what one of n streams gets is the least of the ceilings that stand over it.

    stream(n) = min(curve(n)/n, link, link x busy hosts/n, port/n, operations x op_bytes/n, compression)

Bytes of one stream are pipelined through storage and link, so ceilings are not added up. Files of a burst are: each costs
its time before or after its bytes. Measured points are joined by straight lines, never fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

from prefect_cachewatch.capacity.inputs import PlanInput, ServiceCurve, StorageProfile, WorkloadClass
from prefect_cachewatch.errors import InputError

#: middle is the plan; low and high are the edges of what the figures allow.
Side = Literal["low", "middle", "high"]


def curve_of(storage: StorageProfile, workload: WorkloadClass) -> ServiceCurve:
    """Choose the curve that holds for a class.

    Args:
        storage: the storage.
        workload: the class.

    Returns:
        The curve of its kind of access.

    Raises:
        InputError: the storage has none for it.
    """
    name = "write" if workload.kind == "generation" else "random_read" if workload.access == "random" else "read"
    curve: ServiceCurve | None = getattr(storage, name)
    if curve is None:
        raise InputError(
            f"storage {storage.name!r} has no curve for {workload.name!r}, a class of {workload.kind}: "
            f"give storage.{name}, or measure it with cachewatch probe"
        )
    return curve


def curve_bytes_per_s(curve: ServiceCurve, n: float, side: Side = "middle") -> float:
    """Say what n streams move together.

    Args:
        curve: measured points, or two numbers.
        n: streams at once, above 0.
        side: of two numbers, low is contention and the others the roofline; of points, half the spread to either side.

    Returns:
        Bytes per second; beyond the last point as much as there.

    Example:
        >>> nas = ServiceCurve(one_bytes_per_s=250e6, all_bytes_per_s=600e6)
        >>> curve_bytes_per_s(nas, 2), curve_bytes_per_s(nas, 5), round(curve_bytes_per_s(nas, 5, "low") / 1e6)
        (500000000.0, 600000000.0, 469)
    """
    if not curve.points:
        one, most = curve.one_bytes_per_s or math.nan, curve.all_bytes_per_s or math.nan
        if side == "low" and n > 1:
            return n * one / (1 + (n - 1) * one / most)
        return min(n * one, most)
    sign = {"low": -0.5, "middle": 0.0, "high": 0.5}[side]
    known = [(0.0, 0.0), *((point.n, point.bytes_per_s * max(0.1, 1 + sign * point.spread)) for point in curve.points)]
    for (left, low), (right, high) in pairwise(known):
        if n <= right:
            return low + (high - low) * (n - left) / (right - left)
    return known[-1][1]


def busy_hosts(hosts: int, n: int, jobs: int) -> float:
    """Say how many hosts have a stream, on average: jobs are spread evenly, and any n of them move a burst.

    Args:
        hosts: that there are.
        n: streams at once, at least 1.
        jobs: jobs at once, at least n.

    Example:
        Of two jobs on each of two hosts two move a burst: on the same host in one of three cases.

        >>> round(busy_hosts(2, 2, 4), 3), round(busy_hosts(8, 3, 3), 3)
        (1.667, 3.0)
    """
    used = min(hosts, jobs)
    others = jobs - jobs / used  # jobs that are not on a certain host
    if others - n <= -1:
        return float(used)
    idle = math.lgamma(others + 1) - math.lgamma(others - n + 1) + math.lgamma(jobs - n + 1) - math.lgamma(jobs + 1)
    return min(n, used * (1 - math.exp(idle)))


def shared_ceilings(
    inputs: PlanInput, workload: WorkloadClass, n: int, jobs: int, side: Side = "middle"
) -> dict[str, float]:
    """List what all streams together may move at most, by name; the derate is taken off.

    Args:
        inputs: the plan's input.
        workload: the class whose curve and size of operations hold.
        n: streams at once.
        jobs: jobs at once, those that compute too.
        side: see `curve_bytes_per_s`.

    Returns:
        Bytes per second by ceiling: storage, port, operations, link.
    """
    storage, link, keep = inputs.storage, inputs.link, 1 - inputs.policy.derate
    found = {"storage": storage.units * curve_bytes_per_s(curve_of(storage, workload), n / storage.units, side)}
    if storage.port_bytes_per_s is not None:
        found["port"] = storage.units * storage.port_bytes_per_s
    if storage.ops_per_s is not None:
        found["operations"] = storage.units * storage.ops_per_s * min(workload.op_bytes, workload.burst_bytes)
    if link.bytes_per_s is not None:
        found["link"] = link.bytes_per_s * busy_hosts(link.hosts, n, jobs)
    return {name: value * keep for name, value in found.items()}


def burst_seconds(
    inputs: PlanInput, workload: WorkloadClass, n: int, jobs: int, side: Side = "middle"
) -> dict[str, float]:
    """Say how long a burst takes while n streams move bursts, by each ceiling alone.

    Args:
        inputs: the plan's input.
        workload: its class.
        n: streams at once, this one among them.
        jobs: jobs at once, those that compute too.
        side: see `curve_bytes_per_s`.

    Returns:
        Seconds by ceiling: storage, port, operations, link, compression, and files, which come on top of the longest.

    Example:
        >>> nas = StorageProfile(name="nas", write=ServiceCurve(one_bytes_per_s=250e6, all_bytes_per_s=600e6))
        >>> job = WorkloadClass(name="caches", burst_bytes="1GB", think_s=10)
        >>> given = PlanInput(storage=nas, link="1Gbit/s", workloads=[job], policy={"derate": 0})
        >>> burst_seconds(given, job, 2, 2)
        {'storage': 4.0, 'link': 16.0, 'files': 0.0}
    """
    found = {
        name: workload.wire_bytes * n / value
        for name, value in shared_ceilings(inputs, workload, n, jobs, side).items()
    }
    if workload.packing is not None:
        found["compression"] = workload.burst_bytes / workload.packing.bytes_per_s
    storage, keep = inputs.storage, 1 - inputs.policy.derate
    each_s = storage.small_file_s or 0.0
    if storage.files_per_s is not None:
        each_s = max(each_s, n / (storage.files_per_s * storage.units))
    return found | {"files": workload.files_per_burst * each_s / keep}


def whole_burst_s(seconds: Mapping[str, float]) -> float:
    """Add the files of a burst to the longest of its ceilings.

    Example:
        >>> whole_burst_s({"storage": 4.0, "link": 16.0, "files": 1.0})
        17.0
    """
    return max(value for name, value in seconds.items() if name != "files") + seconds["files"]


def binding(seconds: Mapping[str, float]) -> str:
    """Name what a burst waits for the longest.

    Example:
        >>> binding({"storage": 4.0, "link": 16.0, "files": 20.0})
        'files'
    """
    return max(seconds, key=lambda name: seconds[name])
