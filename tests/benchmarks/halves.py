"""An experiment: one full scan of a large tree by two processes, on two cores. It is not in the product; these are its figures.

At each scan the scan process forks. The child has the ledger as it was, walks every second directory below the
root, and says which directories are as they were; of the others it sends what it saw. The parent walks the rest
and puts both together, so that hard links and renames across the halves are the ledger's business as ever.
"""

from __future__ import annotations

import marshal
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import interleaved, median, row, scratch, spread, timed
from tests.benchmarks.trees import make_tree

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.measure.folder import Seen
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.snapshot import OPEN_DIRECTORY, Walk, compile_ignore, list_directory, walk_below

__all__ = ["HalvesScan"]

ONE = """
import gc, json, resource, sys, time
from pathlib import Path
from tests.benchmarks.halves import HalvesScan
gc.disable()
scan = HalvesScan(Path(sys.argv[1]))
scan.once(int(sys.argv[2]))
for line in sys.stdin:
    began_s, before = time.perf_counter(), [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    scan.once(int(sys.argv[2]))
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime for a, b in zip(after, before, strict=True))
    print(json.dumps([time.perf_counter() - began_s, cpu_s]), flush=True)
"""


class _SharedLedger(Ledger):
    def take_same(self, directories: list[str]) -> None:
        """Take in directories that a fork of this process found to be as they were."""
        for directory in directories:
            self._folders[directory].seen_in = self._begun


class HalvesScan:
    """Full scans of one directory by one or two processes.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.ledger = f"{root}/", _SharedLedger()
        self._ignored = compile_ignore(DEFAULT_IGNORE)

    def once(self, processes: int) -> Growth:
        """Make one scan.

        Args:
            processes: 1 or 2.

        Returns:
            The ledger's totals.
        """
        self.ledger.begin()
        walk = Walk(self.ledger.is_same, ())
        fd = os.open(self.root, OPEN_DIRECTORY)
        try:
            below = list_directory(
                fd, self.root, os.fstat(fd), len(self.root), 0, self._ignored, self.ledger.see, lambda *_: None, walk
            )
            names = sorted(name for name, _ in below)
            if processes == 1:
                self._walk(fd, names, walk, self.ledger.see)
            else:
                answer, pid = self._fork(fd, names[1::2])
                self._walk(fd, names[::2], walk, self.ledger.see)
                with open(answer, "rb") as told:
                    self._merge(*marshal.loads(told.read()))
                os.waitpid(pid, 0)
        finally:
            os.close(fd)
            walk.calls.close()
            os.chdir("/")
        return self.ledger.end()

    def _walk(self, fd: int, names: list[str], walk: Walk, visit: Any) -> None:
        for name in names:
            inner = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            walk_below(inner, f"{self.root}{name}/", len(self.root), 0, self._ignored, visit, lambda *_: None, walk)

    def _fork(self, fd: int, names: list[str]) -> tuple[int, int]:
        answer, told = os.pipe()
        pid = os.fork()
        if pid:
            os.close(told)
            return answer, pid
        try:
            same: list[str] = []
            other: list[tuple[str, int, list[str], list[tuple[int, ...]]]] = []

            def is_same(directory: str, rank: int, listed: list[str], stats: Any) -> bool:
                # A directory that comes in parts is sent.
                found = len(listed) < 4096 and self.ledger.is_same(directory, rank, listed, stats)
                if found:
                    same.append(directory)
                return found

            def visit(directory: str, rank: int, listed: list[str], stats: Any) -> None:
                values = [
                    (
                        s.st_ino,
                        s.st_nlink,
                        s.st_size,
                        s.st_blocks,
                        s.st_mtime_ns,
                        s.st_ctime_ns,
                        s.st_atime_ns,
                        s.st_dev,
                    )
                    for s in stats
                ]
                other.append((directory, rank, listed, values))

            self._walk(fd, names, Walk(is_same, ()), visit)
            data = marshal.dumps((same, other))
            while data:
                data = data[os.write(told, data) :]
        finally:
            os._exit(0)

    def _merge(self, same: list[str], other: list[tuple[str, int, list[str], list[tuple[int, ...]]]]) -> None:
        self.ledger.take_same(same)
        for directory, rank, names, values in other:
            self.ledger.see(directory, rank, names, [Seen(*value) for value in values])


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure full scans of 100,000 and 1,000,000 files in 10,000 directories by one process and by two.

    Args:
        quick: a tenth of the directories.

    Returns:
        Rows for wall and processor time.
    """
    rows = []
    for per_directory in (10, 100):
        with scratch() as root:
            make_tree(root / "tree", 1_000 if quick else 10_000, per_directory)
            rows += _compare(root / "tree", per_directory * (1_000 if quick else 10_000), 5 if quick else 9)
    return rows


def _compare(tree: Path, files: int, runs: int) -> list[dict[str, Any]]:
    scans = [
        subprocess.Popen(
            [sys.executable, "-c", ONE, str(tree), str(processes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )
        for processes in (1, 2)
    ]  # fmt: skip
    cpu_s: list[list[float]] = [[], [], []]

    def scan(which: int) -> float:
        process = scans[which]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wall_s, cpu = map(float, process.stdout.readline().strip("[]\n").split(","))
        cpu_s[which].append(cpu)
        return wall_s

    def du() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall_s = timed(lambda: subprocess.run(["du", "-sb", tree], stdout=subprocess.DEVNULL, check=True))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s[2].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return wall_s

    try:
        time.sleep(0.5)
        one, two, peer = interleaved(runs, lambda: scan(0), lambda: scan(1), du)
    finally:
        for process in scans:
            process.kill()
            process.communicate()
    cpu = [median(values[1:]) for values in cpu_s]
    what = f"{files:,} files"
    return [
        row(f"full scan by one process, {what}", median(one), "s", "du -sb", median(peer), note=spread(one)),
        row(f"full scan by two processes, {what}", median(two), "s", "du -sb", median(peer),
            target="goal: 1.0 x", note=spread(two)),
        row(f"the same, processor time, one, {what}", cpu[0], "s", "du -sb, processor time", cpu[2]),
        row(f"the same, processor time, two, {what}", cpu[1], "s", "du -sb, processor time", cpu[2]),
    ]  # fmt: skip
