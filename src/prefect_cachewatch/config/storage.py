"""The storage that admits a run."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from prefect_cachewatch.config.base import InputModel

__all__ = ["Storage"]


class Storage(InputModel):
    """The storage that a cache lies on: each attempt waits for slots of the global concurrency limit of that name.

    In Python and YAML its name alone will do.
    """

    name: str = Field(min_length=1, max_length=200, description="Name of the storage and of its concurrency limit.")
    slots: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Slots that an attempt occupies; default what plan-capacity stored, else 1.",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given
