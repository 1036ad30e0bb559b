"""Large trees: first and unchanged scans of a million files, their memory, and a server with slow stats."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import interleaved, median, row, scratch, spread, timed

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.measure.scanner import DirectoryScanner

SLOW_STAT = Path(__file__).parents[1] / "processes/slow_stat.c"
SLOW = """
import sys, time
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.walk import Walk
began = time.perf_counter(); Walk([sys.argv[1]], Ledger()); print(time.perf_counter() - began)
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure trees of 100,000 and 1,000,000 files in 10,000 directories (a tenth of each if quick).

    Args:
        quick: smaller.

    Returns:
        Rows for first and unchanged scans, memory and slow stats.
    """
    less = 10 if quick else 1
    rows = []
    for per_directory in (10, 100):
        with scratch() as root:
            tree = root / "tree"
            make_tree(tree, 10_000 // less, per_directory)
            rows += _scans(tree, 5)
            if per_directory == 10:
                rows += _slow(root, tree)
    return rows


def make_tree(tree: Path, directories: int, per_directory: int) -> None:
    """Fill a directory with empty files, in directories of which a hundred each lie in one."""
    for number in range(directories):
        directory = tree / f"{number // 100:03d}/{number % 100:02d}"
        directory.mkdir(parents=True)
        fd = os.open(directory, os.O_RDONLY)
        for name in range(per_directory):
            os.close(os.open(f"file{name:04d}.bin", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)


def _scans(tree: Path, runs: int) -> list[dict[str, Any]]:
    scanner = DirectoryScanner()
    roots = {"roots": [str(tree)], "ignore": list(DEFAULT_IGNORE)}
    try:
        files = scanner.request("begin", 1200, **roots)["growth"]["files_present"]
        status = Path(f"/proc/{scanner.pid}/status").read_text()
        peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        du, first, unchanged = interleaved(
            runs,
            lambda: timed(lambda: _du(tree)),
            lambda: timed(lambda: scanner.request("begin", 1200, **roots)),
            lambda: timed(lambda: scanner.request("scan", 1200)),
        )
    finally:
        scanner.close()
    what = f"{files:,} files in {sum(1 for _ in tree.glob('*/*')):,} directories"
    ratios = [median(times) / median(du) for times in (first, unchanged)]
    return [
        row(f"first scan, {what}", median(first), "s", "du -sb", median(du), target="at most 1.5 x",
            ok=ratios[0] <= 1.5, note=spread(first)),
        row(f"unchanged scan, {what}", median(unchanged), "s", "du -sb", median(du), target="at most 1.1 x",
            ok=ratios[1] <= 1.1, note=spread(unchanged)),
        row(f"memory of the scan process at its peak, {what}", peak_bytes / 1e6, "MB", "", None,
            target="below 250 MB at 1,000,000 files", ok=peak_bytes < 250e6 if files >= 10**6 else None),
    ]  # fmt: skip


def _du(tree: Path) -> None:
    subprocess.run(["du", "-sb", tree], stdout=subprocess.DEVNULL, check=True)


def _slow(root: Path, tree: Path) -> list[dict[str, Any]]:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        print("no C compiler: the scan of a slow server is not measured", file=sys.stderr)
        return []
    shim = root / "slow_stat.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, SLOW_STAT, "-ldl"], check=True)
    environ = os.environ | {"LD_PRELOAD": str(shim)}
    argv = [sys.executable, "-c", SLOW, str(tree)]
    full_s = float(subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout)
    (serial,) = interleaved(1, lambda: timed(lambda: subprocess.run(
        ["find", tree / "000", "-type", "f", "-printf", "%s"], env=environ, stdout=subprocess.DEVNULL, check=True)))  # fmt: skip
    files = sum(1 for _ in tree.glob("*/*/*"))
    one_by_one_s = serial[0] * files / max(1, sum(1 for _ in (tree / "000").glob("*/*")))
    return [
        row(f"scan, {files:,} files, each stat 1 ms", full_s, "s", "find -printf, from a part", one_by_one_s,
            note="1 run, up to 16 threads"),
    ]  # fmt: skip
