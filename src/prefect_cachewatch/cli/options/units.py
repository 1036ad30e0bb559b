"""Durations and sizes as types of options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from prefect_cachewatch.common.units import parse_bytes, parse_duration

__all__ = ["DURATION", "SIZE"]


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in click 8.2 and later only
    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int | float):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = _Parsed("duration", parse_duration)
SIZE = _Parsed("size", parse_bytes)
