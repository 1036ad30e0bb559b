"""Measure a storage: fresh writes, reads, random reads and small files with 1, 2, 4, ... streams.

It slows other users of the storage, so it runs only when asked, within caps of size, time and free space, and inside one
directory that is removed however the probe ends.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Annotated, Literal

from pydantic import Field

from prefect_cachewatch.capacity.probe.checks import PHASE_NAMES, Level, Phase, Sample, doubts, levels_of
from prefect_cachewatch.capacity.probe.direct import BLOCK_BYTES, Bench
from prefect_cachewatch.capacity.probe.target import (
    ProbeTarget,
    inspect_target,
    leftovers,
    opens_direct,
    scratch_directory,
    size_budget,
    write_refused,
)
from prefect_cachewatch.capacity.units import say_bytes
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import NUMBER_PATTERN, format_duration
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, Quantity, Size
from prefect_cachewatch.errors import InputError

_PHASES: tuple[Phase, ...] = ("write", "read", "random_read", "files")
_SHORTEST_S = 0.1
_LAY_OUT_S = 10.0


def _parse_share(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"{text[:40]!r} is not a share: write it like 5% or 0.05")
    return share


_SHARE = Quantity("share", _parse_share, rf"^\s*{NUMBER_PATTERN}%?\s*$")


class ProbeSettings(InputModel):
    """The limits of a probe: streams, bytes, time and the space that it leaves free."""

    max_concurrency: int = Field(
        default=16, ge=1, le=256, description="The most streams; measured at 1, 2, 4, ... of them."
    )
    size_bytes: Size = Field(
        default=2**30, ge=16 * 2**20, le=10**15, description="The most bytes it has on the storage at once."
    )
    time_s: Duration = Field(
        default=120, ge=1, le=86400, description="The longest it measures; what it has then is kept."
    )
    repetitions: int = Field(default=3, ge=3, le=50, description="Runs at each number of streams; medians are kept.")
    keep_free: Annotated[float, _SHARE] = Field(
        default=0.05, ge=0, lt=1, description="Share of the file system that stays free whatever the size says."
    )
    network_ok: bool = Field(
        default=False, description="Probe a network file system too, which slows everyone who uses it meanwhile."
    )


@dataclass(frozen=True)
class ProbeReport:
    """The measurements of a probe; `stopped` says why it ended early."""

    target: ProbeTarget
    direct: bool
    size_bytes: int
    started: datetime.datetime
    elapsed_s: float
    levels: tuple[Level, ...]
    notes: tuple[str, ...]
    stopped: str = ""
    cause: Literal["", "time", "interrupted", "storage"] = ""

    def curve(self, phase: Phase) -> list[Level]:
        """The levels of one phase, by streams."""
        return sorted((level for level in self.levels if level.phase == phase), key=lambda level: level.n)


def streams_up_to(most: int) -> list[int]:
    """List the numbers of streams that a probe measures: powers of two, then the most.

    Example:
        >>> streams_up_to(12)
        [1, 2, 4, 8, 12]
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def check_probe(directory: Path, settings: ProbeSettings) -> ProbeTarget:
    """Check that a probe may run, before anything is written.

    Args:
        directory: an existing directory of the user's own on the storage.
        settings: caps and choices.

    Returns:
        What the kernel says of the directory.

    Raises:
        InputError: if the directory must not or cannot be probed.
    """
    target = inspect_target(directory)
    if target.is_network and not settings.network_ok:
        raise InputError(
            f"{for_terminal(str(target.path))} is on a network file system ({target.filesystem}), and a probe slows "
            "everyone who uses it: choose a quiet hour and add --network-ok (network_ok in a flow)"
        )
    least = 2 * BLOCK_BYTES * settings.max_concurrency
    if size_budget(target, settings.size_bytes, settings.keep_free) < least:
        raise InputError(
            f"{settings.max_concurrency} streams need {say_bytes(least, binary=True)}, and --size and the free space of "
            f"{for_terminal(str(target.path))} give less: allow more, or fewer with --max-concurrency"
        )
    return target


def run_probe(
    target: ProbeTarget,
    settings: ProbeSettings,
    stop: Event | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> ProbeReport:
    """Measure the storage under a directory.

    Args:
        target: the directory, from `check_probe`.
        settings: caps and choices.
        stop: set it (from a signal handler, another thread) to end early and keep what was measured.
        say: told what comes next, once for each phase and number of streams.

    Returns:
        All levels, the doubts about them, and why it ended early if it did.

    Raises:
        InputError: if the storage refused before anything was measured.
    """
    stop = stop or Event()
    notes = [
        f"an earlier probe left {path} behind: delete it if no probe runs there now" for path in leftovers(target.path)
    ]
    size_bytes = size_budget(target, settings.size_bytes, settings.keep_free)
    # Half of the space is for the files to read, which are kept; half for fresh ones, which are deleted.
    kept_bytes = _whole_blocks(size_bytes // 2 // settings.max_concurrency)
    every: list[tuple[int, Phase]] = [(n, phase) for n in streams_up_to(settings.max_concurrency) for phase in _PHASES]
    share_s = max(_SHORTEST_S, settings.time_s / len(every) / settings.repetitions)
    samples: list[Sample] = []
    stopped, cause, direct = "", "", True
    started, begin_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    with scratch_directory(target, notes.append) as scratch:
        try:
            direct = opens_direct(scratch)
            bench = Bench(scratch, direct=direct, stop=stop)
            for number, (n, phase) in enumerate(every):
                say(f"{number + 1} of {len(every)}: {PHASE_NAMES[phase]}, n = {n}")
                left_s = settings.time_s - (time.monotonic() - begin_s)
                if phase == "read" and not bench.lay_out(n, kept_bytes, max(left_s, _LAY_OUT_S)):
                    stopped, cause = "the storage was too slow to lay out files within the time", "time"
                fresh_bytes = _whole_blocks(size_bytes // 2 // n)
                for _ in range(settings.repetitions):
                    if stopped or stop.is_set():
                        break
                    if time.monotonic() - begin_s >= settings.time_s:
                        limit = format_duration(settings.time_s)
                        stopped, cause = f"the time of {limit} was up at n = {n}: allow more with --time", "time"
                        break
                    sample = bench.run(phase, n, fresh_bytes if phase == "write" else kept_bytes, share_s)
                    samples += [sample] if sample is not None else []
                if stop.is_set():
                    stopped, cause = "it was interrupted", "interrupted"
                if stopped:
                    break
        except OSError as error:
            refusal = write_refused(error, target.path)
            if not samples:
                raise refusal from None
            stopped, cause = refusal.message, "storage"
    levels = levels_of(samples)
    notes = [*doubts(levels, target.filesystem, direct=direct, memory=target.is_memory), *notes]
    elapsed_s = time.monotonic() - begin_s
    return ProbeReport(target, direct, size_bytes, started, elapsed_s, levels, tuple(notes), stopped, cause)  # type: ignore[arg-type]


def _whole_blocks(size_bytes: int) -> int:
    return max(BLOCK_BYTES, size_bytes // BLOCK_BYTES * BLOCK_BYTES)
