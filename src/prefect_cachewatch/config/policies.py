"""The policies of stall, stop and retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from prefect_cachewatch.common.units import DURATION_PATTERN, parse_duration
from prefect_cachewatch.config.quantities import (
    WEEK_S,
    Duration,
    InputModel,
    OptionalDuration,
    Quantity,
    Size,
)

# What may be changed before the next attempt; docs/retries.md has what each does.
Change = Literal["another_worker", "kernel_cache", "no_xet", "unlock", "clean", "reset"]

_LEARNED, _MOST = "learned", "learned:"


def _parse_window(text: str) -> Any:
    """Read a duration; `learned`, or `learned:10m` with the longest window, stays as it is for `split_learned`."""
    if text.startswith(_MOST):
        parse_duration(text.removeprefix(_MOST))
    return text if text == _LEARNED or text.startswith(_MOST) else parse_duration(text)


_WINDOW = Quantity("duration", _parse_window, f"{DURATION_PATTERN}|^{_LEARNED}$|^{_LEARNED}:.+$")


def split_learned(written: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a stall policy's `stall_after_s: learned` by the two fields that it stands for.

    Args:
        written: fields of a `StallPolicy`.

    Returns:
        The fields; unchanged with any other window.

    Example:
        >>> split_learned({"stall_after_s": "learned:10m"}), split_learned({"stall_after_s": "learned"})
        ({'stall_after_s': '10m', 'learned': True}, {'learned': True})
    """
    window = written.get("stall_after_s")
    if not isinstance(window, str) or not (window == _LEARNED or window.startswith(_MOST)):
        return dict(written)
    most = {"stall_after_s": window.removeprefix(_MOST)} if window != _LEARNED else {}
    return {**{name: value for name, value in written.items() if name != "stall_after_s"}, **most, "learned": True}


class StallPolicy(InputModel):
    """When silence is a stall. All times in seconds."""

    ADVANCED = (
        "warmup_within_s",
        "min_growth_bytes",
        "progress",
        "churn_after_s",
        "adaptive",
        "unresponsive_after_s",
        "no_space_after_s",
        "attribute_cache_s",
    )

    stall_after_s: Annotated[float, _WINDOW] = Field(
        default=300,
        ge=0.2,
        le=WEEK_S,
        description="No growth for this long is a stall; counted once writing has begun. learned, or learned:10m: "
        "learned from earlier runs, never longer than this.",
    )
    learned: bool = Field(
        default=False,
        description="Shorten each window to 1.5 x the longest pause of the last runs of this job on this storage, from "
        "5 completed runs on; a run that such a window stopped is run once more with the configured ones.",
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
        "never less than stall_after_s, unless the job names what begins its warm-up.",
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
    no_space_after_s: Duration = Field(
        default=30,
        ge=0.2,
        le=WEEK_S,
        description="Silence for this long is a stall where no write can succeed (disk full, no inode, quota used up, "
        "read-only) and the tree neither computes nor reads; looked at three times.",
    )
    attribute_cache_s: OptionalDuration = Field(
        default=None,
        ge=0,
        le=86400,
        description="On a network file system, how old this host's view of a file's size may be (NFS acregmax: 60 s); "
        "the stall windows are longer by as much. Default none.",
    )

    @model_validator(mode="before")
    @classmethod
    def _split(cls, written: Any) -> Any:
        return split_learned(written) if isinstance(written, Mapping) else written


class StopPolicy(InputModel):
    """How a generator's process tree is stopped."""

    grace_s: Duration = Field(
        default=10,
        ge=0,
        le=3600,
        description="Time between SIGTERM and SIGKILL; for every process of the tree.",
    )


class CauseRetry(InputModel):
    """What follows an attempt that ended by one cause; what is left out stays as in the table of docs/retries.md."""

    again: bool | None = Field(
        default=None, description="Whether it is tried again; before every other rule but attempts."
    )
    pause_s: OptionalDuration = Field(default=None, ge=0, le=86400, description="The pause before the next attempt.")
    change: list[Change] | None = Field(
        default=None,
        description="What is changed before it: another_worker, kernel_cache, no_xet, unlock, clean, reset; [] for nothing.",
    )


class RetryPolicy(InputModel):
    """Whether and when a failed attempt is made again; bad input never is."""

    ADVANCED = (
        "before_retry_within_s",
        "by_cause",
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

    before_retry: list[Annotated[str, Field(max_length=4000)]] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Command that resets a device, such as tt-smi -r, before an attempt after a cause that a reset may mend; "
        "if it fails, there is no further attempt.",
    )
    before_retry_within_s: Duration = Field(
        default=300, ge=0.1, le=86400, description="The longest time of before_retry; then its whole tree is stopped."
    )
    another_worker: bool = Field(
        default=False,
        description="Whether an attempt is made again by any free worker of the pool if its cause may lie in the machine; "
        "other workers must see the same cache directories.",
    )
    by_cause: dict[Annotated[str, Field(pattern=r"^[a-z_]{1,64}$")], CauseRetry] = Field(
        default={},
        max_length=100,
        description="By category of the cause, what is to be different from the table of docs/retries.md.",
    )

    @property
    def may_clean(self) -> bool:
        """Whether files of an attempt may be removed before the next, which therefore have to be recorded."""
        return self.on_retry == "clean" or any("clean" in (own.change or ()) for own in self.by_cause.values())

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
