"""Python environments for the real generators: found interpreters, venvs built once and kept.

Each environment lies in `.venvs-generators/` at the top of the repository and is used again as
long as its requirements are the same. A missing interpreter is never a skipped test: it is an
error that says how to get one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ENVIRONMENTS",
    "ROOT",
    "BrokenEnvironment",
    "Environment",
    "MissingInterpreter",
    "build",
    "find_interpreter",
    "missing_message",
]

ROOT = Path(__file__).resolve().parents[2] / ".venvs-generators"
_INSTALL_TIMEOUT_S = 900


class BrokenEnvironment(Exception):
    """An environment cannot be had; the message says what to do."""


class MissingInterpreter(BrokenEnvironment):
    """No interpreter of a wanted version was found."""


@dataclass(frozen=True)
class Environment:
    """What a generator needs: requirements for pip, and the Python versions it has wheels for, best first."""

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    programs: tuple[str, ...] = ()


ENVIRONMENTS = {
    each.name: each
    for each in (
        Environment("ttnn", ("ttnn==0.81.1", "numpy"), ("3.12", "3.10")),
        Environment("arrays", ("safetensors==0.8.0", "numpy"), ("3.12", "3.11", "3.10")),
        Environment("torch", ("torch==2.13.0", "numpy"), ("3.11",), programs=("g++",)),
        Environment("openvino", ("openvino==2026.4.1", "numpy"), ("3.12", "3.11")),
        Environment("hub", ("huggingface_hub==2.4.0",), ("3.12", "3.11", "3.10")),
    )
}


def find_interpreter(versions: tuple[str, ...], environ: Mapping[str, str] = os.environ) -> Path | None:
    """Find a Python that runs, on PATH or among pyenv's.

    Args:
        versions: as in `3.12`, best first.
        environ: for PATH, PYENV_ROOT and HOME.

    Returns:
        Its path, None if there is none.
    """
    for version in versions:
        for candidate in _candidates(version, environ):
            if _runs(candidate, version, environ):
                return candidate
    return None


def missing_message(environment: Environment) -> str:
    """Say which interpreter is missing and how to get it."""
    wanted = " or ".join(environment.pythons)
    return (
        f"the {environment.name} generator needs Python {wanted}, and no such interpreter is on PATH or in pyenv: "
        f"install one, for example with `pyenv install {environment.pythons[0]}`, and run make test-generators again"
    )


def build(environment: Environment, root: Path = ROOT) -> Path:
    """Make an environment, unless it is there already.

    Args:
        environment: which one.
        root: where environments are kept.

    Returns:
        Its Python.

    Raises:
        MissingInterpreter: no interpreter of a version it has wheels for.
        BrokenEnvironment: a program is missing, or the installation failed.
    """
    interpreter = find_interpreter(environment.pythons)
    if interpreter is None:
        raise MissingInterpreter(missing_message(environment))
    for program in environment.programs:
        if shutil.which(program) is None:
            raise BrokenEnvironment(
                f"the {environment.name} generator needs {program}, which is not on PATH: install it "
                "with the system's package manager, and run make test-generators again"
            )
    root.mkdir(exist_ok=True)
    home = root / environment.name
    python, ready = home / "bin" / "python", home / ".ready"
    wanted = "\n".join((str(interpreter), *environment.requirements))
    with _lock(root / f"{environment.name}.lock"):
        # Written last: an installation that was cut off is made anew.
        if ready.is_file() and ready.read_text() == wanted and python.exists():
            return python
        began_s = time.monotonic()
        shutil.rmtree(home, ignore_errors=True)
        _run(environment, [str(interpreter), "-m", "venv", str(home)])
        _run(environment, [str(python), "-m", "pip", "install", "-q", *environment.requirements])
        ready.write_text(wanted)
        print(f"\n{environment.name}: environment built in {time.monotonic() - began_s:.0f} s")
    return python


def _candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    found = shutil.which(f"python{version}", path=environ.get("PATH"))
    if found:
        yield Path(found)
    pyenv = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/")) / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{version}*/bin/python{version}"), reverse=True)


def _runs(python: Path, version: str, environ: Mapping[str, str]) -> bool:
    # pyenv's shims exist for versions that are not active, and then only say so.
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=30, env=dict(environ), check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def _run(environment: Environment, argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BrokenEnvironment(
            f"{environment.name}: {' '.join(argv[1:4])} took longer than {_INSTALL_TIMEOUT_S} s: look at the network"
        ) from None
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise BrokenEnvironment(f"{environment.name}: {' '.join(argv[1:])} failed: {last}")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
