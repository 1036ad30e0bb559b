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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

BLOCK_BYTES, RANDOM_BLOCK_BYTES = 2**20, 2**16
_PAGE = 4096


def measure_once(directory: Path, stop: Event, kind: str, streams: int, size_bytes: int, time_s: float) -> float:
    """Measure one repetition; each stream is a thread with a file of its own.

    Args:
        directory: where the files are; reads are of those that as many streams wrote last.
        stop: set, all streams end after the request under way.
        kind: of access, as in `rates.KINDS`.
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
        path, writes, done = directory / f"stream.{index}", kind == "write", 0
        if writes:
            path.unlink(missing_ok=True)  # a new file has new blocks: writing over old ones may be several times faster
        fd = os.open(path, os.O_DIRECT | (os.O_WRONLY | os.O_CREAT if writes else os.O_RDONLY), 0o600)
        try:
            block = _block(RANDOM_BLOCK_BYTES if kind == "random_read" else BLOCK_BYTES)
            for offset in _offsets(kind, size_bytes if writes else os.fstat(fd).st_size, len(block)):
                if writes:  # each page differs at every use, as storage that deduplicates needs it
                    mark = os.urandom(8)
                    for page in range(0, len(block), _PAGE):
                        block[page : page + 8] = mark
                done += os.pwrite(fd, block, offset) if writes else os.preadv(fd, [block], offset)
                if stop.is_set() or time.monotonic() >= begin_s + time_s:
                    break
        finally:
            if writes:
                os.fsync(fd)
            os.close(fd)
        return done

    with ThreadPoolExecutor(streams, thread_name_prefix="cachewatch-probe") as pool:
        try:
            done = sum(pool.map(stream, range(streams)))
        except BaseException:
            stop.set()  # the pool waits for its threads, so they must end
            raise
    return done / (time.monotonic() - begin_s)


def _offsets(kind: str, size_bytes: int, block_bytes: int) -> Iterable[int]:
    """Where the requests of a stream begin: block after block, or at random without end."""
    if kind != "random_read":
        return range(0, size_bytes, block_bytes)
    pick, blocks = random.Random().randrange, size_bytes // block_bytes  # noqa: S311 - no secret
    return (pick(blocks) * block_bytes for _ in itertools.count())


def _block(size_bytes: int) -> memoryview:
    """A page-aligned block of random bytes."""
    memory = mmap.mmap(-1, size_bytes)
    memory.write(os.urandom(size_bytes))
    return memoryview(memory)
