"""The job of watching a process that another program started."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from prefect_cachewatch.config.quantities import InputModel, check_absolute
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE


class AttachJob(InputModel):
    """A process that runs already, and the directories that it writes to."""

    pid: int = Field(ge=1, le=2**22, description="Process id of the generator, on this machine.")
    cache_dirs: list[Path] = Field(
        min_length=1,
        max_length=64,
        description="Directories that must grow; absolute paths, and they must exist. Growth in any of them is progress.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the cache. Default: the last part of the first directory.",
    )
    on_stall: Literal["stop", "report"] = Field(
        default="report",
        description="What a stall leads to; report: it is said, report and post-mortem are written, and the process is left alone and "
        "watched on; stop: the same, and it is stopped with everything that belongs to it.",
    )
    allow_empty: bool = Field(
        default=False,
        description="Whether a cache that was empty when the watch began and is empty at the end is a success; default "
        "it is a failure, since most often cache_dirs names the wrong directory.",
    )
    ignore: list[str] = Field(
        default=list(DEFAULT_IGNORE),
        description="File name globs that never count as growth (a pattern with / is matched against the path).",
    )

    @field_validator("cache_dirs")
    @classmethod
    def _absolute(cls, paths: list[Path]) -> list[Path]:
        check_absolute(paths)
        return paths
