"""What people write: the job, and the policies of stall, stop and retry.

Pydantic models with bounds and a description on each field, so that the Prefect UI's form
explains itself. Nothing here looks at the machine: that is the pre-flight's work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["CACHE_DIR_PLACEHOLDER", "DEFAULT_IGNORE", "CacheJob", "RetryPolicy", "StallPolicy", "StopPolicy"]

# Stands for the directory that a store gives to a build, in commands, environments and cache_dirs.
CACHE_DIR_PLACEHOLDER = "{cache_dir}"
DEFAULT_IGNORE = ("*.log", "*.lock", ".nfs*")
_WEEK_S = 7 * 86400.0
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

EnvName = Annotated[str, Field(pattern=_ENV_NAME)]


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class CacheJob(_Input):
    """One tensor-cache generation: what to run, and which directories to watch grow."""

    name: str = Field(
        min_length=1,
        max_length=200,
        description="Name of the cache, for example llama-3-70b-n300; it names runs and artifacts.",
    )
    command: list[str] = Field(
        min_length=1,
        description="The generator as an argument list, one entry a word; no shell reads it.",
    )
    cache_dirs: list[Path] = Field(
        default=[Path(CACHE_DIR_PLACEHOLDER)],
        min_length=1,
        max_length=64,
        description="Absolute paths of the directories it writes to; created if missing. Growth in any of them is progress. "
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
    expected_bytes: int | None = Field(
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

    @field_validator("cache_dirs")
    @classmethod
    def _absolute(cls, paths: list[Path]) -> list[Path]:
        for path in paths:
            if path.parts[:1] == (CACHE_DIR_PLACEHOLDER,):
                continue
            if not path.is_absolute():
                raise ValueError(f"cache directory {str(path)!r} is not an absolute path: write it from / on")
            if "\0" in str(path):
                raise ValueError("a cache directory's path has a NUL character in it")
        return paths

    @field_validator("command")
    @classmethod
    def _runnable(cls, command: list[str]) -> list[str]:
        if not command[0]:
            raise ValueError("the command's first word is empty: name the program to run")
        if any("\0" in word for word in command):
            raise ValueError("the command has a NUL character in it")
        return command


class StallPolicy(_Input):
    """When silence is a stall. All times in seconds."""

    stall_after_s: float = Field(
        default=300,
        ge=0.2,
        le=_WEEK_S,
        description="No growth for this long, once writing has begun, is a stall.",
    )
    first_write_within_s: float = Field(
        default=1200,
        ge=0.2,
        le=_WEEK_S,
        description="The first byte must come within this time; real servers load for 5 to 20 minutes before it.",
    )
    poll_s: float = Field(
        default=15,
        ge=0.05,
        le=3600,
        description="Time between two measurements; shortened where a window is less than two polls.",
    )
    min_growth_bytes: int = Field(
        default=4096,
        ge=1,
        le=2**40,
        description="Growth below this many bytes since the last progress is no progress.",
    )
    progress: Literal["bytes", "any"] = Field(
        default="bytes",
        description="bytes: only growth counts; any: a changed modification time counts too, "
        "for generators that fill preallocated files.",
    )
    churn_after_s: float | None = Field(
        default=None,
        ge=0.2,
        le=4 * _WEEK_S,
        description="Writing for this long without keeping anything is a stall named churning; default 4 x stall_after_s.",
    )
    max_duration_s: float | None = Field(
        default=None,
        ge=0.2,
        le=4 * _WEEK_S,
        description="Wall-clock limit of one attempt, whatever it writes; default none.",
    )
    adaptive: Literal["off", "extend"] = Field(
        default="off",
        description="extend: lengthen the stall window to 3 x the longest pause so far, at most 4 x stall_after_s.",
    )
    unresponsive_after_s: float | None = Field(
        default=None,
        ge=0.2,
        le=_WEEK_S,
        description="A cache directory that cannot be measured for this long (hung file system, lost permission, "
        "directory gone) ends the run; default stall_after_s.",
    )
    attribute_cache_s: float | None = Field(
        default=None,
        ge=0,
        le=86400,
        description="On a network file system, how old this host's view of a file's size may be (NFS acregmax: 60 s); "
        "the stall windows are longer by as much. Default none.",
    )


class StopPolicy(_Input):
    """How a generator's process tree is stopped."""

    grace_s: float = Field(
        default=10,
        ge=0,
        le=3600,
        description="Seconds between SIGTERM and SIGKILL for every process of the tree.",
    )


class RetryPolicy(_Input):
    """Whether and when a failed attempt is made again; bad input never is."""

    attempts: int = Field(default=3, ge=1, le=100, description="Attempts in all, the first included.")
    backoff_s: float = Field(default=30, ge=0, le=86400, description="Pause before the second attempt.")
    factor: float = Field(default=2, ge=1, le=10, description="Each further pause is this many times longer.")
    max_backoff_s: float = Field(default=600, ge=0, le=86400, description="The longest pause between attempts.")
    jitter: float = Field(
        default=0.2, ge=0, le=1, description="Random share by which a pause is lengthened or shortened."
    )
    no_progress_attempts: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Give up early when this many attempts in a row did not take the cache beyond its largest size so far.",
    )
    on_retry: Literal["resume", "clean"] = Field(
        default="resume",
        description="resume: keep the partial files; clean: remove what this job's attempts wrote.",
    )
    retry_stalls: bool = Field(default=True, description="Whether a stall is tried again.")
    retry_exit_codes: list[int] | None = Field(
        default=None,
        description="Exit codes of the generator that are tried again; default: every non-zero one but 126 and 127.",
    )

    def backoff_before(self, attempt: int, random: float) -> float:
        """Say how long to wait before an attempt: backoff_s x factor^(attempt - 2), capped, jittered.

        Args:
            attempt: the attempt to come, 2 or more.
            random: uniform in [0, 1).

        Returns:
            Seconds.

        Example:
            >>> RetryPolicy(backoff_s=30, jitter=0).backoff_before(4, 0.5)
            120.0
        """
        # The exponent is capped: 10^98 is no float problem, 10^400 would be.
        raw = min(self.max_backoff_s, self.backoff_s * self.factor ** min(attempt - 2, 200))
        return float(raw * (1 + self.jitter * (2 * random - 1)))
