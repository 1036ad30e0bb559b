"""A probe's report as a storage profile, and the profile as a YAML file written in one step.

Nothing is measured here; `run` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from prefect_cachewatch.capacity.model.profile import CurvePoint, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.probe.checks import Level
from prefect_cachewatch.capacity.probe.report import ProbeReport
from prefect_cachewatch.common.files import PUBLIC, write_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import InputError

_MAX_NOTES = 64


def profile_from_report(report: ProbeReport, name: str) -> StorageProfile:
    """Turn what was measured into the profile that a plan reads.

    Args:
        report: a probe's report with at least one level measured.
        name: what the storage is called, in plans and as a concurrency limit.

    Returns:
        The profile, its basis `measured`; a probe that ended early says so in its notes.

    Raises:
        InputError: if nothing was measured.
    """
    write, read, random = report.curve("write"), report.curve("read"), report.curve("random_read")
    if not (write or read or random):
        raise InputError(
            f"nothing was measured on {for_terminal(str(report.target.path))}: {report.stopped or 'no phase ended'}"
        )
    notes = list(report.notes)
    if report.stopped:
        notes.insert(0, f"partial: {report.stopped}")
    if any(len(curve) == 1 for curve in (write, read, random)):
        notes.insert(
            0,
            "measured at n = 1 only: what more streams reach together is not known, and is taken as no more",
        )
    small = report.curve("metadata")
    if len(small) > 1:
        notes.append(f"small files: {small[-1].rate_per_s:.4g} a second at n = {small[-1].concurrency}")
    return StorageProfile(
        name=name,
        basis="measured",
        source=f"cachewatch probe with {report.engine}, {report.target.filesystem}, "
        f"{'O_DIRECT' if report.direct else 'through the page cache'}, "
        f"{format_bytes(report.size_bytes)} at once, in {format_duration(report.elapsed_s)}",
        date=report.started.date(),
        shared=report.target.is_network,
        through=report.target.through,
        sequential_write=_curve(write, report.block_bytes),
        sequential_read=_curve(read, report.block_bytes),
        random_read=_curve(random, report.random_block_bytes),
        small_file_s=_short(small[0].mean_latency_s) if small else None,
        free_bytes=report.target.free_bytes,
        notes=notes[:_MAX_NOTES],
    )


def profile_yaml(profile: StorageProfile) -> str:
    """Write a profile as YAML, without what it does not have.

    Args:
        profile: the profile.

    Returns:
        The text, with a head line that says what it is.
    """
    data: dict[str, Any] = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=False)
    for key in ("codecs", "notes"):
        if not data[key]:
            del data[key]
    for curve in ("sequential_write", "sequential_read", "random_read"):
        if curve in data and not data[curve]["points"]:
            del data[curve]["points"]
    head = "# Storage profile for cachewatch plan; measured figures, edit the name if you like.\n"
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the whole new one.

    Args:
        path: the file.
        text: its new content.

    Raises:
        InputError: if its directory is missing, full or not writable.
    """
    try:
        write_file(path, text.encode(), mode=PUBLIC, sync=True)
    except OSError as error:
        raise InputError(
            f"{for_terminal(str(path))} cannot be written ({error.strerror}): name another file with --output"
        ) from None


def _curve(levels: Sequence[Level], block_bytes: int) -> ServiceCurve | None:
    if not levels:
        return None
    if len(levels) == 1:
        rate = _short(levels[0].rate_bytes_per_s)
        return ServiceCurve(per_stream_bytes_per_s=rate, aggregate_bytes_per_s=rate, block_bytes=block_bytes)
    return ServiceCurve(
        points=[
            CurvePoint(
                n=level.concurrency,
                throughput_bytes_per_s=_short(level.rate_bytes_per_s),
                ops_per_s=_short(level.rate_per_s),
                latency_s=_short(level.mean_latency_s),
                p99_latency_s=_short(level.p99_latency_s) if level.p99_latency_s else None,
                spread=round(level.spread, 4),
                repetitions=level.repetitions,
            )
            for level in levels
        ],
        block_bytes=block_bytes,
    )


def _short(value: float) -> float:
    # Six digits are more than a measurement has, and a person can read them.
    return float(f"{value:.6g}")
