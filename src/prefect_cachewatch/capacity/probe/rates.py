"""Rates that were measured, by a probe or by fio: what makes them doubtful, and the profile that a plan reads."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from prefect_cachewatch.capacity.inputs import CurvePoint, ServiceCurve, StorageProfile
from prefect_cachewatch.capacity.units import say_bytes, say_number
from prefect_cachewatch.common.files import PUBLIC, write_file
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

#: By kind of access and streams at once, the bytes a second of the repetitions, in their order.
Rates = dict[str, dict[int, list[float]]]
KINDS = {"write": "fresh writes", "read": "reads", "random_read": "random reads"}
HEAD = "# Storage profile for cachewatch plan; bytes per second of all streams together.\n"
_WIDE_SPREAD = 0.35
_CACHE_FACTOR = 3.0
_MAX_NOTES = 64


def profile_of(name: str, source: str, rates: Rates, notes: Sequence[str], **more: Any) -> StorageProfile:
    """Make a profile of what was measured: medians, their spread, and what makes them doubtful.

    Args:
        name: what the storage is called, in plans and as a concurrency limit.
        source: where the rates are from.
        rates: what was measured.
        notes: sentences of the caller, before those on the rates.
        more: further fields of the profile.

    Returns:
        The profile, its basis `measured`.

    Raises:
        InputError: nothing was measured, or not with one stream.
    """
    curves: dict[str, Any] = {kind: _curve(kind, by_n) for kind, by_n in rates.items()}
    if not curves:
        raise InputError(f"nothing was measured for {for_terminal(name)}: {' '.join(notes) or 'allow more time'}")
    said = list(dict.fromkeys([*notes, *_doubts(rates)]))[:_MAX_NOTES]
    today = datetime.datetime.now(datetime.UTC).date()
    return StorageProfile(name=name, basis="measured", source=f"{source}, {today}"[:500], notes=said, **curves, **more)


def write_profile(path: Path, profile: StorageProfile) -> None:
    """Write a profile as YAML with a head line that says what it is; a reader sees the old file or the whole new one.

    Args:
        path: the file.
        profile: the profile; fields that it does not have are left out.

    Raises:
        InputError: its directory is missing, full or not writable.
    """
    data = profile.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    text = HEAD + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_file(path, text.encode(), mode=PUBLIC, sync=True)
    except OSError as error:
        raise InputError(
            f"{for_terminal(str(path))} cannot be written ({error.strerror}): name another file with --output"
        ) from None


def _curve(kind: str, by_n: dict[int, list[float]]) -> ServiceCurve:
    if 1 not in by_n:
        raise InputError(f"nothing was measured with one stream for {KINDS[kind]}: add that run (numjobs=1 of fio)")
    points = [  # four digits are more than a measurement has, and a person can read them
        CurvePoint(n=n, bytes_per_s=float(f"{statistics.median(found):.4g}"), spread=round(_spread(found), 3))
        for n, found in sorted(by_n.items())
    ]
    return ServiceCurve(points=points)


def _doubts(rates: Rates) -> Iterator[str]:
    """Name what makes the rates differ from the storage's own, the gravest first."""
    levels = [(kind, n, found) for kind, by_n in rates.items() for n, found in by_n.items()]
    written, read = (
        max((statistics.median(found) for each, _, found in levels if each == kind), default=0.0)
        for kind in ("write", "read")
    )
    if read > _CACHE_FACTOR * written > 0:
        yield (
            f"reads reach {say_bytes(read)}/s, {say_number(read / written)} times the fresh writes: files just written are "
            "likely read from a cache (the host's, a controller's or a server's), and colder files will be slower"
        )
    once = [f"{KINDS[kind]} at n = {n}" for kind, n, found in levels if len(found) == 1]
    if once:
        more = f" and {len(once) - 1} more" if len(once) > 1 else ""
        yield f"measured once, so that nothing is known of the spread: {once[0]}{more}"
    kind, n, found = max(levels, key=lambda level: _spread(level[2]))
    if _spread(found) > _WIDE_SPREAD:
        yield (
            f"repetitions differ by up to {_spread(found):.0%} ({KINDS[kind]}, n = {n}): the storage is busy, or a cache "
            "fills or warms up; measure again at a quiet hour, or longer"
        )


def _spread(found: Sequence[float]) -> float:
    """How far repetitions lie apart: (largest - smallest) / median."""
    return (max(found) - min(found)) / statistics.median(found)
