"""The wheel holds exactly what is in the tree, under one name."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from prefect_cachewatch import __version__

ROOT = Path(__file__).parents[2]
SOURCES = {
    "prefect_cachewatch": "src/prefect_cachewatch",
    "prefect_cachewatch/deployments": "deployments",
    "prefect_cachewatch/flows": "flows",
    "prefect_cachewatch/tasks": "tasks",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    base = tmp_path_factory.mktemp("wheel")
    tree = base / "tree"  # a copy: a build leaves its traces beside the source
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")
    for directory in ("src", "flows", "tasks", "deployments"):
        shutil.copytree(ROOT / directory, tree / directory, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(base), str(tree)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = base.glob("*.whl")
    assert path.name == f"prefect_cachewatch-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_has_every_module_and_nothing_else(wheel):
    expected = {f"prefect_cachewatch-{__version__}.dist-info/{name}" for name in
                ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE")}  # fmt: skip
    for package, directory in SOURCES.items():
        for path in (ROOT / directory).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                expected.add(f"{package}/{path.relative_to(ROOT / directory)}")
    assert set(wheel.namelist()) == expected


def test_the_wheel_claims_one_name(wheel):
    top_level = wheel.read(f"prefect_cachewatch-{__version__}.dist-info/top_level.txt").decode().split()
    assert top_level == ["prefect_cachewatch"]
    assert "prefect_cachewatch/py.typed" in wheel.namelist()


def test_the_wheel_says_what_it_needs_and_starts_the_command(wheel):
    metadata = wheel.read(f"prefect_cachewatch-{__version__}.dist-info/METADATA").decode()
    assert re.search(r"^Requires-Python: >=3.11$", metadata, re.M)
    assert re.search(r"^License-Expression: Apache-2.0$", metadata, re.M)
    required = {re.split(r"[<>=~! ;]", line)[0] for line in re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.M)}
    assert required == {
        "prefect", "fastapi", "psutil", "pydantic", "click", "rich", "sqlalchemy", "pyyaml", "prometheus-client",
        "regex",
    }  # fmt: skip
    entry_points = wheel.read(f"prefect_cachewatch-{__version__}.dist-info/entry_points.txt").decode()
    assert "cachewatch = prefect_cachewatch.cli.main:main" in entry_points
    assert "[prefect.collections]" in entry_points
