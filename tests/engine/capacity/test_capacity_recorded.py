"""A recorded run as a class of a plan: its bursts, its cycle, and what is left of it as think time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.capacity import LinkProfile, ServiceCurve, StorageProfile, WorkloadClass
from prefect_cachewatch.capacity.recorded import read_bursts, workload_of
from prefect_cachewatch.errors import InputError

MB = 10**6
DISK = ServiceCurve(per_stream_bytes_per_s=100 * MB, aggregate_bytes_per_s=100 * MB)
STORAGE = StorageProfile(name="disk", sequential_write=DISK)
PLAN = """
storage: {name: disk, sequential_write: {per_stream_bytes_per_s: 100MB/s, aggregate_bytes_per_s: 400MB/s}}
"""


def test_pauses_part_bursts_and_the_cycle_is_from_end_to_end() -> None:
    growth = [(0.0, 0), (5.0, 1 * MB), (6.0, 2 * MB), (16.0, 3 * MB), (17.0, 4 * MB), (27.0, 5 * MB), (28.0, 6 * MB)]
    job = read_bursts("run.csv", growth, files=6, step_s=1.0)
    assert (job.bursts, job.burst_bytes, job.files_per_burst, job.burst_cv) == (3, 2 * MB, 2, 0)
    assert (job.cycle_s, job.first_write_s, job.pauses) == (11.0, 5.0, True)


def test_the_think_time_is_the_cycle_without_a_burst_alone() -> None:
    """A file that appears whole took its burst before: the pause before it is not all computing."""
    growth = [(12.0 * i, 200 * MB * i) for i in range(6)]
    workload, said = workload_of(read_bursts("run.csv", growth, 5, 1.0), None, STORAGE, LinkProfile())
    assert (workload.name, workload.burst_bytes, workload.bursts_per_job) == ("run.csv", 200 * MB, 5)
    assert workload.think_s == 10  # 12 s, and 200 MB at 100 MB/s are 2 s of them
    assert "burst_bytes: 200000000, think_s: 10, files_per_burst: 1, bursts_per_job: 5" in said
    through, _ = workload_of(
        read_bursts("run.csv", growth, 5, 1.0), None, STORAGE, LinkProfile(bytes_per_s=50 * MB, efficiency=1)
    )
    assert through.think_s == 6


def test_the_other_fields_of_the_class_stay() -> None:
    base = WorkloadClass(name="builds", burst_bytes=5, think_s=1, jobs=40, deadline_s=3600, bytes_appear="while_moving")
    growth = [(12.0 * i, 200 * MB * i) for i in range(6)]
    workload, _ = workload_of(read_bursts("run.csv", growth, 5, 1.0), base, STORAGE, LinkProfile())
    assert (workload.name, workload.jobs, workload.deadline_s, workload.bytes_appear) == (
        "builds", 40, 3600, "while_moving",
    )  # fmt: skip


def test_without_a_pause_each_file_is_a_burst() -> None:
    growth = [(float(i), 10 * MB * i) for i in range(21)]
    job = read_bursts("run.csv", growth, files=5, step_s=1.0)
    assert (job.bursts, job.burst_bytes, job.cycle_s, job.pauses) == (5, 40 * MB, 4.75, False)
    assert "each file counts as a burst" in workload_of(job, None, STORAGE, LinkProfile())[1]


def test_a_run_that_wrote_faster_than_the_storage_is_told() -> None:
    growth = [(1.0 * i, 1000 * MB * i) for i in range(6)]
    job = read_bursts("run.csv", growth, 5, 0.1)
    workload, said = workload_of(job, None, STORAGE, LinkProfile())
    assert workload.think_s == 0
    assert "it wrote faster than disk does" in said


@pytest.mark.parametrize(
    ("growth", "files"), [([(0.0, 0)], 0), ([(0.0, 0), (9.0, 0)], 0), ([(0.0, 0), (9.0, 5), (10.0, 9)], 1)]
)
def test_a_run_without_a_second_burst_has_no_think_time(growth: list[tuple[float, int]], files: int) -> None:
    with pytest.raises(InputError, match=r"trace run\.csv shows no second burst"):
        read_bursts("run.csv", growth, files, 1.0)


def cachewatch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefect_cachewatch.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_plan_is_made_from_a_real_recorded_run(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        "for i in range(4):\n"
        "    time.sleep(0.8)\n"
        "    pathlib.Path(f'cache/{i}').write_bytes(bytes(3_000_000))\n"
    )
    (tmp_path / "cache").mkdir()
    (tmp_path / "plan.yaml").write_text(PLAN)
    trace = tmp_path / "run.csv"
    run = subprocess.run(
        [sys.executable, "-m", "prefect_cachewatch.cli.main", "exec", "--quiet", "--cache-dir", "cache",
         "--poll", "200ms", "--record", str(trace), "--", sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer = cachewatch("plan", str(tmp_path / "plan.yaml"), "--from-trace", str(trace))
    assert answer.returncode == 0, answer.stderr
    shown = " ".join(answer.stdout.split())
    found = re.search(
        r"trace run\.csv: (\d+) bursts of .* burst_bytes: (\d+), think_s: [0-9.]+, files_per_burst: ", shown
    )
    assert found, shown
    bursts, burst_bytes = int(found[1]), int(found[2])  # a slow machine may measure a file in its middle
    assert abs(bursts * burst_bytes - 12_000_000) <= bursts
    assert "Over n jobs of run.csv at once" in shown


@pytest.mark.parametrize(
    ("trace", "told"), [("", "is empty"), ("t_s,total_bytes\n", "no column file_count"), (None, "cannot be read")]
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, trace: str | None, told: str) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    if trace is not None:
        (tmp_path / "run.csv").write_text(trace)
    run = cachewatch("plan", str(tmp_path / "plan.yaml"), "--from-trace", str(tmp_path / "run.csv"))
    assert run.returncode != 0
    assert told in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""
