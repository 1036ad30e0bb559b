"""What the watch itself takes of memory and processor while it watches 10,000 files at a poll of 15 s."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.measuring import CACHEWATCH, cpu_seconds, helpers_of, make_files, memory_of, row, scratch

FILES = 10_000
POLL_S = 15.0


def run(quick: bool) -> list[dict[str, Any]]:
    """Watch a directory in which one file grows, and read /proc beside it.

    Args:
        quick: 2 polls instead of 4 (one minute), at 5 s.

    Returns:
        Rows for resident memory and for processor time.
    """
    poll_s, polls = (5.0, 2) if quick else (POLL_S, 4)
    with scratch() as root:
        make_files(root / "cache", FILES)
        process = _start(root / "cache", poll_s)
        try:
            watch = psutil.Process(process.pid)
            # From the middle between two polls to the middle between two polls: whole polls, no start-up.
            time.sleep(1.5 * poll_s)
            kinds = helpers_of(watch)
            ours = [process.pid, *(p.pid for kind in ("guard", "scanner") for p in kinds[kind])]
            cpu_before_s, began_s = cpu_seconds(ours), time.monotonic()
            peer_s = _du_loop_s(root / "cache", poll_s, polls)
            time.sleep(max(0.0, began_s + polls * poll_s - time.monotonic()))
            cpu_s, wall_s = cpu_seconds(ours) - cpu_before_s, time.monotonic() - began_s
            helpers = kinds["guard"] + kinds["scanner"]
            pss, rss, _ = memory_of(helpers)
            own_pss, own_rss, _ = memory_of([watch])
            bare = _bare_interpreter_mb()
        finally:
            process.terminate()
            process.wait(60)
    share, peer_share = 100 * cpu_s / wall_s, 100 * peer_s / wall_s
    assert len(helpers) == 3, kinds
    what = f"{FILES:,} files"
    return [
        # Resident together is PSS: the twin guards are one image, forked, and their common pages are there once.
        row(f"guards + scanner, resident together (PSS), {what}", pss, "MB", "one bare python -S", bare,
            target="at most 40 MB", ok=pss <= 40, note="3 processes"),
        row(f"guards + scanner, sum of RSS, {what}", rss, "MB", "one bare python -S", bare,
            note="pages they share counted in each"),
        row("cachewatch exec itself, RSS", own_rss, "MB", "one bare python -S", bare, note=f"PSS {own_pss:.1f} MB"),
        row(f"processor while watching {what}, poll {poll_s:g} s", share, "% of a core", "du -sb at the same poll", peer_share,
            target="below 0.5 %", ok=share < 0.5, note=f"{cpu_s:.3f} s in {wall_s:.0f} s, all of cachewatch's processes"),
    ]  # fmt: skip


def _start(cache: Path, poll_s: float) -> subprocess.Popen[bytes]:
    growing = "import sys, time\nwith open(sys.argv[1], 'ab', buffering=0) as f:\n while True: f.write(b'x' * 65536); time.sleep(1)"
    command = [sys.executable, "-S", "-c", growing, str(cache / "growing.bin")]
    argv = [CACHEWATCH, "exec", "--quiet", "--cache-dir", str(cache), "--poll", f"{poll_s}s", "--", *command]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _du_loop_s(cache: Path, poll_s: float, polls: int) -> float:
    """Run du once a poll; returns the processor time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(polls):
        subprocess.run(["du", "-sb", str(cache)], stdout=subprocess.DEVNULL, check=True)
        time.sleep(poll_s * 0.9)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _bare_interpreter_mb() -> float:
    bare = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.5)
        return memory_of([psutil.Process(bare.pid)])[1]
    finally:
        bare.kill()
        bare.wait()
