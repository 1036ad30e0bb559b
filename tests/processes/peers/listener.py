"""A run of `cachewatch exec` on a program that writes down each signal it gets."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import PATIENCE_S, WELL, assert_none_left, eventually, exec_argv, new_tag, program, running

LIFE_S = 100
# Writes the number of each signal it gets as a line, and stays until it is killed or told to end by a file.
LISTENER = f"""
    import os, signal, sys, time
    out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in signal.valid_signals() - {{9, 19, 17}}:
        signal.signal(number, lambda number, frame: os.write(out, b"%d\\n" % number))
    os.write(out, b"ready\\n")
    end = time.monotonic() + {LIFE_S}
    while time.monotonic() < end and not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.02)
"""


@dataclass
class Listening:
    """A run of `cachewatch exec` on a listener."""

    process: subprocess.Popen[str]
    heard: Path
    report: Path
    tag: str

    def lines(self) -> list[str]:
        return self.heard.read_text().split() if self.heard.exists() else []

    def end(self) -> int:
        Path(f"{self.heard}.end").touch()
        return self.process.wait(PATIENCE_S)

    def told(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.report.read_text())
        return data


@contextlib.contextmanager
def listening(tmp_path: Path, *options: str, before: tuple[str, ...] = (), **popen: Any) -> Iterator[Listening]:
    tag, heard, report = new_tag(), tmp_path / "heard", tmp_path / "report.json"
    command = [*program(LISTENER, tag), str(heard)]
    argv = exec_argv(tmp_path / "cache", *WELL, "--report", str(report), *options, command=command)
    with running([*before, *argv], **popen) as process:
        run = Listening(process, heard, report, tag)
        assert eventually(lambda: run.lines()[:1] == ["ready"]), process.stderr.read() if process.poll() else ""
        yield run
    assert_none_left(tag)


def state(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text[text.rindex(")") + 2]
