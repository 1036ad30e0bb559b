"""What counts of files that stood there at the start, on a real file system: all ways to write them anew, and none to touch them."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.measure.scanner import DirectoryScanner
from support import mostly_apart

SIZE = 300_000


def wb(path: Path) -> None:
    path.write_bytes(os.urandom(SIZE))


def in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(SIZE))


def pwrite(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, os.urandom(SIZE // 2), SIZE // 3)
    os.close(fd)


def mapped(path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        time.sleep(0.02)  # mapping is access: within one tick it looks like a touch
        memory[:] = os.urandom(SIZE)
        memory.flush()


def made_anew(path: Path) -> None:
    path.unlink()
    wb(path)


def renamed_over(path: Path) -> None:
    new = path.with_suffix(".tmp")
    wb(new)
    new.rename(path)


def copied_over(path: Path) -> None:
    wb(path)
    os.utime(path, ns=(10**18, 10**18 + 5))


WRITES = [wb, in_place, pwrite, mapped, made_anew, renamed_over, copied_over]


def touch(path: Path) -> None:
    os.utime(path)


def set_times(path: Path) -> None:
    os.utime(path, ns=(10**18, 10**18))


def chmod(path: Path) -> None:
    path.chmod(0o600 if path.stat().st_mode & 0o044 else 0o644)


def link_and_unlink(path: Path) -> None:
    os.link(path, path.with_suffix(".link"))
    path.with_suffix(".link").unlink()


def rename(path: Path) -> None:
    path.rename(path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


@pytest.fixture(params=["home", "memory"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on the file system of the temporary directory, and one in memory."""
    if request.param == "home":
        yield tmp_path
        return
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def scan(cache: Path) -> Iterator[Callable[..., int]]:
    """Make five files and begin; each call scans, and says how many bytes have been counted so far."""
    for n in range(5):
        wb(cache / f"shard{n}.bin")
    scanner = DirectoryScanner()
    scanner.request("begin", roots=[str(cache)], ignore=[])
    time.sleep(0.02)  # more than a tick of a file system's clock

    def once(full: bool = True) -> int:
        answer = scanner.request("scan") if full else scanner.request("scan", full=False, budget_s=10.0)
        return answer["growth"]["bytes_written"]

    yield once
    scanner.close()


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("full", [True, False])
def test_a_file_that_is_overwritten_at_its_size_counts_once(cache, scan, write, full):
    if write is mapped and cache.is_relative_to("/dev/shm"):
        pytest.skip("a write to a mapping of a file in memory moves no time")
    for n in range(3):
        write(cache / f"shard{n}.bin")
        assert scan(full) == (n + 1) * SIZE
    time.sleep(0.02)
    for n in range(3):
        write(cache / f"shard{n}.bin")
    assert scan() == 3 * SIZE


@pytest.mark.parametrize("change", [touch, set_times, chmod, link_and_unlink, rename])
def test_a_file_that_is_not_written_does_not_count(cache, scan, change):
    for _ in range(3):
        for path in sorted(cache.iterdir()):
            change(path)
        assert scan() == 0
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", [2**33, 2**62, -1, -62_167_219_201])
def test_any_date_that_a_file_system_can_hold_is_scanned_and_listed(cache, scan, seconds):
    os.utime(cache / "shard0.bin", (seconds, seconds))
    (cache / "deep").mkdir()
    wb(cache / "deep/new")
    for path in (cache / "deep/new", cache / "deep", cache):
        os.utime(path, (seconds, seconds))
    assert scan() == SIZE
    wb(cache / "deep/newer")
    os.utime(cache / "deep", (seconds + 1, seconds + 1))
    assert scan(full=False) == 2 * SIZE
    assert scan() == 2 * SIZE


@pytest.mark.parametrize("full", mostly_apart([True, False], [False]))
def test_files_that_are_renamed_all_the_time_count_nothing(cache, scan, full):
    done = threading.Event()
    for n in range(10):
        (cache / str(n)).mkdir()

    def storm():
        paths = list(cache.glob("shard*"))
        for n in itertools.count():
            if done.is_set():
                return
            which = n % len(paths)
            paths[which] = paths[which].rename(cache / str(n * 7 % 10) / f"{which}.{n}")

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        assert {scan(full or n % 10 == 0) for n in range(60)} == {0}
        (cache / "new").write_bytes(b"x" * SIZE)
        assert scan() == SIZE
    finally:
        done.set()
        thread.join()
    assert scan() == SIZE
