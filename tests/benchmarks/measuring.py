"""What the benchmarks share: rows, medians, command lines, readings of other processes from /proc."""

from __future__ import annotations

import compileall
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import prefect_cachewatch

CACHEWATCH = str(Path(sys.executable).with_name("cachewatch"))


def row(
    name: str,
    ours: float,
    unit: str,
    peer: str,
    peer_value: float | None,
    *,
    target: str = "",
    ok: bool | None = None,
    note: str = "",
) -> dict[str, Any]:
    """Make one line of the table.

    Args:
        name: what was measured.
        ours: its median.
        unit: of both values.
        peer: what it is held against, measured in the same run.
        peer_value: the peer's median; None where there is nothing to divide by.
        target: what is aimed at, in words.
        ok: whether it is met; None where there is no target.
        note: spread, number of runs.

    Returns:
        The row.
    """
    ratio = ours / peer_value if peer_value else None
    return {
        "name": name, "ours": ours, "unit": unit, "peer": peer, "peer_value": peer_value,
        "ratio": ratio, "target": target, "ok": ok, "note": note,
    }  # fmt: skip


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="cachewatch-bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def timed(action: Callable[[], object]) -> float:
    """Run something once; returns the seconds it took."""
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def interleaved(runs: int, *actions: Callable[[], float]) -> list[list[float]]:
    """Run some measurements in turn, so that the machine's moods meet all of them alike.

    Args:
        runs: how often each; the first round of all is a warm-up and does not count.
        actions: each returns its measured value.

    Returns:
        The values, one list an action.
    """
    values: list[list[float]] = [[] for _ in actions]
    for turn in range(runs + 1):
        for kept, action in zip(values, actions, strict=True):
            value = action()
            if turn:
                kept.append(value)
    return values


def spread(values: Sequence[float]) -> str:
    """Say of how many runs a median is, and from where to where they reach."""
    return f"{len(values)} runs, {min(values):.3g} to {max(values):.3g}"


def exec_report(directory: Path, command: Sequence[str], *options: str, expect: int | None = None) -> dict[str, Any]:
    """Run a command under `cachewatch exec` and read its report.

    Args:
        directory: made anew; the cache lies in it.
        command: the command.
        options: of `cachewatch exec`.
        expect: the exit status it must have.

    Returns:
        The report.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / "report.json"
    argv = [
        CACHEWATCH,
        "exec",
        "--cache-dir",
        str(directory / "cache"),
        "--report",
        str(report),
        *options,
        "--",
        *command,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    if expect is not None and done.returncode != expect:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-1000:]}")
    data: dict[str, Any] = json.loads(report.read_text())
    return data


def make_files(root: Path, files: int, per_directory: int = 90, size_bytes: int = 1) -> None:
    """Fill a directory with small files, some to each sub-directory."""
    content = b"x" * size_bytes
    for start in range(0, files, per_directory):
        directory = root / f"d{start // per_directory:05d}"
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(start, min(start + per_directory, files)):
            (directory / f"f{number:06d}").write_bytes(content)


def compile_package() -> None:
    """Compile the package, as an installer does: a checkout may lie where Python is told to keep no compiled code."""
    compileall.compile_dir(Path(prefect_cachewatch.__file__).parent, quiet=2)


def helpers_of(process: psutil.Process) -> dict[str, list[psutil.Process]]:
    """Sort the processes below `cachewatch exec` into engine, guard, scanner and the command's own."""
    found: dict[str, list[psutil.Process]] = {"engine": [], "guard": [], "scanner": [], "command": []}
    kinds = {"cachewatch: engine": "engine", "cachewatch-guard": "guard", "cachewatch-scanner": "scanner"}
    for child in process.children(recursive=True):
        try:
            word = (child.cmdline() or [""])[-1]
        except psutil.NoSuchProcess:
            continue
        kind = next((kind for begin, kind in kinds.items() if word.startswith(begin)), "command")
        found[kind].append(child)
    return found


def memory_of(processes: Sequence[psutil.Process]) -> tuple[float, float, float]:
    """Sum the proportional, the resident and the private (unique) set sizes of some processes; in MB (10^6 bytes)."""
    readings = [process.memory_full_info() for process in processes]
    return sum(r.pss for r in readings) / 1e6, sum(r.rss for r in readings) / 1e6, sum(r.uss for r in readings) / 1e6


def cpu_seconds(pids: Sequence[int]) -> float:
    """Sum the processor time of some processes, all threads, in seconds, to the nanosecond.

    /proc/PID/stat counts in ticks of 10 ms, which is as much as four scans take; schedstat does not.
    """
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def machine_facts() -> dict[str, Any]:
    """Say on what the figures were measured."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    with tempfile.TemporaryDirectory() as path:
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=False
        ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "temporary_file_system": kind,
        "load_average": os.getloadavg(),
    }


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)
