"""`cachewatch fleet` as a process: bad input is one sentence and starts nothing; --check looks and makes nothing."""

from __future__ import annotations

import json
import os
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


def test_settings_that_prefect_refuses_are_one_sentence(tmp_path: Path) -> None:
    ran = fleet(write(tmp_path, job(tmp_path)), PREFECT_API_URL="http://[::1")
    assert ran.status == 125
    assert "Traceback" not in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("cachewatch: Prefect refuses its settings (") and "IPv6 URL" in last
    assert not (tmp_path / "a").exists()


@pytest.mark.campaign
def test_a_temporary_server_that_does_not_start_is_one_sentence(tmp_path: Path) -> None:
    ran = fleet(write(tmp_path, job(tmp_path)), PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS="1")
    assert ran.status == 125 and "Traceback" not in ran.stderr
    assert "cachewatch: the temporary Prefect server did not start (Timed out " in ran.stderr
    assert not (tmp_path / "a").exists()


def test_an_api_that_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    ran = fleet(write(tmp_path, job(tmp_path)), PREFECT_API_URL="http://127.0.0.1:9/api")
    assert ran.status == 125
    assert ran.stderr.startswith("cachewatch: the Prefect API at http://127.0.0.1:9/api cannot be reached")
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_an_address_that_no_api_has_is_corrected(tmp_path: Path) -> None:
    ran = fleet(write(tmp_path, job(tmp_path)), PREFECT_API_URL="http://127.0.0.1:9/")
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert "PREFECT_API_URL ends with /api: write http://127.0.0.1:9/api; or start it" in ran.stderr
