"""The watch itself: file systems that hang, directories that vanish, hostile names, clocks, a machine under load."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import HERE, Sandbox, living, until
from tests.support import unavailable

SECTION = "2 The watch itself"


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
        until(self.pid_file.exists, 20, "the file system is mounted")
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
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in children if "cachewatch-scanner" in child.cmdline()]
    return []


def wait_written(sandbox: Sandbox, pid: int, files: int = 3) -> None:
    """Wait until the generator has written; looked at through the process's own mount namespace."""
    inside = f"/proc/{pid}/root{sandbox.cache}"
    until(lambda: os.path.isdir(inside) and len(os.listdir(inside)) >= files, 30, "the generator writes")


def test_a_file_system_that_hangs_ends_the_run(hanging: HangingMount, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        f"file system of {hanging.way} hangs",
        "a FUSE file system that caches nothing swallows every request",
        "`filesystem_unresponsive` decided within window (3 s) + scan deadline (3 s); then evidence (2 s), grace and 10 s of "
        "SIGKILL; exit 124; what cannot be killed is named; never a second scanner",
    )
    tag, command = sandbox.tree("plain")
    process = sandbox.guarded(command, window="3s")
    wait_written(sandbox, process.pid)
    hanging.hang()
    began = time.monotonic()
    seen: set[int] = set()
    scanner = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in scanners_of(process.pid))
    assert bytes(sandbox.root / "mount" / "package") in scanner, "the package is not the one on the mount"
    while process.poll() is None:
        seen.update(scanners_of(process.pid))
        assert time.monotonic() - began < 40, "the command hangs with the file system"
        time.sleep(0.1)
    took = time.monotonic() - began
    assert process.returncode == 124
    assert len(seen) == 1
    report = sandbox.report()
    assert report["stall"]["kind"] == "filesystem_unresponsive"
    assert report["stall"]["pause_s"] <= 3 + 3 + 1
    assert report["listing"] is None
    assert any("no listing" in note for note in report["notes"])
    assert report["stop"]["survivors"], "a process in state D cannot be killed, and must be named"
    assert all(one["state"] == "D" for one in report["stop"]["survivors"])
    assert "Could not be killed: pid" in report["message"]
    hanging.end()
    until(lambda: not living(tag), 10, "the kernel lets go of the killed generator")
    row.measured.append((who, f"stopped after {report['duration_s']:.1f} s of run, exit {took:.1f} s after the hang"))


def test_lost_permission_ends_the_run_as_unreadable(sandbox: Sandbox, user: int | None, who: str, fault: Fault) -> None:
    if user is None and os.geteuid() == 0:
        pytest.skip("root reads every directory")
    row = fault(
        SECTION,
        "permission lost",
        "chmod 0 of the cache directory in mid-run",
        "`filesystem_unresponsive` after its window, the message says Permission denied",
    )
    script = (
        'i=0; while :; do i=$((i+1)); head -c 20000 /dev/urandom 2>/dev/null > "$0/f.$i"; sleep 0.1; '
        '[ $i = 10 ] && chmod 0 "$0"; done'
    )
    process = sandbox.guarded(["sh", "-c", script, str(sandbox.cache)], window="2s")
    assert process.wait(60) == 124, sandbox.stderr()
    report = sandbox.report()
    sandbox.cache.chmod(0o755)
    assert report["stall"]["kind"] == "filesystem_unresponsive"
    assert "Permission denied" in report["message"]
    row.measured.append((who, f"blind for {report['stall']['pause_s']:.1f} s"))


HOSTILE = (
    b"\xff\xfe not utf-8.bin", b"n" * 255, b"new\nline.bin", b"\x1b]0;owned\x07\x1b[2J.bin",
    b"<script>alert(1)<\xe2\x80\xa2script>.bin", b"[x](javascript:alert(1))`|*_.bin", b"\xe2\x80\xaegnp.bin", b"-rf", b" ",
)  # fmt: skip


def test_hostile_names_and_link_loops_are_reported_and_obeyed_by_nobody(
    sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "hostile names",
        "names that are not UTF-8, of 255 bytes, with newlines, escapes, HTML, Markdown; symlink loops",
        "every byte is in the JSON, none of them reaches the terminal",
    )
    script = (
        "import os,sys,time\nd=os.fsencode(sys.argv[1])\n"
        "os.symlink('.', d+b'/loop'); os.symlink('/', d+b'/root'); os.symlink(d, d+b'/self')\n"
        f"for n in {HOSTILE!r}:\n open(d+b'/'+n,'wb').write(b'x'*9000); time.sleep(.02)\ntime.sleep(60)\n"
    )
    process = sandbox.guarded([sys.executable, "-I", "-S", "-c", script, str(sandbox.cache)], window="1500ms")
    assert process.wait(60) == 124, sandbox.stderr()
    shown = (sandbox.root / "out" / "stderr.txt").read_bytes()
    assert b"\x1b" not in shown and b"\xff" not in shown and b"\xe2\x80\xae" not in shown
    raw = sandbox.report_path.read_bytes()
    assert b"\x1b" not in raw
    report = json.loads(raw)
    paths = {os.fsencode(os.path.basename(entry["path"])) for entry in report["listing"]["entries"]}
    assert paths == set(HOSTILE)
    assert report["listing"]["total_files"] == len(HOSTILE), "nothing is counted through a link"
    row.measured.append((who, f"{len(HOSTILE)} of {len(HOSTILE)} names whole, 0 control bytes shown"))


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_wall_clock_that_jumps_is_no_stall_and_no_progress(
    jump_s: int, sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "clock jumps an hour",
        "the wall clock of the command, its guards and its scanner moves, forward and back",
        "no false stall; a real one is found within its window",
    )
    clock = sandbox.root / "clock"
    clock.write_text("0")
    wrapper = sandbox.root / "python"
    # Helpers are started through this as their interpreter, so that they live by the moved clock too.
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {HERE / "fake_clock.py"} {clock} "$@"\n')
    wrapper.chmod(0o755)
    start = f"import sys;sys.executable={str(wrapper)!r};from prefect_cachewatch.cli.main import main;main()"
    # 0.7 of the window between two writes: any misdated growth would be a stall.
    _, command = sandbox.tree("plain", writes=8, interval_s=2.1)
    argv = [
        sys.executable,
        str(HERE / "fake_clock.py"),
        str(clock),
        "-c",
        start,
        "exec",
        "--cache-dir",
        str(sandbox.cache),
        "--stall-after",
        "3s",
        "--poll",
        "1s",
    ]
    argv += ["--grace", "200ms", "--report", str(sandbox.report_path), "--", *command]
    process = sandbox.popen(argv)
    until(lambda: len(os.listdir(sandbox.cache)) >= 3, 30, "the generator writes")
    time.sleep(0.3)
    moved = sandbox.root / "moved"
    moved.write_text(str(jump_s))
    moved.replace(clock)
    before = len(os.listdir(sandbox.cache))
    assert process.wait(90) == 124
    report = sandbox.report()
    assert report["growth"]["files_present"] == 8, "stopped before it had written all of its files"
    assert before < 8
    assert report["stall"]["kind"] == "no_growth"
    # Files are dated by the kernel's coarse clock (4 ms), and a timer a millisecond early is on time.
    assert 3 - 0.01 <= report["stop"]["decided_after_last_growth_s"] < 3 + 2
    late = report["stop"]["decided_after_last_growth_s"] - 3
    row.measured.append((f"{jump_s:+d} s ({who})", f"no false stall, the real one {late:.2f} s after its window"))


def test_a_machine_under_full_load_makes_no_stall(sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "machine under full load",
        "four busy processes a core, pauses of half the window",
        "no false stall, and the real one at the end is found",
    )
    burners = [
        sandbox.popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(4 * (os.cpu_count() or 1))
    ]
    tag, command = sandbox.tree("plain", writes=8, interval_s=3)
    process = sandbox.guarded(command, window="6s")
    code = process.wait(150)
    for burner in burners:
        burner.kill()
    assert code == 124, sandbox.stderr()
    report = sandbox.report()
    assert report["growth"]["files_present"] == 8
    assert living(tag) == []
    late = report["stop"]["decided_after_last_growth_s"] - 6
    row.measured.append((who, f"8 of 8 writes, decided {late:.2f} s after the window"))
