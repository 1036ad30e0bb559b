"""Several guards on one storage that pauses or dies: it is the storage, and a generator that hangs alone is still stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import Sandbox, until
from tests.support import unavailable

WINDOW_S = 8
# Writes twice a second, into a file of its own each time. The last word is how often; then it ends.
WRITES = """
import sys, time
for n in range(int(sys.argv[2])):
    with open(f"{sys.argv[1]}/{n}.bin", "wb") as file:
        file.write(b"x" * 50_000)
    time.sleep(0.5)
"""
# All guards in one mount namespace, where the storage is; prints how they ended.
GUARDS = """
import json, subprocess, sys
mount, out, number, writes, generator, hangs = sys.argv[1:7]
running = []
for n in range(int(number)):
    cache = f"{mount}/cache{n}"
    code = generator if n >= int(hangs) else "import time\\n" + generator + "time.sleep(600)\\n"
    with open(f"{out}/stderr{n}", "wb") as said:
        running.append(subprocess.Popen([
            sys.executable, "-m", "prefect_cachewatch.cli.main", "exec", "--cache-dir", cache, "--poll", "1s",
            "--report", f"{out}/report{n}.json", "--grace", "1s", *sys.argv[7:], "--", sys.executable, "-I", "-S", "-c",
            code, cache, writes if n >= int(hangs) else "6",
        ], stdout=said, stderr=said, stdin=subprocess.DEVNULL))
print(json.dumps([one.wait() for one in running]), flush=True)
"""


class Guards:
    """Guards on one FUSE mount, started together."""

    def __init__(self, box: Sandbox, number: int, *options: str, writes: int, hang: int = 0) -> None:
        self.box, self.number = box, number
        mount, pid_file = box.mkdir("mount"), box.root / "fuse.pid"
        box.mounts += ["--fuse", str(mount), str(pid_file)]
        argv = [
            sys.executable,
            "-c",
            GUARDS,
            str(mount),
            str(box.root / "out"),
            str(number),
            str(writes),
            WRITES,
            str(hang),
        ]
        options = ("--stall-after", f"{WINDOW_S}s", *options)
        self.process = box.popen([*argv, *options], stdout=subprocess.PIPE)
        until(pid_file.exists, 60, "the file system is mounted")
        self.server = int(pid_file.read_text())

    def pause(self) -> None:
        os.kill(self.server, signal.SIGUSR1)

    def go_on(self) -> None:
        os.kill(self.server, signal.SIGUSR2)

    def end(self, timeout_s: float) -> list[int]:
        said, _ = self.process.communicate(timeout=timeout_s)
        statuses: list[int] = json.loads(said)
        return statuses

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads((self.box.root / "out" / f"report{n}.json").read_text()) for n in range(self.number)]

    def said(self, number: int) -> str:
        return (self.box.root / "out" / f"stderr{number}").read_text()


@pytest.fixture
def box(own_sandbox: Sandbox) -> Sandbox:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        unavailable("needs root and /dev/fuse")
    return own_sandbox


def standings(box: Sandbox) -> list[Path]:
    return list((box.root / "home" / "state" / "cachewatch" / "storages").glob("*"))


def test_generations_on_a_storage_that_pauses_for_three_windows_all_complete(box: Sandbox) -> None:
    guards = Guards(box, 4, writes=24)
    try:
        time.sleep(8)  # all of them write
        guards.pause()
        time.sleep(3 * WINDOW_S)
        guards.go_on()
        assert guards.end(120) == [0] * 4, [guards.said(n)[-1500:] for n in range(4)]
    finally:
        os.kill(guards.server, signal.SIGKILL)
    for number, report in enumerate(guards.reports()):
        assert report["outcome"] == "completed"
        assert any("of 4 runs on it fell silent together" in note for note in report["notes"]), report["notes"]
        assert "is suspected" in guards.said(number)
    assert standings(box) == []  # nothing is left of the board


def test_on_a_storage_that_is_dead_for_good_each_run_ends_by_its_own_verdict(box: Sandbox) -> None:
    guards = Guards(box, 3, writes=600)
    try:
        time.sleep(8)
        guards.pause()
        began = time.monotonic()
        until(
            lambda: guards.process.poll() is not None, 12 * WINDOW_S, "each ends, though nothing of the storage answers"
        )
        took_s = time.monotonic() - began
        assert guards.end(5) == [124] * 3, [guards.said(n)[-1500:] for n in range(3)]
    finally:
        os.kill(guards.server, signal.SIGKILL)
    assert took_s >= 3 * WINDOW_S  # not before the patience was over
    assert {report["stall"]["kind"] for report in guards.reports()} == {"filesystem_unresponsive"}


@pytest.mark.parametrize("patience", ["2 windows", "0"])
def test_generators_that_hang_on_a_healthy_storage_are_stopped_after_their_window(box: Sandbox, patience: str) -> None:
    options = () if patience == "2 windows" else ("--storage-patience", "0s")
    guards = Guards(box, 4, *options, writes=60, hang=3)
    try:
        assert guards.end(120) == [124] * 3 + [0], [guards.said(n)[-1500:] for n in range(4)]
    finally:
        os.kill(guards.server, signal.SIGKILL)
    for report in guards.reports()[:3]:
        assert (report["stall"]["kind"], report["stall"]["window_s"]) == ("no_growth", WINDOW_S)
