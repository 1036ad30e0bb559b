"""Which lock file is stale: by the file itself, by its holder, by its place."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.supervise.lockfiles import LockFile, look_at_lock
from support import ended_pid, leave_behind


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache directory with a stale lock, .locks/a.lock."""
    leave_behind(tmp_path / "cache" / ".locks" / "a.lock")
    return tmp_path / "cache"


def found(path: Path) -> LockFile:
    lock = look_at_lock(str(path))
    assert lock is not None
    return lock


@pytest.fixture
def holder(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock as filelock's SoftFileLock does: it keeps the file open."""
    code = "import os, sys, time; os.open(sys.argv[1], os.O_RDWR); print('held', flush=True); time.sleep(99)"
    lock = str(cache / ".locks" / "a.lock")
    process = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_lock_without_a_holder_is_stale(cache: Path) -> None:
    assert found(cache / ".locks" / "a.lock").stale


def test_a_holder_that_comes_after_the_diagnosis_keeps_its_lock(cache: Path, request: pytest.FixtureRequest) -> None:
    lock = found(cache / ".locks" / "a.lock")
    assert lock.stale
    holder = request.getfixturevalue("holder")
    assert found(Path(lock.path)).why_held == "a process has it open"
    holder.kill()
    holder.wait()
    assert found(Path(lock.path)).stale


@pytest.mark.parametrize("kind", ["flock", "fcntl"])
def test_a_lock_of_the_kernel_is_a_holder(cache: Path, kind: str) -> None:
    path = cache / ".locks" / "a.lock"
    with open(path, "r+") as file:
        (fcntl.flock if kind == "flock" else fcntl.lockf)(file, fcntl.LOCK_EX)
        assert not found(path).stale


def test_what_the_file_says_of_its_holder_counts(cache: Path) -> None:
    dead_pid = ended_pid()
    path, here = cache / "w.lock", socket.gethostname()
    assert found(leave_behind(path, f"{os.getpid()}\n")).why_held == f"pid {os.getpid()}, which is written in it, lives"
    assert found(leave_behind(path, f"{dead_pid}\nanother-host\n")).why_held == "another host has written it"
    for text in (f"{dead_pid}\n{here}\n", "", "no number"):
        assert found(leave_behind(path, text)).stale
    initial = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert found(leave_behind(path, f"{dead_pid}")).stale == initial
    os.utime(path)
    assert found(path).why_held == "it was written a moment ago"


def test_what_is_neither_a_file_nor_a_directory_of_its_own_is_no_lock(cache: Path) -> None:
    os.symlink(cache / ".locks" / "a.lock", cache / "link.lock")
    os.mkfifo(cache / "pipe.lock")
    (cache / "directory.lock").mkdir()
    for name in "ab":
        (cache / "directory.lock" / name).touch()
    for name in ("link.lock", "pipe.lock", "directory.lock", "none.lock"):
        assert look_at_lock(str(cache / name)) is None
