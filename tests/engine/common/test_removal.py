"""What removes files goes by who a file is, through no link, however deep; mounts are in tests/faults."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import unavailable

from prefect_cachewatch.common.removal import (
    OPEN_DIRECTORY,
    Entry,
    empty_directory,
    look,
    open_below,
    remove_entry,
    remove_judged,
    remove_tree,
    walk,
)
from prefect_cachewatch.measure.creation import Creation


@pytest.fixture
def top(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, OPEN_DIRECTORY)
    yield fd
    os.close(fd)


def names(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


def test_a_file_that_was_replaced_stays(top: int, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    entry = look(top, "f")
    (tmp_path / "g").write_text("somebody else's")
    os.replace(tmp_path / "g", tmp_path / "f")
    assert not remove_entry(top, "f", entry)
    assert (tmp_path / "f").read_text() == "somebody else's"
    assert remove_entry(top, "f", look(top, "f"))
    assert not remove_entry(top, "f", entry)


def test_without_a_birth_time_a_file_that_changed_is_another_one() -> None:
    entry = Entry(1, 2, 3, 0o100644, 0, 1, 5, 8, None, 10, 10)
    assert entry.is_same(entry)
    assert not entry.is_same(entry._replace(changed_ns=11))
    assert entry._replace(born_ns=4).is_same(entry._replace(born_ns=4, changed_ns=11))
    assert not entry._replace(born_ns=4).is_same(entry._replace(born_ns=5))
    directory = entry._replace(mode=0o040755)
    assert directory.is_same(directory._replace(changed_ns=11))


def test_a_tree_of_ours_goes_whole_and_nothing_behind_its_links(top: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/d").mkdir(parents=True)
    (tmp_path / "elsewhere/precious").write_text("x")
    ours = tmp_path / "ours"
    (ours / "a/b").mkdir(parents=True)
    (ours / "a/f").write_bytes(b"x" * 5000)
    (ours / "to-file").symlink_to("../elsewhere/precious")
    (ours / "to-directory").symlink_to("../elsewhere/d")
    os.mkfifo(ours / "fifo")
    done = remove_tree(top, "ours")
    assert (done.files, done.others, done.directories, done.problems) == (1, 3, 3, [])
    assert done.freed_bytes >= 5000
    assert names(tmp_path) == ["elsewhere", "elsewhere/d", "elsewhere/precious"]
    assert remove_tree(top, "ours").problems == []


def test_a_link_in_a_trees_place_is_removed_and_not_followed(top: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/precious").write_text("x")
    (tmp_path / "ours").symlink_to("elsewhere")
    assert remove_tree(top, "ours").others == 1
    assert names(tmp_path) == ["elsewhere", "elsewhere/precious"]


def test_a_tree_that_is_not_the_one_meant_stays(top: int, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    entry = look(top, "ours")
    (tmp_path / "ours").rename(tmp_path / "away")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/theirs").write_text("x")
    assert remove_tree(top, "ours", entry).problems == ["ours: another one stands in its place"]
    assert (tmp_path / "ours/theirs").exists()


def test_a_judge_decides_and_directories_go_only_when_they_are_empty(top: int, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("a/mine", "a/b/mine", "a/b/theirs", "mine"):
        (tmp_path / name).write_text("x")
    (tmp_path / "c").mkdir()
    done = remove_judged(top, lambda path, name, entry: entry.is_directory or name == "mine")
    assert (done.files, done.directories, done.kept, done.kept_paths) == (3, 1, 1, ["a/b/theirs"])
    assert names(tmp_path) == ["a", "a/b", "a/b/theirs"]


def test_what_cannot_be_removed_is_named(top: int, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("x")

    def judge(path: str, name: str, entry: Entry) -> bool:
        if name == "f":  # gone, and a directory in its place, between the look and the removal
            (tmp_path / "d/f").unlink()
            (tmp_path / "d/f").mkdir()
        return True

    done = remove_judged(top, judge)
    assert (done.kept_paths, done.files, done.directories) == (["d/f"], 0, 0)
    assert names(tmp_path) == ["d", "d/f"]


def test_a_path_longer_than_any_call_takes_is_walked_and_removed(top: int, tmp_path: Path) -> None:
    fd, depth = os.open(tmp_path, OPEN_DIRECTORY), 1300
    for _ in range(depth):
        os.mkdir("directory", dir_fd=fd)
        below = os.open("directory", OPEN_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    assert sum(1 for _ in walk(top)) == depth + 1
    done = empty_directory(top)
    assert (done.files, done.directories, done.problems) == (1, depth, [])


def test_a_directory_that_is_moved_out_of_a_deep_walk_ends_it(top: int, tmp_path: Path) -> None:
    deep = tmp_path / "ours" / "/".join(["d"] * 100)
    deep.mkdir(parents=True)
    away = tmp_path / "away"
    away.mkdir()
    unread: list[str] = []
    seen = 0
    for _fd, path, _ in walk(top, unread.append):
        if path.startswith("ours/") and seen == 0:
            (tmp_path / "ours/d/d").rename(away / "d")
        seen += path.startswith("ours/")
    assert unread and seen < 102


def test_a_way_down_takes_no_link(top: int, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    fd = open_below(top, "a/b")
    assert os.fstat(fd).st_ino == (tmp_path / "a/b").stat().st_ino
    os.close(fd)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        open_below(top, "link/b")
    with pytest.raises(OSError, match="cross-device"):
        open_below(top, "a/..")


# What an attempt made: where no birth time is kept, and what could not be seen at the start


def world(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    (tmp_path / "elsewhere").mkdir()
    (cache / "d").mkdir(parents=True)
    for path in (tmp_path / "elsewhere/moved", cache / "old", cache / "d/renamed", cache / "written"):
        path.write_text("precious")
        os.utime(path, (10**9, 10**9))
    return cache


def write_as_a_run(cache: Path) -> None:
    (cache / "made").write_text("x")
    (cache / "made.log").write_text("x")
    (cache / "new/deep").mkdir(parents=True)
    (cache / "new/deep/f").write_text("x")
    (cache.parent / "elsewhere/moved").rename(cache / "moved")
    (cache / "d/renamed").rename(cache / "d/under-another-name")
    (cache / "linked").hardlink_to(cache / "old")
    (cache / "written").write_text("by the run, into an old file")


@pytest.mark.parametrize("births", [True, False])
def test_with_and_without_birth_times_what_was_made_goes_and_the_rest_stays(tmp_path: Path, births: bool) -> None:
    cache = world(tmp_path)
    creation = Creation([str(cache)])
    creation.held[0].layered = not births
    creation.held[0].top = creation.held[0].known(creation.held[0].top)
    creation.remember()
    write_as_a_run(cache)
    creation.sight()
    (cache / "later").write_text("by somebody, after the attempt")
    done = creation.clean()
    creation.close()
    assert (done["removed"], done["failed"]) == (3, 0)
    assert names(cache) == ["d", "d/under-another-name", "later", "linked", "moved", "old", "written"]
    assert sorted(done["kept_paths"]) == [str(cache / "later"), str(cache / "moved")]


@pytest.mark.parametrize("births", [True, False])
def test_a_directory_that_could_not_be_listed_at_the_start_is_nobodys_of_the_run(births: bool) -> None:
    if os.geteuid() != 0:
        unavailable("needs root, to become somebody who may not read everything")
    base = Path(tempfile.mkdtemp(prefix="cachewatch-removal-"))
    os.chown(base, 65534, 65534)
    try:
        os.seteuid(65534)
        try:
            cache = base / "cache"
            (cache / "closed").mkdir(parents=True)
            (cache / "closed/old").write_text("precious")
            (cache / "closed").chmod(0)
            creation = Creation([str(cache)])
            creation.held[0].layered = not births
            creation.held[0].top = creation.held[0].known(creation.held[0].top)
            creation.remember()
            (cache / "closed").chmod(0o755)
            (cache / "closed/old").write_text("precious, and written to")
            (cache / "made").write_text("x")
            creation.sight()
            done = creation.clean()
            creation.close()
        finally:
            os.seteuid(0)
        assert names(cache) == (["closed", "closed/old"] if births else ["closed", "closed/old", "made"])
        assert done["kept"] == (1 if births else 2)
    finally:
        shutil.rmtree(base)
