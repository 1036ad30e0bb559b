"""Plans with values that nobody means: one sentence, or an answer; never a traceback, never a number that is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prefect_cachewatch.capacity import plan
from prefect_cachewatch.capacity.picture import draw
from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.results import as_json
from prefect_cachewatch.capacity.wording import text_lines
from prefect_cachewatch.errors import InputError

PLAN = """
storage:
  name: disk
  small_file_s: 4ms
  files_per_s: 1000
  free_bytes: 12TB
  ops_per_s: 1M
  port_bytes_per_s: 40G
  units: 1
  write:
    points: [{n: 1, bytes_per_s: 180MB/s, spread: 0.1}, {n: 2, bytes_per_s: 330MB/s}, {n: 4, bytes_per_s: 560MB/s}]
link: {bytes_per_s: 10Gbit/s, hosts: 2}
workloads:
  - {name: caches, burst_bytes: 2GB, think_s: 10s, files_per_burst: 8, bursts_per_job: 8, jobs: 4, burst_cv: 0.5,
    amplification: 1, deadline_s: 8h, op_bytes: 1MiB, compression: {ratio: 2, bytes_per_s: 400MB/s}}
  - {name: beside, burst_bytes: 1GB, think_s: 5s, running: 2}
policy: {stall_window_s: 5m, max_burst_s: 1h, derate: 0.1, max_jobs: 6, aim: batch}
"""
FIELDS = sorted(
    set(re.findall(r"(\w+: [^,{}\[\]\n]+?)(?=[,}\n])", PLAN)) - {"name: disk", "name: caches", "name: beside"}
)
VALUES = [".nan", ".inf", "-.inf", "0", "-1", "1e308", "1e-320", "1e400", "\u22125", "\u0663", "9" * 30, "[]", "{}", "null",
          "true", "5s", "5GB", "10Gbit/s", "''", "1000"]  # fmt: skip


def attempt(path: Path) -> str:
    """The answer in every form that it has, or the sentence of a refusal."""
    try:
        answer = plan(read_plan(path))
    except InputError as error:
        assert "\n" not in error.message
        return error.message
    json.dumps(as_json(answer), allow_nan=False)
    for one in answer.answers:
        assert one.n >= 1
        assert draw(answer, one).startswith("<svg")
    said = "\n".join(text_lines(answer))
    assert not re.search(r"\b(nan|inf)\b", said)
    assert max(map(len, said.splitlines())) <= 80
    return said


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_that_nobody_means_is_one_sentence_or_an_answer(tmp_path: Path, field: str) -> None:
    path = tmp_path / "plan.yaml"
    name = field.partition(":")[0]
    for value in VALUES:
        path.write_text(PLAN.replace(field, f"{name}: {value}", 1))
        attempt(path)


def points(*rates: str) -> str:
    listed = ", ".join(f"{{n: {2**i}, bytes_per_s: {rate}}}" for i, rate in enumerate(rates))
    return f"storage: {{name: disk, write: {{points: [{listed}]}}}}\nworkloads: [{{name: a, burst_bytes: 2GB, think_s: 10}}]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (points("1GB/s", "100MB/s", "10MB/s", "2GB/s", "4GB/s"), "Run "),
        (points("1", "1e6", "1e10", "1e15"), "a burst of 'a', 2 GB, would take .* alone on 'disk': check the units"),
        (points(), "needs points"),
        (points("1GB/s").replace("2GB", "1GB/s"), "'1GB/s' is not a size"),
        (points("1GB/s").replace("think_s: 10", "think_s: 10, kind: inference"), "has no curve for 'a', a class of inference"),
        (points("1GB/s").replace("think_s: 10", "think_s: 10, kept_bytes_per_job: 1TB").replace("disk,", "disk, free_bytes: 0,"),
         "1 a do not fit on disk: they leave 1 TB and 0 bytes are free"),
        (points("1GB/s").replace("2GB", "1"), "Run "),
        (points("1GB/s").replace("think_s: 10", "think_s: 10, jobs: 1000000, bursts_per_job: 1000000000"), "1M a in about"),
        ("storage: {x: 'a\\0b.yaml'}\nworkloads: []", "not known"),
        ("storage: plan.yaml\nworkloads: []", "storage is not known"),
    ],
)  # fmt: skip
def test_a_plan_that_is_odd_as_a_whole_is_one_sentence_or_an_answer(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert re.search(told, " ".join(attempt(path).split()))
