"""Plans, profiles and traces with values that nobody means: one sentence, or an answer; never a traceback."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import pytest

from prefect_cachewatch.capacity import plan
from prefect_cachewatch.capacity.model.agreement import with_simulation
from prefect_cachewatch.capacity.model.results import as_json
from prefect_cachewatch.capacity.page import html_page
from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.recorded import read_bursts
from prefect_cachewatch.errors import InputError

PLAN = """
storage:
  name: disk
  small_file_s: 4ms
  free_bytes: 12TB
  ops_per_s: 1M
  sequential_write:
    points: [{n: 1, throughput_bytes_per_s: 180MB/s, latency_s: 1ms}, {n: 2, throughput_bytes_per_s: 330MB/s},
      {n: 4, throughput_bytes_per_s: 560MB/s}, {n: 8, throughput_bytes_per_s: 760MB/s}]
link: {bytes_per_s: 10Gbit/s, efficiency: 0.94, hosts: 2}
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s, files_per_burst: 8, bursts_per_job: 80, jobs: 40, burst_cv: 0.5,
    read_amplification: 1, deadline_s: 8h, op_bytes: 1MiB}
  - {name: beside, burst_bytes: 1GB, think_s: 5s, running: 2}
policy: {stall_window_s: 5m, max_slowdown: 2.5, max_burst_s: 1h, p99_factor: 2, derate: 0.1, band: 0.2, headroom: 0.1}
"""
TWO = "storage: {name: disk, sequential_write: {per_stream_bytes_per_s: 1GB/s, aggregate_bytes_per_s: 10GB/s}}\nworkloads:\n"
FIELDS = sorted(
    set(re.findall(r"(\w+: [^,{}\[\]\n]+?)(?=[,}\n])", PLAN)) - {"name: disk", "name: caches", "name: beside"}
)
VALUES = [".nan", ".inf", "-.inf", "0", "-1", "1e308", "1e-320", "1e400", "\u22125", "\u0663", "9" * 30, "[]", "{}", "null",
          "true", "5s", "5GB", "10Gbit/s", "''", "1000"]  # fmt: skip


def attempt(path: Path) -> str:
    """The answer in every form that it has, or the sentence of a refusal."""
    try:
        given = read_plan(path)
        answer = plan(given.storage, given.link, given.workloads, given.policy)
        answer = with_simulation(answer, given.storage, given.link, given.workloads, given.policy, events=1000)
    except InputError as error:
        assert "\n" not in error.message
        return error.message
    json.dumps(as_json(answer), allow_nan=False)
    assert not re.search(r"\b(nan|inf)\b", answer.answer)
    assert answer.low <= answer.most <= answer.high
    html_page(answer)
    return answer.answer


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_nobody_means_is_one_sentence_or_an_answer(tmp_path: Path, field: str) -> None:
    path = tmp_path / "plan.yaml"
    name = field.partition(":")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's, which a user would see
        for value in VALUES:
            path.write_text(PLAN.replace(field, f"{name}: {value}", 1))
            attempt(path)


def points(*rates: str) -> str:
    listed = ", ".join(f"{{n: {2**i}, throughput_bytes_per_s: {rate}}}" for i, rate in enumerate(rates))
    return f"storage: {{name: disk, sequential_write: {{points: [{listed}]}}}}\nworkloads: [{{name: a, burst_bytes: 2GB, think_s: 10}}]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (points("1GB/s", "100MB/s", "10MB/s", "2GB/s", "4GB/s"), "disk: latency is 10 % up at 2"),
        (points("1GB/s", "500MB/s", "200MB/s", "100MB/s"), "disk: latency is 10 % up at 2"),
        (points("1", "1e6", "1e10", "1e15"), "is the most that"),
        (points("1e-300", "2e-300"), "is not a rate"),
        (points(), "needs measured points"),
        (TWO + "  - {name: a, burst_bytes: 1GB/s, think_s: 1}", "'1GB/s' is not a size"),
        (TWO + "  - {name: a, burst_bytes: 1GB, think_s: 1GB}", "'1GB' is not a duration"),
        (TWO + "  - {name: a, burst_bytes: 1GB, think_s: 1}\n  - {name: a, burst_bytes: 1GB, think_s: 1}", "'a' twice"),
        (TWO + "  - &x {name: a, burst_bytes: 1GB, think_s: 1, codec: *x}", "it refers to itself"),
        (TWO + "".join(f"  - {{name: a{i}, burst_bytes: 1GB, think_s: 1}}\n" for i in range(70)), "has 70 classes"),
        (
            TWO + "  - {name: a, burst_bytes: 1e17, think_s: 0, read_amplification: 10000}",
            "a burst of 'a' would take .* s alone on 'disk': check the units",
        ),
        (
            TWO.replace("name: disk", "name: disk, ops_per_s: 1e-300") + "  - {name: a, burst_bytes: 1GB, think_s: 1}",
            "a burst of 'a' would take .* s alone on 'disk': check the units",
        ),
        ('storage: "a\\0b.yaml"\nworkloads: []', "cannot be read"),
        ("storage: ~nobody-here/x.yaml\nworkloads: []", "cannot be read"),
        ("storage: plan.yaml\nworkloads: []", "storage is not known"),
    ],
)  # fmt: skip
def test_a_plan_that_is_odd_as_a_whole_is_one_sentence_or_an_answer(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert re.search(told, attempt(path))


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_a_fit_has_finite_numbers(tmp_path: Path, value: str) -> None:
    path = tmp_path / "plan.yaml"
    fit = f"usl: {{alpha: 0, beta: {value}, gamma_per_s: 1}}, points: ["
    path.write_text(points("1GB/s", "2GB/s", "3GB/s", "3GB/s").replace("points: [", fit))
    assert f"sequential_write.usl.beta = {value.replace('.', '')}" in attempt(path)


def test_what_is_exactly_the_accepted_slowdown_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(TWO + "  - {name: a, burst_bytes: 1, think_s: 0}")
    assert "6 (6-15) is the most that the slowdown rule admits" in attempt(path)  # 6 / alpha(6) = 1.5


def test_a_simulation_too_short_to_say_anything_says_so(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("think_s: 10s", "think_s: 10d").replace("deadline_s: 8h, ", ""))
    given = read_plan(path)
    policy = given.policy.model_copy(update={"stall_window_s": 30 * 86400.0})
    answer = plan(given.storage, given.link, given.workloads, policy)
    check = with_simulation(answer, given.storage, given.link, given.workloads, policy, events=1000).simulation
    assert check is not None
    assert not check.agrees
    assert math.isnan(check.burst_deviation)
    assert re.fullmatch(
        r"the simulation's 1,000 events hold \d+ bursts of caches, too few to compare: simulate more with --events",
        check.sentence,
    )


@pytest.mark.parametrize(
    ("growth", "files"),
    [([(0.0, 0)], 0), ([(0.0, 0), (0.0, 100), (0.0, 200), (0.0, 300)], 3), ([(0.0, 900), (9.0, 500), (20.0, 0)], 0)],
)
def test_a_trace_in_which_no_time_passes_has_no_think_time(growth: list[tuple[float, int]], files: int) -> None:
    with pytest.raises(InputError, match="no second burst"):
        read_bursts("run.csv", growth, files, 0.0)
