"""What counts as growth off the beaten path, on the real command: files written anew, odd dates, odd file systems."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.faults.conftest import Fault
from tests.faults.harness import Sandbox, until
from tests.support import unavailable

SECTION = "12 Growth off the beaten path"
HEAD = """
import mmap, os, sys, time
cache, size = sys.argv[1], 250_000
paths = [f"{cache}/shard{n:02}.bin" for n in range(40)]
def put(path, mode="wb"):
    with open(path, mode) as file:
        file.write(os.urandom(size))
"""
REGENERATE = {
    "opened with wb": "put(path)",
    "overwritten with r+b": "put(path, 'r+b')",
    "pwrite": "fd = os.open(path, os.O_WRONLY)\n    os.pwrite(fd, os.urandom(size), 0)\n    os.close(fd)",
    "mapped": "f = open(path, 'r+b')\n    m = mmap.mmap(f.fileno(), 0)\n    m[:] = os.urandom(size)\n    m.flush()",
    "removed and made anew": "os.unlink(path)\n    put(path)",
    "renamed over": "put(path + '.new')\n    os.rename(path + '.new', path)",
}


def generator(sandbox: Sandbox, code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", HEAD + code, str(sandbox.cache)]


def fill(sandbox: Sandbox) -> None:
    done = sandbox.popen(generator(sandbox, "for path in paths: put(path)"))
    assert done.wait(60) == 0


@pytest.mark.parametrize("how", REGENERATE)
def test_a_cache_that_is_written_anew_at_the_same_sizes_is_growth_every_night(
    how: str, sandbox: Sandbox, who: str, fault: Fault
) -> None:
    row = fault(
        SECTION,
        "a cache written anew at its sizes, two nights",
        "40 files that stand there, 10 a second, window 2 s",
        "both nights complete, and their bytes count",
    )
    fill(sandbox)
    code = f"for path in paths:\n    {REGENERATE[how]}\n    time.sleep(.1)\n"
    for _ in range(2):
        process = sandbox.guarded(generator(sandbox, code), "--first-write-within", "2s", window="2s")
        assert process.wait(60) == 0, sandbox.stderr()
        written = sandbox.report()["growth"]["bytes_written"]
        # What is mapped and written within one tick cannot be told from a touch.
        assert written == 10_000_000 or (how == "mapped" and 0 <= written <= 10_000_000)
        assert "nothing new was written" not in sandbox.report()["message"] or how == "mapped"
    row.measured.append((how, f"{written:,} bytes"))


@pytest.mark.parametrize(
    "slowly", ["file.write(os.urandom(20_000))", "os.pwrite(file.fileno(), b'x' * 20_000, n * 20_000)"]
)
def test_one_large_file_overwritten_in_place_is_no_stall(slowly: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "a large file overwritten in place",
        "5 MB that stand there, 20 kB at a time for 8 s, window 2 s",
        "exit 0",
    )
    done = sandbox.popen(generator(sandbox, "open(cache + '/a', 'wb').write(os.urandom(5_000_000))"))
    assert done.wait(60) == 0
    code = f"file = open(cache + '/a', 'r+b', 0)\nfor n in range(80):\n    {slowly}\n    time.sleep(.1)\n"
    process = sandbox.guarded(generator(sandbox, code), "--first-write-within", "2s", window="2s")
    assert process.wait(60) == 0, sandbox.stderr()
    assert sandbox.report()["growth"]["bytes_written"] == 5_000_000
    row.measured.append((who, "exit 0"))


@pytest.mark.parametrize("how", ["os.utime(path)", "os.chmod(path, 0o600)", "os.rename(path, path + '.x'); os.rename(path + '.x', path)"])  # fmt: skip
def test_a_generator_that_only_touches_its_cache_is_stopped(how: str, sandbox: Sandbox, who: str, fault: Fault) -> None:
    row = fault(
        SECTION,
        "files touched, changed in mode, renamed to and fro for ever",
        "40 files that stand there, window 2 s",
        "a stall; no byte is counted",
    )
    fill(sandbox)
    code = f"while True:\n    for path in paths:\n        {how}\n    time.sleep(.1)\n"
    process = sandbox.guarded(generator(sandbox, code), "--first-write-within", "2s", window="2s")
    assert process.wait(60) == 124, sandbox.stderr()
    report = sandbox.report()
    assert (report["stall"]["kind"], report["growth"]["bytes_written"]) == ("never_started", 0)
    row.measured.append((how.split("(", maxsplit=1)[0], f"stopped after {report['duration_s']:.1f} s"))


@pytest.mark.parametrize("seconds", [1_700_000_000_000, 2**62, -1, -62_167_219_201, -(2**62)])
def test_no_date_of_a_file_stops_a_healthy_run(seconds: int, own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "dates that no clock shows",
        "files and directories dated after 2262 (milliseconds for seconds), before 1970, at the ends of 64 bits",
        "exit 0 twice; listing and post-mortem of a stall hold the date",
    )
    code = (
        "for n, path in enumerate(paths[:15]):\n    os.makedirs(f'{cache}/{n}', exist_ok=True)\n    put(f'{cache}/{n}/f')\n"
        f"    for odd in (f'{{cache}}/{{n}}/f', f'{{cache}}/{{n}}', cache): os.utime(odd, ({seconds}, {seconds}))\n"
        "    time.sleep(.2)\n"
    )
    for _ in range(2):
        process = own_sandbox.guarded(generator(own_sandbox, code), "--first-write-within", "2s", window="2s")
        assert process.wait(60) == 0, own_sandbox.stderr()
    process = own_sandbox.guarded(generator(own_sandbox, code + "time.sleep(60)"), window="2s")
    assert process.wait(60) == 124, own_sandbox.stderr()
    report = own_sandbox.report()
    assert (report["outcome"], report["listing"]["total_files"]) == ("stalled", 15)
    row.measured.append((f"{seconds}", report["listing"]["entries"][0]["modified_at"]))


@pytest.mark.parametrize("xino", ["xino=off", "xino=on"])
def test_overlayfs_over_two_file_systems_is_measured(xino: str, own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "overlayfs over two file systems",
        "the layers' inode numbers are the same ones (xino off and on); old files overwritten and changed in mode; window 2 s",
        "exit 0, the bytes count (an old file that is copied up as a whole); a stalled one is stopped",
    )
    if os.geteuid() != 0:
        unavailable("needs root to mount")
    own_sandbox.mkdir("mount")
    own_sandbox.mounts += ["--overlay", str(own_sandbox.root / "mount"), xino]
    own_sandbox.cache_name = "mount/cache"
    code = (
        "for n in range(40):\n    open(f'{cache}/new{n}', 'wb').write(b'x' * 25_000)\n    time.sleep(.1)\n"
        "    if n > 30: open(f'{cache}/old{n}', 'r+b').write(b'y' * 50_000)\n    else: os.chmod(f'{cache}/old{n}', 0o600)\n"
    )
    process = own_sandbox.guarded(generator(own_sandbox, code), "--first-write-within", "2s", window="2s")
    assert process.wait(60) == 0, own_sandbox.stderr()
    written = own_sandbox.report()["growth"]["bytes_written"]
    assert 40 * 25_000 + 9 * 50_000 <= written <= 40 * 25_000 + 40 * 50_000
    process = own_sandbox.guarded(generator(own_sandbox, code + "time.sleep(60)"), window="2s")
    assert process.wait(60) == 124, own_sandbox.stderr()
    row.measured.append((xino, f"{written:,} bytes"))


def test_inode_numbers_that_change_neither_count_nor_hide_growth(own_sandbox: Sandbox, fault: Fault) -> None:
    row = fault(
        SECTION,
        "inode numbers that change",
        "a FUSE server numbers all files anew five times a second; 5 s of writing and renaming, then silence, window 2 s",
        "the bytes written count, a renamed file once more; stopped after the window",
    )
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
        "time.sleep(60)\n"
    )
    process = own_sandbox.guarded(generator(own_sandbox, code), window="2s")
    until(pid_file.exists, 30, "the file system is mounted")
    server = int(pid_file.read_text())
    try:
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 60:
            os.kill(server, signal.SIGHUP)
            time.sleep(0.2)
        assert process.wait(1) == 124, own_sandbox.stderr()
    finally:
        os.kill(server, signal.SIGKILL)
    report = own_sandbox.report()
    assert report["stall"]["kind"] == "no_growth"
    assert 45 * 250_000 <= report["growth"]["bytes_written"] <= 70 * 250_000
    assert any("inode numbers" in note for note in report["notes"])
    row.measured.append(
        ("", f"{report['growth']['bytes_written']:,} bytes, stopped after {report['duration_s']:.1f} s")
    )
