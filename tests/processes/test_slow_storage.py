"""A file server on which each stat takes a millisecond: simulated with a shim that is compiled here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import unavailable

SCRIPT = """
import json, os, sys, threading, time
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.walk import Walk
root = sys.argv[1]
began = time.perf_counter()
for _ in range(50): os.lstat(root)
one_s = (time.perf_counter() - began) / 50
ledger = Ledger()
ledger.begin(); began = time.perf_counter(); walk = Walk([root], ledger); walk_s = time.perf_counter() - began
print(json.dumps({"one_s": one_s, "walk_s": walk_s, "files": ledger.end().files_present, "threaded": walk.calls.threaded,
    "threads_left": threading.active_count() - 1}))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        unavailable("there is no C compiler for the slow stat")
    path = tmp_path_factory.mktemp("shim") / "slow_stat.so"
    source = Path(__file__).with_name("slow_stat.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


def look(root: Path, preload: Path | None) -> dict:
    environ = os.environ | ({"LD_PRELOAD": str(preload)} if preload else {})
    argv = [sys.executable, "-c", SCRIPT, str(root)]
    return json.loads(subprocess.run(argv, env=environ, capture_output=True, text=True, check=True).stdout)


def test_slow_stats_are_made_by_threads_and_quick_ones_are_not(tmp_path, shim):
    for number in range(40):
        directory = tmp_path / f"c/d{number}"
        directory.mkdir(parents=True)
        for name in range(50):
            (directory / f"f{name}").write_bytes(b"x")
    slow = look(tmp_path / "c", shim)
    if slow["one_s"] < 0.001:
        unavailable("the C library's stat cannot be replaced here")
    assert (slow["files"], slow["threaded"], slow["threads_left"]) == (2000, True, 0)
    # Against 2,040 stats one after the other, on this machine as busy as it is now.
    assert slow["walk_s"] < 2040 * slow["one_s"]
    fast = look(tmp_path / "c", None)
    assert (fast["files"], fast["threaded"]) == (2000, False)
