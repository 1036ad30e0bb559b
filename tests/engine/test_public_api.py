"""The public names: which there are, that each is where its table says, and what a start without them costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.test_architecture import PACKAGE, ROOT, TREES

import prefect_cachewatch

LAZY = [PACKAGE, f"{PACKAGE}.flows"]
PUBLIC = [*LAZY, f"{PACKAGE}.capacity"]


def test_the_public_names_are_those_of_the_golden_list():
    golden = ROOT / "tests" / "contract" / "golden" / "public_names.txt"
    assert prefect_cachewatch.__all__ == golden.read_text().split()


@pytest.mark.parametrize("package", LAZY)
def test_dir_shows_the_public_names_and_each_is_there(package):
    loaded = importlib.import_module(package)
    assert dir(loaded) == sorted(loaded.__all__)
    # As `prefect block register -m` looks for blocks.
    assert [name for name, value in inspect.getmembers(loaded) if value is not None] == sorted(loaded.__all__)


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    [
        ("from {0} import generate_cash", ImportError, "has no attribute 'generate_cash' that is public: did you mean 'generate_cache'?"),
        ("import {0}; {0}.CacheJobs", AttributeError, "has no attribute 'CacheJobs' that is public: did you mean 'CacheJob'?"),
        ("from {0}.flows import plan_capacities", ImportError, "did you mean 'plan_capacity'?"),
        ("from {0} import quux", ImportError, "dir(prefect_cachewatch) lists those that there are"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_answered_with_the_nearest_one(code, error, sentence):
    with pytest.raises(error) as raised:
        exec(code.format(PACKAGE))
    assert sentence in str(raised.value)


def modules_after(code: str) -> list[str]:
    """The modules that an interpreter has loaded which starts as a guard does."""
    program = f"import sys; sys.path.append({str(TREES[PACKAGE].parent)!r}); before = set(sys.modules); {code}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{program}; print(*sorted(set(sys.modules) - before))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_the_package_itself_loads_nothing():
    assert modules_after(f"import {PACKAGE}") == [PACKAGE]


def public_only(path: Path, code: str) -> list[str]:
    """What code that people read imports of the package and must not."""
    allowed = {package: set(importlib.import_module(package).__all__) for package in PUBLIC}
    return [
        f"{path.name}: {node.module}.{alias.name}"
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE
        for alias in node.names
        if alias.name not in allowed.get(str(node.module), ())
    ]


def python_of(path: Path) -> list[str]:
    """The Python of a page's fences, or of a file."""
    if path.suffix == ".py":
        return [path.read_text()]
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_documents_and_examples_use_public_names_only():
    pages = [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("deployments/**/*.md"),
        *ROOT.glob("examples/**/*.py"),
    ]
    pages.append(ROOT / "tests" / "typing" / "api.py")
    found = {path: python_of(path) for path in pages}
    assert sum(map(len, found.values())) >= 8
    assert [name for path, codes in found.items() for code in codes for name in public_only(path, code)] == []
    mentioned = re.compile(r"`prefect_cachewatch\.((?:\w+\.)*)(\w+)`")
    for path in pages:
        for below, name in mentioned.findall(path.read_text()) if path.name not in ("architecture.md",) else ():
            package = f"{PACKAGE}.{below}".rstrip(".")
            public = package in PUBLIC and name in importlib.import_module(package).__all__
            assert public or f"{package}.{name}" in PUBLIC, f"{path.name}: {package}.{name}"
