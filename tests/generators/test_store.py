"""Real tt-metal caches through the store: killed or frozen, retried, published, and every tensor read back."""

from __future__ import annotations

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


def loaded(python: str, cache: Path) -> int:
    """Load every tensor with ttnn; a cut file would crash it."""
    answer = subprocess.run(
        [python, str(SCRIPTS / "ttnn_check.py"), str(cache)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout.split()[-2])


def current(root: Path) -> Path:
    return (root / "store/llama/current").resolve(strict=True)


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
