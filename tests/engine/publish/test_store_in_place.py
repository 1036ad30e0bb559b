"""Caches generated in place: the marker is there only while the cache is whole."""

import os
import time
from pathlib import Path

import pytest

from prefect_cachewatch.errors import BuildDamaged, StoreBusy
from prefect_cachewatch.measure.growth_mark import GrowthMark
from prefect_cachewatch.publish.in_place import begin_in_place, find_whole_in_place, verify_in_place
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.target import BuildRecipe

POLICY = PublishPolicy(mode="in_place")
RECIPE = BuildRecipe.of(["gen"], POLICY)


def generate(path, recipe=RECIPE, text="abc"):
    with begin_in_place(path, "c", recipe) as build:
        Path(path, "a.bin").write_text(text)
        build.publish(POLICY, findings=build.check(POLICY))
    return build


def test_the_marker_is_gone_before_the_first_byte_and_back_last(tmp_path):
    generate(tmp_path)
    marker = tmp_path / ".cachewatch/whole"
    assert marker.exists()
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert not marker.exists()
        with pytest.raises(BuildDamaged, match="has no marker that it is whole"):
            verify_in_place(tmp_path)
        assert find_whole_in_place(tmp_path, RECIPE.key) is None
        (tmp_path / "b.bin").write_text("b")
        build.publish(POLICY, findings=build.check(POLICY))
    assert marker.exists()
    manifest, verdict = verify_in_place(tmp_path)
    assert verdict.whole and [entry.path for entry in manifest.files] == ["a.bin", "b.bin"]
    assert manifest.mode == "in_place"


def test_a_whole_cache_is_found_by_its_key_and_by_nothing_else(tmp_path):
    generate(tmp_path)
    assert find_whole_in_place(tmp_path, RECIPE.key).total_bytes == 3
    assert find_whole_in_place(tmp_path, "0" * 64) is None
    assert find_whole_in_place(tmp_path / "nowhere", RECIPE.key) is None
    (tmp_path / "a.bin").write_text("ab")
    assert find_whole_in_place(tmp_path, RECIPE.key) is None


def test_a_marker_of_another_manifest_does_not_count(tmp_path):
    generate(tmp_path)
    old = (tmp_path / ".cachewatch/manifest.json").read_bytes()
    generate(tmp_path, text="longer")
    (tmp_path / ".cachewatch/manifest.json").write_bytes(old)
    with pytest.raises(BuildDamaged, match="belongs to another manifest"):
        verify_in_place(tmp_path)


def test_files_of_an_unfinished_generation_are_adopted_and_the_suspects_removed(tmp_path):
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert not build.adopted
        build.note_growth()
        watch = GrowthMark(build.growth_mark, build.path)
        for number, (name, date) in enumerate([("whole.bin", 2e9), ("cut.bin", 1e9)]):
            (tmp_path / name).write_text(name)
            os.utime(tmp_path / name, (date, date))
            time.sleep(0.05)
            watch.begin_scan()
            watch.end_scan(number, True)
        watch.close()
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        assert build.adopted
        build.prepare_resume(POLICY, window_s=0)
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["whole.bin"]


def test_another_key_removes_what_the_last_manifest_lists_and_leaves_the_rest(tmp_path):
    (tmp_path / "theirs").write_text("not ours")
    os.utime(tmp_path / "theirs", (1e9, 1e9))
    policy = PublishPolicy(mode="in_place", ignore=["theirs"])
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        (tmp_path / "a.bin").write_text("abc")
        build.publish(policy, findings=build.check(policy))
    other = BuildRecipe.of(["gen"], PublishPolicy(mode="in_place", cache_key={"dtype": "bf8"}))
    with begin_in_place(tmp_path, "c", other):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".cachewatch", "theirs"]


def test_a_refused_cache_stays_in_its_place_without_the_marker(tmp_path):
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        (tmp_path / "a.tmp").write_text("half")
        assert build.quarantine(build.check(POLICY), "refused") == str(tmp_path)
    assert (tmp_path / ".cachewatch/quarantine.json").exists()
    assert (tmp_path / "a.tmp").exists()
    assert find_whole_in_place(tmp_path, RECIPE.key) is None


def test_a_publication_that_was_broken_off_before_its_marker_is_no_measure_for_the_next(tmp_path):
    strict = POLICY.model_copy(update={"on_size_change": "refuse"})

    def refused(text):
        with begin_in_place(tmp_path, "c", RECIPE) as build:
            Path(tmp_path, "a.bin").write_text(text)
            return [finding.category for finding in build.check(strict)]

    generate(tmp_path, text="x" * 100)
    assert refused("x" * 1000) == ["size_out_of_band"]
    assert refused("x" * 1000) == ["size_out_of_band"]  # the last whole one is the measure, though one failed since
    generate(tmp_path, text="x" * 100)
    os.unlink(tmp_path / ".cachewatch/whole")  # as where the disk was full between the manifest and the marker
    assert refused("x" * 1000) == []
    assert refused("x" * 1000) == []  # nor for the one after the next
    generate(tmp_path, text="x" * 1000)
    assert refused("x" * 100) == ["size_out_of_band"]


def test_two_generations_at_once_are_refused(tmp_path):
    with begin_in_place(tmp_path, "c", RECIPE), pytest.raises(StoreBusy, match="cannot generate into"):
        begin_in_place(tmp_path, "c", RECIPE)


def test_clean_removes_what_attempts_wrote(tmp_path):
    with begin_in_place(tmp_path, "c", RECIPE) as build:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/x").write_text("x")
        build.clean()
        assert [path for path in tmp_path.rglob("*") if path.is_file() and ".cachewatch" not in path.parts] == []
