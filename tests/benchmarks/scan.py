"""One full scan of a large tree, as the watch makes it at each poll, against du and find."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import interleaved, make_files, median, row, scratch, spread, timed

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.measure.scanner import DirectoryScanner

FILES = 100_000


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure scans of a warm tree of 100,000 files (10,000 if quick).

    Args:
        quick: smaller and fewer.

    Returns:
        Rows for the watch's scan, which keeps the ledger, and for a plain walk, which does not.
    """
    files = FILES // 10 if quick else FILES
    with scratch() as root:
        make_files(root / "tree", files)
        tree = str(root / "tree")
        keeping, measuring = DirectoryScanner(), DirectoryScanner()
        try:
            keeping.request("begin", 600, roots=[tree], ignore=list(DEFAULT_IGNORE))
            du, find, ours, plain = interleaved(
                5 if quick else 9,
                lambda: timed(lambda: _quiet("du", "-sb", tree)),
                lambda: timed(lambda: _quiet("find", tree, "-type", "f", "-printf", "%s %b\n")),
                lambda: timed(lambda: keeping.request("scan", 600)),
                lambda: timed(lambda: measuring.request("measure", 600, roots=[tree], ignore=[])),
            )
        finally:
            keeping.close()
            measuring.close()
    what = f"{files:,} files"
    ratio = median(ours) / median(du)
    return [
        row(f"watch's scan, {what}", median(ours), "s", "du -sb", median(du),
            target="at most 1.7 x", ok=ratio <= 1.7, note=spread(ours)),
        row(f"watch's scan, {what}", median(ours), "s", "find -printf", median(find), note=spread(find)),
        row(f"a plain walk's scan, {what}", median(plain), "s", "du -sb", median(du), note=spread(plain)),
    ]  # fmt: skip


def _quiet(*argv: str | Path) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
