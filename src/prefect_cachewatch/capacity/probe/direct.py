"""Measure without fio: threads with O_DIRECT; also the files to read and the small-file test.

Python releases its lock during each request, so threads keep several in flight; with many small
requests on a fast device the processor is the limit.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

from prefect_cachewatch.capacity.probe.checks import Phase, Repetition, Sample

SMALL_FILE_BYTES = 4096
_STAMP_EVERY = 4096
_LAYOUT_BLOCK = 2**20

# One stream's work: bytes, the seconds of each request, the end on the monotonic clock.
_Part = tuple[int, list[float], float]


class DirectEngine:
    """Runs streams as threads of this process; ends them after one request when `stop` is set."""

    name = "the probe's own O_DIRECT engine"

    def __init__(self, *, direct: bool, stop: Event) -> None:
        self.direct = direct
        self.stop = stop

    def run(self, asked: Repetition) -> Sample | None:
        """Measure one repetition, with a thread for each stream.

        Args:
            asked: what is measured.

        Returns:
            The sample, or None when `stop` was set meanwhile.

        Raises:
            OSError: if the storage refused.
        """
        work = {"write": self._write, "read": self._read, "random_read": self._random_read}[asked.phase]

        return _measure(
            asked.phase, asked.streams, asked.time_s, self.stop, lambda index, deadline: work(asked, index, deadline)
        )

    def _write(self, asked: Repetition, index: int, deadline: Callable[[], float]) -> _Part:
        path = asked.directory / f"fresh.{index}.0"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self._flag, 0o600)
        try:
            # Without a name the blocks go with the descriptor, even if this process is killed.
            path.unlink()
            block = _Block(asked.block_bytes)
            end_s, done, latencies_s = deadline(), 0, list[float]()
            while done < asked.stream_bytes and not self.stop.is_set():
                block.stamp()
                before_s = time.monotonic()
                if before_s >= end_s:
                    break
                done += os.pwrite(descriptor, block.view, done)
                latencies_s.append(time.monotonic() - before_s)
            os.fsync(descriptor)
            return done, latencies_s, time.monotonic()
        finally:
            os.close(descriptor)

    def _read(self, asked: Repetition, index: int, deadline: Callable[[], float]) -> _Part:
        return self._read_at(asked, index, range(0, asked.stream_bytes, asked.block_bytes), deadline)

    def _random_read(self, asked: Repetition, index: int, deadline: Callable[[], float]) -> _Part:
        blocks = max(1, asked.stream_bytes // asked.block_bytes)
        pick = random.Random().randrange  # noqa: S311 - which block to read is no secret
        offsets = (pick(blocks) * asked.block_bytes for _ in itertools.count())
        return self._read_at(asked, index, offsets, deadline)

    def _read_at(self, asked: Repetition, index: int, offsets: Iterable[int], deadline: Callable[[], float]) -> _Part:
        descriptor = os.open(stream_path(asked.directory, index), os.O_RDONLY | self._flag)
        try:
            if not self.direct:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            block = _Block(asked.block_bytes)
            end_s, done, latencies_s = deadline(), 0, list[float]()
            for offset in offsets:
                before_s = time.monotonic()
                if before_s >= end_s or self.stop.is_set():
                    break
                done += os.preadv(descriptor, [block.view], offset)
                latencies_s.append(time.monotonic() - before_s)
            return done, latencies_s, time.monotonic()
        finally:
            os.close(descriptor)

    @property
    def _flag(self) -> int:
        return os.O_DIRECT if self.direct else 0


def stream_path(directory: Path, index: int) -> Path:
    """Say which file a stream reads; fio's `filename_format` names the same."""
    return directory / f"stream.{index}.0"


def lay_out(directory: Path, streams: int, stream_bytes: int, *, direct: bool, stop: Event, time_s: float) -> bool:
    """Write the files that reads will read, flushed to the storage; those already there stay.

    Args:
        directory: where the files go.
        streams: how many there must be.
        stream_bytes: size of each.
        direct: whether they open with O_DIRECT.
        stop: ends it early.
        time_s: the longest it may take.

    Returns:
        Whether they are all there; False when stopped, or the storage was too slow for the time.

    Raises:
        OSError: if the storage refused.
    """
    end_s = time.monotonic() + time_s
    block = _Block(_LAYOUT_BLOCK)
    for index in range(streams):
        path = stream_path(directory, index)
        if path.exists() and path.stat().st_size >= stream_bytes:
            continue
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0), 0o600)
        try:
            for offset in range(0, stream_bytes, _LAYOUT_BLOCK):
                if stop.is_set() or time.monotonic() >= end_s:
                    return False
                block.stamp()
                os.pwrite(descriptor, block.view, offset)
            os.fsync(descriptor)
            if not direct:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    return True


def measure_small_files(directory: Path, streams: int, time_s: float, stop: Event) -> Sample | None:
    """Measure what one small file costs: create, write 4 KiB, fsync, rename; each is deleted after, untimed.

    Args:
        directory: where the files go.
        streams: how many threads at once, each in a directory of its own.
        time_s: how long.
        stop: ends it early.

    Returns:
        The sample, its latency the time of one file; None when stopped.

    Raises:
        OSError: if the storage refused.
    """
    data = os.urandom(SMALL_FILE_BYTES)

    def stream(index: int, deadline: Callable[[], float]) -> _Part:
        own = directory / f"small.{index}"
        own.mkdir(exist_ok=True)
        end_s, latencies_s, deleting_s = deadline(), list[float](), 0.0
        while not stop.is_set():
            before_s = time.monotonic()
            if before_s >= end_s and latencies_s:
                break
            path = own / f"{len(latencies_s)}.tmp"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            final = path.with_suffix(".bin")
            path.rename(final)
            after_s = time.monotonic()
            latencies_s.append(after_s - before_s)
            final.unlink()
            deleting_s += time.monotonic() - after_s
        # What deleting took is taken out, so that X x latency = n still holds.
        return len(latencies_s) * SMALL_FILE_BYTES, latencies_s, time.monotonic() - deleting_s

    return _measure("metadata", streams, time_s, stop, stream)


class _Block:
    """A page-aligned block of random bytes, different at every use, as deduplicating storage needs it."""

    _counter = itertools.count()

    def __init__(self, size_bytes: int) -> None:
        self._memory = mmap.mmap(-1, size_bytes)
        self._memory.write(os.urandom(size_bytes))
        self.view = memoryview(self._memory)

    def stamp(self) -> None:
        """Change each 4 KiB page of it."""
        mark = next(self._counter).to_bytes(8, "little")
        for offset in range(0, len(self._memory) - 7, _STAMP_EVERY):
            self._memory[offset : offset + 8] = mark


def _measure(
    phase: Phase,
    streams: int,
    time_s: float,
    stop: Event,
    stream: Callable[[int, Callable[[], float]], _Part],
) -> Sample | None:
    start_s = [0.0]

    def started() -> None:
        start_s[0] = time.monotonic()

    barrier = Barrier(streams, action=started)

    def deadline() -> float:
        # Opening files and making buffers is over: all streams start together.
        barrier.wait(timeout=60)
        return start_s[0] + time_s

    def guarded(index: int) -> _Part:
        try:
            return stream(index, deadline)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(streams, thread_name_prefix="cachewatch-probe") as pool:
        futures = [pool.submit(guarded, index) for index in range(streams)]
        try:
            errors = [error for future in futures if (error := future.exception()) is not None]
        except BaseException:
            stop.set()  # Ctrl-C without a handler: the pool waits for its threads, so they must end
            raise
    # A stream that failed breaks the barrier for the others: its own error is the one to tell.
    for error in errors:
        if isinstance(error, OSError):
            raise error
    if errors:
        raise errors[0]
    if stop.is_set():
        return None
    parts = [future.result() for future in futures]
    latencies_s = sorted(itertools.chain.from_iterable(part[1] for part in parts))
    if not latencies_s:
        raise OSError(errno.ETIMEDOUT, "not one request ended in the time")
    return Sample(
        phase=phase,
        concurrency=streams,
        done_bytes=sum(part[0] for part in parts),
        operations=len(latencies_s),
        elapsed_s=max(part[2] for part in parts) - start_s[0],
        mean_latency_s=statistics.fmean(latencies_s),
        p99_latency_s=latencies_s[min(len(latencies_s) - 1, int(len(latencies_s) * 0.99))],
    )
