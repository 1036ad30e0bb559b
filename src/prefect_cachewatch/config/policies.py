"""The policies of stall, stop and retry."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from prefect_cachewatch.config.quantities import WEEK_S, Duration, InputModel, OptionalDuration, Size

__all__ = ["RetryPolicy", "StallPolicy", "StopPolicy"]


class StallPolicy(InputModel):
    """When silence is a stall. All times in seconds."""

    ADVANCED = (
        "warmup_within_s",
        "min_growth_bytes",
        "progress",
        "churn_after_s",
        "adaptive",
        "unresponsive_after_s",
        "attribute_cache_s",
    )

    stall_after_s: Duration = Field(
        default=300,
        ge=0.2,
        le=WEEK_S,
        description="No growth for this long is a stall; counted once writing has begun.",
    )
    first_write_within_s: Duration = Field(
        default=1200,
        ge=0.2,
        le=WEEK_S,
        description="The first byte must come within this; real servers load for 5 to 20 minutes before it.",
    )
    warmup_within_s: Duration = Field(
        default=1800,
        ge=0.2,
        le=WEEK_S,
        description="For a job that starts a server: the longest silence after its last byte until it is ready; "
        "never less than stall_after_s.",
    )
    poll_s: Duration = Field(
        default=15,
        ge=0.05,
        le=3600,
        description="Time between two measurements; shortened where a window is less than two polls.",
    )
    min_growth_bytes: Size = Field(
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
    churn_after_s: OptionalDuration = Field(
        default=None,
        ge=0.2,
        le=4 * WEEK_S,
        description="Writing for this long without keeping anything is a stall named churning; default 4 x stall_after_s.",
    )
    max_duration_s: OptionalDuration = Field(
        default=None,
        ge=0.2,
        le=4 * WEEK_S,
        description="Time limit of one attempt; by the wall clock, whatever it writes. Default none.",
    )
    adaptive: Literal["off", "extend"] = Field(
        default="off",
        description="extend: lengthen the stall window to 3 x the longest pause so far, at most 4 x stall_after_s.",
    )
    unresponsive_after_s: OptionalDuration = Field(
        default=None,
        ge=0.2,
        le=WEEK_S,
        description="A cache directory that cannot be measured for this long (hung file system, lost permission, "
        "directory gone) ends the run; default stall_after_s.",
    )
    attribute_cache_s: OptionalDuration = Field(
        default=None,
        ge=0,
        le=86400,
        description="On a network file system, how old this host's view of a file's size may be (NFS acregmax: 60 s); "
        "the stall windows are longer by as much. Default none.",
    )


class StopPolicy(InputModel):
    """How a generator's process tree is stopped."""

    grace_s: Duration = Field(
        default=10,
        ge=0,
        le=3600,
        description="Time between SIGTERM and SIGKILL; for every process of the tree.",
    )


class RetryPolicy(InputModel):
    """Whether and when a failed attempt is made again; bad input never is."""

    ADVANCED = (
        "factor",
        "max_backoff_s",
        "jitter",
        "no_progress_attempts",
        "retry_exit_codes",
    )

    attempts: int = Field(default=3, ge=1, le=100, description="Attempts in all, the first included.")
    backoff_s: Duration = Field(default=30, ge=0, le=86400, description="Pause before the second attempt.")
    factor: float = Field(default=2, ge=1, le=10, description="Each further pause is this many times longer.")
    max_backoff_s: Duration = Field(default=600, ge=0, le=86400, description="The longest pause between attempts.")
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
        description="What becomes of partial files; resume: they stay, clean: those that the attempt before is known to have made are removed.",
    )
    retry_stalls: bool = Field(default=True, description="Whether a stall is tried again.")
    retry_exit_codes: list[int] | None = Field(
        default=None,
        description="Exit codes of the generator that are tried again; default: all of a failure but 126 and 127.",
    )

    def backoff_before(self, attempt: int, random: float) -> float:
        """Return how long to wait before an attempt: backoff_s x factor^(attempt - 2), capped, jittered.

        Args:
            attempt: the next attempt, 2 or more.
            random: uniform in [0, 1).

        Returns:
            Seconds.

        Example:
            >>> RetryPolicy(backoff_s=30, jitter=0).backoff_before(4, 0.5)
            120.0
        """
        # The exponent is capped: 10^98 fits a float, 10^400 does not.
        raw = min(self.max_backoff_s, self.backoff_s * self.factor ** min(attempt - 2, 200))
        return float(raw * (1 + self.jitter * (2 * random - 1)))
