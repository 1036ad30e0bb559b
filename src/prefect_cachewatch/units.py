"""Durations and sizes as people write and read them; no clock and no files here."""

from __future__ import annotations

import math
import re

__all__ = ["format_bytes", "format_duration", "parse_bytes", "parse_duration"]

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|[smhd])")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)")


def parse_duration(text: str) -> float:
    """Read a duration such as `90s`, `5m`, `1h30m` or a bare number of seconds.

    Args:
        text: the duration; units ms, s, m, h, d, largest first or in any order.

    Returns:
        Seconds, positive or zero.

    Raises:
        ValueError: if it is not a duration; the message says what one looks like.

    Example:
        >>> parse_duration("1h30m")
        5400.0
    """
    compact = text.strip().lower().replace(" ", "")
    if _NUMBER.fullmatch(compact):
        return float(compact)
    parts = _DURATION.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is not a duration: write it like 90s, 5m or 1h30m")
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_bytes(text: str) -> int:
    """Read a size such as `4KiB`, `10MB` or a bare number of bytes.

    Args:
        text: the size; kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024.

    Returns:
        Bytes, rounded down.

    Raises:
        ValueError: if it is not a size; the message says what one looks like.

    Example:
        >>> parse_bytes("4KiB"), parse_bytes("10MB")
        (4096, 10000000)
    """
    match = _SIZE.fullmatch(text.strip())
    if not match or match[2].lower() not in _BYTES:
        raise ValueError(f"{text!r} is not a size: write it like 4096, 4KiB or 10MB")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def format_bytes(size_bytes: float) -> str:
    """Write a size for a person, in powers of 1024.

    Args:
        size_bytes: bytes, not negative.

    Returns:
        Three significant digits and a unit.

    Example:
        >>> format_bytes(1159641170)
        '1.08 GiB'
    """
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            if unit == "B":
                return f"{size:.0f} B"
            return f"{size:.2f} {unit}" if size < 10 else f"{size:.1f} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Write a duration for a person, at most two units.

    Args:
        seconds: not negative.

    Returns:
        `5 minutes`, `72 s`, `1 h 30 min`, `2.5 s`.

    Example:
        >>> format_duration(300), format_duration(72), format_duration(5400), format_duration(2.5)
        ('5 minutes', '72 s', '1 h 30 min', '2.5 s')
    """
    if seconds < 10 and abs(seconds - round(seconds)) > 0.05:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole >= 120 and whole % 60 == 0 and whole < 7200:
        return f"{whole // 60} minutes"
    if whole < 120:
        return "1 minute" if whole == 60 else f"{whole} s"
    if whole < 7200 and whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours, minutes = whole // 3600, (whole % 3600) // 60
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
