"""Directories of runs: made and pruned by many runs at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefect_cachewatch.rundir import KEEP_RUNS, make_run_directory, prune_run_directories, release_run_directory

MAKES = """
import sys
from prefect_cachewatch.rundir import make_run_directory
for number in range(60):
    make_run_directory("many", f"{sys.argv[1]}-{number}")
"""


def test_runs_that_begin_at_once_do_not_stumble_over_each_others_pruning(tmp_path: Path) -> None:
    env = {"CACHEWATCH_STATE": str(tmp_path)}
    runs = tmp_path / "generations"
    for number in range(KEEP_RUNS):  # from here on each new one removes an old one
        (runs / f"old-{number}").mkdir(parents=True)
    many = [
        subprocess.Popen([sys.executable, "-c", MAKES, str(number)], env=env, stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    said = [process.communicate(timeout=100)[1] for process in many]
    assert said == [""] * 4
    assert list(runs.glob("old-*")) == []


def test_the_directory_of_a_run_that_goes_on_is_never_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path))
    mine = make_run_directory("long", "1")
    done = subprocess.run(
        [sys.executable, "-c", MAKES, "short"], check=False
    )  # each of these has ended with its process
    assert done.returncode == 0
    assert prune_run_directories(tmp_path / "generations", keep=0) == 60
    assert list((tmp_path / "generations").iterdir()) == [mine]
    release_run_directory(mine)
    assert prune_run_directories(tmp_path / "generations", keep=0) == 1


def test_many_runs_in_one_process_hold_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        release_run_directory(make_run_directory("many", str(number)))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
