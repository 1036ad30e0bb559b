"""A tree that is silent where no write can succeed: real small file systems, each in a mount namespace of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_cachewatch.evidence.model import IoCounters, ProcessReading, ProcessSample
from prefect_cachewatch.run.examination import PostMortem
from support import assert_none_left, exec_argv, needs_root, new_tag, program, run

# Writes until that fails, and tries again for ever, or waits; the first failure is told by a file outside.
TRIES = """
import os, time
n = 0
while True:
    try:
        with open(f"{mount}/cache/{n}.bin", "wb", buffering=0) as file:
            file.write(os.urandom(size))
        n += 1
    except OSError:
        open(failed, "w").close()
        time.sleep(0.2)
    while waits and os.path.exists(failed):
        time.sleep(1)
    time.sleep(0.01)
"""
# Writes into one file until that fails, and tries again for ever.
FILLS = """
import os, time
with open(f"{mount}/cache/one.bin", "wb", buffering=0) as file:
    while True:
        try:
            file.write(os.urandom(size))
        except OSError:
            pass
        time.sleep(0.03)
"""
# Fills the file system, goes on with reading and computing, and ends well.
GOES_ON = """
import time
try:
    while True:
        open(f"{mount}/cache/one.bin", "ab", buffering=0).write(b"x" * size)
except OSError:
    open(failed, "w").close()
end = time.monotonic() + 50
with open("/dev/zero", "rb", buffering=0) as source:
    while time.monotonic() < end:
        sum(source.read(1 << 22)[::512])
"""
QUICK = ("--stall-after", "5m", "--poll", "0.3s", "--grace", "0.5s", "--no-bundle")


def stall_on(
    tmp_path: Path,
    options: str,
    then: str = "",
    *,
    exec_options=QUICK,
    size=50_000,
    waits=False,
    does=TRIES,
    status=124,
):
    """Run `exec` on a tmpfs of its own; `then` is done by a shell once the generator's first write has failed."""
    needs_root("a mount namespace")
    mount, failed, report, tag = tmp_path / "mount", tmp_path / "failed", tmp_path / "r.json", new_tag()
    mount.mkdir()
    code = f"mount, failed, size, waits = {str(mount)!r}, {str(failed)!r}, {size}, {waits}\n{does}"
    argv = exec_argv(mount / "cache", *exec_options, "--report", report, command=program(code, tag))
    after = f"(while ! test -e {failed}; do sleep 0.05; done; {then}) & " if then else ""
    script = f'mount -t tmpfs -o {options},mode=777 none {mount} && mkdir {mount}/cache && {{ {after}"$@"; code=$?; wait; exit $code; }}'
    ran = run(["unshare", "-m", "sh", "-c", script, "sh", *argv])
    assert ran.status == status, ran.stderr
    assert_none_left(tag)
    return json.loads(report.read_text())


# The silence is half a minute for everybody: each waits for it.
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ("size=4m", "disk_full", "mount/cache is full (0 B of 4.00 MiB free)."),
        ("size=64m,nr_inodes=60", "inodes_exhausted", "no inode is free under "),
    ],
)
def test_a_silence_on_storage_that_is_full_is_a_stall_long_before_the_window(tmp_path, options, kind, text):
    report = stall_on(tmp_path, options)
    assert (report["stall"]["kind"], report["stall"]["window_s"]) == (kind, 30.0)
    assert report["diagnosis"]["category"] == kind
    assert text in report["message"] and "Cause:" not in report["message"]  # the message says it already
    assert report["growth"]["bytes_written"] > 1_000_000


@pytest.mark.campaign
def test_a_file_system_that_turns_read_only_is_one(tmp_path):
    report = stall_on(tmp_path, "size=1m", f"sleep 0.1; mount -o remount,ro {tmp_path}/mount")
    assert report["stall"]["kind"] == report["diagnosis"]["category"] == "read_only_filesystem"


@pytest.mark.campaign
def test_space_that_comes_back_in_time_leaves_the_usual_window(tmp_path):
    options = ("--stall-after", "50s", "--poll", "0.5s", "--grace", "0.5s", "--no-bundle")
    cache = tmp_path / "mount/cache"
    report = stall_on(
        tmp_path, "size=4m", f"rm {cache}/0.bin {cache}/1.bin", exec_options=options, size=900_000, waits=True
    )
    assert (report["stall"]["kind"], report["diagnosis"]["category"]) == ("no_growth", "unknown")


@pytest.mark.campaign
def test_a_tree_that_computes_on_a_full_file_system_is_left_to_end(tmp_path):
    report = stall_on(tmp_path, "size=4m", does=GOES_ON, status=0)
    assert (tmp_path / "failed").exists()  # a write was refused
    assert (report["outcome"], report["stall"]["kind"]) == ("completed", None)


def sampled(*samples: ProcessSample) -> PostMortem:
    examination = PostMortem()
    examination._samples = [(sample, 0) for sample in samples]
    return examination


def at(second: float, cpu_s: float, read: int | None = 0, pid: int = 7, ticks: int = 1) -> ProcessSample:
    io = None if read is None else IoCounters(read_chars=read)
    return ProcessSample(second, {pid: ProcessReading(pid, ticks, cpu_s, 0, io)})


@pytest.mark.parametrize(
    ("samples", "busy"),
    [
        ((at(0, 5),), True),
        ((at(0, 5), ProcessSample(10)), True),  # not to be seen
        ((at(0, 5), at(10, 6)), False),
        ((at(0, 5), at(10, 5, 20 << 20)), True),
        ((at(0, 5), at(10, 5, None)), True),
        ((at(0, 5), at(10, 8, ticks=2)), True),  # another process of the same pid
        ((at(0, 5), at(10, 9), at(20, 9.1)), False),
    ],
)
def test_a_tree_that_computes_or_reads_is_busy_and_so_is_one_that_cannot_be_seen(samples, busy):
    assert sampled(*samples).is_busy() is busy
