"""A cache directory that others have locked: readers keep no job out, a second job and a stranger do, and are named."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.harness import WELL, Place, eventually

HOLDS = """
import fcntl, os, sys
fd = os.open(sys.argv[2], os.O_RDONLY)
fcntl.flock(fd, getattr(fcntl, sys.argv[1]))
if "--child-holds" in sys.argv and os.fork():
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def stranger(kind: str, path: Path, *options: str) -> Iterator[int]:
    """A process that has locked a path; its pid."""
    argv = [sys.executable, "-I", "-S", "-c", HOLDS, kind, str(path), *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    ("kind", "what", "status"),
    [
        ("LOCK_SH", "cache", 0),
        ("LOCK_SH", "cache/.cachewatch.lock", 0),
        ("LOCK_EX", "cache", 125),
        ("LOCK_EX", ".", 0),
        ("LOCK_EX", "cache/part", 0),
    ],
    ids=["a reader of the directory", "of its lock", "a program that has it for itself", "one above", "one below"],
)
def test_who_has_locked_a_cache_directory(place: Place, kind: str, what: str, status: int) -> None:
    (place.cache / "part").mkdir(parents=True)
    (place.cache / ".cachewatch.lock").touch(mode=0o600)
    with stranger(kind, place.root / what) as pid:
        ran = place.exec(*WELL, command=["touch", place.cache / "x"])
    assert (ran.status, (place.cache / "x").exists()) == (status, status == 0), ran.stderr
    if status:
        assert ran.stderr.count("\n") == 1
        assert str(place.cache) in ran.stderr and f"pid {pid}: " in ran.stderr
    assert (place.cache / ".cachewatch.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("mode", "told"), [(0o1777, 1), (0o777, 0)], ids=["as /tmp is", "open to all"])
def test_a_directory_that_is_everybodys_is_told_of_once(place: Place, mode: int, told: int) -> None:
    place.cache.mkdir()
    place.cache.chmod(mode)
    ran = place.exec(*WELL, command=place.program("(PLACE / 'cache/x').write_bytes(bytes(9000))"))
    assert (ran.status, ran.stderr.count(f"{place.cache} is shared")) == (0, told), ran.stderr
    assert sum("is shared" in note for note in ran.report["notes"]) == told


def test_a_second_job_in_a_cache_directory_is_refused_while_the_first_one_runs(place: Place) -> None:
    waits = place.program(
        "(PLACE / 'cache/x').write_bytes(bytes(9000))\nwhile not (PLACE / 'go').exists(): time.sleep(0.05)"
    )
    with place.start("exec", "--cache-dir", place.cache, *WELL, "--", *waits) as first:
        assert eventually((place.cache / "x").exists)
        second = place.exec(*WELL, command=["touch", place.root / "ran"])
        (place.root / "go").touch()
        first.communicate(timeout=120)
    assert (first.returncode, second.status, second.stderr.count("\n")) == (0, 125, 1)
    assert str(place.cache) in second.stderr and not (place.root / "ran").exists()
    assert str(os.getpid()) not in second.stderr
