"""The settings of a probe, its progress, and its report.

Values only; `run` measures.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from prefect_cachewatch.capacity.probe.checks import Level, Phase, Sample, levels_of
from prefect_cachewatch.capacity.probe.target import ProbeTarget
from prefect_cachewatch.common.units import NUMBER_PATTERN
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, OptionalDuration, Quantity, Size

StopCause = Literal["time", "interrupted", "storage"]

MIN_REPETITIONS = 3
SHORTEST_RUN_S = 0.1


def _parse_share(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"{text!r} is not a share: write it like 5% or 0.05")
    return share


_SHARE = Quantity("share", _parse_share, rf"^\s*{NUMBER_PATTERN}%?\s*$")


class ProbeSettings(InputModel):
    """The limits of a probe: streams, bytes, time and the space that it leaves free."""

    max_concurrency: int = Field(
        default=16, ge=2, le=256, description="The most streams at once; measured at 1, 2, 4, ... up to it."
    )
    size_bytes: Size = Field(
        default=2**30,
        ge=16 * 2**20,
        le=10**15,
        description="The most bytes the probe has on the storage at once.",
    )
    time_s: Duration = Field(
        default=120,
        ge=1,
        le=86400,
        description="The longest it measures, in seconds; what was measured by then is kept.",
    )
    run_s: OptionalDuration = Field(
        default=None,
        ge=SHORTEST_RUN_S,
        le=3600,
        description="The longest one repetition takes, in seconds; none: an equal share of time_s.",
    )
    repetitions: int = Field(
        default=3,
        ge=MIN_REPETITIONS,
        le=50,
        description="Runs at each concurrency; medians and their spread are reported.",
    )
    keep_free: Annotated[float, _SHARE] = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="Share of the file system that stays free whatever size_bytes says.",
    )
    engine: Literal["auto", "fio", "direct"] = Field(
        default="auto",
        description="auto: fio where it is installed, else the probe's own threads with O_DIRECT.",
    )
    block_bytes: Size = Field(
        default=2**20, ge=4096, le=2**26, multiple_of=4096, description="Request size of streams."
    )
    random_block_bytes: Size = Field(
        default=2**16, ge=4096, le=2**26, multiple_of=4096, description="Request size of random reads."
    )
    network_ok: bool = Field(
        default=False,
        description="Probe a network file system too, which slows everyone who uses it meanwhile.",
    )


@dataclass(frozen=True)
class ProbeStep:
    """The progress of a probe: `done` of `total` repetitions, and the present one."""

    done: int
    total: int
    text: str


@dataclass(frozen=True)
class ProbeReport:
    """The measurements of a probe; `stopped` says why it ended early, None when it did not."""

    target: ProbeTarget
    engine: str
    direct: bool
    size_bytes: int
    block_bytes: int
    random_block_bytes: int
    started: datetime.datetime
    elapsed_s: float
    samples: tuple[Sample, ...]
    notes: tuple[str, ...]
    stopped: str | None = None
    stop_cause: StopCause | None = None

    @property
    def levels(self) -> tuple[Level, ...]:
        """Medians of each phase at each concurrency, in the order measured."""
        return tuple(levels_of(self.samples))

    def curve(self, phase: Phase) -> tuple[Level, ...]:
        """The levels of one phase by concurrency."""
        return tuple(sorted((x for x in self.levels if x.phase == phase), key=lambda x: x.concurrency))
