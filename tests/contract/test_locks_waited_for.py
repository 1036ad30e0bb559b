"""A silent tree that waits for a lock: the message names the file, its age and its holder, whatever the lock is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.harness import QUICK, Place, Ran

SHORT = (*QUICK, "--stall-after", "3s", "--first-write-within", "60s")
POLLS = """
(PLACE / 'cache/pack/main.cpp').write_bytes(os.urandom(50_000))
while True:
    try:
        os.close(os.open(LOCK, os.O_CREAT | os.O_EXCL)); break
    except FileExistsError:
        time.sleep(0.1)
"""
TRIES = """
import fcntl
(PLACE / 'cache/pack/main.cpp').write_bytes(os.urandom(50_000))
while True:
    with open(LOCK, 'a') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB); break
        except BlockingIOError:
            pass
    time.sleep(0.1)
"""
SLEEPS = "(PLACE / 'cache/pack/main.cpp').write_bytes(os.urandom(50_000))\ntime.sleep(3600)\n"
SPINS = "(PLACE / 'cache/pack/main.cpp').write_bytes(os.urandom(50_000))\nwhile True:\n    time.sleep(0.1)\n"


@pytest.fixture
def pack(place: Place) -> Path:
    (place.cache / "pack").mkdir(parents=True)
    return place.cache / "pack"


def leave(lock: Path, content: str = "") -> Path:
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(content)
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    return lock


def ended_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def hang(place: Place, source: str, lock: Path) -> Ran:
    ran = place.exec(*SHORT, command=place.program(f"LOCK = {str(lock)!r}\n{source}"))
    assert (ran.status, ran.report["stall"]["kind"]) == (124, "no_growth"), ran.said
    return ran


@pytest.mark.parametrize(
    "name", ["lock", ".lock", "baton", "build.lck", "build.lock", "build.incomplete", "LOCK", "lockfile", "model_lock"]
)
def test_a_lock_that_nobody_alive_holds_is_named(place: Place, pack: Path, name: str) -> None:
    lock = leave(pack / name)
    ran = hang(place, POLLS, lock)
    assert ran.report["diagnosis"]["category"] == "stale_lock"
    assert f"{lock}, made " in ran.report["message"] and "nobody alive holds" in ran.report["message"]
    assert lock.exists()


@pytest.mark.parametrize("marks", [0, 1])
def test_a_directory_that_locks_by_being_there_is_named(place: Place, pack: Path, marks: int) -> None:
    (lock := pack / "build.lock").mkdir()
    for number in range(marks):
        leave(lock / f"host.{number}")
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    ran = hang(place, POLLS, lock)
    assert ran.report["diagnosis"]["category"] == "stale_lock"
    assert f"the lock directory {lock}, made " in ran.report["message"]


def test_a_baton_in_the_users_cache_is_named(place: Place, pack: Path) -> None:
    place.env["XDG_CACHE_HOME"] = str(place.root / "home")
    (place.root / "home/torch_extensions/py311").mkdir(parents=True)
    leave(place.root / "home/torch_extensions/py311/other.lock")  # as locks of the kernel leave them behind
    ran = hang(place, POLLS, lock := leave(place.root / "home/torch_extensions/py311/fused/lock"))
    assert ran.report["diagnosis"]["category"] == "stale_lock"
    assert f"{lock}, made " in ran.report["message"] and "nobody alive holds" in ran.report["message"]


def test_a_pid_file_of_a_dead_process_is_named_with_its_pid(place: Place, pack: Path) -> None:
    pid = ended_pid()
    ran = hang(place, POLLS, lock := leave(pack / "build.pid", f"{pid}\n"))
    assert str(lock) in ran.report["message"] and f"pid {pid}" in ran.report["message"]


@pytest.mark.parametrize(
    "line",
    [
        "waiting for the baton {lock}",
        "blocked: another process is building: {lock}",
        "waiting for lock pack/in-progress",
        "waiting for lock '{spaced}'",
    ],
)
def test_a_lock_of_any_name_that_the_last_line_names_is_named(place: Place, pack: Path, line: str) -> None:
    lock = leave(pack / ("in progress" if "spaced" in line else "in-progress"))
    line = line.format(lock=lock, spaced=lock)
    ran = hang(place, f"os.chdir(PLACE / 'cache')\nprint({line!r}, flush=True)\n{POLLS}", lock)
    assert ran.report["diagnosis"]["confidence"] == "high"
    assert str(lock) in ran.report["message"]


@pytest.mark.parametrize("user", ["own", "other"])
def test_the_holder_of_a_lock_that_is_tried_again_and_again_is_named(place: Place, pack: Path, user: str) -> None:
    lock = leave(pack / ".lock" / "0")
    lock.chmod(0o666)
    source = f"import fcntl, os, time; f = open({str(lock)!r}, 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(3600)"
    if user == "other":
        if os.geteuid() != 0:
            pytest.skip("only root starts a process of another user")
        source = source.replace("print", "os.setgroups([]); os.setuid(65534); print")
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            ran = hang(place, TRIES, lock)
        finally:
            holder.kill()
    assert ran.report["diagnosis"]["category"] == "waiting_for_lock"
    assert f"{lock}, made " in ran.report["message"] and f"held by pid {holder.pid}" in ran.report["message"]


def test_a_shell_that_tries_again_and_again_is_known_to_wait_for_its_lock(place: Place, pack: Path) -> None:
    (lock := pack / "build.lock").mkdir()
    os.utime(lock, (1_700_000_000, 1_700_000_000))
    (pack / "main.cpp").write_text("x")
    loop = f"head -c 50000 /dev/urandom > {pack}/a.o; until mkdir {lock} 2>/dev/null; do sleep 0.2; done"
    ran = place.exec(*SHORT, command=["bash", "-c", loop])
    assert (ran.status, ran.report["diagnosis"]["category"]) == (124, "stale_lock"), ran.said
    assert f"the lock directory {lock}, made " in ran.report["message"]


def test_a_file_of_data_in_the_last_line_is_not_taken_for_a_lock(place: Place, pack: Path) -> None:
    (pack / "model.bin").write_bytes(b"x" * 100_000)
    ran = hang(
        place, f"print('waiting for another worker; loaded {pack}/model.bin', flush=True)\n{SPINS}", pack / "lock"
    )
    assert "lock" not in ran.report["diagnosis"]["category"], ran.said


@pytest.mark.parametrize("content", ["", "own", "made", "elsewhere"])
def test_a_hang_beside_a_lock_file_that_is_not_waited_for_is_not_blamed_on_it(
    place: Place, pack: Path, content: str
) -> None:
    lock = pack / "lock"
    source = {
        "": SLEEPS,  # a lock that nobody holds, and a tree that does not poll
        "own": f"Path(LOCK).write_text(str(os.getpid()))\n{SPINS}",
        "made": f"os.close(os.open(LOCK, os.O_CREAT | os.O_EXCL))\n{SPINS}",
        "elsewhere": f"import fcntl\nf = open(LOCK, 'a'); fcntl.flock(f, fcntl.LOCK_EX)\n{SPINS}",
    }[content]
    if not content:
        leave(lock)
    ran = hang(place, source, lock)
    assert "lock" not in ran.report["diagnosis"]["category"], ran.said


@pytest.mark.parametrize("said", ["", "waiting for {lock}"], ids=["silent", "named in the last line"])
def test_a_download_that_was_cut_short_is_no_lock(place: Place, pack: Path, said: str) -> None:
    lock = leave(pack / "model.bin.incomplete", "1234 bytes of data")
    ran = hang(place, f"print({said.format(lock=lock)!r}, flush=True)\n{SPINS}", lock)
    assert "lock" not in ran.report["diagnosis"]["category"], ran.said


@pytest.mark.parametrize("kind", ["link", "pipe", "directory with files"])
def test_what_is_named_as_a_lock_and_is_no_file_of_its_own_is_none(place: Place, pack: Path, kind: str) -> None:
    lock = pack / "build.lock"
    if kind == "link":
        lock.symlink_to(leave(place.root / "elsewhere"))
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        for name in "ab":
            leave((pack / "build.lock") / name)
    ran = hang(place, POLLS, lock)
    assert ran.report["diagnosis"]["category"] != "stale_lock", ran.said
