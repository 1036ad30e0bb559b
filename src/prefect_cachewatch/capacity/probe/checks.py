"""Checks a probe's figures: Little's law, spread, and caches that answer in place of the disk.

Pure rules over samples; nothing is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prefect_cachewatch.capacity.probe.disks import UNSEEN, Disk
from prefect_cachewatch.common.units import format_bytes

LITTLE_TOLERANCE = 0.10
WIDE_SPREAD = 0.35
CACHE_FACTOR = 3.0
FASTER_AGAIN_FACTOR = 1.5

Phase = Literal["write", "read", "random_read", "metadata"]
PHASE_NAMES: dict[Phase, str] = {
    "write": "fresh writes",
    "read": "sequential reads",
    "random_read": "random reads",
    "metadata": "small files",
}


@dataclass(frozen=True)
class Repetition:
    """One measurement for an engine to make."""

    #: write (fresh files, fsync at the end, then deleted), read or random_read (of files `stream.<i>.0`, laid out before).
    phase: Phase
    #: Where the files are.
    directory: Path
    #: How many at once, each with a file of its own.
    streams: int
    #: Size of each file.
    stream_bytes: int
    #: Size of one request.
    block_bytes: int
    #: The longest it may take, before fsync.
    time_s: float


@dataclass(frozen=True)
class Sample:
    """One repetition of one phase at one concurrency."""

    phase: Phase
    concurrency: int
    done_bytes: int
    operations: int
    elapsed_s: float
    mean_latency_s: float
    p99_latency_s: float | None = None

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes per second of all streams together."""
        return self.done_bytes / self.elapsed_s

    @property
    def rate_per_s(self) -> float:
        """Operations per second of all streams together."""
        return self.operations / self.elapsed_s

    @property
    def in_flight(self) -> float:
        """X times latency, which by Little's law is the number of streams at work."""
        return self.operations * self.mean_latency_s / self.elapsed_s


@dataclass(frozen=True)
class Level:
    """One phase at one concurrency: medians over the repetitions."""

    phase: Phase
    concurrency: int
    repetitions: int
    rate_bytes_per_s: float
    rate_per_s: float
    mean_latency_s: float
    in_flight: float
    spread: float
    p99_latency_s: float | None = None

    @property
    def obeys_little(self) -> bool:
        """Whether X times latency is the concurrency within 10 %."""
        return abs(self.in_flight / self.concurrency - 1) <= LITTLE_TOLERANCE


def spread_of(values: Sequence[float]) -> float:
    """Say how far repetitions lie apart: (largest - smallest) / median.

    Args:
        values: at least one positive figure.

    Returns:
        0 for one value or equal ones; .34 is a third of the median.

    Example:
        >>> spread_of([90.0, 100.0, 110.0])
        0.2
    """
    return (max(values) - min(values)) / statistics.median(values)


def summarise(samples: Sequence[Sample]) -> Level:
    """Join the repetitions of one phase at one concurrency.

    Args:
        samples: at least one, all of the same phase and concurrency.

    Returns:
        The medians, and the spread of the rate.

    Example:
        >>> samples = [Sample("write", 2, 2000, 20, 1.0, 0.1), Sample("write", 2, 2200, 22, 1.0, 0.09)]
        >>> level = summarise(samples)
        >>> level.rate_bytes_per_s, round(level.in_flight, 2), level.obeys_little
        (2100.0, 1.99, True)
    """
    median = statistics.median
    # The metadata phase counts files, where bytes mean little.
    rates = [s.rate_per_s if s.phase == "metadata" else s.rate_bytes_per_s for s in samples]
    return Level(
        phase=samples[0].phase,
        concurrency=samples[0].concurrency,
        repetitions=len(samples),
        rate_bytes_per_s=median(s.rate_bytes_per_s for s in samples),
        rate_per_s=median(s.rate_per_s for s in samples),
        mean_latency_s=median(s.mean_latency_s for s in samples),
        in_flight=median(s.in_flight for s in samples),
        spread=spread_of(rates),
        p99_latency_s=median(p99s) if (p99s := [s.p99_latency_s for s in samples if s.p99_latency_s]) else None,
    )


def find_effects(
    samples: Sequence[Sample],
    filesystem: str = "unknown",
    *,
    direct: bool = True,
    memory: bool = False,
    disk: Disk = UNSEEN,
    python_engine: bool = False,
) -> list[str]:
    """Name the effects that make the figures differ from the storage's own.

    Args:
        samples: all repetitions, in the order they were taken.
        filesystem: type of the file system, for the sentences.
        direct: whether files were opened with O_DIRECT.
        memory: whether the file system is memory.
        disk: what is known of the disk.
        python_engine: whether the probe's own Python threads measured, not fio.

    Returns:
        One sentence for each effect, the gravest first.

    Example:
        >>> find_effects([], "tmpfs", memory=True)[0]
        'tmpfs is memory: O_DIRECT opens there and bypasses nothing: figures of RAM, not of storage'
    """
    effects: list[str] = []
    if memory:
        opens = "opens there and bypasses nothing" if direct else "does not open there"
        effects.append(f"{filesystem} is memory: O_DIRECT {opens}: figures of RAM, not of storage")
    elif not direct:
        effects.append(
            f"{filesystem} does not open files with O_DIRECT: reads may come from this machine's page cache; "
            "trust the writes (they end with fsync), not the reads"
        )
    levels = levels_of(samples)
    effects += _cache_effects(samples, levels)
    if disk.network and not memory:
        effects.append(f"behind a network, {disk.network}: the curves contain it, so a plan with them has no link")
    elif disk.virtual and not memory:
        effects.append(
            "the disk is a virtual one: O_DIRECT bypasses this machine's page cache, not the host's, "
            "so short runs may be answered by the host's memory; a network behind it would not be seen"
        )
    effects += _doubtful_levels(levels, python_engine)
    return effects


def levels_of(samples: Sequence[Sample]) -> list[Level]:
    """Join the repetitions of each phase at each concurrency, in the order measured."""
    groups: dict[tuple[Phase, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.phase, sample.concurrency), []).append(sample)
    return [summarise(group) for group in groups.values()]


def _cache_effects(samples: Sequence[Sample], levels: Sequence[Level]) -> list[str]:
    effects = []
    best: dict[Phase, float] = {}
    for level in levels:
        best[level.phase] = max(best.get(level.phase, 0.0), level.rate_bytes_per_s)
    written = best.get("write", 0.0)
    if written and best.get("read", 0.0) > CACHE_FACTOR * written:
        effects.append(
            f"reads reach {format_bytes(best['read'])}/s, {best['read'] / written:.1f} x the fresh writes: "
            "files just written are likely read from a cache (the host's, a controller's or a server's), "
            "and colder files will be slower"
        )
    first: dict[tuple[Phase, int], float] = {}
    for sample in samples:
        if sample.phase not in ("read", "random_read"):
            continue
        place = (sample.phase, sample.concurrency)
        if place not in first:
            first[place] = sample.rate_bytes_per_s
        elif sample.rate_bytes_per_s > FASTER_AGAIN_FACTOR * first[place]:
            effects.append(
                f"{PHASE_NAMES[sample.phase]} at n = {sample.concurrency} got "
                f"{sample.rate_bytes_per_s / first[place]:.1f} x faster after the first pass: a cache below "
                "O_DIRECT is warming up, so the first pass is nearer the storage"
            )
            break
    return effects


def _doubtful_levels(levels: Sequence[Level], python_engine: bool) -> list[str]:
    effects = []
    wide = [level for level in levels if level.spread > WIDE_SPREAD]
    if wide:
        worst = max(wide, key=lambda level: level.spread)
        effects.append(
            f"repetitions differ by up to {worst.spread:.0%} ({PHASE_NAMES[worst.phase]}, "
            f"n = {worst.concurrency}): something else uses the storage, or its cache fills; "
            "probe again at a quiet hour, or longer with --time"
        )
    off = [level for level in levels if not level.obeys_little]
    if off:
        worst = max(off, key=lambda level: abs(level.in_flight / level.concurrency - 1))
        why = "streams started or ended apart, or waited for fsync"
        if python_engine:
            why += ", or for this machine's processor (the Python probe; install fio)"
        effects.append(
            f"X x latency is {worst.in_flight:.2f} where n = {worst.concurrency} ({PHASE_NAMES[worst.phase]}"
            f"{f', and {len(off) - 1} more' if len(off) > 1 else ''}): {why}; "
            "longer runs (--time, --size) come closer"
        )
    return effects
