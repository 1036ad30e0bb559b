"""Which lock file is stale: by the file itself, by its holder, by its place."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.supervise.lockfiles import LockFile, look_at_lock
from support import ended_pid, leave_behind

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


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


@root_only
def test_a_holder_of_another_pid_namespace_keeps_its_lock(cache: Path) -> None:
    path = cache / ".locks" / "a.lock"
    script = f"exec 9<>{path}; echo held; exec sleep 99"
    holder = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert found(path).why_held == "a process has it open"
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]


@root_only
@pytest.mark.parametrize(
    ("text", "why"),
    [("4000000\n", "its pid may be of another container"), (f"4000000\n{socket.gethostname()}\n", ""), ("", "")],
)
def test_within_a_container_a_pid_without_a_host_proves_nothing(cache: Path, text: str, why: str) -> None:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        "from prefect_cachewatch.supervise.lockfiles import look_at_lock\n"
        "print(look_at_lock(sys.argv[1]).why_held)"
    )
    path = leave_behind(cache / "w.lock", text)
    unshared = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*unshared, sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (why, "")


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


def test_a_link_is_no_lock(cache: Path, tmp_path: Path) -> None:
    leave_behind(tmp_path / "outside.lock")
    os.symlink(tmp_path / "outside.lock", cache / "b.lock")
    assert look_at_lock(str(cache / "b.lock")) is None


def test_what_is_no_regular_file_is_no_lock(cache: Path) -> None:
    os.mkfifo(cache / "pipe.lock")
    (cache / "directory.lock").mkdir()
    assert look_at_lock(str(cache / "pipe.lock")) is None
    assert look_at_lock(str(cache / "directory.lock")) is None
    assert look_at_lock(str(cache / "none.lock")) is None


@root_only
def test_the_file_of_another_user_stays() -> None:
    code = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        "from prefect_cachewatch.supervise.lockfiles import look_at_lock\n"
        "os.setgroups([]); os.setuid(65534); print(look_at_lock(sys.argv[1]).why_held)"
    )
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = leave_behind(Path(directory) / "a.lock")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("it cannot be told whether a process has it open ("), done.stderr
