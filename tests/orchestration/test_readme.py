"""The README's Python runs as it stands, with its example paths put into a temporary directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.orchestration.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
GENERATOR = """
import os, sys, time
for layer in range(3):
    open(f"{sys.argv[1]}/layers.{layer}.tensorbin", "wb").write(os.urandom(100_000))
    time.sleep(0.1)
"""


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_readmes_python_runs(number: int, tmp_path: Path, server: Server) -> None:
    code = BLOCKS[number].replace("/mnt/cache", str(tmp_path / "cache")).replace('"python3"', repr(sys.executable))
    (tmp_path / "generate.py").write_text(GENERATOR)
    script = tmp_path / "example.py"
    # A served flow would serve for ever: its construction is what is tried here, the serving in test_worker.
    script.write_text(code.replace('if __name__ == "__main__":', 'if __name__ == "served":'))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=server.env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if "serve(" not in code:
        assert "Completed" in done.stderr
        assert len(list((tmp_path / "cache").rglob("layers.*"))) == 3


def test_the_readme_has_the_examples_it_should() -> None:
    assert len(BLOCKS) >= 3
