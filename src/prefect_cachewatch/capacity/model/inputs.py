"""The demand: classes of jobs that compute and move bytes in bursts, and the policy of the plan.

A class may be cache generations (they write), model loads or training (they read).
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from prefect_cachewatch.capacity.model.profile import CodecProfile, Name
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, OptionalDuration, OptionalSize, Size

# 99th percentile over mean of a burst's time under load where all bursts are alike: 1.4-1.7 near the knee.
_P99_CONSTANT = 1.7
_Z_99 = 2.3263479


class WorkloadClass(InputModel):
    """Jobs of one kind: each computes for think_s, then moves one burst, again and again."""

    name: Name = Field(description="Name of the class, for example nightly-caches.")
    kind: Literal["generation", "inference", "training"] = Field(
        default="generation",
        description="generation writes caches; inference loads models; training reads samples.",
    )
    access: Literal["sequential", "random"] = Field(
        default="sequential",
        description="sequential: whole files in order; random: blocks, or mmap without prefetch.",
    )
    burst_bytes: Size = Field(
        gt=0,
        le=10**17,
        description="Bytes of one burst before compression, for example one tensor file or one sample batch.",
    )
    think_s: Duration = Field(ge=0, le=30 * 86400, description="Seconds of computing between two bursts of a job.")
    files_per_burst: int = Field(
        default=1,
        ge=1,
        le=10**8,
        description="Files that one burst is written to or read from; each costs small_file_s.",
    )
    bursts_per_job: int = Field(default=1, ge=1, le=10**9, description="Bursts that a job consists of.")
    jobs: int = Field(
        default=1, ge=1, le=10**7, description="Jobs of the batch, for example of one night; 1: no batch."
    )
    running: int | None = Field(
        default=None, ge=0, le=2048,
        description="Jobs of this class that always run; none: the plan says how many may run.",
    )  # fmt: skip
    read_amplification: float = Field(
        default=1.0, ge=1, le=1e4,
        description="How often the bytes really cross: 8 where each of 8 tensor-parallel "
        "ranks reads everything.",
    )  # fmt: skip
    op_bytes: OptionalSize = Field(
        default=None, gt=0, le=10**12,
        description="Bytes of one read or write, where the storage has ops_per_s; none: the curve's block_bytes, "
        "or 1 MiB.",
    )  # fmt: skip
    burst_cv: float = Field(
        default=0.0, ge=0, le=10,
        description="Coefficient of variation of burst sizes: 0 constant, 1 exponential, others lognormal.",
    )  # fmt: skip
    bytes_appear: Literal["at_end", "while_moving"] = Field(
        default="at_end",
        description="When the watch sees growth: only at the end of a file (worst case), or all along.",
    )
    watched: bool | None = Field(
        default=None,
        description="Whether silence stops it (the stall window applies); none: generations only.",
    )
    codec: CodecProfile | None = Field(default=None, description="Compression in use; none: bytes go as they are.")
    deadline_s: OptionalDuration = Field(
        default=None, gt=0, le=366 * 86400, description="Seconds in which all jobs of the batch must be done."
    )
    kept_bytes_per_job: OptionalSize = Field(
        default=None,
        ge=0,
        le=10**18,
        description="Bytes that a job leaves on the storage; none: generations keep all bursts.",
    )

    @property
    def writes(self) -> bool:
        """Whether its bursts are writes."""
        return self.kind == "generation"

    @property
    def is_watched(self) -> bool:
        """Whether the stall window applies to it."""
        return self.writes if self.watched is None else self.watched

    @property
    def wire_bytes(self) -> float:
        """Bytes of one burst that cross the link and reach the storage, amplified and compressed."""
        return self.burst_bytes * self.read_amplification / (self.codec.ratio if self.codec else 1.0)

    @property
    def codec_cpu_s(self) -> float:
        """CPU seconds that the codec needs for one burst."""
        if self.codec is None:
            return 0.0
        per_gb = self.codec.compress_cpu_s_per_gb if self.writes else self.codec.decompress_cpu_s_per_gb
        return self.burst_bytes * self.read_amplification / 1e9 * per_gb

    @property
    def kept_bytes(self) -> float:
        """Bytes that a job leaves on the storage."""
        if self.kept_bytes_per_job is not None:
            return self.kept_bytes_per_job
        return self.wire_bytes * self.bursts_per_job if self.writes else 0.0

    @model_validator(mode="after")
    def _burst_fills_its_files(self) -> Self:
        if self.files_per_burst > self.burst_bytes:
            raise ValueError(
                f"has {self.files_per_burst} files in a burst of {self.burst_bytes:.0f} bytes: "
                "a file has one byte at least"
            )
        return self


class Policy(InputModel):
    """What counts as too slow, and how careful the answer is."""

    stall_window_s: Duration = Field(
        default=300.0, gt=0, le=7 * 86400, description="Silence after which the watch stops a generation."
    )
    max_slowdown: float = Field(
        default=1.5,
        gt=1,
        le=1000,
        description="Largest (Z + R) / (Z + R alone) of a job's cycle that is accepted.",
    )
    max_burst_s: OptionalDuration = Field(
        default=None, gt=0, le=7 * 86400, description="Longest mean time of a burst that is accepted; none: any."
    )
    aim: Literal["batch", "knee", "most"] = Field(
        default="batch",
        description="The number recommended: batch: the smallest within 2 % of the fastest batch, or of the highest "
        "throughput where no batch is given; knee: not beyond the knee; most: all that the rules admit.",
    )
    beyond_measured: bool = Field(
        default=False, description="Whether more jobs may be recommended than streams were measured."
    )
    p99_factor: float | None = Field(
        default=None, ge=1, le=100,
        description="99th percentile over mean of a burst's time; none: 1.7 constant to "
        "5.0 exponential bursts.",
    )  # fmt: skip
    derate: float = Field(
        default=0.15, ge=0, lt=1,
        description="Share taken off every rate: real disks were 3-15 % slower than the "
        "model. Calibrated from history.",
    )  # fmt: skip
    band: float = Field(
        default=0.25,
        ge=0,
        lt=1,
        description="Half width of the printed band: rates this much lower and higher.",
    )
    headroom: float = Field(
        default=0.10,
        ge=0,
        lt=1,
        description="Share of the slots left free where several classes share the limit.",
    )
    max_concurrency: int = Field(default=256, ge=1, le=2048, description="Largest concurrency that is looked at.")
    isolated: bool = Field(
        default=False, description="Whether training, inference and generation have clusters of their own."
    )

    def p99_over_mean(self, burst_cv: float) -> float:
        """The factor from a mean burst time to its 99th percentile.

        Args:
            burst_cv: coefficient of variation of burst sizes.

        Returns:
            `p99_factor` where it is set; else 1 + hypot(0.7, s - 1), s being that of the sizes
            themselves, taken as lognormal: 1.7 for constant bursts, 5.0 for cv 1, 8.6 for cv 2.
            Simulation gave 1.0-2.7, 4.6-5.7 and 8.6-9.5 over loads from light to saturated.

        Example:
            >>> [round(Policy().p99_over_mean(cv), 2) for cv in (0, 1, 2)]
            [1.7, 4.97, 8.59]
        """
        if self.p99_factor is not None:
            return self.p99_factor
        variance = math.log1p(burst_cv**2)
        of_sizes = math.exp(_Z_99 * math.sqrt(variance) - variance / 2)
        return 1 + math.hypot(_P99_CONSTANT - 1, of_sizes - 1)
