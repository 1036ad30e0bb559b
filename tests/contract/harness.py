"""Runs `cachewatch` as a user does, with a state directory of its own, and reads what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.prefect_database import fresh_home
from tests.support import eventually

COMMAND = str(Path(sys.executable).with_name("cachewatch"))
# The end of a run that hangs for good; nothing is asserted close to it.
LONG_S = 180.0
GOLDEN = Path(__file__).with_name("golden")
# Quick looks and a short grace; a window that no busy machine fills, for generators that are well.
QUICK = ("--poll", "0.3s", "--grace", "0.5s")
WELL = (*QUICK, "--stall-after", "5m", "--first-write-within", "5m")


def state(pid: int) -> str:
    """The letter of a process's state, as in ps; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text[text.rindex(")") + 2]
    except (OSError, ValueError):  # it ends just now
        return ""


def assert_golden(name: str, place: Place, said: str) -> None:
    """Compare what was said, with paths and numbers masked, with its file; GOLDEN=write makes the file anew."""
    masked = re.sub(r"\d[\d.,:]*(?<=\d)", "N", said.replace(str(place.root), "PLACE"))
    masked = re.sub(
        r", at (<|&lt;)module(>|&gt;) \((<|&lt;)string(>|&gt;):N\)", "", masked
    )  # py-spy, where it is installed, knows it
    masked = re.sub(r"\bclock_nanosleep\b", "nanosleep", masked) + "\n"  # which of the two is the machine's choice
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(masked)
    assert masked == file.read_text()


@dataclass(frozen=True)
class Ran:
    """What a run of the command left behind."""

    status: int
    stdout: str
    stderr: str
    report: dict[str, Any]

    @property
    def last_line(self) -> str:
        return self.stderr.rstrip("\n").rpartition("\n")[2]

    @property
    def said(self) -> str:
        """What cachewatch itself says of the run in its report: not the generator's own lines."""
        diagnosis = self.report.get("diagnosis") or {}
        parts = [
            self.report.get("message") or "",
            *(diagnosis.get(key) or "" for key in ("summary", "resolution")),
            *(diagnosis.get("evidence") or ()),
            *(diagnosis.get("said") or ()),
            *(self.report.get("notes") or ()),
        ]
        return "\n".join(parts)


def assert_refused(ran: Ran, status: int, *words: str) -> None:
    """One line that names what is wrong and what to do; nothing was started, nothing printed, no traceback."""
    assert (ran.status, ran.stdout, ran.report, ran.stderr.count("\n")) == (status, "", {}, 1), ran.stderr
    assert ran.stderr.startswith("cachewatch: ")
    assert [word for word in words if word not in ran.stderr] == [], ran.stderr


def mounted(script: str) -> list[str]:
    """Words before a command that run it in a mount namespace of its own, after a script of the shell."""
    return ["unshare", "-m", "--propagation", "private", "sh", "-ec", f'{script}; exec "$@"', "sh"]


class Place:
    """A directory for one test; nothing of the caller's configuration or state is read or changed."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache, self.store = root, root / "cache", root / "store"
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "CACHEWATCH_"))
        }
        self.env |= {
            "CACHEWATCH_STATE": str(root / "state"),
            "XDG_STATE_HOME": str(root / "xdg"),
            "PREFECT_HOME": str(root / "prefect"),
            "PYTHONUNBUFFERED": "1",
            "C": str(self.cache),  # for generators of the shell
            "HERE": str(root),
        }
        self.before: list[object] = []  # words before the command: a mount namespace, another user
        self.stdin: Any = subprocess.DEVNULL

    def start(self, *argv: object, **options: Any) -> subprocess.Popen[str]:
        """Start `cachewatch ARGV...`; the caller waits for it."""
        streams = {"stdin": self.stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        how = {"cwd": self.root, "env": self.env, "text": True, "errors": "replace", **streams, **options}
        return subprocess.Popen([*map(str, self.before), COMMAND, *map(str, argv)], **how)

    @contextlib.contextmanager
    def started(self, *argv: object, **options: Any) -> Iterator[subprocess.Popen[Any]]:
        """Start `cachewatch ARGV...`; it is killed at the end of the block, and nobody of the place is left."""
        with self.start(*argv, **options) as process:
            try:
                yield process
            finally:
                process.kill()
                self.assert_nobody()

    def run(self, *argv: object, timeout_s: float = LONG_S, **options: Any) -> Ran:
        """Run `cachewatch ARGV...` to its end."""
        with self.start(*argv, **options) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        return Ran(process.returncode, stdout, stderr, {})

    def everybody(self) -> list[int]:
        """The living processes that were started with this place's state directory in their environment."""
        wanted, found = os.fsencode(self.env["CACHEWATCH_STATE"]), []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):  # it ends just now
                if name.isdigit() and wanted in Path(f"/proc/{name}/environ").read_bytes():
                    found += [int(name)] * (state(int(name)) not in ("Z", "X", ""))
        return found

    def assert_nobody(self) -> None:
        """Fail if a process of this place does not end; it is killed then."""
        eventually(lambda: not self.everybody())
        left = {}
        for pid in self.everybody():
            with contextlib.suppress(OSError):
                left[pid] = (
                    state(pid),
                    Path(f"/proc/{pid}/cmdline").read_text(),
                    Path(f"/proc/{pid}/wchan").read_text(),
                )
                os.kill(pid, signal.SIGKILL)
        assert not left

    def mounts(self, script: str) -> None:
        """Run every command in a mount namespace of its own, after a script of the shell."""
        self.before = [*mounted(script)]

    def exec(self, *options: object, command: Sequence[object], **how: Any) -> Ran:
        """Run `cachewatch exec` over `cache`, with a report."""
        return self._reported("exec", "--cache-dir", self.cache, *options, command=command, **how)

    def generate(self, *options: object, command: Sequence[object], name: str = "model") -> Ran:
        """Run `cachewatch generate` into `store`, with a report; `{cache_dir}` in the command is the build."""
        self.store.mkdir(exist_ok=True)
        if not (
            home := self.root / "prefect"
        ).exists():  # the flow's own server would begin with a minute of migrations
            fresh_home(home)
        return self._reported("generate", "--store", self.store, "--name", name, *options, command=command)

    def current(self, name: str = "model") -> Path | None:
        """The published cache that consumers open, None if there is none."""
        link = self.store / name / "current"
        return link if link.exists() else None

    def program(self, source: str) -> list[object]:
        """Write a generator in Python; its arguments follow. It has `os`, `sys`, `time`, `Path` and this directory."""
        file = self.root / f"generator-{time.monotonic_ns()}.py"
        head = f"import os, sys, time\nfrom pathlib import Path\nPLACE = Path({str(self.root)!r})\n"
        file.write_text(head + textwrap.dedent(source))
        return [sys.executable, file]

    def _reported(self, verb: str, *options: object, command: Sequence[object], **how: Any) -> Ran:
        file = self.root / f"report-{time.monotonic_ns()}.json"
        ran = self.run(verb, *options, "--report", file, "--", *command, **how)
        report = json.loads(file.read_text()) if file.exists() else {}
        return Ran(ran.status, ran.stdout, ran.stderr, report)
