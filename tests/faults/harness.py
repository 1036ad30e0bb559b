"""What the fault tests share: sandboxes of a user, the command under test, survivors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

HERE = Path(__file__).parent
TREES = HERE.parent / "contract" / "trees.py"
NOBODY = 65534
SHAPES = {"plain": 1, "term_ignorer": 2, "daemon": 2, "sessions": 201, "bomb": 30}
SLACK_S = 2.0  # no survivor within the grace period + this, on a machine with no more to run than it has cores


def slack_s() -> float:
    """SLACK_S, longer by as much as this machine has more to run than it has cores."""
    return SLACK_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def in_namespace(uid: int | None, *mounts: str) -> list[str]:
    """Words before a command that give it a mount namespace and a user; none where neither is asked for.

    A new user is set there and not by Popen, since the interpreter may lie below root's own directory.
    """
    if uid is None and not mounts:
        return []
    words = [sys.executable, "-I", "-S", str(HERE / "namespace.py"), *mounts]
    if uid is not None:
        words += ["--uid", str(uid)]
        for path in (sys.base_prefix, str(HERE.parents[1])):
            words += ["--readable", os.path.realpath(path)]
    return [*words, "--"]


def new_tag() -> str:
    """A process name that nobody else has; comm holds 15 bytes."""
    return f"ft{uuid4().hex[:12]}"


def living(tag: str) -> list[int]:
    """Pids of the living processes (zombies are not) that are called so."""
    found = []
    mark = f"Name:\t{tag}".encode()  # trees.py puts a + behind it
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/status", "rb") as file:  # stat waits for a process that hangs in an exec
                    text = file.read()
            except OSError:
                continue
            if text.startswith(mark) and text.split(b"\nState:\t", 1)[1][:1] not in b"ZXx":
                found.append(int(name))
    return found


def until(condition: Callable[[], Any], timeout_s: float, what: str) -> float:
    """Wait for something; returns the seconds it took, fails the test after the timeout."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            pytest.fail(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.01)
    return time.monotonic() - began


@dataclass
class Sandbox:
    """A scratch directory outside anybody's private ones, and the user whose it is (None: this process's own)."""

    root: Path
    uid: int | None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)  # words of namespace.py for every process started
    cache_name: str = "cache"
    more_env: dict[str, str] = field(default_factory=dict)
    prelude: list[str] = field(default_factory=list)  # words before every command of ours

    @classmethod
    def make(cls, uid: int | None) -> Sandbox:
        root = Path(tempfile.mkdtemp(prefix="cachewatch-fault-"))
        box = cls(root, uid)
        root.chmod(0o755)
        for name in ("home", "cache", "out"):
            box.mkdir(name)
        return box

    @property
    def cache(self) -> Path:
        return self.root / self.cache_name

    @property
    def report_path(self) -> Path:
        return self.root / "out" / "report.json"

    def mkdir(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)
        return path

    def env(self, **more: str) -> dict[str, str]:
        keep = {key: os.environ[key] for key in ("PATH", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
        return (
            keep
            | {"HOME": str(self.root / "home"), "XDG_STATE_HOME": str(self.root / "home" / "state")}
            | (self.more_env | more)
        )

    def tree(self, shape: str, writes: int = -1, interval_s: float = 0.1, life_s: float = 60) -> tuple[str, list[str]]:
        """A generator's argv, and the tag by which its processes are found."""
        tag = new_tag()
        self.tags.append(tag)
        command = [sys.executable, "-I", "-S", str(TREES), tag, f"{life_s:g}", shape, str(self.cache)]
        return tag, [*command, str(writes), f"{interval_s:g}"]

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        argv = [*in_namespace(self.uid, *self.mounts), *argv]
        options.setdefault("env", self.env())
        options.setdefault("cwd", str(self.root))
        options.setdefault("start_new_session", True)
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.DEVNULL)
        process = subprocess.Popen(list(argv), **options)
        self.started.append(process)
        return process

    def cachewatch(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "prefect_cachewatch.cli.main", *arguments]

    def guarded(
        self,
        command: Sequence[str],
        *options: str,
        window: str = "5m",
        grace: str = "500ms",
        poll: str = "200ms",
        before: Sequence[str] = (),
        **popen: Any,
    ) -> subprocess.Popen[bytes]:
        """Start `cachewatch exec` on a command."""
        argv = self.cachewatch("exec", "--cache-dir", str(self.cache), "--stall-after", window, "--grace", grace)
        argv += ["--first-write-within", "5m", "--poll", poll, "--report", str(self.report_path), *options, "--"]
        stderr = open(self.root / "out" / "stderr.txt", "wb")
        with stderr:
            popen.setdefault("stderr", stderr)
            return self.popen([*before, *self.prelude, *argv, *command], **popen)

    def stderr(self) -> str:
        return (self.root / "out" / "stderr.txt").read_text(errors="surrogateescape")

    def report(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.report_path.read_text())
        return data

    def close(self) -> None:
        """End what the test has left, whatever it is, and remove the directory."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
        for process in self.started:
            process.wait(20)
        for tag in self.tags:
            deadline = time.monotonic() + 5
            while (left := living(tag)) and time.monotonic() < deadline:
                for pid in left:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except OSError:
                        continue
                time.sleep(0.02)
        shutil.rmtree(self.root, ignore_errors=True)


def helpers_of(pid: int) -> tuple[int, int]:
    """Pids of the engine of a command, and of its guard."""

    def below(pid: int, word: str) -> int:
        found = []
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                found += [child.pid] * any(one.startswith(word) for one in child.cmdline())
        (one,) = found
        return one

    engine = below(pid, "cachewatch: engine")
    return engine, below(engine, "cachewatch-guard")


def wait_ready(tag: str, shape: str, timeout_s: float = 60) -> None:
    """Wait until a tree stands in full."""
    until(lambda: len(living(tag)) >= SHAPES[shape], timeout_s, f"the {shape} tree stands")
