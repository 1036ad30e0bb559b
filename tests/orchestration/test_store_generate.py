"""`cachewatch generate --store` as it is typed, on a real server: exit status, report, what consumers see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.conftest import BIN, Server

WRITES = "import pathlib, sys; [pathlib.Path(sys.argv[1], f'{n}.bin').write_bytes(b'x' * 9000) for n in range(3)]"


def generate(root: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
    report = root / "report.json"
    report.unlink(missing_ok=True)
    argv = [
        str(BIN / "cachewatch"),
        "generate",
        "--report",
        str(report),
        *(w.replace("{root}", str(root)) for w in words),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170, env=env, check=False)
    if "--json" in argv:
        assert json.loads(done.stdout.splitlines()[-1]) == json.loads(report.read_text())
    return done.returncode, json.loads(report.read_text()) if report.exists() else {}, done.stderr


def test_published_then_cached_then_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    where = ["--store", "{root}/store", "--name", "llama", "--attempts", "1", "--poll", "0.5s", "--quiet", "--json"]
    command = ["--", sys.executable, "-c", WRITES, "{cache_dir}"]
    status, report, said = generate(tmp_path, *where, "--key", "dtype=bf16", *command, env=server.env)
    assert (status, report["outcome"], report["publication"]["status"]) == (0, "completed", "published"), said
    assert (tmp_path / "store/llama/current/2.bin").read_bytes() == b"x" * 9000
    assert json.loads(Path(report["publication"]["manifest"]).read_text())["cache_key"] == {"dtype": "bf16"}

    status, report, said = generate(tmp_path, *where, "--key", "dtype=bf16", *command, env=server.env)
    assert (status, report["outcome"]) == (0, "cached"), said

    leaves = WRITES + "; pathlib.Path(sys.argv[1], 'w.partial').write_bytes(b'x')"
    command[3] = leaves
    status, report, said = generate(tmp_path, *where, "--key", "dtype=bf8", *command, env=server.env)
    assert (status, report["outcome"]) == (1, "verification_failed"), said
    assert "a temporary file was left behind: w.partial" in said
    assert Path(report["publication"]["quarantine"], "w.partial").exists()
    assert not (tmp_path / "store/llama/current/w.partial").exists()

    command[3] = WRITES + "; pathlib.Path(sys.argv[1], 'w.safetensors').write_bytes(b'\\x08' + bytes(7) + b'{}')"
    status, report, said = generate(tmp_path, *where, "--key", "dtype=bf4", *command, env=server.env)
    assert (status, report["outcome"]) == (1, "verification_failed"), said
    assert "w.safetensors is cut off" in said and "on_broken_content: warn" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--store", "{root}/none", "--name", "c", "--", "true", "{cache_dir}"],
            "/none does not exist: create the directory",
        ),
        (["--store", "{root}", "--", "true", "{cache_dir}"], "--store needs --name NAME"),
        (["--store", "{root}", "--name", "c", "--", "true"], "is not told where to write: put {cache_dir}"),
        (["--store", "{root}", "--name", "c", "--key", "dtype", "--", "true", "{cache_dir}"], "is not K=V"),
        (
            ["--store", "{root}", "--name", "c", "--expect", "900TB", "--", "true", "{cache_dir}"],
            "are needed (1.1 times",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_touched(tmp_path: Path, words: list[str], sentence: str) -> None:
    status, report, said = generate(tmp_path, *words)
    assert (status, report) == (125, {})
    assert said.startswith("cachewatch: ") and said.count("\n") == 1 and sentence in said, said
    assert list(tmp_path.iterdir()) == []
