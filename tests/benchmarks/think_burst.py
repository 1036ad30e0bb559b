"""A generator in miniature: thinks, writes a burst to a new file past the page cache, and again.

Arguments: directory, log file, seed, think seconds, wall-clock second to begin, and to end. The log
gets a line `start end` for each burst, in seconds of the monotonic clock that all jobs share.
"""

import mmap
import os
import random
import sys
import time

BLOCK_BYTES = 1024 * 1024
BLOCKS = 16
BURST_BYTES = BLOCK_BYTES * BLOCKS


def burst(path: str, block: mmap.mmap) -> None:
    """Write one file of 16 blocks of 1 MiB with O_DIRECT, and make it durable."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        for _ in range(BLOCKS):
            os.write(fd, block)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def main() -> None:
    directory, log, seed, think_s, begin, end = sys.argv[1:]
    draw = random.Random(int(seed))
    block = mmap.mmap(-1, BLOCK_BYTES)  # page aligned, as O_DIRECT wants it
    block.write(draw.randbytes(BLOCK_BYTES))
    mean_s, last = float(think_s), float(end)
    with open(log, "w", buffering=1) as out:
        time.sleep(max(0.0, float(begin) - time.time()))
        number = 0
        while time.time() < last:
            if mean_s:
                time.sleep(mean_s * draw.uniform(0.5, 1.5))
            started = time.monotonic()
            burst(os.path.join(directory, f"tensor-{number:06d}.bin"), block)
            out.write(f"{started:.6f} {time.monotonic():.6f}\n")
            number += 1


if __name__ == "__main__":
    main()
