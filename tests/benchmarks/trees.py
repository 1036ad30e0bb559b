"""Large trees: full scans of a million files, their memory, the partial scans in between, and a server with slow stats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.measuring import interleaved, median, row, scratch, spread, timed

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.measure.scanner import DirectoryScanner

HOT = 100
BUDGET_S = 0.75  # 5 % of a poll of 15 s
SLOW_STAT = Path(__file__).parents[1] / "processes/slow_stat.c"
SLOW = """
import json, sys, time
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.tree import Tree
tree = Tree([sys.argv[1]], [], Ledger())
began = time.perf_counter(); tree.full_scan(); full_s = time.perf_counter() - began
part_s = []
for _ in range(5):
    began = time.perf_counter(); tree.partial_scan(float(sys.argv[2])); part_s.append(time.perf_counter() - began)
print(json.dumps([full_s, sorted(part_s)[2]]))
"""


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure trees of 100,000 and 1,000,000 files in 10,000 directories (a tenth of each if quick).

    Args:
        quick: smaller.

    Returns:
        Rows for full scans, memory, partial scans and slow stats.
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
    hot = [next(directory.glob("*/file0000.bin")) for directory in sorted(tree.iterdir())[:HOT]]
    hot = (hot * HOT)[:HOT]
    try:
        scanner.request("check", path="/", create=False)
        bare_bytes = psutil.Process(scanner.pid).memory_info().rss
        files = scanner.request("begin", 1200, roots=[str(tree)], ignore=list(DEFAULT_IGNORE))["growth"][
            "files_present"
        ]
        du, full = interleaved(
            runs, lambda: timed(lambda: _du(tree)), lambda: timed(lambda: scanner.request("scan", 1200))
        )
        status = Path(f"/proc/{scanner.pid}/status").read_text()
        peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        _grow(hot)
        scanner.request("scan", 1200)
        part = []
        for _ in range(3 * runs):
            _grow(hot)
            part.append(scanner.request("scan", 60, full=False, budget_s=BUDGET_S)["scan_s"])
    finally:
        scanner.close()
    what = f"{files:,} files in {sum(1 for _ in tree.glob('*/*')):,} directories"
    ratio, share, memory = median(full) / median(du), median(part) / median(du), (peak_bytes - bare_bytes) / files
    return [
        row(f"full scan, {what}", median(full), "s", "du -sb", median(du), target="at most 1.5 x", ok=ratio <= 1.5,
            note=spread(full)),
        row(f"partial scan, {HOT} files growing, {what}", median(part), "s", "du -sb", median(du),
            target="at most 0.02 x", ok=share <= 0.02, note=spread(part)),
        row(f"memory of the scan process at its peak, {what}", memory, "bytes a file", "", None,
            target="below 150 at 1,000,000 files", ok=memory < 150 if files >= 10**6 else None),
    ]  # fmt: skip


def _grow(files: list[Path]) -> None:
    for path in files:
        with path.open("ab") as file:
            file.write(b"x" * 4096)


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
    argv = [sys.executable, "-c", SLOW, str(tree), str(BUDGET_S)]
    time.sleep(2.5)  # directories that have just been made are listed anew
    full_s, part_s = json.loads(subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout)
    (serial,) = interleaved(1, lambda: timed(lambda: subprocess.run(
        ["find", tree / "000", "-type", "f", "-printf", "%s"], env=environ, stdout=subprocess.DEVNULL, check=True)))  # fmt: skip
    files = sum(1 for _ in tree.glob("*/*/*"))
    one_by_one_s = serial[0] * files / max(1, sum(1 for _ in (tree / "000").glob("*/*")))
    return [
        row(f"full scan, {files:,} files, each stat 1 ms", full_s, "s", "find -printf, from a part", one_by_one_s,
            note="1 run, up to 16 threads"),
        row(f"partial scan, {files:,} files, each stat 1 ms, poll 15 s", part_s, "s", "find -printf, from a part",
            one_by_one_s, target="at most 5 % of the poll", ok=part_s <= 1.1 * BUDGET_S, note="median of 5"),
    ]  # fmt: skip
