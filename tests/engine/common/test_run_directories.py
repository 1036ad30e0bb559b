"""Directories of runs: made and pruned by many runs at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_cachewatch.common.aside import Aside, Files, InPlace
from prefect_cachewatch.common.statedir import KEEP_RUNS, open_run_directory, prune_run_directories

MAKES = """
import sys
from prefect_cachewatch.common.aside import InPlace
from prefect_cachewatch.common.statedir import open_run_directory
for number in range(60):
    open_run_directory(InPlace(), "many", f"{sys.argv[1]}-{number}")
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


@pytest.mark.parametrize("make", [InPlace, Aside.spawn])
def test_the_directory_of_a_run_that_goes_on_is_never_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Files]
) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path))
    files = make()
    mine = open_run_directory(files, "long", "1")
    done = subprocess.run(
        [sys.executable, "-c", MAKES, "short"], check=False
    )  # each of these has ended with its process
    assert done.returncode == 0
    assert prune_run_directories(tmp_path / "generations", keep=0) == 60
    assert list((tmp_path / "generations").iterdir()) == [mine.path]
    mine.close()
    assert prune_run_directories(tmp_path / "generations", keep=0) == 1
    files.close()


def test_many_runs_in_one_process_hold_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEWATCH_STATE", str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        open_run_directory(InPlace(), "many", str(number)).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
