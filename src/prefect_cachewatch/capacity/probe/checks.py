"""A probe's figures, and what makes them doubtful: caches that answer in place of the disk, other users, wide spread.

Pure rules; nothing is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.capacity.units import say_bytes, say_number

_LITTLE_TOLERANCE = 0.10
_WIDE_SPREAD = 0.35
_CACHE_FACTOR = 3.0
_FASTER_AGAIN_FACTOR = 1.5

Phase = Literal["write", "read", "random_read", "files"]
PHASE_NAMES: dict[Phase, str] = {
    "write": "fresh writes",
    "read": "sequential reads",
    "random_read": "random reads",
    "files": "small files",
}


@dataclass(frozen=True)
class Sample:
    """One repetition of one phase with so many streams."""

    phase: Phase
    n: int
    done_bytes: int
    requests: int
    elapsed_s: float
    latency_s: float  # mean of a request

    @property
    def rate(self) -> float:
        """Bytes per second of all streams together; of small files, files per second."""
        return (self.requests if self.phase == "files" else self.done_bytes) / self.elapsed_s


@dataclass(frozen=True)
class Level:
    """One phase with so many streams: all its repetitions, in their order."""

    phase: Phase
    n: int
    rates: tuple[float, ...]
    latency_s: float
    in_flight: float  # X times latency, which by Little's law is the number of streams at work

    @property
    def rate(self) -> float:
        """The median of the repetitions."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """How far the repetitions lie apart."""
        return spread_of(self.rates)


def spread_of(rates: Sequence[float]) -> float:
    """Say how far figures lie apart: (largest - smallest) / median.

    Example:
        >>> spread_of([90.0, 100.0, 110.0])
        0.2
    """
    return (max(rates) - min(rates)) / statistics.median(rates)


def levels_of(samples: Sequence[Sample]) -> tuple[Level, ...]:
    """Join the repetitions of each phase and number of streams, in the order measured.

    Args:
        samples: in the order taken.

    Returns:
        The levels.

    Example:
        >>> [level] = levels_of([Sample("write", 2, 200, 20, 1.0, 0.1), Sample("write", 2, 220, 22, 1.0, 0.09)])
        >>> level.rate, round(level.in_flight, 2)
        (210.0, 1.99)
    """
    groups: dict[tuple[Phase, int], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.phase, sample.n), []).append(sample)
    return tuple(
        Level(
            phase=phase,
            n=n,
            rates=tuple(sample.rate for sample in group),
            latency_s=statistics.median(sample.latency_s for sample in group),
            in_flight=statistics.median(s.requests * s.latency_s / s.elapsed_s for s in group),
        )
        for (phase, n), group in groups.items()
    )


def doubts(levels: Sequence[Level], filesystem: str, *, direct: bool, memory: bool) -> Iterator[str]:
    """Name what makes the figures differ from the storage's own.

    Args:
        levels: what was measured.
        filesystem: type of the file system, for the sentences.
        direct: whether files were opened with O_DIRECT.
        memory: whether the file system is memory.

    Yields:
        One sentence for each effect, the gravest first.

    Example:
        >>> next(doubts([], "tmpfs", direct=True, memory=True))
        'tmpfs is memory: these are figures of RAM, not of a storage'
    """
    if memory:
        yield f"{filesystem} is memory: these are figures of RAM, not of a storage"
    elif not direct:
        yield (
            f"{filesystem} does not open files with O_DIRECT: reads may come from this machine's page cache; "
            "trust the writes (they end with fsync), not the reads"
        )
    written, read = (max((x.rate for x in levels if x.phase == phase), default=0.0) for phase in ("write", "read"))
    if read > _CACHE_FACTOR * written > 0:
        yield (
            f"reads reach {say_bytes(read)}/s, {say_number(read / written)} times the fresh writes: files just written are "
            "likely read from a cache (the host's, a controller's or a server's), and colder files will be slower"
        )
    for level in levels:
        if level.phase in ("read", "random_read") and max(level.rates) > _FASTER_AGAIN_FACTOR * level.rates[0]:
            yield (
                f"{PHASE_NAMES[level.phase]} at n = {level.n} got {say_number(max(level.rates) / level.rates[0])} times faster "
                "after the first pass: a cache below O_DIRECT is warming up, so the first pass is nearer the storage"
            )
            break
    if levels and (worst := max(levels, key=lambda level: level.spread)).spread > _WIDE_SPREAD:
        yield (
            f"repetitions differ by up to {worst.spread:.0%} ({PHASE_NAMES[worst.phase]}, n = {worst.n}): the storage is "
            "busy, or its cache fills; probe again at a quiet hour, or longer with --time"
        )
    if levels and abs((worst := max(levels, key=_off)).in_flight / worst.n - 1) > _LITTLE_TOLERANCE:
        yield (
            f"throughput times latency is {say_number(worst.in_flight)} where n = {worst.n} ({PHASE_NAMES[worst.phase]}): "
            "streams started or ended apart, or waited for fsync or for this machine's processor; longer runs come closer"
        )


def _off(level: Level) -> float:
    return abs(level.in_flight / level.n - 1)
