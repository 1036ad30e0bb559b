"""Rates and operations as people write them, and numbers as a plan says them: at most three digits, units as written."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from prefect_cachewatch.common.units import NUMBER_PATTERN, parse_bytes
from prefect_cachewatch.config.quantities import Quantity

#: Links that have a name, in bytes per second.
LINE_RATES = {"10G": 1.25e9, "25G": 3.125e9, "40G": 5e9, "100G": 12.5e9}
_UNIT = r"(?:[kKmMgGtT](?:[iI]?[bB](?:[iI][tT])?)?|[bB](?:[iI][tT])?)"
_DECIMAL = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def parse_rate(text: str) -> float:
    """Read a rate such as `125MiB/s`, `15GB/s`, `10Gbit/s`, a link's name such as `10G`, or a number of bytes per second.

    Args:
        text: the rate; bits are powers of 1000, bytes as in `parse_bytes`.

    Returns:
        Bytes per second.

    Raises:
        ValueError: if it is not a rate; the message says what one looks like.

    Example:
        >>> parse_rate("125MiB/s"), parse_rate("10Gbit/s"), parse_rate("40G")
        (131072000.0, 1250000000.0, 5000000000.0)
    """
    name = text.strip().upper()
    if name in LINE_RATES:
        return LINE_RATES[name]
    if bare := re.fullmatch(r"([0-9.]+ ?[KMGT])(/S|PS)?", name):
        raise ValueError(f"{text[:40]!r} may mean bits or bytes: write it like {bare[1]}bit/s or {bare[1]}B/s")
    amount = text.strip().replace(" ", "").removesuffix("/s").removesuffix("ps")
    try:
        if amount.lower().endswith("bit"):
            return parse_bytes(amount[:-3] + "B" if amount[-4:-3].isalpha() else amount[:-3]) / 8
        return float(parse_bytes(amount))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a rate: write it like 125MiB/s, 15GB/s or 10Gbit/s") from None


def parse_per_second(text: str) -> float:
    """Read a number of operations or files per second such as `1M`, `250k/s` or `4000`.

    Args:
        text: the number; k, M and G are powers of 1000.

    Returns:
        How many a second.

    Raises:
        ValueError: if it is not such a number; the message says what one looks like.

    Example:
        >>> parse_per_second("1M"), parse_per_second("250k/s"), parse_per_second("1.5e6")
        (1000000.0, 250000.0, 1500000.0)
    """
    amount = text.strip().replace(" ", "").removesuffix("/s")
    try:
        if amount[-1:] in "bBtT":
            raise ValueError
        return float(parse_bytes(amount))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a number per second: write it like 1M or 250k/s") from None


_RATE_PATTERN = rf"^\s*{NUMBER_PATTERN}\s*{_UNIT}?\s*(?:/s|ps)?\s*$"
_RATE = Quantity("rate", parse_rate, _RATE_PATTERN)
_PER_SECOND = Quantity("number per second", parse_per_second, rf"^\s*{NUMBER_PATTERN}\s*[kKmMgG]?\s*(?:/s)?\s*$")
BytesPerSecond = Annotated[float, Field(ge=1, le=1e15), _RATE]
OptionalBytesPerSecond = Annotated[float | None, Field(ge=1, le=1e15), _RATE]
#: No network link is slower: who writes 10 means 10G.
OptionalLineRate = Annotated[float | None, Field(ge=1e5, le=1e15), _RATE]
OptionalPerSecond = Annotated[float | None, Field(ge=1e-3, le=1e15), _PER_SECOND]


def say_number(value: float) -> str:
    """Write a number with at most three digits.

    Example:
        >>> say_number(0.04567), say_number(14), say_number(1234), say_number(62500), say_number(1e6)
        ('0.046', '14', '1.23k', '62.5k', '1M')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.9995:
            return f"{value / size:.3g}{letter}" if value < 999.5e12 else f"{value:.1e}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


def say_bytes(size_bytes: float, binary: bool = False) -> str:
    """Write a size with at most three digits, in the kind of unit that the plan was written in.

    Args:
        size_bytes: bytes, not negative.
        binary: in GiB, not GB.

    Example:
        >>> say_bytes(2e9), say_bytes(2**31, binary=True), say_bytes(680e6), say_bytes(12)
        ('2 GB', '2 GiB', '680 MB', '12 bytes')
    """
    for size, name in _BINARY if binary else _DECIMAL:
        if size_bytes >= size * 0.9995:
            return f"{say_number(size_bytes / size)} {name}"
    return f"{size_bytes:.3g} byte{'s' * (size_bytes != 1)}"


def say_time(seconds: float) -> str:
    """Write a time with at most three digits.

    Example:
        >>> [say_time(s) for s in (0.0235, 0.376, 4.72, 13.3, 100, 702, 9912, 40000, 9e5)]
        ['23.5 ms', '376 ms', '4.7 s', '13 s', '100 s', '11.7 min', '2 h 45 min', '11.1 h', '10.4 days']
    """
    if 0 < seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-4 else "<0.1 ms"
    if seconds < 119.5:
        return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
    if seconds < 5970:
        return f"{seconds / 60:.3g} min"
    if seconds < 9.99 * 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.3g} h"
    return f"{say_number(seconds / 86400)} days"
