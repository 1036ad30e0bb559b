"""Moves bytes with threads and O_DIRECT: fresh writes, reads, random reads.

Python releases its lock during each request, so threads keep several in flight; with many small requests on a fast
device the processor is the limit. Where files do not open with O_DIRECT, nothing is measured: it would be the page cache.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

BLOCK_BYTES, RANDOM_BLOCK_BYTES = 2**20, 2**16
_PAGE = 4096


class Bench:
    """Streams in one directory, each a thread with files of its own; all end after one request when `stop` is set."""

    def __init__(self, directory: Path, stop: Event) -> None:
        self.directory, self.stop = directory, stop

    def run(self, kind: str, streams: int, size_bytes: int, time_s: float) -> float:
        """Measure one repetition.

        Args:
            kind: of access, as in `rates.KINDS`; reads are of the files that as many streams wrote last.
            streams: how many at once.
            size_bytes: the most that one stream writes.
            time_s: the longest it may take, before fsync.

        Returns:
            Bytes per second of all streams together; written ones count when fsync has ended.

        Raises:
            OSError: if the storage refused.
        """
        begin_s = time.monotonic()

        def stream(index: int) -> int:
            done = 0
            with closing(self._requests(kind, index, streams, size_bytes)) as requests:
                for size in requests:
                    done += size
                    if self.stop.is_set() or time.monotonic() >= begin_s + time_s:
                        break
            return done

        with ThreadPoolExecutor(streams, thread_name_prefix="cachewatch-probe") as pool:
            try:
                done = sum(pool.map(stream, range(streams)))
            except BaseException:
                self.stop.set()  # the pool waits for its threads, so they must end
                raise
        return done / (time.monotonic() - begin_s)

    def _requests(self, kind: str, index: int, streams: int, size_bytes: int) -> Generator[int, None, None]:
        """How much each request moved, as it is done."""
        path = self.directory / f"stream.{index}"
        if kind == "write":
            return self._write(path, size_bytes)
        size = path.stat().st_size
        if kind == "read":
            return self._read(path, BLOCK_BYTES, range(0, size, BLOCK_BYTES))
        pick, blocks = random.Random().randrange, size // RANDOM_BLOCK_BYTES  # noqa: S311 - no secret
        return self._read(path, RANDOM_BLOCK_BYTES, (pick(blocks) * RANDOM_BLOCK_BYTES for _ in itertools.count()))

    def _write(self, path: Path, size_bytes: int) -> Generator[int, None, None]:
        path.unlink(missing_ok=True)  # a new file has new blocks: writing over old ones may be several times faster
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            block = _block(BLOCK_BYTES)
            for offset in range(0, size_bytes, BLOCK_BYTES):
                # Each page differs at every use, as storage that deduplicates needs it.
                mark = os.urandom(8)
                for page in range(0, BLOCK_BYTES, _PAGE):
                    block[page : page + 8] = mark
                yield os.pwrite(fd, block, offset)
        finally:
            os.fsync(fd)
            os.close(fd)

    def _read(self, path: Path, block_bytes: int, offsets: Iterable[int]) -> Generator[int, None, None]:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            block = _block(block_bytes)
            for offset in offsets:
                yield os.preadv(fd, [block], offset)
        finally:
            os.close(fd)


def _block(size_bytes: int) -> memoryview:
    """A page-aligned block of random bytes."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(os.urandom(size_bytes))
    return memoryview(memory)
