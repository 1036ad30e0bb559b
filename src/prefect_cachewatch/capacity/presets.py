"""Vendors' figures for storages and links: ceilings to plan with until a probe has measured.

Each row has its source and the date it was looked up beside it. Ceilings are not promises: a
client, a mount option or a small file reaches less.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from prefect_cachewatch.capacity.model.profile import LinkProfile, ServiceCurve, StorageProfile
from prefect_cachewatch.common.inputs import nearest
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_MIB, _GIB = 2.0**20, 2.0**30
_LOOKED_UP = datetime.date(2026, 11, 20)


@dataclass(frozen=True)
class _Storage:
    title: str
    read: tuple[float, float] | None  # one stream, all together; bytes per second
    write: tuple[float, float] | None
    source: str
    per_tib: bool = False  # the figures are for each TiB provisioned
    shared: bool = True


def _fsx(rate: int) -> _Storage:
    # A client is limited by its network card only, which is the plan's link.
    both = (rate * 1e6, rate * 1e6)
    return _Storage(
        f"FSx for Lustre persistent 2 SSD {rate} MB/s/TiB", both, both,
        "AWS, FSx for Lustre user guide, ssd-storage, disk throughput (stored copy)", per_tib=True,
    )  # fmt: skip


_EFS = (
    "AWS, EFS user guide, performance and limits (stored copies): aggregates are quotas by region, here the low "
    "ends of reads 20-60 and writes 1-5 GiB/s for Regional"
)

STORAGES: dict[str, _Storage] = {
    "sata-ssd": _Storage(
        "SATA SSD", (0.5e9, 0.5e9), (0.5e9, 0.5e9),
        "the 6 Gbit/s interface less its coding, as a rule of thumb; no vendor's sheet", shared=False,
    ),
    "ebs-gp3": _Storage(
        "EBS gp3 baseline", (125 * _MIB, 125 * _MIB), (125 * _MIB, 125 * _MIB),
        "AWS and Google API references: 125 MiB/s where none is asked for (stored copies)", shared=False,
    ),
    "efs-regional": _Storage(
        "EFS Regional elastic", (1500 * _MIB, 20 * _GIB), (1 * _GIB, 1 * _GIB), _EFS,
    ),
    "efs-one-zone": _Storage("EFS One Zone", (500 * _MIB, 3 * _GIB), (500 * _MIB, 1 * _GIB), _EFS),
    "fsx-lustre-125": _fsx(125),
    "fsx-lustre-250": _fsx(250),
    "fsx-lustre-500": _fsx(500),
    "fsx-lustre-1000": _fsx(1000),
    "filestore-zonal": _Storage(
        "Filestore zonal", (260 * _MIB, 260 * _MIB), (88 * _MIB, 88 * _MIB),
        "Google, Filestore performance, estimated limits at 1 TiB (stored copy)", per_tib=True,
    ),
    "isilon-f800": _Storage(
        "Isilon F800, one 4U chassis", (3.75e9, 15e9), None,
        "trade press of its announcement, 2016: 15 GB/s a chassis of 4 nodes; the vendor's sheet was not "
        "seen, and no write rate is published",
    ),
}  # fmt: skip

LINKS: dict[str, float] = {"10G": 1.25e9, "25G": 3.125e9, "40G": 5e9, "100G": 12.5e9}


def storage_preset(name: str, provisioned_tib: float | None = None) -> StorageProfile:
    """A storage as its vendor gives it, named a vendor ceiling.

    Args:
        name: one of `STORAGES`.
        provisioned_tib: TiB provisioned, for storages that are rated by it.

    Returns:
        The profile; any field can be overridden afterwards.

    Raises:
        InputError: if there is no such preset, or TiB are missing or make no sense.

    Example:
        >>> storage_preset("filestore-zonal", 10).name
        'Filestore zonal, 10 TiB (vendor ceiling)'
    """
    if name not in STORAGES:
        raise InputError(f"storage preset {for_terminal(name)!r} is not known{nearest(name, STORAGES)}")
    row = STORAGES[name]
    if row.per_tib and provisioned_tib is None:
        raise InputError(f"storage preset {name!r} is rated by capacity: give storage.provisioned_tib beside it")
    if not row.per_tib and provisioned_tib is not None:
        raise InputError(f"storage preset {name!r} is not rated by capacity: leave out storage.provisioned_tib")
    if provisioned_tib is not None and not 0 < provisioned_tib <= 1e6:
        raise InputError(f"storage.provisioned_tib {provisioned_tib:g} must be above 0 and at most a million")
    times = provisioned_tib or 1.0

    def curve(rates: tuple[float, float] | None) -> ServiceCurve | None:
        if rates is None:
            return None
        return ServiceCurve(per_stream_bytes_per_s=rates[0] * times, aggregate_bytes_per_s=rates[1] * times)

    size = f", {provisioned_tib:g} TiB" if provisioned_tib else ""
    return StorageProfile(
        name=f"{row.title}{size} (vendor ceiling)",
        basis="vendor ceiling",
        source=row.source,
        date=_LOOKED_UP,
        shared=row.shared,
        sequential_read=curve(row.read),
        sequential_write=curve(row.write),
    )


def link_preset(name: str) -> LinkProfile:
    """A link at its raw rate.

    Args:
        name: one of `LINKS`.

    Returns:
        The link of one host.

    Raises:
        InputError: if there is no such preset.

    Example:
        >>> link_preset("40G").bytes_per_s
        5000000000.0
    """
    if name not in LINKS:
        raise InputError(f"link preset {for_terminal(name)!r} is not known{nearest(name, LINKS)}")
    return LinkProfile(name=name, bytes_per_s=LINKS[name], basis="vendor ceiling", source="IEEE 802.3 line rate")
