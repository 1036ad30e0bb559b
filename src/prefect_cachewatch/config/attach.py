"""The job of watching a process that another program started."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from prefect_cachewatch.config.quantities import InputModel, OptionalSize, check_absolute
from prefect_cachewatch.measure.snapshot import DEFAULT_IGNORE


class AttachJob(InputModel):
    """A process that runs already, and the directories that it writes to."""

    pid: int | None = Field(
        default=None, ge=1, le=2**22, description="Process id of the generator; on the machine that runs the watch."
    )
    container: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        max_length=255,
        description="Name or id of a container that runs, instead of a process.",
    )
    engine: str | None = Field(
        default=None, max_length=1000, description="The container's engine, as unix:///path; default as docker's own."
    )
    start_ticks: int | None = Field(
        default=None,
        ge=0,
        description="Its start time in clock ticks since boot (field 22 of /proc/PID/stat): refused if the process of this "
        "pid is another one by now. Default: whoever has the pid when the watch begins.",
    )
    cache_dirs: list[Path] = Field(
        min_length=1,
        max_length=64,
        description="Directories that must grow; absolute paths, and they must exist. Growth in any of them is progress. "
        "Of a container also paths inside it, below one of its mounts.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the cache; it names runs and artifacts. Default: the last part of the first directory.",
    )
    on_stall: Literal["stop", "report"] = Field(
        default="report",
        description="What a stall leads to; report: it is said, report and post-mortem are written, and the process is left alone and "
        "watched on; stop: the same, and it is stopped with everything that belongs to it.",
    )
    wait_for: Literal["leader", "tree"] = Field(
        default="leader",
        description="leader: the watch ends with the process itself; tree: when what it started has ended too.",
    )
    expected_bytes: OptionalSize = Field(
        default=None,
        gt=0,
        le=10**16,
        description="Size of the finished cache in bytes, if known: gives a progress bar.",
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

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if (self.pid is None) == (self.container is None):
            raise ValueError("give either the pid of a process or the name of a container, not both and not none")
        if self.container is None and self.engine is not None:
            raise ValueError("an engine is a container's: name the container too")
        if self.container is not None and self.start_ticks is not None:
            raise ValueError("start_ticks is a process's: give the container's id instead of its name")
        return self

    @property
    def subject(self) -> str:
        """The process or container that it names, for the names of runs."""
        return str(self.pid) if self.pid is not None else str(self.container)

    @field_validator("cache_dirs")
    @classmethod
    def _absolute(cls, paths: list[Path]) -> list[Path]:
        check_absolute(paths)
        return paths
