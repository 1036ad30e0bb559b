"""Completion in real shells: `cachewatch completion SHELL` is read by one, and it completes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tests.support import CACHEWATCH, run

ZSH_STUBS = """
compdef() { }
_path_files() { print -r -- "path $1" }
compadd() { print -rl -- "${completions[@]}" }
_describe() { print -rl -- "${completions_with_descriptions[@]%%:*}" }
"""
ASKED = {
    "": ["exec", "generate", "profiles", "completion"],
    "exe": ["exec"],
    "exec --stall-a": ["--stall-after"],
    "exec --help-": ["--help-all"],
    "watch --on-stall ": ["report", "stop"],
    "exec --profile open": ["openvino"],
    "profiles torch": ["torch-compile"],
    "generate --no-": [
        "--no-create",
        "--no-default-ignores",
        "--no-bundle",
        "--no-activate",
        "--no-space-after",
    ],
    "fleet --max-": ["--max-parallel", "--max-failures"],
    "doctor --no-": ["--no-prefect"],
    "completion ": ["bash", "zsh", "fish"],
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with the command on it under its own name, as people have it installed."""
    script = tmp_path / "bin" / "cachewatch"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.join(CACHEWATCH)} "$@"\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


def completed(shell: str, line: str, path: str) -> list[str]:
    words = ["cachewatch", *line.split(" ")]
    if shell == "bash":
        program = (
            'eval "$(cachewatch completion bash)"; complete -p cachewatch >/dev/null || exit 9; compopt() { echo "path $2"; }\n'
            f"COMP_WORDS=({' '.join(word or chr(39) * 2 for word in words)}); COMP_CWORD={len(words) - 1}\n"
            '_cachewatch_completion cachewatch; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        argv = ["bash", "--norc", "-c", program]
    elif shell == "zsh":
        program = (
            f'{ZSH_STUBS}\neval "$(cachewatch completion zsh)"; words=({" ".join(word or chr(39) * 2 for word in words)})\n'
            f"CURRENT={len(words)}; _cachewatch_completion"
        )
        argv = ["zsh", "-f", "-c", program]
    else:
        argv = ["fish", "--no-config", "-c",
                f"cachewatch completion fish | source; complete -C {shlex.quote(' '.join(words))}"]  # fmt: skip
    ran = run(argv, env=os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ran.stderr == ""
    return [each.split("\t")[0] for each in ran.stdout.split("\n") if each]


@pytest.mark.parametrize("line", ASKED)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_profiles(shell, line, path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    found = completed(shell, line, path)
    if line:
        assert sorted(found) == sorted(ASKED[line])
    else:
        assert set(ASKED[line]) <= set(found)


@pytest.mark.parametrize(
    ("line", "kind"), [("exec --cache-dir /t", "dirnames"), ("exec --cache-dir x -- pyth", "default")]
)
def test_bash_completes_paths_itself(line, kind, path):
    assert completed("bash", line, path)[:1] == [f"path {kind}"]


def test_an_unknown_shell_is_one_sentence():
    ran = run([*CACHEWATCH, "completion", "tcsh"])
    assert ran.status == 125
    assert ran.stderr.startswith("cachewatch: Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of")
    assert len(ran.stderr.splitlines()) == 1
