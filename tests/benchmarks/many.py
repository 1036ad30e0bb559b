"""Many guarded generations on one host: memory, processor, descriptors and threads of each, and how late stalls are decided."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.measuring import (
    CACHEWATCH,
    compile_package,
    cpu_seconds,
    helpers_of,
    memory_of,
    row,
    scratch,
    spread,
)

WATCHES = 100
POLL_S, STALL_S, STEADY_S = 15.0, 45.0, 60.0
# One shell a generation: 8 KiB now and then until a file says that it is enough, then silence. Costs next to nothing itself.
GENERATOR = (
    "while [ ! -e {stop} ]; do head -c 8192 /dev/zero >> {cache}/weights.bin; sleep {pause_s}; done; exec sleep 3600"
)


def run(quick: bool) -> list[dict[str, Any]]:
    """Start watches one after the other, read /proc for a while, then let all generators hang at once.

    Args:
        quick: 10 watches, with shorter windows.

    Returns:
        Rows for memory, processor, descriptors, threads and the delay of decisions.
    """
    if quick:
        return watch_many(10, poll_s=2.0, stall_s=6.0, steady_s=10.0)
    return watch_many(WATCHES, poll_s=POLL_S, stall_s=STALL_S, steady_s=STEADY_S)


def watch_many(watches: int, poll_s: float, stall_s: float, steady_s: float) -> list[dict[str, Any]]:
    """Run some watches to their stalls.

    Args:
        watches: how many.
        poll_s: time between two measurements, seconds.
        stall_s: stall window, seconds.
        steady_s: how long processor time is counted, seconds.

    Returns:
        The rows.
    """
    compile_package()
    with scratch() as root:
        stop = root / "stop"
        running = [_start(root / f"w{number}", stop, poll_s, stall_s) for number in range(watches)]
        try:
            _wait_until_all_write(root, watches)
            time.sleep(poll_s)
            ours = [_processes(process) for process in running]
            pids = [each.pid for group in ours for each in group]
            before_s, began_s = cpu_seconds(pids), time.monotonic()
            time.sleep(steady_s)
            share = 100 * (cpu_seconds(pids) - before_s) / (time.monotonic() - began_s)
            memory = [memory_of(group) for group in ours]
            files = [sum(each.num_fds() for each in group) for group in ours]
            threads = [sum(each.num_threads() for each in group) for group in ours]
            stop.touch()
            for process in running:
                process.wait(stall_s + 300)
            reports = [json.loads((root / f"w{number}/report.json").read_text()) for number in range(watches)]
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
            for process in running:
                process.wait(120)
    late = sorted(report["stop"]["decided_after_last_growth_s"] - stall_s for report in reports)
    p95 = late[max(0, -(-len(late) * 95 // 100) - 1)]
    what = f"{watches} watches"
    pss, uss = [each[0] for each in memory], [each[2] for each in memory]
    return [
        row(f"{what}, poll {poll_s:g} s: processor, all together", share, "% of a core", "", None,
            target="below 10 % at 100", ok=share < 10, note=f"over {steady_s:g} s, generators not counted"),
        row(f"{what}: memory of each (PSS)", statistics.median(pss), "MB", "", None,
            target="below 25 MB", ok=statistics.median(pss) < 25, note=spread(pss)),
        row(f"{what}: private memory of each (USS)", statistics.median(uss), "MB", "", None, note=spread(uss)),
        row(f"{what}: decision late by, 95th percentile", p95, "s", "", None,
            target="at most 0.5 s", ok=p95 <= 0.5, note=spread(late)),
        row(f"{what}: descriptors of each, the most", max(files), "", "", None,
            target="at most 80", ok=max(files) <= 80, note=f"{sum(files)} in all"),
        row(f"{what}: threads of each, the most", max(threads), "", "", None,
            target="at most 12", ok=max(threads) <= 12, note=f"{sum(threads)} in all"),
    ]  # fmt: skip


def _start(directory: Path, stop: Path, poll_s: float, stall_s: float) -> subprocess.Popen[bytes]:
    cache = directory / "cache"
    cache.mkdir(parents=True)
    argv = [
        CACHEWATCH, "exec", "--quiet", "--no-bundle", "--cache-dir", str(cache), "--report", str(directory / "report.json"),
        "--poll", f"{poll_s}s", "--stall-after", f"{stall_s}s", "--grace", "1s", "--", "sh", "-c",
        GENERATOR.format(stop=stop, cache=cache, pause_s=round(stall_s / 9, 2)),
    ]  # fmt: skip
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.05)
    return process


def _wait_until_all_write(root: Path, watches: int) -> None:
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        if all((root / f"w{number}/cache/weights.bin").exists() for number in range(watches)):
            return
        time.sleep(0.2)
    raise RuntimeError("not all generators have begun to write within 300 s")


def _processes(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """`cachewatch exec` itself, its guards, its scanner and its file server."""
    own = psutil.Process(process.pid)
    kinds = helpers_of(own)
    return [own, *kinds["engine"], *kinds["guard"], *kinds["scanner"]]
