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
)

_LEARNED, _MOST = "learned", "learned:"
# Of a retry: the longest pause, unless the first one is longer, and the share by which a pause varies.


def _parse_window(text: str) -> Any:
    """Read a duration; `learned`, or `learned:10m` with the longest window, stays as it is for `split_learned`."""
    if text.startswith(_MOST):
        parse_duration(text.removeprefix(_MOST))
    return text if text == _LEARNED or text.startswith(_MOST) else parse_duration(text)


#: The window as the command takes it. A form has the field `learned` beside it instead.
WINDOW = Quantity("duration", _parse_window, f"{DURATION_PATTERN}|^{_LEARNED}$|^{_LEARNED}:.+$")


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
        "progress",
        "unresponsive_after_s",
        "attribute_cache_s",
    )

    stall_after_s: Duration = Field(
        default=300,
        ge=0.2,
        le=WEEK_S,
        description="No growth for this long is a stall; counted once writing has begun.",
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
        "never less than stall_after_s.",
    )
    poll_s: Duration = Field(
        default=15,
        ge=0.05,
        le=3600,
        description="Longest time between two measurements; one also falls on each moment at which a window ends, and the poll is "
        "shortened where a window is less than two of them.",
    )
    progress: Literal["bytes", "any"] = Field(
        default="bytes",
        description="bytes: only growth counts; any: a changed modification time counts too, "
        "for generators that fill preallocated files.",
    )
    max_duration_s: OptionalDuration = Field(
        default=None,
        ge=0.2,
        le=4 * WEEK_S,
        description="Time limit of one attempt; by the wall clock, whatever it writes. Default none.",
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


class RetryPolicy(InputModel):
    """Whether and when a failed attempt is made again; bad input never is."""

    ADVANCED = ("retry_exit_codes",)

    attempts: int = Field(default=3, ge=1, le=100, description="Attempts in all, the first included.")
    backoff_s: Duration = Field(
        default=30,
        ge=0,
        le=86400,
        description="Pause before the second attempt; each further one is twice as long, at most 10 minutes.",
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
        description="Command that runs before each further attempt, at most 5 minutes, such as tt-smi -r to reset a device; "
        "if it fails, there is no further attempt.",
    )
