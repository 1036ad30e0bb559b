"""From storages, links and workloads to the network that is solved: stations and seconds of service.

Jobs think, then a burst goes through codec, link and storage; the storage's rate depends on
how many bursts it serves. Nothing is solved here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prefect_cachewatch.capacity.model.convolution import ClosedNetwork
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.profile import LinkProfile, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.model.usl import ServiceRates, Side, service_rates
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import InputError

CPU, LINK, OPS, STORAGE = "codec", "link", "operations", "storage"
_OP_BYTES = 2**20
_LONGEST_S = 1e12  # of a burst alone; beyond it, sums of seconds lose digits


@dataclass(frozen=True)
class Scenario:
    """One set of assumptions: what is planned for, and what is varied for a band or a purchase."""

    storage: StorageProfile
    link: LinkProfile
    classes: tuple[WorkloadClass, ...]
    policy: Policy
    side: Side = "low"  # edge of the band where a curve is a vendor's two numbers
    rate_factor: float = 1.0  # on link and storage, for the band
    link_factor: float = 1.0
    storage_factor: float = 1.0
    # Class -> Z + R alone that a slowdown is measured by, where it is not this scenario's own: a faster link
    # must not look like a lower limit only because one job alone got faster too.
    accepted_alone_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Demands:
    """The network of a scenario: a row of seconds for each class, a column for each station."""

    scenario: Scenario
    stations: tuple[str, ...]  # codec, link (once a host), operations, storage; the last depends on its load
    demands_s: NDArray[np.float64]
    think_s: tuple[float, ...]  # with the part of the codec's work that no other job competes for
    delay_s: tuple[float, ...]  # that part: it belongs to the burst
    alone_s: tuple[float, ...]  # R(1): a burst without other jobs
    alpha: NDArray[np.float64]
    measured_n: int | None
    peak_n: float | None
    notes: tuple[str, ...] = field(default=())

    def network(self, populations: Sequence[int]) -> ClosedNetwork:
        """The network prepared for all populations up to these."""
        return ClosedNetwork(populations, self.demands_s, self.think_s, list(self.alpha))

    def largest_demand_s(self, c: int) -> tuple[str, float]:
        """The bottleneck of a class and its Dmax: seconds of a burst there at full aggregate rate."""
        row = self.demands_s[c].copy()
        row[-1] /= float(self.alpha.max())
        k = int(row.argmax())
        return self.stations[k], float(row[k])


def curve_for(storage: StorageProfile, workload: WorkloadClass) -> tuple[ServiceCurve, str]:
    """The curve that a class is served by, and what had to be assumed for it.

    Args:
        storage: the storage.
        workload: the class.

    Returns:
        The curve, and a sentence or "".

    Raises:
        InputError: if the storage has no such curve.
    """
    if workload.writes:
        curve, wanted = storage.sequential_write, "sequential_write"
    elif workload.access == "random" and storage.random_read is not None:
        return storage.random_read, ""
    else:
        curve, wanted = storage.sequential_read, "sequential_read"
    if curve is None and not workload.writes and storage.random_read is not None:
        return storage.random_read, (
            f"{workload.name} reads in sequence, and {storage.name} has a curve of random reads only: "
            "taken as a lower bound"
        )
    if curve is None:
        raise InputError(
            f"storage {storage.name!r} has no {wanted} curve, which class {workload.name!r} needs: "
            f"measure it with cachewatch probe, or give storage.{wanted}"
        )
    if workload.access == "random" and not workload.writes:
        return curve, (
            f"{workload.name} reads at random, and {storage.name} has no curve of random reads: its "
            "sequential one is used, and random reads can be 10 to 500 times slower; measure them"
        )
    return curve, ""


def demands_of(scenario: Scenario, n_max: int) -> Demands:
    """The network of a scenario.

    Args:
        scenario: what is planned for.
        n_max: jobs of all classes together up to which alpha is needed.

    Returns:
        Stations, seconds of service, think times.

    Raises:
        InputError: if storage, link and workloads do not fit together.

    Source: a codec on c cores is one station of cpu/c seconds and a delay of cpu (c-1)/c
        (Seidmann, Schweitzer and Shalev-Oren 1987); h hosts with a link each are h stations that a
        burst visits with probability 1/h. A ceiling of operations is a station of its own, so that each class
        has its own size of a request.
    """
    storage, link, policy = scenario.storage, scenario.link, scenario.policy
    if link.bytes_per_s is not None and storage.contains_link:
        raise InputError(
            f"storage {storage.name!r} was measured on a client, through its network, and a link would count that "
            "network twice: leave out link; or, if the curves are from the storage's own machine, say storage.through: "
            "local"
        )
    if not storage.shared and link.hosts > 1:
        raise InputError(
            f"storage {storage.name!r} cannot be mounted by several hosts, and link.hosts is {link.hosts}: "
            "set it to 1, or choose a shared storage"
        )
    keep = (1 - policy.derate) * scenario.rate_factor
    notes: list[str] = []
    rates: list[ServiceRates] = []
    sizes: list[float] = []
    for workload in scenario.classes:
        curve, note = curve_for(storage, workload)
        rates.append(service_rates(curve, n_max, scenario.side))
        sizes.append(workload.op_bytes or curve.block_bytes or _OP_BYTES)
        if note:
            notes.append(note)
    hosts = link.hosts if link.bytes_per_s is not None else 0
    cpu = any(workload.codec for workload in scenario.classes)
    stations = (CPU,) * cpu + (LINK,) * hosts + (OPS,) * (storage.ops_per_s is not None) + (STORAGE,)
    table = np.zeros((len(scenario.classes), len(stations)))
    delays: list[float] = []
    for c, workload in enumerate(scenario.classes):
        delay = 0.0
        if workload.codec is not None:
            shared_s = workload.codec_cpu_s / workload.codec.cores
            table[c, 0] = shared_s
            delay = workload.codec_cpu_s - shared_s
        if link.bytes_per_s is not None:
            usable = link.bytes_per_s * link.efficiency * scenario.link_factor * keep
            table[c, int(cpu) : int(cpu) + hosts] = workload.wire_bytes / usable / hosts
        rate = rates[c].per_stream_bytes_per_s * scenario.storage_factor * keep
        files_s = workload.files_per_burst * (storage.small_file_s or 0.0) / (scenario.storage_factor * keep)
        table[c, -1] = workload.wire_bytes / rate + files_s
        if storage.ops_per_s is not None:
            operations = max(workload.wire_bytes / sizes[c], workload.files_per_burst)
            table[c, -2] = operations / (storage.ops_per_s * scenario.storage_factor * keep)
            notes.append(
                f"{storage.name} serves {storage.ops_per_s:,.0f} operations/s, and a burst of {workload.name} is "
                f"{operations:,.0f} of {format_bytes(sizes[c])}"
            )
        delays.append(delay)
    if storage.small_file_s is None and any(workload.files_per_burst > 1 for workload in scenario.classes):
        notes.append("the cost of a small file was not measured and counts as nothing: run cachewatch probe")
    if len({id(rate) for rate in rates}) > 1 and not all(np.array_equal(rates[0].alpha, r.alpha) for r in rates):
        notes.append("reads and writes scale differently: the lower of their curves holds for both")
    alone_s = tuple(float(row.sum()) + delay for row, delay in zip(table, delays, strict=True))
    for workload, seconds in zip(scenario.classes, alone_s, strict=True):
        if not seconds <= _LONGEST_S:
            raise InputError(
                f"a burst of {workload.name!r} would take {seconds:.3g} s alone on {storage.name!r}: check the units of "
                "burst_bytes and of the storage's, the link's and the codec's rates"
            )
    measured = [rate.measured_n for rate in rates if rate.measured_n is not None]
    peaks = [rate.peak_n for rate in rates if rate.peak_n is not None]
    return Demands(
        scenario=scenario,
        stations=stations,
        demands_s=table,
        think_s=tuple(w.think_s + delay for w, delay in zip(scenario.classes, delays, strict=True)),
        delay_s=tuple(delays),
        alone_s=alone_s,
        alpha=np.minimum.reduce([rate.alpha for rate in rates]),
        measured_n=min(measured) if measured else None,
        peak_n=min(peaks) if peaks else None,
        notes=tuple(notes),
    )
