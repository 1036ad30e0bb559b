"""What a probe measured as a storage profile, and the profile as a YAML file written in one step.

Nothing is measured here; `measure` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from prefect_cachewatch.capacity.inputs import CurvePoint, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.probe.checks import Level
from prefect_cachewatch.capacity.probe.measure import ProbeReport
from prefect_cachewatch.capacity.units import say_bytes, say_time
from prefect_cachewatch.common.files import PUBLIC, write_file
from prefect_cachewatch.common.text import for_terminal
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
    notes = [f"partial: {report.stopped}"] if report.stopped else []
    small = report.curve("files")
    how = "O_DIRECT" if report.direct else "the page cache"
    return StorageProfile(
        name=name,
        basis="measured",
        source=f"cachewatch probe, {report.target.filesystem}, through {how}, {say_bytes(report.size_bytes)} at once, in "
        f"{say_time(report.elapsed_s)}",
        date=report.started.date(),
        write=_curve(write),
        read=_curve(read),
        random_read=_curve(random),
        small_file_s=_short(small[0].latency_s) if small else None,
        files_per_s=_short(max(level.rate for level in small)) if small else None,
        free_bytes=report.target.free_bytes,
        notes=[*notes, *report.notes][:_MAX_NOTES],
    )


def profile_yaml(profile: StorageProfile) -> str:
    """Write a profile as YAML, without what it does not have.

    Args:
        profile: the profile.

    Returns:
        The text, with a head line that says what it is.
    """
    data: dict[str, Any] = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    for curve in ("write", "read", "random_read"):
        for point in data.get(curve, {}).get("points", ()):
            point["bytes_per_s"] = round(point["bytes_per_s"])
    head = "# Storage profile for cachewatch plan; bytes per second of all streams together.\n"
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


def _curve(levels: Sequence[Level]) -> ServiceCurve | None:
    points = [CurvePoint(n=level.n, bytes_per_s=_short(level.rate), spread=round(level.spread, 3)) for level in levels]
    return ServiceCurve(points=points) if points else None


def _short(value: float) -> float:
    # Four digits are more than a measurement has, and a person can read them.
    return float(f"{value:.4g}")
