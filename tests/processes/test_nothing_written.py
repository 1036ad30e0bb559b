"""A cache that was empty and stays empty, whatever the exit code says; and where the bytes went instead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.watching.emptiness import Emptiness
from support import CACHEWATCH, Ran, mostly_apart, run_exec, running

WELL = ("--stall-after", "5m", "--first-write-within", "5m", "--poll", "0.3s", "--no-bundle")
WRITES_SLOWLY = "import sys, time\nfile = open(sys.argv[1], 'wb')\nfor n in range(4): file.write(bytes(9999)); file.flush(); time.sleep(0.4)"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work" / "cahce"


def python(source: str, *words: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", source, *map(str, words)]


def searched(cache: Path, *options: str, command: list[str], cwd: Path | None = None) -> str:
    return told(run_exec(cache, *WELL, *options, command=command, cwd=cwd))


def told(ran: Ran) -> str:
    assert ran.report is not None
    assert (ran.status, ran.report["outcome"], ran.report["exit_code"]) == (1, "nothing_written", 0), ran
    return str(ran.report["message"])


def test_a_mistyped_directory_is_a_failure_and_where_it_wrote_is_named(cache: Path, tmp_path: Path) -> None:
    right = tmp_path / "right"
    right.mkdir()
    ran = run_exec(cache, *WELL, command=python(WRITES_SLOWLY, right / "layer0.bin"))
    message = told(ran)
    assert message.startswith(
        f"Tensor cache generation wrote nothing: {cache} was empty before it and is empty now, and it"
    )
    assert f"It had files open for writing in {right}." in message
    assert "--cache-dir" in message and "--allow-empty" in message
    assert ran.last_line == message


def test_what_a_fast_command_wrote_is_found_by_the_words_of_its_command(cache: Path, tmp_path: Path) -> None:
    right = tmp_path / "right"
    right.mkdir()
    (right / "old.bin").write_bytes(b"old")
    command = ["sh", "-c", "head -c 9999 /dev/zero > $1", "sh", str(right / "layer0.bin")]
    message = searched(cache, command=command)
    # Whoever is seen with the file open is not searched for.
    assert f"New since its start: {right}/layer0.bin" in message or f"open for writing in {right}" in message


def test_a_file_is_new_by_no_date_that_somebody_gave_it(cache: Path, tmp_path: Path) -> None:
    right = tmp_path / "right"
    right.mkdir()
    for number in range(30):
        (right / f"old{number}.bin").write_bytes(b"old")
        os.utime(right / f"old{number}.bin", (13_000_000_000, 13_000_000_000))
    time.sleep(1.5)  # beyond what a clock may differ
    script = "head -c 9999 /dev/zero > $1; touch -d @$2 $1"
    message = searched(cache, command=["sh", "-c", script, "sh", str(right / "layer0.bin"), "-5"])
    assert "/old" not in message
    assert f"New since its start: {right}/layer0.bin" in message or f"open for writing in {right}" in message


@pytest.mark.parametrize("where", mostly_apart(["cwd", "option", "environment", "beside"], ["option", "beside"]))
def test_new_files_are_looked_for_where_the_command_points_to(cache: Path, tmp_path: Path, where: str) -> None:
    right = cache.parent / "cache" if where == "beside" else tmp_path / "right"
    right.mkdir(parents=True)
    script = f"cd {right} && head -c 9999 /dev/zero > layer0.bin"
    words = [f"--out={right}"] if where == "option" else []
    options = ("--env", f"OUT={right}") if where == "environment" else ()
    command = ["sh", "-c", script, "sh", *words]
    message = searched(cache, *options, command=command, cwd=right if where == "cwd" else None)
    assert f"New since its start: {right}/layer0.bin" in message or f"open for writing in {right}" in message


@pytest.mark.campaign
def test_what_is_plainly_no_cache_is_not_named(cache: Path, tmp_path: Path) -> None:
    """Bytecode, logs, what the run itself writes, devices: the directory with the bytes is named, and no other."""
    work = tmp_path / "here"
    right = work / "right"
    right.mkdir(parents=True)
    (work / "helper.py").write_text("X = 1\n")
    script = (
        "import os, sys, time\nsys.path.insert(0, '.')\nimport helper\nos.mkdir('.git')\n"
        "held = [open(n, 'wb') for n in ('run.log', '__pycache__/x.cpython-311.pyc.7', '/dev/null', '/proc/self/comm')]\n"
        "held.append(open('.git/index', 'wb')); held[-1].write(b'x'); held[-1].flush()\n"
        "cache = open('right/layer0.bin', 'wb')\nfor n in range(4): cache.write(bytes(9999)); cache.flush(); time.sleep(0.4)"
    )
    options = (
        "--env", "PYTHONDONTWRITEBYTECODE=", "--log", str(work / "output.txt"), "--record", str(work / "growth.trace"),
    )  # fmt: skip
    message = searched(cache, *options, command=[sys.executable, "-c", script], cwd=work)
    assert f"open for writing in {right}" in message
    for noise in ("__pycache__", "run.log", "/proc", "/dev", ".git", "output.txt", "growth.trace", f"in {work}."):
        assert noise not in message
    fast = tmp_path / "fast"
    fast.mkdir()
    (fast / "helper.py").write_text("X = 1\n")
    time.sleep(1.5)  # beyond what a clock may differ
    script = "import sys; sys.path.insert(0, '.'); import helper"
    options = (
        "--env", "PYTHONDONTWRITEBYTECODE=", "--log", str(fast / "output.txt"), "--record", str(fast / "growth.trace"),
    )  # fmt: skip
    message = searched(cache, *options, command=[sys.executable, "-c", script], cwd=fast)
    assert "Where else it wrote was not seen." in message


def test_a_scratch_directory_is_named_after_the_others() -> None:
    job = CacheJob(name="x", command=["true"], cache_dirs=[Path("/mnt/x")])
    emptiness = Emptiness(job, ["/mnt/x"], "/", {"growth": {"files_present": 0, "bytes_present": 0}})
    emptiness._seen.update({"/tmp/scratch": 40, "/mnt/right": 3})
    assert "open for writing in /mnt/right, /tmp/scratch." in emptiness.describe(time.time())


def test_where_nothing_was_seen_that_is_said(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "quiet").mkdir()
    ran = run_exec(cache, *WELL, command=["true"], cwd=tmp_path / "quiet")
    assert "Where else it wrote was not seen." in told(ran)


def test_what_was_written_and_removed_again_is_no_cache_either(cache: Path) -> None:
    script = f"head -c 99999 /dev/zero > {cache}/x.tmp; sleep 1.5; rm {cache}/x.tmp"
    ran = run_exec(cache, *WELL, command=["sh", "-c", script])
    assert told(ran).startswith("Tensor cache generation kept nothing of what it wrote: ")


def test_one_of_two_directories_that_was_written_to_is_enough(cache: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    command = ["sh", "-c", f"echo x > {second}/a.bin"]
    assert run_exec(cache, *WELL, "--cache-dir", str(second), command=command).status == 0


def test_a_watched_process_that_ends_without_a_byte_is_a_failure_unless_that_is_allowed(cache: Path) -> None:
    cache.mkdir()
    for options, statuses in (((), (1,)), (("--allow-empty",), (0, 123))):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as waiter:
            argv = ["watch", "--pid", str(waiter.pid), "--cache-dir", str(cache), "--poll", "0.3s", *options]
            with running([*CACHEWATCH, *argv]) as watching:
                assert "Ctrl-C leaves it alone" in watching.stderr.readline()
                waiter.communicate()
                _, said = watching.communicate(timeout=60)
            # Whether its code can be known hangs on the kernel.
            assert watching.returncode in statuses, said


def test_of_a_directory_that_is_gone_at_the_end_it_is_not_said_that_nothing_was_written(cache: Path) -> None:
    ran = run_exec(cache, *WELL, command=["sh", "-c", f"head -c 9999 /dev/zero > {cache}/a; rm -r {cache}"])
    assert ran.report is not None
    assert (ran.status, ran.report["outcome"]) == (0, "completed")
    assert "what is there now could not be measured: " in ran.report["message"]
    assert str(cache) in ran.report["message"].partition("measured: ")[2]
    assert "nothing new" not in ran.report["message"]
