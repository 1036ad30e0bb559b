"""The generators' environments, built once; a missing interpreter fails the tests that need it, it never skips them.

Each lies in `.venvs-generators/` at the top of the repository and is used again as long as its requirements are the same.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2] / ".venvs-generators"


class Environment(NamedTuple):
    """What a generator needs: requirements for pip, the Python versions it has wheels for, best first, and a program."""

    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    program: str | None = None


ENVIRONMENTS = {
    "ttnn": Environment(("ttnn==0.81.1", "numpy"), ("3.12", "3.10")),
    "arrays": Environment(("safetensors==0.8.0", "numpy"), ("3.12", "3.11", "3.10")),
    "torch": Environment(("torch==2.13.0", "numpy"), ("3.11",), "g++"),
    "openvino": Environment(("openvino==2026.4.1", "numpy"), ("3.12", "3.11")),
    "hub": Environment(("huggingface_hub==2.4.0",), ("3.12", "3.11", "3.10")),
}


def _environment(name: str) -> object:
    @pytest.fixture(scope="session")
    def python() -> str:
        return str(_build(name, ENVIRONMENTS[name]))

    return python


ttnn_python, arrays_python, torch_python = _environment("ttnn"), _environment("arrays"), _environment("torch")
openvino_python, hub_python = _environment("openvino"), _environment("hub")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def _build(name: str, wants: Environment) -> Path:
    interpreter = next((one for version in wants.pythons for one in _candidates(version) if _runs(one, version)), None)
    if interpreter is None:
        versions = " or ".join(wants.pythons)
        pytest.fail(f"{name} needs Python {versions}, on PATH or in pyenv: pyenv install {wants.pythons[0]}", False)
    if wants.program is not None and shutil.which(wants.program) is None:
        pytest.fail(f"{name} needs {wants.program}: install it with the system's package manager", False)
    home = ROOT / name
    python, ready = home / "bin" / "python", home / ".ready"
    wanted = "\n".join((str(interpreter), *wants.requirements))
    ROOT.mkdir(exist_ok=True)
    with (ROOT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Written last: an installation that was cut off is made anew.
        if ready.is_file() and ready.read_text() == wanted and python.exists():
            return python
        shutil.rmtree(home, ignore_errors=True)
        for argv in ([interpreter, "-m", "venv", home], [python, "-m", "pip", "install", "-q", *wants.requirements]):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
            if done.returncode:
                pytest.fail(f"{name}: {' '.join(map(str, argv[1:]))} failed: {done.stderr[-1000:]}", False)
        ready.write_text(wanted)
    return python


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{version}*/bin/python{version}"), reverse=True)


def _runs(python: Path, version: str) -> bool:
    # pyenv's shims exist for versions that are not active, and then only say so.
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
    return answer.returncode == 0 and answer.stdout.strip() == version
