"""Field types of the planner's models: numbers with a unit that people may also write as text.

`2GB`, `10m` and `125MiB/s` become bytes, seconds and bytes per second; plain numbers stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from prefect_cachewatch.common.units import parse_bytes, parse_duration

__all__ = ["Bytes", "BytesPerSecond", "Model", "Name", "Seconds", "parse_rate"]


class Model(BaseModel):
    """Base of the planner's inputs: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


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


def _number_or(parse: Callable[[str], float], value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)  # 2e9, which YAML 1.1 reads as text
    except ValueError:
        return parse(value)


def _duration(value: Any) -> Any:
    return _number_or(parse_duration, value)


def _size(value: Any) -> Any:
    return _number_or(parse_bytes, value)


def _rate(value: Any) -> Any:
    return _number_or(parse_rate, value)


Seconds = Annotated[float, BeforeValidator(_duration), Field(allow_inf_nan=False)]
Bytes = Annotated[float, BeforeValidator(_size), Field(allow_inf_nan=False)]
BytesPerSecond = Annotated[float, BeforeValidator(_rate), Field(allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
