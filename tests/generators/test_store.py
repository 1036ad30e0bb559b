"""Real tt-metal caches through the store: killed or frozen, retried, published, and every tensor read back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.generators.guarded import SCRIPTS, is_marked

pytestmark = [pytest.mark.generators, pytest.mark.timeout(900)]

CACHEWATCH = Path(sys.executable).with_name("cachewatch")
MAGIC = b"LAYERS1\n"
WINDOWS = ["--stall-after", "6s", "--first-write-within", "90s", "--poll", "0.5s", "--grace", "1s", "--backoff", "0.1s"]


def generate(
    root: Path, command: list[str], *options: str, meanwhile: Callable[[subprocess.Popen[str]], None] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Run `cachewatch generate --store`; returns exit status, report and what was said."""
    (root / "store").mkdir(exist_ok=True)
    report = root / "report.json"
    report.unlink(missing_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ |= {"PREFECT_HOME": str(root / "prefect"), "CACHEWATCH_STATE": str(root / "state")}
    argv = [
        CACHEWATCH, "generate", "--store", root / "store", "--name", "llama", "--report", report, *WINDOWS, *options,
        "--", *command,
    ]  # fmt: skip
    process = subprocess.Popen(
        [str(w) for w in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )
    try:
        if meanwhile is not None:
            meanwhile(process)
        said, _ = process.communicate(timeout=400)
    finally:
        process.kill()
        process.wait()
    return process.returncode, json.loads(report.read_text()) if report.exists() else {}, said


def truncating(python: str, *words: str) -> list[str]:
    return [python, str(SCRIPTS / "truncating_layers.py"), "{cache_dir}", *words]


def broken_layers(cache: Path) -> list[str]:
    """Files that are not whole, by their own header."""
    broken = []
    for path in sorted(cache.rglob("*.tensorbin")):
        data = path.read_bytes()
        body = data[48:]
        well = (
            data[:8] == MAGIC
            and int.from_bytes(data[8:16], "little") == len(body)
            and data[16:48] == hashlib.sha256(body).digest()
        )
        if not well:
            broken.append(path.name)
    return broken


def loaded(python: str, cache: Path) -> int:
    """Load every tensor with ttnn; a cut file would crash it."""
    answer = subprocess.run(
        [python, str(SCRIPTS / "ttnn_check.py"), str(cache)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout.split()[-2])


def current(root: Path) -> Path:
    return (root / "store/llama/current").resolve(strict=True)


def test_the_script_leaves_a_cut_final_file_and_the_next_run_keeps_it(tmp_path: Path) -> None:
    # What all of this is for, shown without cachewatch.
    command = [word.replace("{cache_dir}", str(tmp_path)) for word in truncating(sys.executable)]
    killed = subprocess.run([*command, "--kill-at", "5"], check=False)
    assert killed.returncode == -9
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (0, "wrote 6, kept 6\n")
    assert broken_layers(tmp_path) == ["layers.5.w.tensorbin"]


@pytest.mark.parametrize("how", ["--kill-at", "--freeze-at"])
def test_a_generator_that_leaves_cut_files_is_killed_retried_published_and_whole(tmp_path: Path, how: str) -> None:
    words = ["--layers", "30", "--pause", "0.4", "--once", str(tmp_path / "once"), how, "27"]
    status, report, said = generate(tmp_path, truncating(sys.executable, *words), "--attempts", "3")
    assert (status, report["outcome"], report["attempt"]) == (0, "completed", 2), said
    assert "removed what may be cut, before resuming" in said and "layers.27.w.tensorbin" in said
    assert "wrote 30, kept 0" not in said, "the whole ones were kept"
    assert broken_layers(current(tmp_path)) == []
    assert len(list(current(tmp_path).rglob("*.tensorbin"))) == 30


def test_a_run_that_fails_leaves_the_old_cache_in_use_and_the_next_one_resumes(tmp_path: Path) -> None:
    plain = truncating(sys.executable, "--layers", "6")
    assert generate(tmp_path, plain, "--key", "revision=1")[0] == 0
    old = current(tmp_path)
    words = ["--layers", "30", "--pause", "0.4", "--once", str(tmp_path / "once"), "--kill-at", "25"]
    cut = truncating(sys.executable, *words)
    status, report, _ = generate(tmp_path, cut, "--key", "revision=2", "--attempts", "1")
    assert (status, report["outcome"], report["publication"]["status"]) == (137, "failed", "unfinished")
    assert current(tmp_path) == old and broken_layers(old) == []
    assert broken_layers(Path(report["publication"]["path"])) == ["layers.25.w.tensorbin"]
    status, report, said = generate(tmp_path, cut, "--key", "revision=2", "--attempts", "1")
    assert (status, report["outcome"]) == (0, "completed"), said
    assert current(tmp_path) == Path(report["publication"]["path"]) != old
    assert broken_layers(current(tmp_path)) == []
    status, report, _ = generate(tmp_path, cut, "--key", "revision=2")
    assert (status, report["outcome"]) == (0, "cached")


def test_real_tensors_written_in_place_and_cut_are_never_published_cut(tmp_path: Path, ttnn_python: str) -> None:
    words = ["--layers", "10", "--tensors", "512", "--pause", "0.2", "--once", str(tmp_path / "once"), "--kill-at", "7"]
    check = f"{ttnn_python} {SCRIPTS / 'ttnn_check.py'} {{cache_dir}}"
    status, report, said = generate(tmp_path, truncating(ttnn_python, *words), "--check", check)
    assert (status, report["outcome"], report["attempt"]) == (0, "completed", 2), said
    assert loaded(ttnn_python, current(tmp_path)) == 10


def test_ttnn_killed_in_mid_file_is_retried_published_and_every_tensor_can_be_loaded(
    tmp_path: Path, ttnn_python: str
) -> None:
    met: list[str] = []
    mark = tmp_path.name

    def kill_in_mid_file(process: subprocess.Popen[str]) -> None:
        builds = tmp_path / "store/llama/builds"
        while not met and process.poll() is None:
            for path in builds.rglob("*.tensorbin.tmp.*") if builds.exists() else ():
                pid = re.search(r"\.tmp\.(\d+)\.", path.name)
                if pid and is_marked(int(pid[1]), mark) and "layers.3." in path.name:
                    os.kill(int(pid[1]), 9)
                    met.append(path.name)
                    break
            time.sleep(0.001)

    # Files of 96 MiB each take long enough to be met half-written.
    command = [ttnn_python, str(SCRIPTS / "ttnn_layers.py"), "{cache_dir}", "--layers", "5", "--dim", "4096"]
    options = ["--env", f"GENERATOR_TEST_MARK={mark}", "--attempts", "2"]
    status, report, said = generate(tmp_path, command, *options, meanwhile=kill_in_mid_file)
    assert len(met) == 1
    assert (status, report["outcome"], report["attempt"]) == (0, "completed", 2), said
    assert list(current(tmp_path).rglob("*.tmp.*")) == [], "the temporary file that ttnn never cleans is gone"
    assert loaded(ttnn_python, current(tmp_path)) == 30
    manifest = json.loads(Path(report["publication"]["manifest"]).read_text())
    assert manifest["totals"]["files"] == 30
    status, report, _ = generate(tmp_path, command, "--env", f"GENERATOR_TEST_MARK={mark}")
    assert (status, report["outcome"]) == (0, "cached")


def test_what_ttnn_leaves_when_killed_is_refused_where_nobody_cleans_it(tmp_path: Path, ttnn_python: str) -> None:
    # A wrapper that hides the kill behind exit 0, as start scripts do.
    layers = f"{ttnn_python} {SCRIPTS / 'ttnn_layers.py'} $1 --layers 2 --dim 512"
    script = f'{layers}; touch "$1/tensor_cache_bf16_N150/w.tensorbin.tmp.4711.2"; exit 0'
    status, report, said = generate(tmp_path, ["sh", "-c", script, "sh", "{cache_dir}"])
    assert (status, report["outcome"]) == (1, "verification_failed"), said
    assert report["publication"]["findings"][0]["category"] == "temporary_file"
    assert Path(report["publication"]["quarantine"]).is_dir()
    assert not (tmp_path / "store/llama/current").exists()
