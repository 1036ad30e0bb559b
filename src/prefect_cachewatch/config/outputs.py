"""What a run leaves on the machine that runs it, beside the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field

from prefect_cachewatch.config.base import InputModel

__all__ = ["Outputs", "WatchOutputs"]


class WatchOutputs(InputModel):
    """What the watch over a running process leaves on the machine that runs it."""

    report: Path | None = Field(
        default=None, description="File for the last report as JSON; one is in the run directory too."
    )
    bundle: bool = Field(default=True, description="Whether a stall or a failure gets a post-mortem bundle.")
    bundle_dir: Path | None = Field(
        default=None, description="Where post-mortem bundles go; default in the user's state directory."
    )

    def absolute(self) -> Self:
        """The same files, for whoever stands in another directory."""
        return self.model_copy(update={name: path.absolute() for name, path in self if isinstance(path, Path)})


class Outputs(WatchOutputs):
    """What a generation leaves on the machine that runs it, beside the cache."""

    log: Path | None = Field(default=None, description="File for the generator's output; default in the run directory.")
    record: Path | None = Field(
        default=None,
        description="File for a trace of the growth, for cachewatch replay, or a directory that gets one a run.",
    )
