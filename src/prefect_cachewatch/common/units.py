"""Parses and formats durations, sizes and moments; reads no clock and no file."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
NUMBER_PATTERN = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?"
_TIME = r"(?:[mM][sS]|[sSmMhHdD])"
#: The input of `parse_duration` and `parse_bytes` as JSON schema patterns (ECMA 262), and its longest length in
#: characters.
DURATION_PATTERN = rf"^\s*(?:{NUMBER_PATTERN}|{NUMBER_PATTERN}\s*{_TIME}(?:\s*{NUMBER_PATTERN}\s*{_TIME})*)\s*$"
SIZE_PATTERN = rf"^\s*{NUMBER_PATTERN}\s*(?:[kKmMgGtT](?:[iI]?[bB])?|[bB])?\s*$"
QUANTITY_CHARACTERS = 100
_SHOWN = 40
_DURATION, _DURATION_PART = re.compile(DURATION_PATTERN), re.compile(rf"({NUMBER_PATTERN})\s*({_TIME}?)")
_SIZE = re.compile(SIZE_PATTERN)
_SIZE_PART = re.compile(r"([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?\s*([a-zA-Z]*)")


def parse_duration(text: str) -> float:
    """Read a duration such as `90s`, `5m`, `1h30m` or a bare number of seconds.

    Args:
        text: the duration; units ms, s, m, h, d, largest first or in any order.

    Returns:
        Seconds, positive or zero.

    Raises:
        ValueError: it is not a duration; the message shows a valid one.

    Example:
        >>> parse_duration("1h30m")
        5400.0
    """
    if len(text) > QUANTITY_CHARACTERS or not _DURATION.match(text):
        raise ValueError(f"{text[:_SHOWN]!r} is not a duration: write it like 90s, 5m or 1h30m")
    return math.fsum(float(number) * _SECONDS[unit.lower() or "s"] for number, unit in _DURATION_PART.findall(text))


def parse_bytes(text: str) -> int:
    """Read a size such as `4KiB`, `10MB` or a bare number of bytes.

    Args:
        text: the size; kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024.

    Returns:
        Bytes, rounded down.

    Raises:
        ValueError: it is not a size; the message shows a valid one.

    Example:
        >>> parse_bytes("4KiB"), parse_bytes("10MB")
        (4096, 10000000)
    """
    if len(text) > QUANTITY_CHARACTERS or not _SIZE.match(text):
        raise ValueError(f"{text[:_SHOWN]!r} is not a size: write it like 4096, 4KiB or 10MB")
    part = _SIZE_PART.match(text.strip())
    assert part is not None
    size, shift = int(part[1] + part[2]) * _BYTES[part[4].lower()], int(part[3] or 0) - len(part[2])
    return size * int(10**shift) if shift >= 0 else size // int(10**-shift)  # exact, unlike a float


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
        if round(size) < 1024 or unit == "TiB":
            if unit == "B":
                return f"{size:.0f} B"
            return f"{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} {unit}"
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
    if 120 <= whole < 3600 and whole % 60 == 0:
        return f"{whole // 60} minutes"
    if whole < 120:
        return "1 minute" if whole == 60 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole >= 172800:
        days, hours = whole // 86400, (whole % 86400) // 3600
        if days >= 10**6:
            return f"{days:.1e} days"
        return f"{days} days {hours} h" if hours else f"{days} days"
    hours, minutes = whole // 3600, (whole % 3600) // 60
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things for a person.

    Args:
        count: how many.
        noun: what one of them is called.
        plural: what several are called; default the noun with an s.

    Example:
        >>> format_count(1, "file"), format_count(2340, "file"), format_count(0, "directory", "directories")
        ('1 file', '2,340 files', '0 directories')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_moment(seconds: float) -> str:
    """Format a moment in ISO 8601, in UTC, to the millisecond.

    Args:
        seconds: since the epoch.

    Returns:
        The text.

    Raises:
        OverflowError: there is no such year.
        ValueError: likewise.
        OSError: likewise.

    Example:
        >>> format_moment(1700000000.25)
        '2023-11-14T22:13:20.250+00:00'
    """
    from datetime import UTC, datetime  # noqa: PLC0415 - a quarter of a megabyte, needed at the end

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def short_moment(text: object) -> str:
    """Write a moment of a report to the minute, in UTC; `-` for what is no moment.

    Example:
        >>> short_moment("2026-01-31T23:59:59.120+00:00"), short_moment("2026-01-31T23:59:59+02:00"), short_moment(None)
        ('2026-01-31 23:59', '2026-01-31 21:59', '-')
    """
    from datetime import UTC, datetime  # noqa: PLC0415 - as in `format_moment`

    try:
        moment = datetime.fromisoformat(str(text))
        return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return "-"
