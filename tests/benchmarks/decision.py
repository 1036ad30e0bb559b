"""How far beyond its window a stall is decided, at several polls, against a shell loop that polls with du."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import exec_report, median, row, scratch, spread

# Writes for a time that is no multiple of any poll, then hangs.
WRITER = """
import os, sys, time
end = time.monotonic() + float(sys.argv[2])
with open(os.path.join(sys.argv[1], "weights.bin"), "ab", buffering=0) as file:
    while time.monotonic() < end:
        file.write(b"x" * 65536)
        time.sleep(0.02)
    print(time.time(), flush=True)
time.sleep(600)
"""
# What people write: remember when du last said something new, and look every so often.
LOOP = """
last=; since=$(date +%s.%N)
while :; do
    now=$(du -sb "$1" | cut -f1); at=$(date +%s.%N)
    if [ "$now" != "$last" ]; then last=$now; since=$at; fi
    if [ "$(echo "$at - $since >= $2" | bc 2>/dev/null || python3 -c "print(int($at - $since >= $2))")" = 1 ]; then
        echo "$at"; exit
    fi
    sleep "$3"
done
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure `decided_after_last_growth_s` less the window.

    Args:
        quick: fewer runs and only short windows.

    Returns:
        One row a poll.
    """
    cases = [(0.5, 3.0), (2.0, 5.0)] if quick else [(0.5, 4.0), (2.0, 7.0), (5.0, 12.0), (15.0, 31.0)]
    runs = 3 if quick else 5
    return [_case(poll_s, window_s, runs) for poll_s, window_s in cases]


def _case(poll_s: float, window_s: float, runs: int) -> dict[str, Any]:
    lasts = [1.1 + 0.37 * number * min(poll_s, 4) for number in range(runs)]
    loops = lasts[:2] if poll_s > 10 else lasts
    # They mostly sleep: two side by side do not disturb each other, and halve the time.
    with scratch() as root, ThreadPoolExecutor(2) as pool:
        ours = list(pool.map(lambda last: _ours_s(root / f"ours{last}", last, poll_s, window_s), lasts))
        loop = list(pool.map(lambda last: _loop_s(root / f"loop{last}", last, poll_s, window_s), loops))
    value = median(ours)
    return row(f"stall decided late by, poll {poll_s:g} s", value, "s", "du in a shell loop", median(loop),
               target="at most 0.25 s", ok=value <= 0.25, note=spread(ours))  # fmt: skip


def _ours_s(directory: Path, last_s: float, poll_s: float, window_s: float) -> float:
    options = ("--quiet", "--stall-after", f"{window_s}s", "--first-write-within", "60s", "--poll", f"{poll_s}s")
    cache = str(directory / "cache")
    report = exec_report(directory, [sys.executable, "-S", "-c", WRITER, cache, str(last_s)], *options, expect=124)
    return float(report["stop"]["decided_after_last_growth_s"]) - window_s


def _loop_s(directory: Path, last_s: float, poll_s: float, window_s: float) -> float:
    (directory / "cache").mkdir(parents=True)
    writer = subprocess.Popen(
        [sys.executable, "-S", "-c", WRITER, str(directory / "cache"), str(last_s)], stdout=subprocess.PIPE, text=True
    )
    try:
        argv = ["bash", "-c", LOOP, "loop", str(directory / "cache"), str(window_s), str(poll_s)]
        decided = float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        assert writer.stdout is not None
        return decided - float(writer.stdout.readline()) - window_s
    finally:
        writer.kill()
        writer.wait()
