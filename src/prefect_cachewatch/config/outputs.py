"""The files that a run leaves on its machine besides the cache, and the storage limit that it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from prefect_cachewatch.config.quantities import InputModel, Shorthand

StreamOutput = Literal["auto", "always", "never"]


class Outputs(InputModel):
    """What a generation leaves on the machine that runs it, beside the cache."""

    report: Path | None = Field(
        default=None, description="File for the last report as JSON; one is in the run directory too."
    )
    bundle: bool = Field(default=True, description="Whether a stall or a failure gets a post-mortem bundle.")
    bundle_dir: Path | None = Field(
        default=None, description="Where post-mortem bundles go; default in the user's state directory."
    )
    log: Path | None = Field(default=None, description="File for the generator's output; default in the run directory.")
    record: Path | None = Field(
        default=None,
        description="File for the run's events, for cachewatch replay, or a directory that gets one a run.",
    )
    stream_output: StreamOutput = Field(
        default="auto",
        description="Whether the generator's output is logged by the flow run while it runs: auto means in the run of a "
        "deployment. At most 50 lines every 20 s after a burst of 200. A failure logs the last 50 lines in any case.",
    )

    def absolute(self) -> Self:
        """Return the same files with absolute paths, for a process in another directory."""
        return self.model_copy(update={name: path.absolute() for name, path in self if isinstance(path, Path)})


class Storage(Shorthand):
    """The storage that a cache lies on: each attempt waits for slots of the global concurrency limit of that name.

    In Python and YAML its name alone will do.
    """

    name: str = Field(min_length=1, max_length=200, description="Name of the storage and of its concurrency limit.")
    slots: int = Field(default=1, ge=1, le=100_000, description="Slots that an attempt occupies.")

    @classmethod
    def _read(cls, text: str) -> dict[str, Any]:
        return {"name": text}
