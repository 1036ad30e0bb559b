"""The watch itself: file systems that hang, directories that vanish, hostile names, clocks, a machine under load."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.harness import HERE, Sandbox, living, until
from tests.support import unavailable

WAYS = ("cache", "cache and state", "cache, state and package")


class HangingMount:
    """A file system in the sandbox's own mount namespace that stops answering on request.

    It holds the cache; or our state and the user's home as well; or the package too, as a virtual environment on it does.
    """

    def __init__(self, sandbox: Sandbox, way: str = WAYS[0]) -> None:
        self.way = way
        if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
            unavailable("needs root and /dev/fuse")
        mount_point = sandbox.mkdir("mount")
        self.pid_file = sandbox.root / "fuse.pid"
        sandbox.mounts += ["--fuse", str(mount_point), str(self.pid_file)]
        sandbox.cache_name = "mount/cache"
        if way != WAYS[0]:
            home = mount_point / "home"
            sandbox.more_env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
            sandbox.prelude = ["sh", "-c", f'mkdir -p {home} && exec "$@"', "sh"]
        if way == WAYS[2]:
            copied = mount_point / "package"
            sandbox.more_env |= {"PYTHONPATH": str(copied), "PYTHONDONTWRITEBYTECODE": "1"}
            root = HERE.parents[1]
            copy = f"cp -rp {root}/src/prefect_cachewatch {copied}/ && cp -rp {root}/flows {root}/tasks {copied}/prefect_cachewatch/"
            sandbox.prelude = ["sh", "-c", f'mkdir -p {home} {copied} && {copy} && exec "$@"', "sh"]

    def signal(self, number: signal.Signals) -> None:
        until(self.pid_file.exists, 60, "the file system is mounted")
        os.kill(int(self.pid_file.read_text()), number)

    def hang(self) -> None:
        self.signal(signal.SIGUSR1)

    def answer(self) -> None:
        self.signal(signal.SIGUSR2)

    def end(self) -> None:
        if self.pid_file.exists():
            with contextlib.suppress(OSError):
                os.kill(int(self.pid_file.read_text()), signal.SIGKILL)


@pytest.fixture
def hanging(sandbox: Sandbox) -> Iterator[HangingMount]:
    mount = HangingMount(sandbox, WAYS[2])
    yield mount
    mount.end()


def scanners_of(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ends just now
                found += [child.pid] * ("cachewatch-scanner" in child.cmdline())
    return found


def wait_written(sandbox: Sandbox, pid: int, files: int = 3) -> None:
    """Wait until the generator has written; looked at through the process's own mount namespace."""
    inside = f"/proc/{pid}/root{sandbox.cache}"
    until(lambda: os.path.isdir(inside) and len(os.listdir(inside)) >= files, 60, "the generator writes")


def test_a_file_system_that_hangs_ends_the_run(hanging: HangingMount, sandbox: Sandbox) -> None:
    tag, command = sandbox.tree("plain")
    process = sandbox.guarded(command, window="10s")
    wait_written(sandbox, process.pid)
    seen = set(scanners_of(process.pid))
    scanner = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in seen)
    assert bytes(sandbox.root / "mount" / "package") in scanner, "the package is not the one on the mount"
    hanging.hang()
    began = time.monotonic()
    while process.poll() is None:
        seen.update(scanners_of(process.pid))
        assert time.monotonic() - began < 120, "the command hangs with the file system"
        time.sleep(0.1)
    assert process.returncode == 124
    assert len(seen) == 1
    report = sandbox.report()
    assert report["stall"]["kind"] == "filesystem_unresponsive"
    assert report["listing"] is None
    assert any("no listing" in note for note in report["notes"])
    assert report["stop"]["survivors"], "a process in state D cannot be killed, and must be named"
    assert all(one["state"] == "D" for one in report["stop"]["survivors"])
    assert "Could not be killed: pid" in report["message"]
    hanging.end()
    until(lambda: not living(tag), 60, "the kernel lets go of the killed generator")


def test_lost_permission_ends_the_run_as_unreadable(sandbox: Sandbox, user: int | None) -> None:
    if user is None and os.geteuid() == 0:
        pytest.skip("root reads every directory")
    script = (
        'i=0; while :; do i=$((i+1)); head -c 20000 /dev/urandom 2>/dev/null > "$0/f.$i"; sleep 0.1; '
        '[ $i = 10 ] && chmod 0 "$0"; done'
    )
    process = sandbox.guarded(["sh", "-c", script, str(sandbox.cache)], window="10s")
    assert process.wait(120) == 124, sandbox.stderr()
    report = sandbox.report()
    sandbox.cache.chmod(0o755)
    assert report["stall"]["kind"] == "filesystem_unresponsive"
    assert "Permission denied" in report["message"]


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_wall_clock_that_jumps_is_no_stall_and_no_progress(jump_s: int, sandbox: Sandbox) -> None:
    clock = sandbox.root / "clock"
    clock.write_text("0")
    wrapper = sandbox.root / "python"
    # Helpers are started through this as their interpreter, so that they live by the moved clock too.
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / "fake_clock.py"} {clock} "$@"\n')
    wrapper.chmod(0o755)
    start = f"import sys;sys.executable={str(wrapper)!r};from prefect_cachewatch.cli.main import main;main()"
    _, command = sandbox.tree("plain", writes=20, interval_s=0.5)
    argv = [
        sys.executable, str(HERE / "fake_clock.py"), str(clock), "-c", start, "exec", "--cache-dir",
        str(sandbox.cache), "--stall-after", "20s", "--poll", "1s",
    ]  # fmt: skip
    argv += ["--grace", "200ms", "--report", str(sandbox.report_path), "--", *command]
    process = sandbox.popen(argv)
    until(lambda: len(os.listdir(sandbox.cache)) >= 3, 60, "the generator writes")
    time.sleep(0.3)
    moved = sandbox.root / "moved"
    moved.write_text(str(jump_s))
    moved.replace(clock)
    before = len(os.listdir(sandbox.cache))
    assert process.wait(90) == 124
    report = sandbox.report()
    assert report["growth"]["files_present"] == 20, "stopped before it had written all of its files"
    assert before < 20
    assert report["stall"]["kind"] == "no_growth"
    # Files are dated by the kernel's coarse clock (4 ms), and a timer a millisecond early is on time.
    assert 20 - 0.01 <= report["stop"]["decided_after_last_growth_s"] < 20 + 60
