"""Measures with threads and O_DIRECT: fresh writes, reads, random reads, small files.

Python releases its lock during each request, so threads keep several in flight; with many small requests on a fast
device the processor is the limit.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import statistics
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

from prefect_cachewatch.capacity.probe.checks import Phase, Sample

BLOCK_BYTES, RANDOM_BLOCK_BYTES = 2**20, 2**16
_PAGE = 4096
_SMALL_FILES = 4096  # of all streams together
_START_S = 60.0

# One stream's work: bytes, the seconds of each request, the end on the monotonic clock.
_Part = tuple[int, list[float], float]


class Bench:
    """Streams in one directory, each a thread with files of its own; all end after one request when `stop` is set."""

    def __init__(self, directory: Path, *, direct: bool, stop: Event) -> None:
        self.directory, self.stop = directory, stop
        self._direct = os.O_DIRECT if direct else 0

    def run(self, phase: Phase, streams: int, stream_bytes: int, time_s: float) -> Sample | None:
        """Measure one repetition.

        Args:
            phase: what is measured; reads are of files that `lay_out` made.
            streams: how many at once.
            stream_bytes: the most that one stream writes, or the size of the file that it reads.
            time_s: the longest it may take, before fsync.

        Returns:
            The sample, or None when `stop` was set meanwhile.

        Raises:
            OSError: if the storage refused.
        """
        begin_s = [0.0]
        barrier = Barrier(streams, action=lambda: begin_s.__setitem__(0, time.monotonic()))

        def stream(index: int) -> _Part:
            try:
                with closing(self._requests(phase, index, streams, stream_bytes)) as requests:
                    done, latencies_s = next(requests), list[float]()  # it is ready: all streams start together
                    barrier.wait(timeout=_START_S)
                    before_s = time.monotonic()
                    while not self.stop.is_set() and (before_s < begin_s[0] + time_s or not latencies_s):
                        if not (size := next(requests, 0)):
                            break
                        after_s = time.monotonic()
                        latencies_s.append(after_s - before_s)
                        done, before_s = done + size, after_s
                    until_s = time.monotonic()
                return done, latencies_s, time.monotonic() if phase == "write" else until_s
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(streams, thread_name_prefix="cachewatch-probe") as pool:
            futures = [pool.submit(stream, index) for index in range(streams)]
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            except BaseException:
                self.stop.set()  # Ctrl-C without a handler: the pool waits for its threads, so they must end
                raise
        if errors:  # a stream that failed breaks the barrier for the others: its own error is the one to tell
            raise min(errors, key=lambda error: isinstance(error, BrokenBarrierError))
        if self.stop.is_set():
            return None
        parts = [future.result() for future in futures]
        latencies_s = list(itertools.chain.from_iterable(part[1] for part in parts))
        if not latencies_s:
            raise OSError(errno.ETIMEDOUT, "not one request ended in the time")
        elapsed_s = max(part[2] for part in parts) - begin_s[0]
        return Sample(
            phase, streams, sum(part[0] for part in parts), len(latencies_s), elapsed_s, statistics.fmean(latencies_s)
        )

    def lay_out(self, streams: int, stream_bytes: int, time_s: float) -> bool:
        """Write the files that streams will read, flushed to the storage; those already there stay.

        Args:
            streams: how many there must be.
            stream_bytes: size of each.
            time_s: the longest it may take.

        Returns:
            Whether they are all there; False when stopped, or the storage was too slow for the time.

        Raises:
            OSError: if the storage refused.
        """
        end_s = time.monotonic() + time_s
        for index in range(streams):
            path = self._read_path(index)
            if path.exists():
                continue
            part = path.with_suffix(".part")
            with closing(self._written(part, stream_bytes)) as requests:
                for _ in requests:
                    if self.stop.is_set() or time.monotonic() >= end_s:
                        return False
            part.rename(path)
        return True

    def _read_path(self, index: int) -> Path:
        return self.directory / f"stream.{index}"

    def _requests(self, phase: Phase, index: int, streams: int, stream_bytes: int) -> Generator[int, None, None]:
        """Bytes of each request as it is done; the first one says that everything is ready."""
        if phase == "write":
            return self._written(self.directory / f"fresh.{index}", stream_bytes, keep=False)
        if phase == "files":
            return self._small_files(index, max(16, _SMALL_FILES // streams))
        if phase == "read":
            return self._read(index, BLOCK_BYTES, iter(range(0, stream_bytes, BLOCK_BYTES)))
        pick, blocks = random.Random().randrange, max(1, stream_bytes // RANDOM_BLOCK_BYTES)  # noqa: S311 - no secret
        return self._read(index, RANDOM_BLOCK_BYTES, (pick(blocks) * RANDOM_BLOCK_BYTES for _ in itertools.count()))

    def _written(self, path: Path, size_bytes: int, keep: bool = True) -> Generator[int, None, None]:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | self._direct, 0o600)
        try:
            if not keep:  # without a name the blocks go with the descriptor, even if this process is killed
                path.unlink()
            block = _block(BLOCK_BYTES)
            yield 0
            for offset in range(0, size_bytes, BLOCK_BYTES):
                # Each page differs at every use, as storage that deduplicates needs it.
                mark = os.urandom(8)
                for page in range(0, BLOCK_BYTES, _PAGE):
                    block[page : page + 8] = mark
                yield os.pwrite(fd, block[: min(BLOCK_BYTES, size_bytes - offset)], offset)
        finally:
            os.fsync(fd)
            if not self._direct:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def _read(self, index: int, block_bytes: int, offsets: Iterator[int]) -> Generator[int, None, None]:
        fd = os.open(self._read_path(index), os.O_RDONLY | self._direct)
        try:
            if not self._direct:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            block = _block(block_bytes)
            yield 0
            for offset in offsets:
                yield os.preadv(fd, [block], offset)
        finally:
            os.close(fd)

    def _small_files(self, index: int, most: int) -> Generator[int, None, None]:
        """Create, write 4 KiB, fsync, rename; deleted afterwards."""
        own, data, made = self.directory / f"small.{index}", os.urandom(_PAGE), list[Path]()
        own.mkdir(exist_ok=True)
        try:
            yield 0
            for number in range(most):
                path = own / f"{number}.tmp"
                made.append(path)
                with open(path, "xb", buffering=0) as file:
                    file.write(data)
                    os.fsync(file.fileno())
                path.rename(path.with_suffix(".bin"))
                made[-1] = path.with_suffix(".bin")
                yield _PAGE
        finally:
            for path in made:
                path.unlink(missing_ok=True)


def _block(size_bytes: int) -> memoryview:
    """A page-aligned block of random bytes."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(os.urandom(size_bytes))
    return memoryview(memory)
