"""Interpreters are found where they are, and a missing one is said in one sentence; nothing is installed here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.generators import environments
from tests.generators.environments import Environment, find_interpreter, missing_message

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_an_interpreter_on_path_is_found(tmp_path: Path) -> None:
    _script(tmp_path / f"python{HERE}", f'exec {sys.executable} "$@"')
    found = find_interpreter((HERE,), {"PATH": f"{tmp_path}:/bin:/usr/bin", "HOME": str(tmp_path)})
    assert found == tmp_path / f"python{HERE}"


def test_a_pyenv_shim_that_only_complains_is_passed_over_for_pyenvs_own_interpreter(tmp_path: Path) -> None:
    _script(tmp_path / "shims" / f"python{HERE}", f"echo 'pyenv: python{HERE}: command not found' >&2; exit 127")
    real = tmp_path / "versions" / f"{HERE}.99" / "bin" / f"python{HERE}"
    _script(real, f'exec {sys.executable} "$@"')
    environ = {"PATH": f"{tmp_path}/shims:/bin:/usr/bin", "PYENV_ROOT": str(tmp_path)}
    assert find_interpreter((HERE,), environ) == real


def test_the_first_version_that_is_there_is_taken(tmp_path: Path) -> None:
    _script(tmp_path / f"python{HERE}", f'exec {sys.executable} "$@"')
    environ = {"PATH": f"{tmp_path}:/bin:/usr/bin", "HOME": str(tmp_path)}
    assert find_interpreter(("2.99", HERE), environ) == tmp_path / f"python{HERE}"


def test_an_interpreter_of_another_version_is_not_taken(tmp_path: Path) -> None:
    _script(tmp_path / "python3.99", f'exec {sys.executable} "$@"')
    assert find_interpreter(("3.99",), {"PATH": f"{tmp_path}:/bin:/usr/bin", "HOME": str(tmp_path)}) is None


def test_a_missing_interpreter_is_said_with_how_to_get_it() -> None:
    assert missing_message(environments.ENVIRONMENTS["ttnn"]) == (
        "the ttnn generator needs Python 3.12 or 3.10, and no such interpreter is on PATH or in pyenv: "
        "install one, for example with `pyenv install 3.12`, and run make test-generators again"
    )


def test_a_missing_interpreter_builds_nothing(tmp_path: Path) -> None:
    with pytest.raises(environments.MissingInterpreter):
        environments.build(Environment("none", (), ("2.99",)), tmp_path / "venvs")
    assert os.listdir(tmp_path) == []


def test_a_missing_program_is_said_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setattr(environments, "find_interpreter", lambda versions: Path(sys.executable))
    with pytest.raises(environments.BrokenEnvironment, match=r"needs no-such-compiler, which is not on PATH"):
        environments.build(Environment("none", (), (HERE,), programs=("no-such-compiler",)), tmp_path / "venvs")
    assert os.listdir(tmp_path) == []


@pytest.mark.generators
def test_an_environment_is_built_once_and_built_anew_when_it_was_cut_off(tmp_path: Path) -> None:
    plain = Environment("plain", ("pip",), (HERE,))
    python = environments.build(plain, tmp_path)
    (python.parent / "kept").touch()
    assert environments.build(plain, tmp_path) == python
    assert (python.parent / "kept").exists()
    (tmp_path / "plain" / ".ready").unlink()
    environments.build(plain, tmp_path)
    assert not (python.parent / "kept").exists()


def _script(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
