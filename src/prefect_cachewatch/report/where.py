"""Where an attempt ran, and with which windows, as lines for people: a pid means nothing without its host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_cachewatch.common.units import format_duration


def describe_attempt(attempt: int, attempts: int | None) -> str:
    """Say which attempt it is, of how many.

    Example:
        >>> describe_attempt(2, 3), describe_attempt(1, None)
        ('2 of 3', '1')
    """
    return f"{attempt} of {attempts}" if attempts is not None and attempts >= attempt else str(attempt)


def where_rows(where: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Write the report's section `where` as labels and values.

    Args:
        where: the section as JSON; none in a report of an earlier version.

    Returns:
        A row for the host and for each thing that is known besides.

    Example:
        >>> windows = {"first_write_within_s": 1200, "stall_after_s": 300, "warmup_within_s": None, "max_duration_s": None}
        >>> where_rows({"host": "gpu-7", "user": "ml", "pid": 7, "windows": windows})
        [('Host', 'gpu-7, pid 7 of ml'), ('Windows', 'first byte 20 minutes, growth 5 minutes')]
    """
    if not where:
        return []
    rows = [("Host", f"{where['host']}, pid {where['pid']} of {where['user']}")]
    for label, name in (("Worker", "worker"), ("Flow run", "flow_run"), ("Log of the generator", "log")):
        if where.get(name):
            rows.append((label, str(where[name])))
    windows = where.get("windows") or {}
    shown = [
        f"{label} {format_duration(windows[name])}"
        for label, name in (
            ("first byte", "first_write_within_s"), ("growth", "stall_after_s"), ("warm-up", "warmup_within_s"),
            ("in all", "max_duration_s"),
        )
        if windows.get(name) is not None
    ]  # fmt: skip
    return [*rows, ("Windows", ", ".join(shown))] if shown else rows
