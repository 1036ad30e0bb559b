"""What fails for a moment is no fault of a build, and costs no record and no lock."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.builds import NAME, Recipe, offer

from prefect_cachewatch import CacheStore, PublishPolicy
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store import locks, records
from prefect_cachewatch.store.layout import open_build, open_folder
from prefect_cachewatch.store.tree import scan_build


def fails_once(
    monkeypatch: pytest.MonkeyPatch, where: Any, function: str, number: int, when: Any = lambda *_: True
) -> None:
    """Let the first call that `when` says fail with an error of the system."""
    real, left = getattr(where, function), [number]

    def call(*arguments: Any, **options: Any) -> Any:
        if left and when(*arguments):
            raise OSError(left.pop(), os.strerror(number))
        return real(*arguments, **options)

    monkeypatch.setattr(where, function, call)


def test_a_directory_that_fails_for_a_moment_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = offer(tmp_path)
    with monkeypatch.context() as patch:
        fails_once(patch, os, "open", errno.EMFILE, lambda path, *_: path == "d")
        with (
            open_folder(tmp_path, NAME) as folder,
            open_build(folder, build.build_id) as fd,
            pytest.raises(StoreError, match=r"cannot read d of the build: it could not be opened a moment ago"),
        ):
            scan_build(fd)
    with monkeypatch.context() as patch:
        fails_once(patch, os, "open", errno.EMFILE, lambda path, *_: path == "d")
        with pytest.raises(StoreError):
            CacheStore(tmp_path).verify(NAME)
    assert list(tmp_path.rglob("*.bad")) == [] and CacheStore(tmp_path).active_id(NAME) == build.build_id


def test_a_record_that_does_not_fit_any_more_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CacheStore(tmp_path).begin(NAME, Recipe()) as build:  # type: ignore[arg-type]
        fails_once(monkeypatch, os, "posix_fallocate", errno.ENOSPC)
        with open_folder(tmp_path, NAME) as folder:
            before = records.read_begun(folder, build.build_id)
            with pytest.raises(OSError, match="No space"):
                records.change_begun(build.build_id + ".begun", folder.builds_fd, {"reported": ["x" * 4000]})
            assert before is not None and records.read_begun(folder, build.build_id) == before


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (20, True), (3500, True), (3700, False)])
def test_where_no_file_can_be_made_a_beat_of_the_last_hour_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, fresh: bool
) -> None:
    offer(tmp_path)
    fails_once(monkeypatch, records, "make_stamp", errno.ENOSPC)
    with open_folder(tmp_path, NAME) as folder:
        assert records.is_fresh(folder, time.time_ns() - age_s * 10**9) is fresh


def test_a_lock_that_cannot_be_kept_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path)
    with monkeypatch.context() as patch:
        fails_once(patch, locks, "park", errno.EMFILE)
        with pytest.raises(StoreError, match="Too many open files"):
            CacheStore(tmp_path).begin(NAME, Recipe())  # type: ignore[arg-type]
    offer(tmp_path, key="2")


def test_a_check_that_cannot_read_the_store_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CacheStore(tmp_path).begin(NAME, Recipe()) as build:  # type: ignore[arg-type]
        monkeypatch.setattr("prefect_cachewatch.store.writer.list_builds", lambda folder: _fail())
        with pytest.raises(StoreError, match=r"cannot check .*: Input/output error"):
            build.check(PublishPolicy(store=tmp_path))


def _fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_reserved_room_that_holds_nothing_is_still_to_be_written(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    size = 2 * free.f_bavail * free.f_frsize
    recipe = Recipe()
    with CacheStore(tmp_path).begin(NAME, recipe) as build, open(Path(build.path) / "reserved.bin", "wb") as file:  # type: ignore[arg-type]
        file.truncate(size)
    with pytest.raises(StoreError, match="are needed"):
        CacheStore(tmp_path).require_space(NAME, expected_bytes=size, resumes=recipe.key)
