"""Whether a generator that prints a gigabyte is slowed by being watched: against a pipe into `cat >/dev/null`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import CACHEWATCH, interleaved, median, row, scratch, spread

# Each measures itself from its first byte to its last, so that nobody's start-up is in it.
# Lines leave a program in buffers of 8 KiB, whatever language it is written in.
LINES = """
import os, sys, time
line = b"layer 12 shard 0031: converted feed_forward.w2 to bfloat8_b, 4,194,304 elements".ljust(127) + b"\\n"
block, left = line * 64, int(sys.argv[2])
began = time.perf_counter()
while left > 0:
    left -= os.write(1, block)
open(sys.argv[1], "w").write(str(time.perf_counter() - began))
"""
BLOCKS = """
import os, sys, time
block, left = b"x" * 65536, int(sys.argv[2])
began = time.perf_counter()
while left > 0:
    left -= os.write(1, block)
open(sys.argv[1], "w").write(str(time.perf_counter() - began))
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure the generator's own time for 1 GB of output (100 MB if quick).

    Args:
        quick: less output.

    Returns:
        A row for log lines, which has a target, and one for raw blocks as fast as a pipe takes them.
    """
    size = 10**8 if quick else 10**9
    rows = []
    for what, code in (("of log lines", LINES), ("of raw 64 KiB blocks", BLOCKS)):
        with scratch() as root:
            took = root / "took"
            writer = [sys.executable, "-S", "-c", code, str(took), str(size)]
            ours, peer = interleaved(
                5 if quick else 9, lambda w=writer, r=root: _guarded_s(w, r), lambda w=writer, r=root: _piped_s(w, r)
            )
        ratio = median(ours) / median(peer)
        rows.append(
            row(f"print {size / 1e9:g} GB {what}, with --log", median(ours), "s", "| cat >/dev/null", median(peer),
                target="at most 1.05 x" if code is LINES else "", ok=ratio <= 1.05 if code is LINES else None,
                note=f"{spread(ours)}; slower by {100 * (ratio - 1):.1f} %")
        )  # fmt: skip
    return rows


def _guarded_s(writer: list[str], root: Path) -> float:
    argv = [
        CACHEWATCH,
        "exec",
        "--quiet",
        "--cache-dir",
        str(root / "cache"),
        "--log",
        str(root / "log"),
        "--",
        *writer,
    ]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    return float((root / "took").read_text())


def _piped_s(writer: list[str], root: Path) -> float:
    producer = subprocess.Popen(writer, stdout=subprocess.PIPE)
    cat = subprocess.Popen(["cat"], stdin=producer.stdout, stdout=subprocess.DEVNULL)
    assert producer.stdout is not None
    producer.stdout.close()
    if producer.wait() or cat.wait():
        raise RuntimeError("the piped command failed")
    return float((root / "took").read_text())
