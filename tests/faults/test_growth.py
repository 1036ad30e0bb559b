"""What counts as growth off the beaten path, on the real command: files written anew, odd dates, odd file systems."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.faults.harness import Sandbox, until
from tests.support import unavailable

HEAD = """
import mmap, os, sys, time
cache, size = sys.argv[1], 250_000
paths = [f"{cache}/shard{n:02}.bin" for n in range(40)]
def put(path, mode="wb"):
    with open(path, mode) as file:
        file.write(os.urandom(size))
"""


def generator(sandbox: Sandbox, code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", HEAD + code, str(sandbox.cache)]


@pytest.mark.parametrize("xino", ["xino=off", "xino=on"])
def test_overlayfs_over_two_file_systems_is_measured(xino: str, own_sandbox: Sandbox) -> None:
    if os.geteuid() != 0:
        unavailable("needs root to mount")
    own_sandbox.mkdir("mount")
    own_sandbox.mounts += ["--overlay", str(own_sandbox.root / "mount"), xino]
    own_sandbox.cache_name = "mount/cache"
    code = (
        "for n in range(40):\n    open(f'{cache}/new{n}', 'wb').write(b'x' * 25_000)\n    time.sleep(.1)\n"
        "    if n > 30: open(f'{cache}/old{n}', 'r+b').write(b'y' * 50_000)\n    else: os.chmod(f'{cache}/old{n}', 0o600)\n"
    )
    process = own_sandbox.guarded(generator(own_sandbox, code))
    assert process.wait(120) == 0, own_sandbox.stderr()
    written = own_sandbox.report()["growth"]["bytes_written"]
    assert 40 * 25_000 + 9 * 50_000 <= written <= 40 * 25_000 + 40 * 50_000
    process = own_sandbox.guarded(generator(own_sandbox, code + "time.sleep(60)"), window="2s")
    assert process.wait(120) == 124, own_sandbox.stderr()


def test_inode_numbers_that_change_neither_count_nor_hide_growth(own_sandbox: Sandbox) -> None:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        unavailable("needs root and /dev/fuse")
    own_sandbox.mkdir("mount")
    pid_file = own_sandbox.root / "fuse.pid"
    own_sandbox.mounts += ["--sshfs", str(own_sandbox.root / "mount"), str(pid_file)]
    own_sandbox.cache_name = "mount/cache"
    code = (
        "for n in range(20): put(f'{cache}/old{n}')\n"
        "for n in range(25):\n    put(f'{cache}/{n}.tmp')\n    time.sleep(.1)\n"
        "    os.rename(f'{cache}/{n}.tmp', f'{cache}/{n}')\n    time.sleep(.1)\n"
        "time.sleep(600)\n"
    )
    process = own_sandbox.guarded(generator(own_sandbox, code), window="10s")
    until(pid_file.exists, 60, "the file system is mounted")
    server = int(pid_file.read_text())
    try:
        end_s = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < end_s:
            os.kill(server, signal.SIGHUP)
            time.sleep(0.2)
        assert process.poll() == 124, own_sandbox.stderr()
    finally:
        os.kill(server, signal.SIGKILL)
    report = own_sandbox.report()
    assert report["stall"]["kind"] == "no_growth"
    assert 45 * 250_000 <= report["growth"]["bytes_written"] <= 70 * 250_000
    assert any("inode numbers" in note for note in report["notes"])
