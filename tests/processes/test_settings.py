"""Options from files and the environment with real commands: nested ones, and files that do not answer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support import CACHEWATCH, run


def test_a_command_below_another_one_does_not_write_its_report(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text('[tool.cachewatch]\nlog = "log.txt"\nquiet = true\n')
    inner = [
        *CACHEWATCH,
        "exec",
        "--cache-dir",
        "inner",
        "--",
        "sh",
        "-c",
        "echo inside; echo x > inner/x; mkdir outer/d; echo x > outer/x",
    ]
    ran = run(
        [*CACHEWATCH, "exec", "--cache-dir", "outer", "--", *inner],
        cwd=tmp_path, env=os.environ | {"CACHEWATCH_REPORT": "report.json"},
    )  # fmt: skip
    assert (ran.status, ran.stdout, ran.stderr) == (0, "inside\n", "")
    assert json.loads((tmp_path / "report.json").read_text())["name"] == "outer"
    assert (tmp_path / "log.txt").read_text() == "inside\n"


@pytest.mark.campaign
def test_a_settings_file_that_does_not_answer_is_one_sentence_and_starts_nothing(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    options = ["--config", str(tmp_path / "fifo"), "--cache-dir", str(tmp_path / "c")]
    for name in ("exec", "generate"):
        ran = run([*CACHEWATCH, name, *options, "--", "touch", str(tmp_path / "ran")])
        assert ran.status == 125
        assert ran.stderr == (
            f"cachewatch: settings file {tmp_path}/fifo cannot be used: its file system does not answer within 10 s; "
            "check the mount, or name another file with --config\n"
        )
    assert not (tmp_path / "ran").exists()


def test_a_settings_file_may_be_a_pipe_that_somebody_writes(tmp_path: Path):
    command = f"""{" ".join(CACHEWATCH)} exec --config <(echo 'grace = "2h"') --cache-dir {tmp_path}/c -- true"""
    ran = run(["bash", "-c", command])
    assert ran.status == 125
    assert "--grace 2 h is out of range: give at most 1 h (set by grace in /dev/fd/" in ran.stderr


def test_a_working_directory_that_has_been_removed_has_no_settings(tmp_path: Path):
    gone, elsewhere = tmp_path / "gone", tmp_path / "elsewhere"
    gone.mkdir()
    elsewhere.mkdir()
    options = f"--cache-dir {tmp_path}/c --cwd {elsewhere} --allow-empty"
    command = f"cd {gone} && rmdir {gone} && exec {' '.join(CACHEWATCH)} exec {options} -- pwd"
    ran = run(["sh", "-c", command], env=os.environ | {"PYTHONSAFEPATH": "1"})
    assert (ran.status, ran.stdout) == (0, f"{elsewhere}\n"), ran.stderr
