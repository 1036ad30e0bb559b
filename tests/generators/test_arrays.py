"""Caches that appear in full size at once and are filled afterwards: safetensors shards and a numpy memmap."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.generators.guarded import SCRIPTS, GuardedRun, run_guarded

pytestmark = [pytest.mark.generators, pytest.mark.timeout(900)]

SHARD_BYTES = 4 * 2048 * 4096 * 2
LAYER_BYTES = 2048 * 4096 * 2


def test_safetensors_shards_complete_with_every_byte_counted(arrays_python: str, cache_dir: Path) -> None:
    run = _run(arrays_python, "safetensors_shards.py", cache_dir, "5m", "--shards", "6")
    growth = run.report["growth"]
    assert (run.exit_code, run.report["outcome"]) == (0, "completed")
    assert growth["files_present"] == 7
    assert 6 * SHARD_BYTES < growth["bytes_present"] < 6 * SHARD_BYTES + 10_000
    # A shard is written under a temporary name and renamed: its bytes count once.
    assert growth["bytes_written"] == growth["bytes_present"]
    assert growth["allocated_written"] >= 6 * SHARD_BYTES
    assert 0 < growth["first_write_s"] < growth["last_growth_s"] <= run.report["duration_s"]
    assert run.left == {}


def test_safetensors_shards_that_freeze_are_a_stall(arrays_python: str, cache_dir: Path) -> None:
    run = _run(arrays_python, "safetensors_shards.py", cache_dir, "4s", "--shards", "6", "--freeze-at", "2")
    assert (run.exit_code, run.report["outcome"], run.report["stall"]["kind"]) == (124, "stalled", "no_growth")
    assert run.report["growth"]["files_present"] == 2
    assert run.last_line == (
        f"{cache_dir.name} stalled: pid {_stopped_pid(run)} (python) was stopped by a signal (state T) and never continued. "
        f"No growth for 4 s. Tensor cache generation stalled: no disk write activity detected for 4 s in {cache_dir} "
        "(128 MiB in 2 files; last growth model-00002-of-00006.safetensors)."
    )
    assert 4 <= run.report["stop"]["decided_after_last_growth_s"] < 4 + 60
    assert run.left == {}


def test_a_memmap_that_is_filled_in_place_is_not_a_stall_though_its_size_never_grows(
    arrays_python: str, cache_dir: Path
) -> None:
    run = _run(arrays_python, "memmap_fill.py", cache_dir, "10s", "--layers", "13", "--pause", "1")
    report, growth = run.report, run.report["growth"]
    assert (run.exit_code, report["outcome"]) == (0, "completed")
    assert growth["bytes_written"] == 13 * LAYER_BYTES + 128
    assert growth["allocated_written"] >= 13 * LAYER_BYTES
    assert growth["last_growth_s"] - growth["first_write_s"] > 10  # longer than the window
    # All of the size stood in the first sample that had any; the blocks came later.
    sizes = [sample["bytes_written"] for sample in growth["samples"] if sample["bytes_written"]]
    blocks = [sample["allocated_written"] for sample in growth["samples"] if sample["bytes_written"]]
    assert set(sizes) == {13 * LAYER_BYTES + 128}
    assert len(set(blocks)) >= 5
    assert run.left == {}


def test_a_memmap_that_freezes_half_filled_is_a_stall_and_listed_as_sparse(arrays_python: str, cache_dir: Path) -> None:
    run = _run(arrays_python, "memmap_fill.py", cache_dir, "3s", "--layers", "8", "--freeze-at", "4")
    growth = run.report["growth"]
    assert (run.exit_code, run.report["outcome"], run.report["stall"]["kind"]) == (124, "stalled", "no_growth")
    assert growth["bytes_written"] == 8 * LAYER_BYTES + 128
    assert 4 * LAYER_BYTES <= growth["allocated_written"] < 5 * LAYER_BYTES
    assert run.flagged("sparse") == run.flagged("suspect_partial") == ["weights.npy"]
    assert run.left == {}


def _stopped_pid(run: GuardedRun) -> int:
    (process,) = run.report["stop"]["terminated"] + run.report["stop"]["killed"]
    return int(process["pid"])


def _run(python: str, script: str, cache_dir: Path, stall_after: str, *arguments: str) -> GuardedRun:
    command = [python, str(SCRIPTS / script), str(cache_dir), *arguments]
    options = ["--stall-after", stall_after, "--first-write-within", "60s", "--poll", "0.5s"]
    return run_guarded("exec", command, cache_dir, options)
