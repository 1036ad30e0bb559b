"""The user's settings for a run's metrics."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from prefect_cachewatch.config.quantities import Shorthand
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.metrics.destination import parse_destination


class Metrics(Shorthand):
    """Prometheus metrics of a run, on the machine that runs it; in Python and YAML the destination alone is enough."""

    to: str = Field(description="HOST:PORT, :PORT on loopback, or file:DIRECTORY for node-exporter.")

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        return {"to": text}

    @field_validator("to")
    @classmethod
    def _destination(cls, where: str) -> str:
        try:
            parse_destination(where)
        except InputError as error:
            raise ValueError(error.message) from None
        return where
