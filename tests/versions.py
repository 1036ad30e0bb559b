"""`make test-versions`: the lowest Prefect that is promised and the newest that resolves; and each Python that is promised.

Each has an environment of its own below build/versions, which is kept. With `--prefect VERSION` only that version is
tested, to look for the lowest; `--short` tests the lowest Prefect on the newest Python alone. What else is given goes to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Workers, schedules, serve(), cancellation, Retry, and the contract of all that speaks to Prefect.
PREFECT = [
    *("-n", "3", "--dist", "worksteal", "-m", "(server or contract) and not campaign"),
    "tests/orchestration/test_worker.py",
    "tests/contract/test_generate_statuses.py",
    *map(str, sorted((ROOT / "tests" / "contract").glob("test_prefect_*.py"))),
]
PYTHON = [
    "tests/orchestration/test_metrics_flow.py",
    "tests/processes/test_output.py",
    "tests/engine/test_public_api.py",
]


def lowest_prefect() -> str:
    """Read the lowest version that pyproject.toml promises."""
    found = re.search(r'"prefect>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def find_python(version: str) -> str | None:
    """Find an interpreter of a version such as 3.12: on the path, or among pyenv's; None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for candidate in (shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        if candidate and subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
            return candidate
    return None


def check(name: str, python: str, requirement: str, tests: list[str]) -> bool:
    """Make or update an environment, and run tests in it; returns whether they passed."""
    home = ROOT / "build" / "versions" / name
    inside = str(home / "bin" / "python")
    install = [
        "-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade", requirement, "-e", f"{ROOT}[test]",
    ]  # fmt: skip
    for argv in ([python, "-m", "venv", str(home)], [inside, *install]):
        if subprocess.run(argv).returncode:
            print(f"{name}: could not be set up", flush=True)
            return False
    version = [
        inside,
        "-c",
        "import platform, prefect; print(prefect.__version__, 'on Python', platform.python_version())",
    ]
    print(f"=== {name}: Prefect", subprocess.run(version, capture_output=True, text=True).stdout.strip(), flush=True)
    return subprocess.run([inside, "-m", "pytest", "-q", *tests], cwd=ROOT).returncode == 0


def main() -> int:
    """Test each version; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefect", help="test this version of Prefect alone")
    parser.add_argument("--short", action="store_true", help="the lowest Prefect on the newest Python alone")
    given, further = parser.parse_known_args()
    tests = [*PREFECT, *further]
    lowest, pythons = lowest_prefect(), re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    if given.prefect:
        return 0 if check(f"prefect-{given.prefect}", sys.executable, f"prefect=={given.prefect}", tests) else 1
    if given.short:
        return 0 if check("short", find_python(pythons[-1]) or sys.executable, f"prefect=={lowest}", tests) else 1
    passed = [
        check("lowest", sys.executable, f"prefect=={lowest}", tests),
        check("newest", sys.executable, "prefect", tests),
    ]
    for version in pythons:
        if (python := find_python(version)) is None:
            print(f"=== Python {version}: not installed, left out", flush=True)
        else:
            passed.append(check(f"python-{version}", python, "prefect", [*PYTHON, *further]))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
