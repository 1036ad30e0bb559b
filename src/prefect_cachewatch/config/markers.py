"""Marker files that tell others how far a generation has come."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from prefect_cachewatch.config.base import InputModel

__all__ = ["MarkerFiles"]


class MarkerFiles(InputModel):
    """Files that are written for whoever else looks at the cache; absolute, or relative to the first cache directory."""

    started: Path | None = Field(
        default=None,
        description="Written before the generator is started, unless the cache is marked as completed already.",
    )
    completed: Path | None = Field(
        default=None, description="Written when the job has completed: by its exit, or when its server is ready."
    )

    @field_validator("started", "completed")
    @classmethod
    def _names_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and (path.name in ("", "..") or "\0" in str(path)):
            raise ValueError(f"marker {str(path)!r} names no file: write for example TT_METAL_CACHE_COMPLETED")
        return path
