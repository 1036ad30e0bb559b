"""The job: what to run, and which directories must grow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from prefect_cachewatch.common.directories import CACHE_DIR_PLACEHOLDER
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.config.container import VOLUME_PREFIX, ContainerSpec
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.config.quantities import EnvName, InputModel, OptionalSize, check_absolute
from prefect_cachewatch.config.ready import ReadyOnExit, ReadyWhen, compile_pattern, prefer_any_of
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE

# Stands for the directory that a store assigns to a build, in commands, environments and cache_dirs.


class MarkerFiles(InputModel):
    """Marker files for other programs that look at the cache; absolute, or relative to the first cache directory."""

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


class CacheJob(InputModel):
    """One tensor-cache generation: what to run, and which directories to watch grow."""

    ADVANCED = (
        "ignore",
        "wait_for",
        "allow_empty",
        "progress_log",
        "markers",
    )

    name: str = Field(
        min_length=1,
        max_length=200,
        description="Name of the cache, for example llama-3-70b-n300; it names runs and artifacts.",
    )
    command: list[str] = Field(
        default=[],
        description="The generator as an argument list, one entry a word; no shell reads it. "
        "With a container, empty means the image's own.",
    )
    cache_dirs: list[Path] = Field(
        default=[Path(CACHE_DIR_PLACEHOLDER)],
        min_length=1,
        max_length=64,
        description="Directories that must grow; absolute paths, created if missing. Growth in any of them is progress. "
        "With a store, {cache_dir} is the build's own directory.",
    )
    env: dict[EnvName, str] = Field(
        default_factory=dict,
        description="Environment variables for the generator, on top of the worker's own.",
    )
    env_secrets: dict[EnvName, str] = Field(
        default_factory=dict,
        description="Variable name to the name of a Prefect Secret block; only the generator sees the value.",
    )
    cwd: Path | None = Field(default=None, description="Working directory of the generator; default: the worker's.")
    expected_bytes: OptionalSize = Field(
        default=None,
        gt=0,
        le=10**16,
        description="Size of the finished cache in bytes, if known: gives a progress bar and a check of free space.",
    )
    ignore: list[str] = Field(
        default=list(DEFAULT_IGNORE),
        description="File name globs that never count as growth (a pattern with / is matched against the path).",
    )
    wait_for: Literal["tree", "leader"] = Field(
        default="tree",
        description="tree: finished when the command and all its descendants have ended; "
        "leader: finished when the command itself ends, and what it left behind is stopped.",
    )
    on_stall: Literal["stop", "report"] = Field(
        default="stop",
        description="What a stall leads to; stop: the process tree is stopped; report: it is said what would have been stopped and "
        "why, and the generator is left alone, whose own end counts.",
    )
    allow_empty: bool = Field(
        default=False,
        description="Whether a cache that was empty at the start and is empty at the end is a success; default it is a failure, "
        "since most often cache_dirs names the wrong directory. A server that gets ready may always leave it empty.",
    )
    ready: ReadyWhen = Field(
        default=ReadyOnExit(),
        json_schema_extra=prefer_any_of,
        description="When the job is done: its exit, or for a server the moment at which it is ready.",
    )
    progress_log: list[str] = Field(
        default=[],
        max_length=16,
        description="Regular expressions for lines of progress in the output; a new match ends a pause as bytes do. Groups "
        "named done and total give a percentage and the time left.",
    )
    markers: Annotated[MarkerFiles | None, OFF] = Field(
        default=None, description="Marker files that are written at the start and at the end; default none."
    )
    container: Annotated[ContainerSpec | None, OFF] = Field(
        default=None, description="Run the generator in a container of this image, through Docker's or podman's API."
    )

    @field_validator("cache_dirs")
    @classmethod
    def _absolute(cls, paths: list[Path]) -> list[Path]:
        check_absolute(
            path
            for path in paths
            if path.parts[:1] != (CACHE_DIR_PLACEHOLDER,) and not str(path).startswith(VOLUME_PREFIX)
        )
        return paths

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: list[str]) -> list[str]:
        if command and not command[0]:
            raise ValueError("the command's first word is empty: name the program to run")
        if any("\0" in word for word in command):
            raise ValueError("the command has a NUL character in it")
        return command

    @field_validator("progress_log")
    @classmethod
    def _searchable(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            groups = compile_pattern(pattern).groupindex
            if "total" in groups and "done" not in groups:
                raise ValueError(
                    f"pattern '{for_terminal(pattern)}' has a group total and none named done: name what counts up to it"
                )
        return patterns

    @model_validator(mode="after")
    def _runs_somewhere(self) -> CacheJob:
        if self.container is None:
            if not self.command:
                raise ValueError("the job has no command: name the program to run, or a container to run it in")
            for path in self.cache_dirs:
                if str(path).startswith(VOLUME_PREFIX):
                    raise ValueError(
                        f"cache directory {str(path)!r} is in a container's volume, and the job has no container"
                    )
        elif self.cwd is not None:
            raise ValueError("cwd is a directory of the host: set container.workdir for one in the container")
        return self
