"""What people write: a storage, the link to it, classes of jobs, and what counts as too slow. Computes nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from prefect_cachewatch.capacity.units import (
    BytesPerSecond,
    OptionalBytesPerSecond,
    OptionalLineRate,
    OptionalPerSecond,
)
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, OptionalDuration, OptionalSize, Size

_MAX_STREAMS = 4096
_MAX_BYTES = 10**18
#: The most jobs at once that a plan looks at.
MOST_JOBS = 999


def _one_line(name: str) -> str:
    if not name.isprintable():
        raise ValueError(f"{name!r} has a control character in it: leave it out")
    return name


Name = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]


class CurvePoint(InputModel):
    """One measurement: so many streams at once moved so many bytes a second together."""

    n: int = Field(ge=1, le=_MAX_STREAMS, description="Streams at once.")
    bytes_per_s: BytesPerSecond = Field(
        description="Bytes per second of all streams together, median over the repetitions."
    )
    spread: float = Field(
        default=0.0, ge=0, le=100, description="(largest - smallest) / median of the repetitions' rates."
    )


class ServiceCurve(InputModel):
    """What n streams move together: measured points, or a vendor's two numbers."""

    points: list[CurvePoint] = Field(
        default_factory=list, max_length=64, description="Measured points, n ascending, from n = 1."
    )
    one_bytes_per_s: OptionalBytesPerSecond = Field(
        default=None, description="What one stream reaches alone, where no points were measured."
    )
    all_bytes_per_s: OptionalBytesPerSecond = Field(
        default=None, description="What all streams reach together, where no points were measured."
    )

    @model_validator(mode="after")
    def _one_description(self) -> Self:
        one, most, at = self.one_bytes_per_s, self.all_bytes_per_s, [point.n for point in self.points]
        if bool(at) == (one is not None) or bool(at) == (most is not None):
            raise ValueError(
                "needs points, or one_bytes_per_s and all_bytes_per_s, and not both: cachewatch probe measures points"
            )
        if one and most and one > most:
            raise ValueError("gives one stream more than all streams together: exchange the two numbers")
        if at and at[0] != 1:
            raise ValueError("has no point at n = 1, so nobody knows what one stream gets: measure it")
        if at != sorted(set(at)):
            raise ValueError("has points out of order: sort them by n, each n once")
        return self

    @property
    def measured_n(self) -> int | None:
        """The most streams measured; None for a vendor's two numbers."""
        return self.points[-1].n if self.points else None


class StorageProfile(InputModel):
    """A storage: what streams move for each kind of access, and the ceilings that all of them share."""

    name: Name = Field(description="Name of the storage; the generation's storage= and the limit in Prefect use it.")
    basis: Literal["measured", "vendor", "given"] = Field(
        default="given", description="measured by a probe or fio, a vendor's figures, or given by hand."
    )
    source: str = Field(default="", max_length=500, description="Where the figures are from, and since when.")
    write: ServiceCurve | None = Field(default=None, description="Writing new files: the curve of cache generations.")
    read: ServiceCurve | None = Field(
        default=None, description="Reading files from start to end: the curve of model loads."
    )
    random_read: ServiceCurve | None = Field(
        default=None, description="Reading blocks at random: the curve of training, and of mmap without prefetch."
    )
    units: int = Field(default=1, ge=1, le=999, description="So many of this storage side by side, used evenly.")
    port_bytes_per_s: OptionalLineRate = Field(
        default=None, description="Rate of the storage's own network port, for example 10G."
    )
    ops_per_s: OptionalPerSecond = Field(
        default=None, description="Reads or writes per second that it serves, for example 1M."
    )
    small_file_s: OptionalDuration = Field(
        default=None, ge=0, le=3600, description="Seconds that one stream needs to create or open one file."
    )
    files_per_s: OptionalPerSecond = Field(
        default=None, description="Files per second that all streams create or open together."
    )
    free_bytes: OptionalSize = Field(
        default=None, ge=0, le=_MAX_BYTES, description="Bytes free for caches: all that a batch leaves must fit."
    )
    notes: list[str] = Field(
        default_factory=list, max_length=64, description="What the probe saw: a cache, wide spread, ..."
    )


class LinkProfile(InputModel):
    """The network between the jobs and the storage; each host has a link of its own, and jobs are spread evenly."""

    bytes_per_s: OptionalLineRate = Field(
        default=None, description="Rate of one host's link, for example 10G; none: no network."
    )
    hosts: int = Field(default=1, ge=1, le=999, description="Hosts that the jobs are spread over.")

    @model_validator(mode="before")
    @classmethod
    def _as_rate(cls, given: Any) -> Any:
        return {"bytes_per_s": given} if isinstance(given, str | float | int) and not isinstance(given, bool) else given


class Compression(InputModel):
    """A compression measured on the user's own data, with `zstd -b` for example."""

    name: Name = Field(default="compression", description="Its name, for example zstd.")
    ratio: float = Field(ge=0.1, le=1000, description="Bytes before over bytes after; 2 halves what is moved.")
    bytes_per_s: BytesPerSecond = Field(
        description="Uncompressed bytes per second of one job; it works while it moves them."
    )
    used: bool = Field(default=True, description="Off: the plan is without it, and one row says what it would change.")


class WorkloadClass(InputModel):
    """Jobs of one kind: each computes for think_s, then moves one burst, again and again."""

    name: Name = Field(description="Name of the class, for example caches.")
    kind: Literal["generation", "inference", "training"] = Field(
        default="generation", description="generation writes caches; inference loads models; training reads samples."
    )
    access: Literal["sequential", "random"] = Field(
        default="sequential", description="sequential: whole files in order; random: blocks, or mmap without prefetch."
    )
    burst_bytes: Size = Field(
        gt=0, le=10**17, description="Bytes of one burst, for example of one tensor file or one batch of samples."
    )
    think_s: Duration = Field(ge=0, le=30 * 86400, description="Seconds of computing between two bursts of a job.")
    files_per_burst: int = Field(default=1, ge=1, le=10**8, description="Files that one burst consists of.")
    bursts_per_job: int = Field(default=1, ge=1, le=10**9, description="Bursts that a job consists of.")
    jobs: int | None = Field(
        default=None, ge=1, le=10**6, description="Jobs of the batch, for example of one night; none: no end of jobs."
    )
    running: int | None = Field(
        default=None, ge=0, le=MOST_JOBS,
        description="Jobs of this class that always run; none: the plan says how many may run.",
    )  # fmt: skip
    op_bytes: Size = Field(
        default=2**20, gt=0, le=10**12, description="Bytes of one read or write, for a storage with ops_per_s."
    )
    compression: Compression | None = Field(default=None, description="Compression; none: bytes go as they are.")

    @property
    def packing(self) -> Compression | None:
        """The compression in use."""
        return self.compression if self.compression is not None and self.compression.used else None

    @property
    def wire_bytes(self) -> float:
        """Bytes of one burst that reach the storage, compressed."""
        return self.burst_bytes / (self.packing.ratio if self.packing else 1.0)

    @property
    def kept_bytes(self) -> float:
        """Bytes that a job leaves on the storage."""
        return self.wire_bytes * self.bursts_per_job if self.kind == "generation" else 0.0


class Policy(InputModel):
    """What counts as too slow, and how careful the answer is."""

    derate: float = Field(
        default=0.15, ge=0, le=0.95,
        description="Share taken off every rate of storage and link: real ones reach less.",
    )  # fmt: skip
    isolated: bool = Field(
        default=False, description="Each class has a storage like this of its own, and a limit of its own."
    )


class PlanInput(InputModel):
    """Everything that a plan is made from."""

    storage: StorageProfile = Field(description="The storage.")
    link: LinkProfile = Field(default_factory=LinkProfile, description="The network between jobs and storage.")
    workloads: list[WorkloadClass] = Field(min_length=1, max_length=16, description="Classes of jobs.")
    policy: Policy = Field(default_factory=Policy, description="What counts as too slow.")
    binary: bool = Field(
        default=False, description="Whether sizes are said in GiB and not in GB; left out: as the bursts are written."
    )

    @model_validator(mode="before")
    @classmethod
    def _units_as_written(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "binary" in given:
            return given
        jobs = given.get("workloads")
        first = jobs[0].get("burst_bytes") if isinstance(jobs, list) and jobs and isinstance(jobs[0], dict) else None
        return given | {"binary": isinstance(first, str) and "ib" in first.lower()}

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        names, asking = [workload.name for workload in self.workloads], self.asking
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two workloads are named {twice!r}: give each class a name of its own")
        if both := next((w.name for w in self.workloads if w.running is not None and w.jobs is not None), None):
            raise ValueError(f"{both!r} has jobs of a batch and running ones, which always run: keep one of the two")
        if not asking:
            raise ValueError(
                "every class of workloads has running, so nothing is left to be planned: leave it out of one"
            )
        if len(asking) > 1 and not self.policy.isolated and any(workload.jobs is None for workload in asking):
            raise ValueError(
                "several workloads share one limit: give each its jobs, or running, or set policy.isolated"
            )
        if sum(workload.running or 0 for workload in self.workloads) > MOST_JOBS:
            # A minute and more would go by for an answer.
            raise ValueError(
                f"workloads have more than {MOST_JOBS} running jobs: plan for a part of them on a part of the storage"
            )
        return self

    @property
    def asking(self) -> list[WorkloadClass]:
        """The classes that the plan gives a number for."""
        return [workload for workload in self.workloads if workload.running is None]
