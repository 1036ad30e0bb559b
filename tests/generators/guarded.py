"""Runs a real generator under `cachewatch exec` or `cachewatch generate` and collects what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
_MARK = "GENERATOR_TEST_MARK"
_TIMEOUT_S = 300


@dataclass(frozen=True)
class GuardedRun:
    """How a guarded generation ended; `left` are processes of the generator that are still there."""

    exit_code: int
    report: dict[str, Any]
    output: str
    errors: str
    wall_s: float
    left: dict[int, str] = field(default_factory=dict)

    @property
    def last_line(self) -> str:
        """The last line on standard error."""
        return self.errors.rstrip().rpartition("\n")[2]

    def flagged(self, flag: str) -> list[str]:
        """Names of the listed files with a flag, newest first."""
        entries = self.report["listing"]["entries"]
        return [Path(entry["path"]).name for entry in entries if flag in entry["flags"]]


def run_guarded(
    how: str,
    command: list[str],
    cache_dir: Path,
    options: list[str],
    meanwhile: Callable[[str, Callable[[], bool]], None] | None = None,
    *,
    by_profile: bool = False,
) -> GuardedRun:
    """Run a generator under guard.

    Args:
        how: `exec` or `generate`.
        command: the generator's argv.
        cache_dir: where it writes; report and home of the run go beside it.
        options: further options of cachewatch.
        meanwhile: run in a thread beside it, with the mark in the environment of the generator's
            processes and a function that is true once the run has ended.
        by_profile: whether a profile among the options names the directories.

    Returns:
        What came of it.
    """
    mark = uuid.uuid4().hex
    report = cache_dir.with_name(cache_dir.name + ".report.json")
    report.unlink(missing_ok=True)
    argv = [
        str(Path(sys.executable).with_name("cachewatch")),
        how,
        *(() if by_profile else ("--cache-dir", str(cache_dir))),
        *("--report", str(report)),
        *("--env", f"{_MARK}={mark}"),
        *("--grace", "3s"),
        *(["--attempts", "1"] if how == "generate" else []),
        *options,
        "--",
        *command,
    ]
    # A flow of its own must not meet this machine's Prefect profile, server or database.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environ["PREFECT_HOME"] = str(cache_dir.with_name("prefect-home"))
    began_s = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    helper = None
    failures: list[BaseException] = []
    if meanwhile is not None:

        def help_along() -> None:
            try:
                meanwhile(mark, lambda: process.poll() is not None)
            except BaseException as error:
                failures.append(error)

        helper = threading.Thread(target=help_along, daemon=True)
        helper.start()
    try:
        output, errors = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
        raise AssertionError(f"cachewatch {how} did not end within {_TIMEOUT_S} s:\n{errors[-4000:]}") from None
    wall_s = time.monotonic() - began_s
    if helper is not None:
        helper.join(5)
    assert not failures, failures
    assert report.is_file(), f"exit code {process.returncode}, no report:\n{errors[-4000:]}"
    print(
        f"\n{how} {Path(command[1]).name if len(command) > 1 else command[0]}: {wall_s:.1f} s, {errors.strip()[-200:]}"
    )
    return GuardedRun(
        process.returncode, json.loads(report.read_text()), output, errors, wall_s, marked_processes(mark)
    )


def is_marked(pid: int, mark: str) -> bool:
    """Say whether a process was started with the mark in its environment."""
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def marked_processes(mark: str) -> dict[int, str]:
    """Find living processes that were started with the mark in their environment: the generator's tree."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_marked(int(entry.name), mark):
            try:
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZXx":
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except (OSError, IndexError):  # it ends just now: there is no file, or nothing in it
                continue
    return found
