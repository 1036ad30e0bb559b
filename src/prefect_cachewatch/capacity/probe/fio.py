"""A storage profile from the JSON that a person's own runs of fio made. Runs nothing.

    fio --name=w --directory=/mnt/nfs-a/fio --rw=write --bs=1M --size=1G --direct=1 --end_fsync=1 --numjobs=4
        --group_reporting --output-format=json --output=w4.json

Each group of jobs is one measurement: `numjobs` streams (times `iodepth`) of one kind of access.
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.capacity.inputs import CurvePoint, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.probe.checks import spread_of
from prefect_cachewatch.common.files import read_input
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

# How a job accesses its files (option `rw`), to the curve and to the side of fio's report.
_CURVES = {
    "write": ("write", "write"), "read": ("read", "read"), "randread": ("random_read", "read"), "randwrite": ("write", "write"),
}  # fmt: skip


def profile_from_fio(paths: Sequence[Path], name: str) -> StorageProfile:
    """Read fio's JSON files into the profile that a plan reads.

    Args:
        paths: files of `--output-format=json`, one or more runs each; runs at the same n are repetitions.
        name: what the storage is called, in plans and as a concurrency limit.

    Returns:
        The profile, its basis `measured`.

    Raises:
        InputError: a file is not fio's JSON, a job failed or moved nothing, or n = 1 is missing.
    """
    rates: dict[str, dict[int, list[float]]] = {}
    notes: list[str] = []
    for path in paths:
        shown = for_terminal(str(path))
        document = _document(path, shown)
        try:
            shared, jobs = document.get("global options", {}), _groups(document["jobs"])
            for options, entries in jobs:
                curve, n, rate = _measurement(shared | options, entries, shown)
                rates.setdefault(curve, {}).setdefault(n, []).append(rate)
                if (shared | options).get("direct", "0") != "1":
                    notes.append(f"{shown}: direct=1 was not given, so the page cache may have answered")
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise InputError(
                f"{shown} is not the report of a whole run of fio ({type(error).__name__}): run it with "
                "--output-format=json --group_reporting"
            ) from None
    curves = {}
    for curve, by_n in rates.items():
        points = [
            CurvePoint(n=n, bytes_per_s=float(f"{statistics.median(found):.4g}"), spread=round(spread_of(found), 3))
            for n, found in sorted(by_n.items())
        ]
        if points[0].n != 1:
            raise InputError(f"no run of fio has numjobs=1 for {curve}, so nobody knows what one stream gets: add one")
        curves[curve] = ServiceCurve(points=points)
    return StorageProfile(
        name=name,
        basis="measured",
        source=f"fio, {', '.join(for_terminal(path.name, 40) for path in paths)}"[:500],
        date=datetime.datetime.now(datetime.UTC).date(),
        notes=list(dict.fromkeys(notes))[:64],
        write=curves.get("write"),
        read=curves.get("read"),
        random_read=curves.get("random_read"),
    )


def _document(path: Path, shown: str) -> dict[str, Any]:
    try:
        raw = read_input(path).decode()
        document = json.loads(raw[raw.index("{") :])  # fio may put warnings before it
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}): check the path") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{shown} is not JSON of fio: run it with --output-format=json")
    return document


def _groups(jobs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The jobs that ran together: those of one group and name, or one entry for all of them with group_reporting."""
    found: dict[tuple[Any, str], list[dict[str, Any]]] = {}
    for job in jobs:
        found.setdefault((job.get("groupid"), job["jobname"]), []).append(job)
    if not found:
        raise ValueError
    return [(entries[0].get("job options", {}), entries) for entries in found.values()]


def _measurement(options: dict[str, Any], entries: list[dict[str, Any]], shown: str) -> tuple[str, int, float]:
    """The curve that a group belongs to, its streams, and the bytes per second of all of them."""
    access = options["rw"]
    if access not in _CURVES:
        raise InputError(
            f"{shown}: rw={for_terminal(str(access), 40)} is no curve of a plan: use write, read or randread"
        )
    if any(entry["error"] for entry in entries):
        raise InputError(f"{shown}: fio itself reports error {entries[0]['error']}: mend that run first")
    curve, side = _CURVES[access]
    moved, runtime_ms = (
        sum(entry[side]["io_bytes"] for entry in entries),
        max(entry[side]["runtime"] for entry in entries),
    )
    streams = int(options.get("numjobs", 1)) * int(options.get("iodepth", 1))
    if not (moved > 0 and 0 < runtime_ms < moved * 1e3 and moved / runtime_ms < 1e12):
        raise InputError(
            f"{shown}: a run of rw={access} moved nothing that can be: give it a longer --runtime or more --size"
        )
    return curve, streams, moved / runtime_ms * 1e3
