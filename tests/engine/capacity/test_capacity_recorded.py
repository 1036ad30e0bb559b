"""A recorded run as a class of a plan: its bursts, its cycle, and what is left of it as think time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.capacity import PlanInput
from prefect_cachewatch.capacity.recorded import with_recorded
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.rows import TraceRow

MB = 10**6
PLAN = "storage: {name: disk, write: {one_bytes_per_s: 100MB/s, all_bytes_per_s: 400MB/s}}\n"


def plan(**job: object) -> PlanInput:
    workload = {"name": "recorded", "burst_bytes": 1, "think_s": 0} | job
    storage = {"name": "disk", "write": {"one_bytes_per_s": 100 * MB, "all_bytes_per_s": 100 * MB}}
    return PlanInput.model_validate({"storage": storage, "workloads": [workload]})


def rows(*points: tuple[float, int, int]) -> list[TraceRow]:
    """Samples of seconds, megabytes written and files."""
    return [
        TraceRow(t_s=t, total_bytes=size * MB, file_count=files, written_bytes=size * MB) for t, size, files in points
    ]


def test_pauses_part_bursts_and_the_cycle_is_from_end_to_end() -> None:
    steps = [
        (0.0, 0, 0),
        (5.0, 1, 1),
        (6.0, 2, 2),
        (16.0, 3, 3),
        (17.0, 4, 4),
        (18.0, 4, 4),
        (28.0, 5, 5),
        (29.0, 6, 6),
    ]
    given, said = with_recorded(plan(), "run.csv", rows(*steps))
    job = given.workloads[0]
    assert (job.name, job.bursts_per_job, job.burst_bytes, job.files_per_burst, job.burst_cv) == (
        "run.csv",
        3,
        2 * MB,
        2,
        0,
    )
    assert said.startswith("trace run.csv: 3 bursts of 2 MB, one every 12 s")


def test_the_think_time_is_the_cycle_without_a_burst_alone() -> None:
    """A file that appears whole took its burst before: the pause before it is not all computing."""
    samples = rows(*((12.0 * i + t, 200 * (i + (t > 0)), i + (t > 0)) for i in range(6) for t in (0, 1)))
    given, said = with_recorded(plan(), "run.csv", samples)
    assert given.workloads[0].think_s == 10  # 12 s, and 200 MB at 100 MB/s are 2 s of them
    assert "burst_bytes: 200000000, think_s: 10, files_per_burst: 1, bursts_per_job: 6" in said


def test_the_other_fields_of_the_class_stay() -> None:
    samples = rows(*((12.0 * i + t, 200 * (i + (t > 0)), i + (t > 0)) for i in range(6) for t in (0, 1)))
    given, _ = with_recorded(
        plan(name="builds", jobs=40, deadline_s=3600, bytes_appear="while_moving"), "run.csv", samples
    )
    job = given.workloads[0]
    assert (job.name, job.jobs, job.deadline_s, job.bytes_appear) == ("builds", 40, 3600, "while_moving")


def test_without_a_pause_each_file_is_a_burst() -> None:
    given, said = with_recorded(plan(), "run.csv", rows(*((float(i), 10 * i, i // 4) for i in range(21))))
    job = given.workloads[0]
    assert (job.bursts_per_job, job.burst_bytes) == (5, 40 * MB)
    assert "each file counts as a burst" in said


def test_a_run_that_wrote_faster_than_the_storage_is_told() -> None:
    given, said = with_recorded(plan(), "run.csv", rows(*((i / 10, 1000 * i, i) for i in range(6))))
    assert given.workloads[0].think_s == 0
    assert "it wrote faster than disk does" in said


@pytest.mark.parametrize(
    "steps", [[(0.0, 0, 0)], [(0.0, 0, 0), (9.0, 0, 0)], [(0.0, 0, 0), (9.0, 5, 1), (10.0, 9, 1)], [(0.0, 0, 0), (0.0, 9, 3)],
              [(0.0, 900, 0), (9.0, 500, 0), (20.0, 0, 0)]]
)  # fmt: skip
def test_a_run_without_a_second_burst_has_no_think_time(steps: list[tuple[float, int, int]]) -> None:
    with pytest.raises(InputError, match=r"trace run\.csv shows no second burst"):
        with_recorded(plan(), "run.csv", rows(*steps))


def cachewatch(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefect_cachewatch.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_a_plan_is_made_from_a_real_recorded_run(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        "for i in range(4):\n"
        "    time.sleep(0.8)\n"
        "    pathlib.Path(f'cache/{i}').write_bytes(bytes(3_000_000))\n"
    )
    (tmp_path / "cache").mkdir()
    (tmp_path / "plan.yaml").write_text(PLAN)
    run = cachewatch(
        "exec", "--quiet", "--cache-dir", "cache", "--poll", "200ms", "--record", "run.csv", "--", sys.executable, "-c", program,
        cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answer = cachewatch("plan", "plan.yaml", "--from-trace", "run.csv", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = re.search(
        r"trace run\.csv: (\d+) bursts of .* burst_bytes: (\d+), think_s: ", " ".join(answer.stdout.split())
    )
    assert found, answer.stdout
    bursts, burst_bytes = int(found[1]), int(found[2])  # a slow machine may measure a file in its middle
    assert abs(bursts * burst_bytes - 12_000_000) <= bursts


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
