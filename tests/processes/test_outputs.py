"""Where our own output goes, and cannot: one sentence, and the generator's own end is never hidden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import CACHEWATCH, PATIENCE_S, exec_argv, run, run_exec

END = ["sh", "-c", 'head -c 9000 /dev/zero > "$0/a"; echo said; exit 3']


@pytest.mark.parametrize("command", ["exec", "generate"])
def test_a_log_that_is_the_report_is_refused_before_anything_runs(tmp_path: Path, command: str):
    (tmp_path / "f").write_text("kept")
    os.link(tmp_path / "f", tmp_path / "g")
    options = ["--log", str(tmp_path / "f"), "--report", str(tmp_path / "g")]
    env = os.environ | {"CACHEWATCH_STATE": str(tmp_path / "state")}
    cache = ["--cache-dir", str(tmp_path / "cache")]
    ran = run([*CACHEWATCH, command, *cache, *options, "--", "touch", str(tmp_path / "ran")], env=env)
    assert ran.status == 125
    assert ran.stderr.count("\n") == 1
    assert "are one and the same file: name another one for each" in ran.stderr
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "f").read_text() == "kept"


def test_generates_log_inside_the_cache_is_refused_as_execs_is(tmp_path: Path):
    cache = tmp_path / "cache"
    argv = [*CACHEWATCH, "generate", "--cache-dir", str(cache), "--log", str(cache / "log.txt"), "--", "true"]
    ran = run(argv, env=os.environ | {"CACHEWATCH_STATE": str(tmp_path / "state")})
    assert (ran.status, ran.stderr.count("\n")) == (125, 1)
    assert "where it would count as growth" in ran.stderr


@pytest.mark.parametrize("option", ["--log", "--report"])
def test_a_full_device_hides_no_end(tmp_path: Path, option: str):
    cache = tmp_path / "cache"
    ran = run(exec_argv(cache, option, "/dev/full", command=[*END, str(cache)]), timeout=PATIENCE_S)
    assert ran.status == 3
    if option == "--report":
        assert "report file /dev/full cannot be written: No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--report", "names a directory: name a file in it"),
        ("--log", "names a directory: name a file in it"),
        ("--record", "names a directory that does not exist: create it first"),
    ],
)
def test_a_name_that_ends_with_a_slash_is_not_taken_for_a_file(tmp_path, option, said):
    ran = run_exec(tmp_path / "cache", option, f"{tmp_path}/out/", command=["true"])
    assert ran.status == 125 and said in ran.stderr
    assert not (tmp_path / "out").exists()
