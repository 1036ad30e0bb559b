"""The supply: a storage, measured or as its vendor gives it, and the links to it.

This module measures nothing and reads no file; the probe writes these models and the plan reads them.
"""

from __future__ import annotations

import datetime
import math
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from prefect_cachewatch.common.units import NUMBER_PATTERN, parse_bytes
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import OptionalDuration, OptionalSize, Quantity

_UNIT = r"(?:[kKmMgGtT](?:[iI]?[bB](?:[iI][tT])?)?|[bB](?:[iI][tT])?)"
_PATTERN = rf"^\s*{NUMBER_PATTERN}\s*{_UNIT}?\s*(?:/s|ps)?\s*$"
Basis = Literal["measured", "vendor ceiling", "given"]

_MAX_N = 4096
_MAX_RATE = 1e15
_MAX_BYTES = 10**18


def parse_rate(text: str) -> float:
    """Read a rate such as `125MiB/s`, `15GB/s`, `10Gbit/s` or a bare number of bytes per second.

    Args:
        text: the rate; bits are powers of 1000, bytes as in `parse_bytes`.

    Returns:
        Bytes per second.

    Raises:
        ValueError: if it is not a rate; the message says what one looks like.

    Example:
        >>> parse_rate("125MiB/s"), parse_rate("10Gbit/s")
        (131072000.0, 1250000000.0)
    """
    compact = text.strip().replace(" ", "")
    amount = compact.removesuffix("/s").removesuffix("ps")
    if amount.lower().endswith("bit"):
        return parse_bytes(amount[:-3] + "B" if amount[-4:-3].isalpha() else amount[:-3]) / 8
    try:
        return float(parse_bytes(amount))
    except ValueError:
        raise ValueError(f"{text!r} is not a rate: write it like 125MiB/s, 15GB/s or 10Gbit/s") from None


def parse_ops(text: str) -> float:
    """Read a number of operations per second such as `1M`, `250k/s` or `4000`.

    Args:
        text: the number; k, M and G are powers of 1000.

    Returns:
        Operations per second.

    Raises:
        ValueError: if it is not such a number; the message says what one looks like.

    Example:
        >>> parse_ops("1M"), parse_ops("250k/s"), parse_ops("1.5e6")
        (1000000.0, 250000.0, 1500000.0)
    """
    amount = text.strip().replace(" ", "").removesuffix("/s")
    power = {"k": 1e3, "m": 1e6, "g": 1e9}.get(amount[-1:].lower(), 1.0)
    try:
        if not amount.isascii():
            raise ValueError
        return float(amount if power == 1 else amount[:-1]) * power
    except ValueError:
        raise ValueError(f"{text!r} is not a number of operations per second: write it like 1M or 250k/s") from None


_RATE = Quantity("rate", parse_rate, _PATTERN)
_OPS = Quantity("operations per second", parse_ops, rf"^\s*{NUMBER_PATTERN}\s*[kKmMgG]?\s*(?:/s)?\s*$")
OptionalOpsPerSecond = Annotated[float | None, _OPS]
BytesPerSecond = Annotated[float, _RATE]
OptionalBytesPerSecond = Annotated[float | None, _RATE]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]


class CurvePoint(InputModel):
    """One measurement: so many streams at once moved so many bytes a second together."""

    n: int = Field(ge=1, le=_MAX_N, description="Streams at once.")
    throughput_bytes_per_s: BytesPerSecond = Field(
        gt=0,
        le=_MAX_RATE,
        description="Bytes per second of all streams together, median over the repetitions.",
    )
    ops_per_s: float | None = Field(
        default=None,
        gt=0,
        description="Operations per second of all streams together, where they were counted.",
    )
    latency_s: OptionalDuration = Field(
        default=None, gt=0, description="Mean seconds of one operation; ops_per_s x latency_s should give n."
    )
    p99_latency_s: OptionalDuration = Field(
        default=None, gt=0, description="99th percentile of the seconds of one operation."
    )
    spread: float | None = Field(
        default=None, ge=0, description="(largest - smallest) / median of the repetitions' throughput."
    )
    repetitions: int = Field(default=1, ge=1, le=1000, description="How many runs stand behind this point.")


class UslFit(InputModel):
    """The Universal Scalability Law fitted to a curve: X(n) = g n / (1 + a (n-1) + b n (n-1))."""

    alpha: float = Field(ge=0, le=1, description="Contention: the share that is serialized.")
    beta: float = Field(ge=0, description="Coherency: the cost of each pair; above 0, throughput has a peak.")
    gamma_per_s: float = Field(gt=0, description="Throughput of one stream, in the unit of the data fitted.")
    alpha_error: float | None = Field(
        default=None, ge=0, description="Standard error of alpha; none if not determined."
    )
    beta_error: float | None = Field(default=None, ge=0, description="Standard error of beta; none if not determined.")
    gamma_error_per_s: float | None = Field(
        default=None, ge=0, description="Standard error of gamma; none if not determined."
    )
    rmse_over_mean: float = Field(
        default=0.0, ge=0, description="Root mean square error over mean throughput: the gate; R2 is not."
    )
    peak_n: float | None = Field(
        default=None,
        ge=1,
        description="Concurrency of highest throughput, sqrt((1-a)/b); none: not identified.",
    )
    measured_n: int = Field(default=1, ge=1, le=_MAX_N, description="Largest n of the data.")
    note: str = Field(default="", max_length=500, description="What the gate said, in a sentence.")


class ServiceCurve(InputModel):
    """How throughput grows with the number of streams: measured points, or a vendor's two numbers."""

    points: list[CurvePoint] = Field(
        default_factory=list, max_length=64, description="Measured points, n ascending; two or more."
    )
    per_stream_bytes_per_s: OptionalBytesPerSecond = Field(
        default=None,
        gt=0,
        le=_MAX_RATE,
        description="What one stream or client reaches alone (no points measured).",
    )
    aggregate_bytes_per_s: OptionalBytesPerSecond = Field(
        default=None,
        gt=0,
        le=_MAX_RATE,
        description="What all streams together reach at most (no points measured).",
    )
    usl: UslFit | None = Field(default=None, description="The fit to the points, in bytes per second.")
    block_bytes: OptionalSize = Field(default=None, gt=0, le=_MAX_BYTES, description="Size of one read or write.")

    @model_validator(mode="after")
    def _one_description(self) -> Self:
        two = (self.per_stream_bytes_per_s is not None) + (self.aggregate_bytes_per_s is not None)
        if self.points and two:
            raise ValueError(
                "has measured points and also per_stream_bytes_per_s or aggregate_bytes_per_s, which "
                "contradict each other: keep the points, or keep the two numbers"
            )
        if not self.points and two < 2:
            raise ValueError(
                "needs measured points, or both per_stream_bytes_per_s and aggregate_bytes_per_s: "
                "run cachewatch probe to measure them"
            )
        if len(self.points) == 1:
            raise ValueError("has one point, and one point is no curve: measure at two or more values of n")
        for before, after in pairwise(self.points):
            if after.n <= before.n:
                raise ValueError(f"has n = {after.n} after n = {before.n}: sort the points by n, each n once")
        if two == 2 and self.per_stream_bytes_per_s > self.aggregate_bytes_per_s:  # type: ignore[operator]
            raise ValueError("gives one stream more than all streams together: exchange the two numbers")
        if self.usl is not None and not self.points:
            raise ValueError("has a usl fit without the points it was fitted to: add the points or drop the fit")
        return self

    @property
    def measured_n(self) -> int | None:
        """The largest n measured; None for a vendor's two numbers."""
        return self.points[-1].n if self.points else None

    @property
    def two_numbers(self) -> tuple[float, float]:
        """What one stream gets and what all get together, of a curve without points."""
        return self.per_stream_bytes_per_s or math.nan, self.aggregate_bytes_per_s or math.nan


class CodecProfile(InputModel):
    """A compression measured on a sample of the user's own data."""

    name: Name = Field(description="The codec, for example zstd, lz4 or lzo.")
    ratio: float = Field(gt=0, le=1e6, description="Bytes before over bytes after; 2 halves what is moved.")
    compress_cpu_s_per_gb: float = Field(
        ge=0, le=1e6, description="CPU seconds to compress 10^9 bytes of the uncompressed data."
    )
    decompress_cpu_s_per_gb: float = Field(
        ge=0, le=1e6, description="CPU seconds to give back 10^9 bytes of the uncompressed data."
    )
    cores: int = Field(default=1, ge=1, le=100_000, description="CPU cores that all jobs together have for the codec.")
    level: int | None = Field(default=None, description="The codec's level, where it has one.")
    sample: str = Field(default="", max_length=4096, description="The file it was measured on.")
    sample_bytes: OptionalSize = Field(default=None, gt=0, le=_MAX_BYTES, description="Bytes of the sample.")


class StorageProfile(InputModel):
    """A storage as the planner sees it: a curve for each kind of access, and where the numbers are from."""

    name: Name = Field(description="Name of the storage; the generation's storage= and the limit in Prefect use it.")
    basis: Basis = Field(
        default="given",
        description="measured by the probe, a vendor ceiling (not a promise), or given by hand.",
    )
    source: str = Field(default="", max_length=500, description="Where the numbers are from.")
    date: datetime.date | None = Field(default=None, description="When they were measured or read.")
    shared: bool = Field(default=True, description="Whether several hosts can mount it at once.")
    through: Literal["network", "local"] | None = Field(
        default=None,
        description="Where its curves were measured: network: on a client, so that they contain the link; local: on "
        "the storage's own machine; none: not said.",
    )
    sequential_write: ServiceCurve | None = Field(
        default=None, description="Writing new files from start to end; the curve of cache generations."
    )
    sequential_read: ServiceCurve | None = Field(
        default=None, description="Reading files from start to end; the curve of model loads."
    )
    random_read: ServiceCurve | None = Field(
        default=None, description="Reading blocks at random; the curve of training and of mmap loads."
    )
    ops_per_s: OptionalOpsPerSecond = Field(
        default=None, gt=0, le=_MAX_RATE,
        description="Reads or writes per second that it serves at most, all streams together, for example 1M.",
    )  # fmt: skip
    small_file_s: OptionalDuration = Field(
        default=None, ge=0, le=3600, description="Seconds to create, write 4 KiB, fsync and rename one file."
    )
    free_bytes: OptionalSize = Field(
        default=None,
        ge=0,
        le=_MAX_BYTES,
        description="Bytes free for caches; bounds how many may be made at once.",
    )
    codecs: list[CodecProfile] = Field(
        default_factory=list, max_length=32, description="Codecs measured on samples for this storage."
    )
    notes: list[str] = Field(
        default_factory=list,
        max_length=64,
        description="What the probe saw: host cache effects, wide spread, ...",
    )

    @model_validator(mode="after")
    def _has_a_curve(self) -> Self:
        if self.sequential_write is None and self.sequential_read is None and self.random_read is None:
            raise ValueError(
                "has no curve: give sequential_write, sequential_read or random_read, or run cachewatch probe"
            )
        return self

    @property
    def contains_link(self) -> bool:
        """Whether its curves were measured through a network, so that a link would be counted twice."""
        # Profiles of before `through`: the probe wrote `shared` for what it found mounted from elsewhere.
        older = self.basis == "measured" and self.source.startswith("cachewatch probe") and self.shared
        return self.through == "network" or (self.through is None and older)

    @property
    def measured_n(self) -> int | None:
        """The largest n up to which every measured curve reaches; None where nothing was measured."""
        curves = (self.sequential_write, self.sequential_read, self.random_read)
        reached = [curve.measured_n for curve in curves if curve is not None and curve.measured_n]
        return min(reached) if reached else None


class LinkProfile(InputModel):
    """The network between the jobs and the storage; every host has a link of its own."""

    name: Name = Field(default="local", description="Name of the link, for example 10G.")
    bytes_per_s: OptionalBytesPerSecond = Field(
        default=None,
        gt=0,
        le=_MAX_RATE,
        description="Raw rate of one host's link; none: no network in between.",
    )
    efficiency: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the raw rate that carries data; TCP in 1500-byte frames: 0.94.",
    )
    hosts: int = Field(default=1, ge=1, le=64, description="Hosts that the jobs are spread over, each with its link.")
    basis: Basis = Field(default="given", description="measured, a vendor ceiling, or given by hand.")
    source: str = Field(default="", max_length=500, description="Where the rate is from.")
