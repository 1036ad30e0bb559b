"""The jobs file of a fleet: what it means, and one sentence with file, field and nearest name for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.config import CacheJob, StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import FleetJob, FleetPolicy
from prefect_cachewatch.fleet.jobsfile import plan_of_jobs, read_jobs_file

GOOD = """\
version: 1
name: nightly
policy:
  max_parallel: 3
defaults:
  stall: {stall_after_s: 300, poll_s: 10}
  retry:
    attempts: 2
  storage: {name: nfs-a}
  env: {DTYPE: bf16, MESH: N150}
jobs:
  - name: llama
    command: [gen, --model, llama]
    cache_dirs: [/mnt/llama]
    stall: {stall_after_s: 600}
    env: {MESH: N300}
  - name: qwen
    command: [gen, --model, qwen]
    cache_dirs: [/mnt/qwen]
    storage: null
    priority: 1
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    return path


def sentence(tmp_path: Path, text: str, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_jobs_file(written(tmp_path, text), **options)
    assert "\n" not in caught.value.message
    return caught.value.message.removeprefix(f"{tmp_path}/")


def test_a_file_says_what_each_job_is(tmp_path: Path) -> None:
    plan = read_jobs_file(written(tmp_path, GOOD))
    llama, qwen = plan.jobs
    assert (plan.name, plan.policy.max_parallel) == ("nightly", 3)
    assert llama.stall == StallPolicy(stall_after_s=600, poll_s=10)
    assert llama.env == {"DTYPE": "bf16", "MESH": "N300"}
    assert (llama.storage_name, qwen.storage) == ("nfs-a", None)
    assert [job.name for job in plan.in_order()] == ["qwen", "llama"]


def test_a_fleet_without_a_name_has_the_files(tmp_path: Path) -> None:
    assert read_jobs_file(written(tmp_path, GOOD.replace("name: nightly\n", ""))).name == "jobs"
    assert read_jobs_file(written(tmp_path, GOOD), name="mine").name == "mine"


def test_the_parameters_of_a_job_are_what_was_written_and_no_more(tmp_path: Path) -> None:
    qwen = read_jobs_file(written(tmp_path, GOOD)).jobs[1]
    assert json.loads(json.dumps(qwen.parameters())) == {
        "job": {
            "name": "qwen",
            "command": ["gen", "--model", "qwen"],
            "cache_dirs": ["/mnt/qwen"],
            "env": {"DTYPE": "bf16", "MESH": "N150"},
        },
        "stall": {"stall_after_s": 300, "poll_s": 10},
        "retry": {"attempts": 2},
    }


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("    cache_dirs: [/mnt/qwen]", "    cache_dir: [/mnt/qwen]", ": jobs[1].cache_dir is not known: did you mean cache_dirs?"),
        ("    attempts: 2", "    atempts: 2", ": jobs[0].retry.atempts is not known: did you mean attempts?"),
        ("defaults:", "default:", ": default is not known: did you mean defaults?"),
        ("  storage: {name: nfs-a}", "  storage: [nfs-a]", ": jobs[0].storage = ['nfs-a']: it is a mapping: write `name: value` lines below it, of name, slots"),
        ("  storage: {name: nfs-a}", "  cache_dirs: [/mnt]", ": defaults.cache_dirs cannot be a default: each job needs its own"),
        ("name: qwen", "name: llama", ": jobs[1]: the name 'llama' is taken by jobs[0]: give each job a name of its own"),
        ("stall_after_s: 600", "stall_after_s: 0", ": jobs[0].stall.stall_after_s = 0: input should be greater than or equal to 0.2"),
        ("priority: 1", "priority: soon", ": jobs[1].priority = 'soon': input should be a valid integer, unable to parse string as an integer"),
        ("priority: 1", "work_queue: fast", ": jobs[1]: work_queue needs a deployment: a job in the fleet's own host waits in no queue"),
        (
            "priority: 1", "deployment: generate-cache/n",
            ": jobs[0]: it names no deployment, and 'qwen' does: a fleet runs over workers or in its own host, not both",
        ),
        ("    cache_dirs: [/mnt/qwen]\n", "", ": jobs[1]: it names no cache_dirs: name the directory that must grow, or publish into a store"),
        ("version: 1", "version: 2", ": version = 2: input should be 1"),
        ("version: 1\n", "", ": version is missing: write version: 1 at its top"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_field(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in GOOD
    got = sentence(tmp_path, GOOD.replace(before, after))
    assert got == f"jobs.yaml{said}"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("/mnt/llama/", "'/mnt/llama' is the cache directory of jobs[0], 'llama'"),
        ("/mnt/x/../llama", "'/mnt/llama' is the cache directory of jobs[0], 'llama'"),
        ("/mnt/llama/sub", "'/mnt/llama/sub' and '/mnt/llama' lie in each other; the other is one of jobs[0], 'llama'"),
        ("/mnt", "'/mnt' and '/mnt/llama' lie in each other; the other is one of jobs[0], 'llama'"),
    ],
)
def test_two_jobs_do_not_write_below_one_directory(tmp_path: Path, other: str, said: str) -> None:
    text = GOOD.replace("[/mnt/qwen]", f"[{other}]")
    assert len(read_jobs_file(written(tmp_path, text)).jobs) == 2  # qwen is on no storage: another /mnt/llama
    got = sentence(tmp_path, text.replace("    storage: null\n", ""))
    assert got == f"jobs.yaml: jobs[1]: {said}: give each job a directory of its own"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "jobs.yaml is not a mapping of names to values: write `name: value` lines"),
        ("version: 1\n", "jobs.yaml: jobs is missing: write each job as `- name: ...` below it"),
        (
            "version: 1\njobs:\n- gen\n",
            "jobs.yaml: jobs[0] = 'gen': it is a mapping: write `name: value` lines below it",
        ),
    ],
)
def test_a_file_that_is_no_jobs_file_is_said_to_be_none(tmp_path: Path, text: str, said: str) -> None:
    assert sentence(tmp_path, text) == said


def test_what_is_given_goes_before_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("max_parallel: 3", "on_failure: stop_new\n  max_failures: 4")
    path = written(tmp_path, text)
    assert read_jobs_file(path, policy={"max_failures": 1}).policy == FleetPolicy(on_failure="stop_new", max_failures=1)
    assert read_jobs_file(path, policy={"on_failure": "continue"}).policy == FleetPolicy()
    said = sentence(tmp_path, GOOD, policy={"max_failures": 1})
    assert said.endswith("max_failures needs on_failure: stop_new or fail_fast; with continue nothing counts failures")
    said = sentence(tmp_path, GOOD, policy={"missing_limit": "make"})
    assert said == "the fleet: policy.missing_limit: 'make' is not error, ignore or create:N: write it like create:4"


def test_a_deployment_that_is_given_is_for_jobs_that_name_none(tmp_path: Path) -> None:
    text = GOOD.replace("priority: 1", "deployment: generate-cache/own")
    plan = read_jobs_file(written(tmp_path, text), deployment="generate-cache/all")
    assert [job.deployment for job in plan.jobs] == ["generate-cache/all", "generate-cache/own"]
    jobs = [FleetJob(name="a", command=["x"], cache_dirs=["/c"], work_queue="fast")]
    assert plan_of_jobs(jobs, deployment="f/d").jobs[0].deployment == "f/d"
    with pytest.raises(InputError, match="jobs\\[0\\]: work_queue needs a deployment"):
        plan_of_jobs(jobs)
    with pytest.raises(InputError, match="the fleet has no jobs"):
        plan_of_jobs([])


def test_an_edited_job_has_another_digest_and_a_renamed_storage_has_not() -> None:
    job = FleetJob(name="a", command=["x"], cache_dirs=["/c"])
    same = FleetJob(
        name="a", command=["x"], cache_dirs=["/c"], storage={"name": "s"}, priority=1, retry={"attempts": 1}
    )
    watched = FleetJob(
        name="a", command=["x"], cache_dirs=["/c"], expected_bytes="1GB", ignore=["*.tmp"], progress_log=["step"],
        on_stall="report", allow_empty=True, stall={"stall_after_s": 60},
    )  # fmt: skip
    assert job.digest == same.digest == watched.digest
    edited = [
        {"command": ["x", "-v"]}, {"cache_dirs": ["/d"]}, {"env": {"A": "1"}}, {"env_secrets": {"A": "block"}}, {"cwd": "/w"},
        {"container": {"image": "x"}}, {"wait_for": "leader"}, {"markers": {"completed": "/c/.done"}}, {"name": "b"},
    ]  # fmt: skip
    plain = {"name": "a", "command": ["x"], "cache_dirs": ["/c"]}
    assert job.digest not in [FleetJob.model_validate(plain | one).digest for one in edited]


def test_what_a_job_waits_for_keeps_its_kind(tmp_path: Path) -> None:
    ready = "ready:\n      kind: http\n      url: http://127.0.0.1:8000/health"
    job = read_jobs_file(written(tmp_path, GOOD.replace("priority: 1", ready))).jobs[1]
    given = FleetJob(name="a", command=["x"], cache_dirs=["/c"], ready=job.ready)
    assert given.parameters()["job"]["ready"]["kind"] == "http"
    assert CacheJob.model_validate(given.parameters()["job"]) == given.cache_job
    said = sentence(tmp_path, GOOD.replace("priority: 1", ready.replace("url:", "urll:")))
    assert said.startswith("jobs.yaml: jobs[1].ready.http.urll is not known: did you mean url?")
