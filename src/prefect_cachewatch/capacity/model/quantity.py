"""Field types of the planner's models beside durations and sizes: names, and rates, written as `125MiB/s` too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_cachewatch.common.units import NUMBER_PATTERN, parse_bytes
from prefect_cachewatch.config.quantities import Quantity

__all__ = ["BytesPerSecond", "Name", "OptionalBytesPerSecond", "parse_rate"]

_UNIT = r"(?:[kKmMgGtT](?:[iI]?[bB](?:[iI][tT])?)?|[bB](?:[iI][tT])?)"
_PATTERN = rf"^\s*{NUMBER_PATTERN}\s*{_UNIT}?\s*(?:/s|ps)?\s*$"


def parse_rate(text: str) -> float:
    """Read a rate such as `125MiB/s`, `15GB/s`, `10Gbit/s` or a bare number of bytes per second.

    Args:
        text: the rate; bits are powers of 1000, bytes as in `parse_bytes`.

    Returns:
        Bytes per second.

    Raises:
        ValueError: if it is not a rate; the message says what one looks like.

    Example:
        >>> parse_rate("125MiB/s"), parse_rate("10Gbit/s")
        (131072000.0, 1250000000.0)
    """
    compact = text.strip().replace(" ", "")
    amount = compact.removesuffix("/s").removesuffix("ps")
    if amount.lower().endswith("bit"):
        return parse_bytes(amount[:-3] + "B" if amount[-4:-3].isalpha() else amount[:-3]) / 8
    try:
        return float(parse_bytes(amount))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate: write it like 125MiB/s, 15GB/s or 10Gbit/s") from None


_RATE = Quantity("rate", parse_rate, _PATTERN)
BytesPerSecond = Annotated[float, _RATE]
OptionalBytesPerSecond = Annotated[float | None, _RATE]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
