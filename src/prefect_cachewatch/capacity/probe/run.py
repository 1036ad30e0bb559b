"""Measure a storage: fresh writes, reads, random reads and small files at 1, 2, 4, ... streams.

It slows other users of the storage, so it runs only when asked, within caps of size, time
and free space, and inside one directory that is removed however the probe ends.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Protocol

from prefect_cachewatch.capacity.probe.checks import (
    PHASE_NAMES,
    Phase,
    Repetition,
    Sample,
    find_effects,
)
from prefect_cachewatch.capacity.probe.direct import DirectEngine, lay_out, measure_small_files
from prefect_cachewatch.capacity.probe.fio import FioEngine, FioError, find_fio
from prefect_cachewatch.capacity.probe.report import SHORTEST_RUN_S, ProbeReport, ProbeSettings, ProbeStep, StopCause
from prefect_cachewatch.capacity.probe.target import (
    ProbeTarget,
    inspect_target,
    leftovers,
    opens_direct,
    scratch_directory,
    size_budget,
    write_refused,
)
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.errors import CachewatchError, InputError

_FIO_START_S = 0.4
_STREAMING: tuple[Phase, ...] = ("write", "read", "random_read")


class _Engine(Protocol):
    name: str

    def run(self, asked: Repetition) -> Sample | None: ...


def levels_up_to(cap: int) -> list[int]:
    """List the concurrencies a probe measures: powers of two, then the cap.

    Args:
        cap: the largest.

    Returns:
        Ascending, from 1.

    Example:
        >>> levels_up_to(12)
        [1, 2, 4, 8, 12]
    """
    levels = [2**power for power in range(cap.bit_length()) if 2**power < cap]
    return [*levels, cap]


def run_probe(
    directory: Path,
    settings: ProbeSettings | None = None,
    *,
    stop: Event | None = None,
    on_progress: Callable[[ProbeStep], None] = lambda step: None,
    on_level: Callable[[ProbeReport], None] = lambda report: None,
    target: ProbeTarget | None = None,
) -> ProbeReport:
    """Measure the storage under a directory.

    Args:
        directory: an existing directory of the user's own on the storage.
        settings: caps and choices; default: 16 streams, 1 GiB at once, 2 minutes, 3 repetitions.
        stop: set it (from a signal handler, another thread) to end early and keep what was measured.
        on_progress: told before each repetition.
        on_level: given all measurements after each concurrency; a caller that saves them there loses nothing.
        target: the result of `inspect_target(directory)`, if it was asked already.

    Returns:
        All samples, the effects seen, and why it ended early if it did.

    Raises:
        InputError: if the directory must not or cannot be probed, or nothing could be measured.
        CachewatchError: if fio was asked for and does not work.
    """
    settings = settings or ProbeSettings()
    target = check_probe(directory, settings, target)
    return _Run(target, settings, stop or Event(), on_progress, on_level).measure()


def check_probe(directory: Path, settings: ProbeSettings, target: ProbeTarget | None = None) -> ProbeTarget:
    """Check that a probe may run, before anything is written.

    Args:
        directory: what to probe.
        settings: caps and choices.
        target: the result of `inspect_target(directory)`, if it was asked already.

    Returns:
        What the kernel says of the directory.

    Raises:
        InputError: if the directory must not or cannot be probed.
    """
    target = target or inspect_target(directory)
    if target.is_network and not settings.network_ok:
        raise InputError(
            f"{for_terminal(str(target.path))} is on a network file system ({target.filesystem}), and "
            "a probe slows everyone who uses it: choose a quiet hour and add --network-ok "
            "(network_ok in a flow)"
        )
    size_budget(target, int(settings.size_bytes), settings.keep_free)
    if settings.engine == "fio" and find_fio() is None:
        raise InputError("fio is not installed: apt install fio, or use --engine direct")
    return target


class _Run:
    """One probe under way."""

    def __init__(
        self,
        target: ProbeTarget,
        settings: ProbeSettings,
        stop: Event,
        on_progress: Callable[[ProbeStep], None],
        on_level: Callable[[ProbeReport], None],
    ) -> None:
        self.target, self.settings, self.stop = target, settings, stop
        self.on_progress, self.on_level = on_progress, on_level
        self.size_bytes = size_budget(target, int(settings.size_bytes), settings.keep_free)
        self.levels = levels_up_to(settings.max_concurrency)
        self.total = len(self.levels) * (len(_STREAMING) + 1) * settings.repetitions
        self.samples: list[Sample] = []
        self.notes: list[str] = [
            f"an earlier probe left {for_terminal(str(path))} behind: delete it if no probe runs there now"
            for path in leftovers(target.path)[:5]
        ]
        self.stopped: str | None = None
        self.stop_cause: StopCause | None = None
        self.direct = True
        self.engine: _Engine
        self.started = datetime.datetime.now(datetime.UTC)
        self.start_s = time.monotonic()

    def measure(self) -> ProbeReport:
        with scratch_directory(self.target, self.notes.append) as scratch:
            try:
                self.direct = opens_direct(scratch)
                self.engine = self._choose_engine()
                for streams in self.levels:
                    if not self._measure_level(scratch, streams):
                        break
                    self.on_level(self.report())
            except OSError as error:
                self._refused(write_refused(error, self.target.path))
            except FioError as error:
                number = error.data.get("errno")
                self._refused(write_refused(OSError(number, error.message), self.target.path) if number else error)
        return self.report()

    def report(self) -> ProbeReport:
        effects = find_effects(
            self.samples,
            self.target.filesystem,
            direct=self.direct,
            memory=self.target.is_memory,
            disk=self.target.disk,
            python_engine=isinstance(self.engine, DirectEngine),
        )
        return ProbeReport(
            target=self.target,
            engine=self.engine.name,
            direct=self.direct,
            size_bytes=self.size_bytes,
            block_bytes=self.settings.block_bytes,
            random_block_bytes=self.settings.random_block_bytes,
            started=self.started,
            elapsed_s=time.monotonic() - self.start_s,
            samples=tuple(self.samples),
            notes=(*effects, *self.notes),
            stopped=self.stopped,
            stop_cause=self.stop_cause,
        )

    def _choose_engine(self) -> _Engine:
        fio = None if self.settings.engine == "direct" else find_fio()
        if fio is None:
            return DirectEngine(direct=self.direct, stop=self.stop)
        return FioEngine(fio, direct=self.direct, stop=self.stop)

    def _measure_level(self, scratch: Path, streams: int) -> bool:
        # Half of the space is for the files to read, which are kept; half for fresh ones, which are deleted.
        half = self.size_bytes // 2
        fresh_bytes = _whole_blocks(half // streams, self.settings.block_bytes)
        kept_bytes = _whole_blocks(half // self.settings.max_concurrency, self.settings.block_bytes)
        for phase in (*_STREAMING, "metadata"):
            if phase == "read":
                self._say(f"laying out {streams} file{'s' if streams > 1 else ''} to read")
                room_s = max(self._left_s(), 10.0)
                if not lay_out(
                    scratch, streams, kept_bytes, direct=self.direct, stop=self.stop, time_s=room_s
                ):  # fmt: skip
                    return self._end("the storage was too slow to lay out files within the time")
            for repetition in range(self.settings.repetitions):
                if self.stop.is_set():
                    return self._end("")
                if self._left_s() <= 0:
                    return self._end(
                        f"the time of {format_duration(self.settings.time_s)} was up at n = {streams}: "
                        "allow more with --time"
                    )
                self._say(f"n = {streams}, {PHASE_NAMES[phase]}, {repetition + 1} of {self.settings.repetitions}")
                sample = self._one(scratch, phase, streams, fresh_bytes if phase == "write" else kept_bytes)
                if sample is None:
                    return self._end("")
                self.samples.append(sample)
        return True

    def _one(self, scratch: Path, phase: Phase, streams: int, stream_bytes: int) -> Sample | None:
        time_s = self._run_s()
        if phase == "metadata":
            return measure_small_files(scratch, streams, min(time_s, 1.0), self.stop)
        block_bytes = self.settings.random_block_bytes if phase == "random_read" else self.settings.block_bytes
        return self.engine.run(
            Repetition(phase, scratch, streams, stream_bytes, min(block_bytes, stream_bytes), time_s)
        )

    def _run_s(self) -> float:
        overhead_s = 0.0 if isinstance(self.engine, DirectEngine) else _FIO_START_S
        share_s = self.settings.time_s / self.total - overhead_s
        share_s = max(SHORTEST_RUN_S, share_s)
        return share_s if self.settings.run_s is None else min(self.settings.run_s, share_s)

    def _left_s(self) -> float:
        return self.settings.time_s - (time.monotonic() - self.start_s)

    def _say(self, text: str) -> None:
        self.on_progress(ProbeStep(len(self.samples), self.total, text))

    def _end(self, reason: str) -> bool:
        interrupted = self.stop.is_set()
        self.stopped = "it was interrupted" if interrupted else reason
        self.stop_cause = "interrupted" if interrupted else "time"
        return False

    def _refused(self, error: CachewatchError) -> None:
        # Measurements before the storage refused are worth keeping; before the first sample there are none.
        if not self.samples:
            raise error
        self.stopped, self.stop_cause = error.message, "storage"


def _whole_blocks(size_bytes: int, block_bytes: int) -> int:
    if size_bytes < block_bytes:
        return max(4096, size_bytes // 4096 * 4096)
    return size_bytes // block_bytes * block_bytes
