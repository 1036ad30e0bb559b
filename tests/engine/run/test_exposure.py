"""Secrets in what Prefect would store are named, never shown, and refused where that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from prefect_cachewatch.cli.fleet import command as fleet
from prefect_cachewatch.cli.generate import command as generate
from prefect_cachewatch.config import CacheJob, Outputs
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.exposure import check_exposure, exposed_secrets, require_utf8


def job(**fields):
    return CacheJob(**({"name": "c", "command": ["gen"], "cache_dirs": ["/c"]} | fields))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({"command": ["gen", "--layers", "80", "--max-tokens", "128", "--key", "model=llama", "-p", "8080"]}, []),
        ({"command": ["gen", "--password", "hunter2"]}, ["job.command --password"]),
        ({"command": ["sh", "-c", "TOKEN=abc123 gen"]}, ["job.command TOKEN"]),
        ({"env": {"DB_PWD": "hunter2", "SSHPASS": "word", "N": "1"}}, ["job.env.DB_PWD", "job.env.SSHPASS"]),
        ({"env": {"URL": "postgres://me:pw@db/x"}}, ["job.env.URL"]),
        ({"env": {"TOKENIZERS_PARALLELISM": "false", "SSH_AUTH_SOCK": "/run/x", "TOKEN_FILE": "/run/t", "AUTH": "none"}}, []),
        ({"env_secrets": {"HF_TOKEN": "hf-token"}}, []),
        ({"ready": {"kind": "http", "url": "http://localhost/health?token=abc1"}}, ["job.ready.url"]),
    ],
)  # fmt: skip
def test_secrets_of_a_job_are_found_where_they_stand(fields, found):
    assert exposed_secrets({"job": job(**fields)}) == found


def test_the_sentence_names_the_way_out_and_no_value():
    given = {"job": job(command=["gen", "--password", "hunter2"], env={"DB_PWD": "hunter3"})}
    sentence = check_exposure(given)
    assert "job.command --password, job.env.DB_PWD look like a secret" in sentence
    assert "env_secrets" in sentence
    assert "hunter" not in sentence
    assert check_exposure({"job": job()}) is None


def test_generate_warns_before_anything_is_stored(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("prefect_cachewatch.cli.generate.run_flow", lambda *args, **kwargs: ran.append(args) or 0)
    words = ["--cache-dir", str(tmp_path / "cache"), "--", "true", "--password", "hunter2"]
    done = CliRunner().invoke(generate, words, standalone_mode=False)
    assert done.stderr.count("\n") == 1
    assert "job.command --password looks like a secret" in done.stderr
    assert "env_secrets" in done.stderr
    assert len(ran) == 1
    assert "hunter2" not in done.output


def test_a_fleet_warns_before_anything_is_stored(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(
        "version: 1\njobs:\n  - {name: a, command: ['true'], cache_dirs: [/mnt/a], env: {DB_PWD: hunter2}}\n"
    )
    done = CliRunner().invoke(fleet, [str(path), "--check"], standalone_mode=False)
    assert "cachewatch: a.env.DB_PWD looks like a secret" in done.stderr
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    ("parameters", "where"),
    [
        ({"job": {"command": ["gen", "/c\udcff"]}}, "job.command"),
        ({"job": CacheJob(name="x", command=["gen"], cache_dirs=["/c\udcff\n"])}, "job.cache_dirs"),
        ({"job": {"env": {"A": "\udcfe"}}}, "job.env.A"),
        ({"job": {"env": {"A\ud800": "x"}}}, "job.env"),
        ({"publish": None, "outputs": Outputs(report=Path("/r\udcff"))}, "outputs.report"),
    ],
)
def test_what_prefect_cannot_store_is_refused_by_its_place(parameters: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        require_utf8(parameters)
    assert refused.value.message.startswith(f"{where} has a byte that is no UTF-8 (\\")
    refused.value.message.encode()
