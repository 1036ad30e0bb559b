"""`cachewatch fleet` as a process: bad input is one sentence and starts nothing; --check looks and makes nothing."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import CACHEWATCH, Ran, run

ENV = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}


def fleet(path: Path, *options: str, **env: str) -> Ran:
    return run([*CACHEWATCH, "fleet", str(path), *options], env=ENV | env, cwd=path.parent)


def write(tmp_path: Path, *jobs: dict[str, Any], **top: Any) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"version": 1, **top, "jobs": list(jobs)}, sort_keys=False))
    return path


def job(tmp_path: Path, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "command": [sys.executable, "-c", ""], "cache_dirs": [str(tmp_path / name)], **more}


def test_check_says_what_would_run_and_makes_nothing(tmp_path: Path) -> None:
    ran = fleet(write(tmp_path, job(tmp_path), job(tmp_path, "b", storage={"name": "nfs"})), "--check")
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{tmp_path}/jobs.yaml: fleet 'jobs', 2 jobs on this host",
        "Storages and deployments were not looked at: PREFECT_API_URL is not set",
    ]
    told = fleet(tmp_path / "jobs.yaml", "--check", "--json")
    assert told.stderr.splitlines() == ran.stdout.splitlines()
    assert json.loads(told.stdout) == {
        "name": "jobs", "jobs": ["a", "b"], "deployments": [], "looked_at_prefect": False, "limits": {"nfs": None},
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.yaml"]


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({"comand": []}, [], "jobs.yaml: jobs[0].comand is not known: did you mean command?"),
        ({"command": ["no-such-generator"]}, [], "job 'a': command 'no-such-generator' not found in PATH: check its name, or give its full path"),
        ({}, ["--deployment", "nightly"], "the deployment 'nightly' is not flow/name: write it like generate-cache/fleet-member"),
        ({}, ["--max-parallel", "0"], "Invalid value for '--max-parallel': 0 is not in the range"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_starts_nothing(
    tmp_path: Path, fields: dict[str, Any], options: list[str], said: str
) -> None:
    ran = fleet(write(tmp_path, job(tmp_path, **fields)), *options)
    assert (ran.status, ran.stdout) == (125, "")
    assert ran.stderr.startswith("cachewatch: ") and ran.stderr.count("\n") == 1
    assert said in ran.stderr.replace(f"{tmp_path}/", "")
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.yaml"]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    ran = fleet(tmp_path / "no.yaml")
    assert (ran.status, ran.stderr) == (
        125, f"cachewatch: {tmp_path}/no.yaml cannot be read (No such file or directory): check the path\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PREFECT_API_URL": "http://[::1"}, r"Prefect refuses its settings \(.*IPv6 URL"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/api"}, "the Prefect API at http://127.0.0.1:9/api cannot be reached"),
        ({"PREFECT_API_URL": "http://127.0.0.1:9/"}, ".*PREFECT_API_URL ends with /api: write http://127.0.0.1:9/api; or start it"),
        pytest.param(
            {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "1"}, r"the temporary Prefect server did not start \(Timed out ",
            marks=pytest.mark.campaign,
        ),
    ],
)  # fmt: skip
def test_an_api_that_cannot_be_asked_is_one_sentence(tmp_path: Path, env: dict[str, str], said: str) -> None:
    ran = fleet(write(tmp_path, job(tmp_path)), **env)
    assert ran.status == 125 and "Traceback" not in ran.stderr
    assert re.search(f"^cachewatch: {said}", ran.stderr, re.MULTILINE), ran.stderr
    assert ran.stderr.count("cachewatch: ") == 1
    assert not (tmp_path / "a").exists()
