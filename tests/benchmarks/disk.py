"""Plan a real disk, run think/burst jobs on it under guard, and lay one beside the other.

`python -m tests.benchmarks.disk [DIR]` prints the table of docs/capacity.md. The curve is measured by the jobs' own bursts without
thinking, so that what is tested is the model and not the difference between two programs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import row
from tests.benchmarks.think_burst import BURST_BYTES

from prefect_cachewatch.capacity import (
    ClassPrediction,
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    WorkloadClass,
)
from prefect_cachewatch.capacity.model.demands import Scenario
from prefect_cachewatch.capacity.model.limits import ClassSearch
from prefect_cachewatch.capacity.model.planning import rows_at

JOB = Path(__file__).with_name("think_burst.py")
CURVE_N = (1, 2, 4, 8, 16)
JOBS_N = (1, 2, 4, 8, 12, 16)
THINK_PER_BURST = 1.5  # think time in bursts alone: short, so that 16 jobs reach the knee
ROUNDS = 3
CURVE_S, RUN_S, START_S = 3.0, 6.0, 1.5  # no file is removed meanwhile: the largest run leaves about 10 GB
NEEDED_BYTES = 40e9  # bursts are written, not overwritten
GUARD_START_S = 0.9  # what a guarded job needs before its first burst, on a busy machine


@dataclass(frozen=True)
class Measured:
    """What N guarded jobs did, beside what the plan said they would."""

    n: int
    bursts: int
    throughput_per_s: float
    burst_s: float
    planned: ClassPrediction

    @property
    def rate_ratio(self) -> float:
        """Measured over planned throughput."""
        return self.throughput_per_s / self.planned.throughput_per_s

    @property
    def burst_ratio(self) -> float:
        """Measured over planned mean burst time."""
        return self.burst_s / self.planned.burst_s

    @property
    def inside(self) -> bool:
        """Whether the mean burst time lies in the printed band."""
        return self.planned.burst_low_s <= self.burst_s <= self.planned.burst_high_s


def run(quick: bool) -> list[dict[str, Any]]:
    """Hold guarded jobs to their plan, on the disk of the current directory.

    Args:
        quick: one round instead of three.

    Returns:
        A row for each N: the mean burst beside the planned one; no target on a disk that varies by more than a third.

    Raises:
        OSError: if the disk is too full for it.
    """
    if shutil.disk_usage(Path.cwd()).free < NEEDED_BYTES:
        raise OSError(f"needs {NEEDED_BYTES / 1e9:.0f} GB free under {Path.cwd()}")
    curve, _, found = experiment(Path.cwd(), 1 if quick else ROUNDS)
    spread = statistics.median(point.spread or 0.0 for point in curve.points)
    return [
        row(
            f"mean burst of {each.n} guarded jobs on this disk", each.burst_s * 1000, "ms", "the plan",
            each.planned.burst_s * 1000, target="inside the plan's band", ok=each.inside if spread <= 0.35 else None,
            note=f"{each.rate_ratio:.2f} of the planned rate; the disk varies by {spread:.0%}",
        )
        for each in found
    ]  # fmt: skip


def run_jobs(folder: Path, n: int, think_s: float, seconds: float, *, guarded: bool) -> tuple[int, float, float]:
    """Run n jobs at once.

    Args:
        folder: where they write; emptied afterwards.
        n: jobs.
        think_s: mean think time.
        seconds: how long, after they have all started.
        guarded: each under a `cachewatch exec` of its own.

    Returns:
        Bursts, bursts per second, mean seconds of a burst.

    Raises:
        RuntimeError: if a job failed or was stopped.
    """
    begin = time.time() + START_S + (GUARD_START_S * n if guarded else 0.1 * n)
    running, logs = [], []
    for i in range(n):
        directory, log = folder / f"cache-{i}", folder / f"job-{i}.txt"
        directory.mkdir(parents=True)
        logs.append(log)
        command = [
            sys.executable,
            str(JOB),
            str(directory),
            str(log),
            str(i),
            repr(think_s),
            repr(begin),
            repr(begin + seconds),
        ]
        if guarded:
            guard = [sys.executable, "-m", "prefect_cachewatch.cli.main", "exec", "--quiet", "--poll", "2s"]
            command = [*guard, "--stall-after", "60s", "--cache-dir", str(directory), "--", *command]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    failed = []
    for job in running:
        told, _ = job.communicate(timeout=seconds + 120)
        if job.returncode:
            failed.append(f"exit {job.returncode}: {told[-500:]}")
    if failed:
        raise RuntimeError(f"{len(failed)} of {n} jobs failed, the first with {failed[0]}")
    spans = [tuple(map(float, line.split())) for log in logs for line in log.read_text().splitlines()]
    # All jobs begin together; the first second is left out, and what ends after the last one stopped starting.
    opened = min(start for start, _ in spans) + 1.0
    closed = min(max(float(line.split()[1]) for line in log.read_text().splitlines()) for log in logs)
    times = [end - start for start, end in spans if opened <= end <= closed]
    shutil.rmtree(folder)
    return len(times), len(times) / (closed - opened), statistics.fmean(times)


def _point(n: int, rates: list[float]) -> dict[str, float]:
    middle = statistics.median(rates)
    return {
        "n": n,
        "throughput_bytes_per_s": middle * BURST_BYTES,
        "spread": (max(rates) - min(rates)) / middle,
        "repetitions": len(rates),
    }


def experiment(parent: Path, rounds: int = ROUNDS) -> tuple[ServiceCurve, float, list[Measured]]:
    """The whole experiment in a folder of its own, which is removed.

    Curve and guarded jobs take turns, and the medians over the rounds are compared: a disk that others
    use too is not the same one minute later.

    Args:
        parent: a directory on the disk in question.
        rounds: how often everything is measured.

    Returns:
        The curve, the think time, and what was measured at each N.
    """
    folder = Path(tempfile.mkdtemp(prefix="cachewatch-experiment-", dir=parent))
    try:
        first = [run_jobs(folder / "first", 1, 0.0, CURVE_S, guarded=False)[1] for _ in range(3)]
        think_s = THINK_PER_BURST / statistics.median(first)
        rates: dict[int, list[float]] = {n: [] for n in CURVE_N}
        runs: dict[int, list[tuple[int, float, float]]] = {n: [] for n in JOBS_N}
        for _ in range(rounds):
            for n in JOBS_N:
                if n in rates:
                    rates[n].append(run_jobs(folder / "curve", n, 0.0, CURVE_S, guarded=False)[1])
                runs[n].append(run_jobs(folder / "jobs", n, think_s, RUN_S, guarded=True))
        curve = ServiceCurve(points=[_point(n, seen) for n, seen in rates.items()])
        storage = StorageProfile(name="disk", basis="measured", sequential_write=curve)
        jobs = WorkloadClass(name="jobs", burst_bytes=BURST_BYTES, think_s=think_s)
        policy = Policy(max_slowdown=1000, max_concurrency=max(JOBS_N))
        search = ClassSearch(Scenario(storage, LinkProfile(), (jobs,), policy), 0)
        rows = {each[0].n: each[0] for each in rows_at(search, JOBS_N)}
        found = [
            Measured(
                n,
                sum(bursts for bursts, _, _ in seen),
                statistics.median(rate for _, rate, _ in seen),
                statistics.median(burst_s for _, _, burst_s in seen),
                rows[n],
            )
            for n, seen in runs.items()
        ]
        return curve, think_s, found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    curve, think_s, found = experiment(parent)
    for point in curve.points:
        print(f"n {point.n:>3}  {point.throughput_bytes_per_s / 1e6:8.1f} MB/s  spread {point.spread:.0%}")
    print(f"think time {think_s * 1000:.1f} ms, bursts of {BURST_BYTES / 2**20:.0f} MiB")
    print("   N  bursts  X planned  measured  ratio   R planned           band  measured  ratio  inside")
    for each in found:
        p = each.planned
        print(
            f"{each.n:>4} {each.bursts:>7} {p.throughput_per_s:>8.1f}/s {each.throughput_per_s:>7.1f}/s {each.rate_ratio:>6.2f} "
            f"{p.burst_s * 1000:>8.1f} ms {p.burst_low_s * 1000:>7.1f}-{p.burst_high_s * 1000:<6.1f} "
            f"{each.burst_s * 1000:>6.1f} ms {each.burst_ratio:>6.2f}  {'yes' if row.inside else 'NO'}"
        )


if __name__ == "__main__":
    main()
