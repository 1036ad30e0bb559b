"""A directory that is generated in place may hold files of others: nothing removes them, and what runs made is known."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.support import PATIENCE_S

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.publish.in_place import begin_in_place, find_whole_in_place
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.target import BuildRecipe

POLICY = PublishPolicy(mode="in_place")
RECIPE = BuildRecipe.of(["gen"], POLICY)
OTHER = BuildRecipe.of(["gen"], PublishPolicy(mode="in_place", cache_key={"dtype": "bf8"}))


def names(path):
    return sorted(p.name for p in Path(path).rglob("*") if p.is_file() and ".cachewatch" not in p.parts)


def put_own_files(path):
    for name in ("1.txt", "2.txt", "3.txt", "NOTES.md"):
        (path / name).write_text(name)
    (path / "empty").touch()
    (path / "x.tmp").write_text("mine")
    (path / "sub").mkdir()
    (path / "sub/f").write_text("mine")
    return names(path)


def test_the_users_own_files_are_neither_adopted_nor_removed_and_do_not_stand_in_the_way(tmp_path):
    own = put_own_files(tmp_path)
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert not build.adopted
        assert build.notes[0].startswith("7 files are not known to be made by a run, and stay: ")
        assert build.prepare_resume(POLICY, window_s=3600) == []
        build.clean()
        assert names(tmp_path) == own
        (tmp_path / "a.bin").write_text("abc")
        findings = build.check(POLICY)
        assert [(f.category, f.severity) for f in findings] == [("temporary_file", "warn"), ("empty_file", "warn")]
        build.publish(POLICY, findings=findings)
    assert find_whole_in_place(tmp_path, RECIPE.key)
    for fresh, recipe in ((False, OTHER), (True, RECIPE), (False, OTHER)):
        with begin_in_place(tmp_path, "c", recipe, fresh=fresh) as build:
            build.clean()
            assert names(tmp_path) == own


def test_another_key_removes_what_runs_made_and_says_so(tmp_path):
    (tmp_path / "NOTES.md").write_text("mine")
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/a.bin").write_text("abc")
        (tmp_path / "link").symlink_to("d/a.bin")
        build.publish(POLICY, findings=build.check(POLICY))
    (tmp_path / "LATER.md").write_text("mine, after the run")
    with begin_in_place(tmp_path, "c", OTHER) as build:
        assert build.notes[0].startswith("removed 2 files (")
        assert "NOTES.md" in build.notes[1]
        assert names(tmp_path) == ["LATER.md", "NOTES.md"]
        assert not build.adopted


def test_a_made_file_that_was_replaced_by_hand_stays(tmp_path):
    with begin_in_place(tmp_path, "c", RECIPE):
        (tmp_path / "a.bin").write_text("abc")
        (tmp_path / "b.bin").write_text("abc")
    (tmp_path / "mine").write_text("by hand")
    os.replace(tmp_path / "mine", tmp_path / "a.bin")
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert build.adopted
        build.clean()
        assert (tmp_path / "a.bin").read_text() == "by hand"
        assert names(tmp_path) == ["a.bin"]


def test_a_record_that_was_copied_with_its_directory_names_nobodys_files(tmp_path):
    (tmp_path / "c").mkdir()
    with begin_in_place(tmp_path / "c", "c", RECIPE):
        (tmp_path / "c/a.bin").write_text("abc")
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    with begin_in_place(tmp_path / "d", "c", OTHER) as build:
        build.clean()
        assert names(tmp_path / "d") == ["a.bin"]
    (tmp_path / "c/.cachewatch/created").write_text('{"inode": 1, "born_ns": "x"}\n[]\n["a", 0, "b", null, 1]\nhalf')
    with begin_in_place(tmp_path / "c", "c", OTHER):
        assert names(tmp_path / "c") == ["a.bin"]


def test_what_others_move_or_link_there_during_the_run_is_not_the_runs(tmp_path):
    old, cache = tmp_path / "old", tmp_path / "c"
    old.mkdir()
    cache.mkdir()
    for name in ("moved", "linked"):
        (old / name).write_text("precious")
    with begin_in_place(cache, "c", RECIPE) as build:
        (old / "moved").rename(cache / "moved")
        (cache / "linked").hardlink_to(old / "linked")
        (cache / "a.bin").write_text("abc")
        build.clean()
        assert names(cache) == ["linked", "moved"]


def test_a_made_file_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    with begin_in_place(tmp_path, "c", RECIPE):
        (tmp_path / "a.bin").write_text("abc")

    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    with begin_in_place(tmp_path, "c", RECIPE) as build:
        monkeypatch.setattr(os, "unlink", refuse)
        with pytest.raises(StoreError, match=r"cannot remove .*/a\.bin: Operation not permitted"):
            build.clean()
        monkeypatch.undo()


def test_what_a_killed_run_made_is_recorded_while_it_makes_it(tmp_path):
    """The watch's process writes it down at each scan; nothing is said at the end, since there is none."""
    (tmp_path / "NOTES.md").write_text("mine")
    build = begin_in_place(tmp_path, "c", RECIPE)
    build.watched = True
    scanner = DirectoryScanner()
    try:
        scanner.request("begin", PATIENCE_S, roots=[str(tmp_path)], ignore=["/.cachewatch/*"])
        assert scanner.request("remember", PATIENCE_S, record=True)["refused"] is None
        for number in range(3):
            (tmp_path / f"{number}.bin").write_bytes(b"x" * 5000)
            scanner.request("scan", PATIENCE_S)
        (tmp_path / "2.bin").rename(tmp_path / "2.final")
        scanner.request("scan", PATIENCE_S, full=False, budget_s=9.0)
    finally:
        scanner.close()  # by SIGKILL
    build.close()
    (tmp_path / "later.md").write_text("mine, when the run had ended")
    lines = (tmp_path / ".cachewatch/created").read_text().splitlines()[1:]
    assert [json.loads(line)[0] for line in lines] == ["0.bin", "1.bin", "2.bin"]
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert build.adopted
        build.clean()
        assert names(tmp_path) == ["NOTES.md", "later.md"]


def kill(build):
    """End a build as SIGKILL does: nothing is noted, only the locks go."""
    build._lock.release()
    build._resources.close()
    build.creation.close()


def begin_killed(path):
    build = begin_in_place(path, "c", RECIPE, grace_s=0)
    build.note_growth()
    return build


def refusal(path, policy=POLICY, recipe=RECIPE):
    with begin_in_place(path, "c", recipe) as build:
        try:
            build.require_certain(policy, window_s=3600)
        except StoreError as error:
            return error.message
    return None


def test_what_a_killed_run_made_and_is_in_no_record_is_neither_removed_nor_published(tmp_path):
    (tmp_path / "NOTES.md").write_text("mine, before")
    kill(build := begin_killed(tmp_path))
    (tmp_path / "cut.bin").write_text("ha")
    os.utime(tmp_path / "cut.bin", (1e9, 1e9))
    for _ in range(2):  # as often as it is tried
        said = refusal(tmp_path)
        assert f"{tmp_path}/cut.bin was written while a generation ran that did not finish" in said
        assert "NOTES.md" not in said and "--accept" in said
    assert "cut.bin" in refusal(tmp_path, recipe=OTHER)  # with another key it is no more whole
    accepting = PublishPolicy(mode="in_place", accept=["cut.bin"])
    assert build.begun.until_ns is None
    assert refusal(tmp_path, accepting) is None
    assert refusal(tmp_path) is None
    assert names(tmp_path) == ["NOTES.md", "cut.bin"]


def test_a_file_that_was_there_before_and_that_a_killed_run_wrote_to_is_not_published(tmp_path):
    for name in ("old.bin", "untouched.bin"):
        (tmp_path / name).write_text("whole")
    kill(begin_killed(tmp_path))
    (tmp_path / "old.bin").write_text("cu")
    os.utime(tmp_path / "old.bin", (1e9, 1e9))
    said = refusal(tmp_path)
    assert "/old.bin was written" in said and "untouched" not in said
    (tmp_path / "old.bin").unlink()
    assert refusal(tmp_path) is None


def test_what_is_put_there_when_a_killed_run_is_long_gone_is_the_users(tmp_path):
    kill(begin_killed(tmp_path))
    begun = tmp_path / ".cachewatch/begun.json"
    found = json.loads(begun.read_text())
    found["until_ns"] = found["since_ns"] + 10**6
    time.sleep(0.05)
    begun.write_text(json.dumps(found))
    (tmp_path / "LATER.md").write_text("mine")
    assert refusal(tmp_path) is None


def test_a_killed_run_that_was_copied_shows_no_file_to_be_whole(tmp_path):
    (tmp_path / "c").mkdir()
    build = begin_killed(tmp_path / "c")
    (tmp_path / "c/a.bin").write_text("ha")
    kill(build)
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    assert "/d/a.bin was written" in refusal(tmp_path / "d")


def test_a_retry_in_place_is_refused_beside_a_strangers_file_that_may_be_cut(tmp_path):
    (tmp_path / "old.bin").write_text("whole")
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        build.note_growth()
        (tmp_path / "old.bin").write_text("cu")
        (tmp_path / "own.bin").write_text("cu")
        with pytest.raises(StoreError, match=r"/old\.bin was written"):
            build.require_certain(POLICY, window_s=3600)
        build.require_certain(PublishPolicy(mode="in_place", accept=["old*"]), window_s=3600)
