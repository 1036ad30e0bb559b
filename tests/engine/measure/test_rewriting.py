"""What became of the files that were there at the start, measured on real files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefect_cachewatch.measure.growth import Rewriting
from prefect_cachewatch.measure.scanner import DirectoryScanner

SIZE = 10_000


def write(path: Path, size: int = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def replace(path: Path, size: int = SIZE) -> None:
    write(path.with_suffix(".tmp"), size)
    path.with_suffix(".tmp").replace(path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for number in range(4):
        write(tmp_path / f"cache/d{number}/a.bin")
        os.utime(tmp_path / f"cache/d{number}/a.bin", (1, 1))
    return tmp_path / "cache"


@pytest.fixture
def after(cache: Path) -> Iterator[Callable[..., Rewriting]]:
    scanner = DirectoryScanner()

    def ask(*leave_out: Path) -> Rewriting:
        scanner.request("scan")
        return Rewriting(**scanner.request("rewriting", leave_out=list(map(str, leave_out))))

    scanner.request("begin", roots=[str(cache)], ignore=[])
    yield ask
    scanner.close()


@pytest.mark.parametrize("how", [write, replace])
def test_files_are_rewritten_in_place_or_by_a_rename(
    cache: Path, after: Callable[..., Rewriting], how: Callable[..., None]
) -> None:
    how(cache / "d0/a.bin")
    how(cache / "d1/a.bin", 3 * SIZE)
    assert after() == (4, 4 * SIZE, 2 * SIZE)


def test_a_directory_that_is_built_apart_and_swapped_in_is_rewritten(
    cache: Path, after: Callable[..., Rewriting], tmp_path: Path
) -> None:
    write(tmp_path / "new/a.bin")
    (cache / "d0").rename(tmp_path / "old")
    (tmp_path / "new").rename(cache / "d0")
    assert after() == (4, 4 * SIZE, SIZE)


def test_new_touched_renamed_and_chmodded_files_are_none(cache: Path, after: Callable[..., Rewriting]) -> None:
    write(cache / "d0/b.bin", 5)
    write(cache / "e/f/a.bin", 7)
    (cache / "d0/a.bin").touch()
    (cache / "d1/a.bin").chmod(0o600)
    (cache / "d2/a.bin").rename(cache / "d2/b.bin")
    (cache / "d3").rename(cache / "e3")
    assert after() == (4, 4 * SIZE, 0)


def test_a_directory_that_is_left_out_counts_in_no_figure_but_the_scans(
    cache: Path, after: Callable[..., Rewriting]
) -> None:
    for number in range(4):
        write(cache / f"d{number}/a.bin", 5)
    assert after(cache / "d0", cache / "d1") == (4, 2 * SIZE, 2 * SIZE)
