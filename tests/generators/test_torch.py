"""torch.compile with its g++ children: a cache of small files, and a tree that must go as a whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.generators.guarded import SCRIPTS, GuardedRun, marked_processes, run_guarded

pytestmark = [pytest.mark.generators, pytest.mark.timeout(900)]


def test_a_compilation_completes_with_pauses_below_its_window(torch_python: str, cache_dir: Path) -> None:
    run = _compile(torch_python, cache_dir, "60s")
    growth = run.report["growth"]
    assert (run.exit_code, run.report["outcome"]) == (0, "completed")
    assert list(cache_dir.rglob("*.so"))
    assert growth["files_present"] == sum(path.is_file() for path in cache_dir.rglob("*") if path.suffix != ".lock")
    assert growth["bytes_written"] >= growth["bytes_present"] > 100_000
    assert 0 < growth["first_write_s"] < growth["last_growth_s"] <= run.report["duration_s"]
    assert growth["longest_pause_s"] < 60
    assert run.left == {}


def test_a_frozen_compiler_is_a_stall_and_no_part_of_it_is_left(torch_python: str, cache_dir: Path) -> None:
    frozen: list[int] = []

    def freeze_compiler(mark: str, ended: Callable[[], bool]) -> None:
        frozen.append(_await_compiler(mark, ended, cache_dir))
        os.kill(frozen[0], signal.SIGSTOP)

    run = _compile(torch_python, cache_dir, "12s", freeze_compiler)
    report = run.report
    assert (run.exit_code, report["outcome"], report["stall"]["kind"]) == (124, "stalled", "no_growth")
    stopped = report["stop"]["terminated"] + report["stop"]["killed"]
    assert frozen[0] in [process["pid"] for process in stopped]
    assert len(stopped) >= 3  # python, g++, cc1plus
    assert report["stop"]["survivors"] == []
    assert report["stop"]["gone_after_s"] < 3.5
    assert 12 <= report["stop"]["decided_after_last_growth_s"] < 15
    assert run.left == {}


def _compile(
    python: str, cache_dir: Path, stall_after: str, meanwhile: Callable[[str, Callable[[], bool]], None] | None = None
) -> GuardedRun:
    command = [python, str(SCRIPTS / "torch_inductor.py"), str(cache_dir), "--modules", "2"]
    options = ["--stall-after", stall_after, "--first-write-within", "120s", "--poll", "1s"]
    return run_guarded("exec", command, cache_dir, options, meanwhile)


def _await_compiler(mark: str, ended: Callable[[], bool], cache_dir: Path) -> int:
    """Wait for a cc1plus once something was written, and give its pid."""
    while not ended():
        if any(cache_dir.rglob("*.so")):  # by then there is more than the least growth that counts
            for pid, name in marked_processes(mark).items():
                if name == "cc1plus":
                    return pid
        time.sleep(0.02)
    raise AssertionError("the generation ended before a compiler was seen")


def _argv(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
