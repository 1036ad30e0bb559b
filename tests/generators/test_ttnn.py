"""tt-metal tensor caches as ttnn writes them: healthy, frozen at a layer, killed in mid-file, warm."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.generators.guarded import SCRIPTS, GuardedRun, is_marked, run_guarded

pytestmark = [pytest.mark.generators, pytest.mark.timeout(900)]

DIM, WEIGHTS = 1024, 6
# Elements of one layer's six weights, two bytes each in bfloat16.
LAYER_BYTES = 2 * (DIM * DIM * 3 // 2 + DIM * DIM + 3 * (DIM * DIM * 3) + 32 * DIM)
WINDOWS = ["--stall-after", "6s", "--first-write-within", "60s", "--poll", "1s"]


@pytest.mark.parametrize("how", ["exec", "generate"])
def test_a_healthy_generation_completes_and_every_tensor_can_be_loaded(
    how: str, ttnn_python: str, cache_dir: Path
) -> None:
    run = _layers(how, ttnn_python, cache_dir, "--layers", "8", "--pause", "0.3")
    growth = run.report["growth"]
    assert (run.exit_code, run.report["outcome"], run.report["stall"]["kind"]) == (0, "completed", None)
    assert growth["files_present"] == 8 * WEIGHTS
    assert 8 * LAYER_BYTES < growth["bytes_present"] < 8 * LAYER_BYTES * 1.01  # a header of some hundred bytes each
    assert growth["bytes_written"] == growth["bytes_present"] == _size(cache_dir)
    assert 0 < growth["first_write_s"] < growth["last_growth_s"] <= run.report["duration_s"]
    assert growth["longest_pause_s"] < 6
    assert run.report["stop"] is None
    assert run.report["listing"]["total_files"] == 8 * WEIGHTS
    assert run.flagged("temporary") == run.flagged("suspect_partial") == []
    assert "layer 8/8 in" in (run.output if how == "exec" else "\n".join(run.report["log_tail"]))
    assert run.left == {}
    assert _loaded(ttnn_python, cache_dir) == (8 * WEIGHTS, 8 * LAYER_BYTES // 2)


@pytest.mark.parametrize("how", ["exec", "generate"])
def test_a_generation_frozen_at_a_layer_is_caught_and_its_tree_is_gone(
    how: str, ttnn_python: str, cache_dir: Path
) -> None:
    run = _layers(how, ttnn_python, cache_dir, "--layers", "8", "--pause", "0.2", "--freeze-at", "4")
    report, stop = run.report, run.report["stop"]
    assert (run.exit_code, report["outcome"], report["stall"]["kind"]) == (124, "stalled", "no_growth")
    assert report["message"] in (run.last_line if how == "exec" else run.errors.splitlines())
    fact = f" Tensor cache generation stalled: no disk write activity detected for 6 s in {cache_dir} ("
    assert fact in report["message"]
    assert report["growth"]["files_present"] == 4 * WEIGHTS
    assert report["stall"]["window_s"] == 6
    assert 6 <= stop["decided_after_last_growth_s"] < 8
    assert stop["gone_after_s"] < 3.5
    assert stop["survivors"] == []
    assert any("ttnn_layers.py" in " ".join(process["argv"]) for process in stop["terminated"] + stop["killed"])
    newest = [Path(entry["path"]).name for entry in report["listing"]["entries"][:WEIGHTS]]
    assert all(name.startswith("layers.3.") for name in newest)
    assert newest[0] in run.flagged("suspect_partial")
    assert report["listing"]["total_files"] == 4 * WEIGHTS
    assert run.left == {}
    # What was whole before it froze is whole still.
    assert _loaded(ttnn_python, cache_dir) == (4 * WEIGHTS, 4 * LAYER_BYTES // 2)


def test_a_generation_killed_in_mid_file_leaves_a_part_that_the_report_names(ttnn_python: str, cache_dir: Path) -> None:
    killed: list[str] = []

    def kill_in_mid_file(mark: str, ended: Callable[[], bool]) -> None:
        while not killed and not ended():
            for path in cache_dir.rglob("*.tensorbin.tmp.*"):
                pid = re.search(r"\.tmp\.(\d+)\.", path.name)
                if pid and is_marked(int(pid[1]), mark):
                    os.kill(int(pid[1]), signal.SIGKILL)
                    killed.append(path.name)
                    break
            time.sleep(0.001)

    options = ["--layers", "12", "--dim", "4096"]  # files of 96 MiB each take long enough to be met half-written
    run = run_guarded("exec", _command(ttnn_python, cache_dir, *options), cache_dir, WINDOWS, kill_in_mid_file)
    assert len(killed) == 1
    assert (run.exit_code, run.report["outcome"]) == (128 + signal.SIGKILL, "failed")
    assert (run.report["exit_code"], run.report["signal"]) == (None, signal.SIGKILL)
    message = run.report["message"]
    assert message.startswith(f"{cache_dir.name} failed") and ": the generator was killed by SIGKILL" in message
    assert run.report["stall"]["kind"] is None
    assert run.report["stop"] is None
    assert run.left == {}
    assert [path.name for path in cache_dir.rglob("*.tmp.*")] == killed
    assert run.flagged("temporary") == killed
    assert killed[0] in run.flagged("suspect_partial")


def test_a_warm_re_run_writes_nothing_and_succeeds(ttnn_python: str, cache_dir: Path) -> None:
    cold = _layers("exec", ttnn_python, cache_dir, "--layers", "4")
    before = {path: path.stat().st_mtime_ns for path in cache_dir.rglob("*")}
    warm = _layers("exec", ttnn_python, cache_dir, "--layers", "4")
    growth = warm.report["growth"]
    assert (cold.exit_code, warm.exit_code, warm.report["outcome"]) == (0, 0, "completed")
    assert warm.report["message"].endswith("; nothing new was written.")
    assert (growth["bytes_written"], growth["allocated_written"]) == (0, 0)
    assert (growth["first_write_s"], growth["last_growth_s"]) == (None, None)
    assert growth["bytes_present"] == cold.report["growth"]["bytes_present"]
    assert warm.flagged("grew_in_window") == []
    assert {path: path.stat().st_mtime_ns for path in cache_dir.rglob("*")} == before


def _layers(how: str, python: str, cache_dir: Path, *arguments: str) -> GuardedRun:
    return run_guarded(how, _command(python, cache_dir, "--dim", str(DIM), *arguments), cache_dir, WINDOWS)


def _command(python: str, cache_dir: Path, *arguments: str) -> list[str]:
    return [python, str(SCRIPTS / "ttnn_layers.py"), str(cache_dir), *arguments]


def _loaded(python: str, cache_dir: Path) -> tuple[int, int]:
    answer = subprocess.run(
        [python, str(SCRIPTS / "ttnn_check.py"), str(cache_dir)], capture_output=True, text=True, check=True
    )
    files, elements = answer.stdout.split()[-2:]
    return int(files), int(elements)


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
