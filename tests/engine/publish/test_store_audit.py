"""An audit: a cache that is generated again, apart, against the build that was published."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.errors import NotEnoughSpace, StoreError
from prefect_cachewatch.publish import audit
from prefect_cachewatch.publish.audit import chance_to_miss, judge
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe

FILES = {f"{n}.bin": f"weights {n}" for n in range(12)}


def fill(path, files):
    for name, text in files.items():
        Path(path, name).write_text(text)


@pytest.fixture
def store(tmp_path):
    store = CacheStore(tmp_path)
    policy = PublishPolicy(store=tmp_path, ignore=["*.log"])
    with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
        fill(build.path, {**FILES, "stamp": "0", "run.log": "x"})
        build.publish(policy, findings=build.check(policy))
    store.activate("c")
    return store


def generator(**changed):
    """Writes the same files, but for these; a callable is asked how many generations came before."""
    made = []

    def generate(path):
        fill(path, {**FILES, "stamp": f"{len(made) + 1}", "run.log": f"{len(made)}"})
        for name, text in changed.items():
            Path(path, name.replace("_", ".")).unlink(missing_ok=True)
            if text is not None:
                Path(path, name.replace("_", ".")).write_text(text)
        made.append(path)

    generate.made = made
    return generate


def test_an_equal_build_stays_in_order_and_what_is_not_deterministic_is_learned(store):
    generate = generator()
    found = store.audit("c", generate=generate)
    assert (found.verdict, found.unstable, found.different) == ("equal", ("stamp",), ())
    assert len(generate.made) == 2 and not any(map(os.path.exists, generate.made))
    assert "but for stamp, which each generation writes differently" in found.summary()
    assert [build.status for build in store.list_builds("c")] == [None]
    again = store.audit("c", generate=generate)
    assert len(generate.made) == 3, "it is known now"
    assert (again.verdict, again.unstable) == ("equal", ("stamp",))


@pytest.mark.parametrize(
    ("change", "path"), [({"3_bin": "other"}, "3.bin"), ({"3_bin": None}, "3.bin"), ({"new_bin": "x"}, "new.bin")]
)
def test_a_build_that_two_generations_contradict_is_doubtful(store, change, path):
    found = store.audit("c", generate=generator(**change))
    assert (found.verdict, found.different) == ("different", (path,))
    [build] = store.list_builds("c")
    assert build.status == "doubtful" and path in build.why
    assert store.verify("c").whole, "its digests are right all the same"
    assert not [name for name in os.listdir(store.root) if name.startswith(audit.SCRATCH_PREFIX)]


def test_a_sample_compares_few_contents_and_every_name_and_size(store):
    found = store.audit("c", generate=generator(), sample=4)
    assert (found.compared, found.files) == (4, 13)
    assert found.missed[1] == pytest.approx(9 / 13)
    assert "4 of 13 files were compared: had 1 or 2 been wrong" in found.summary()
    assert store.audit("c", generate=generator(**{"3_bin": "another size"}), sample=1).different == ("3.bin",)


def test_a_generation_that_fails_leaves_nothing_behind_and_says_nothing_of_the_build(store, tmp_path):
    def fails(path):
        fill(path, FILES)
        raise StoreError("it failed")

    (tmp_path / "apart").mkdir()
    with pytest.raises(StoreError, match="it failed"):
        store.audit("c", generate=fails, scratch=str(tmp_path / "apart"))
    assert not list((tmp_path / "apart").iterdir())
    assert [build.status for build in store.list_builds("c")] == [None]
    with pytest.raises(StoreError, match=r"cannot make a directory in .*/none"):
        store.audit("c", generate=fails, scratch=str(tmp_path / "none"))


def test_a_scratch_without_room_is_refused_before_the_generation(store, monkeypatch):
    monkeypatch.setattr(audit, "_SPACE_FACTOR", 1e16)
    with pytest.raises(NotEnoughSpace, match=r"1\.1 times the build"):
        store.audit("c", generate=lambda path: pytest.fail("it must not run"))


def test_a_result_that_cannot_be_recorded_is_told_all_the_same(store, monkeypatch):
    def full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(audit, "doubt_build", full)
    found = store.audit("c", generate=generator(**{"3_bin": "other"}))
    assert (found.verdict, found.different, found.problems) == ("different", ("3.bin",), ("the disk is full",))
    assert "noted" not in found.summary()


SIGNATURES = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 1), st.sampled_from("xy")))


@given(SIGNATURES, SIGNATURES, SIGNATURES)
def test_a_file_is_different_only_if_two_generations_agree_on_it(build, first, second):
    found = judge(build, first, second)
    for path in {*build, *first, *second}:
        agree = first.get(path) == second.get(path)
        assert (path in found.different) == (agree and build.get(path) != first.get(path))
        assert path not in found.unstable or not agree


@pytest.mark.parametrize("files", [1, 7, 30])
def test_the_chance_to_miss_is_that_of_a_count(files):
    assert chance_to_miss(files, 0, 1) == 1 and chance_to_miss(files, files, 1) == 0
    assert chance_to_miss(files, 1, 1) == pytest.approx(1 - 1 / files)


def test_what_no_build_may_have_is_a_difference_and_what_cannot_be_read_is_no_result(store):
    plain = generator(stamp=None)

    def with_pipe_and_loop(path):
        plain(path)
        os.mkfifo(f"{path}/pipe")
        os.symlink("loop", f"{path}/loop")

    found = store.audit("c", generate=with_pipe_and_loop)
    assert (found.verdict, set(found.different)) == ("different", {"loop", "pipe", "stamp"})

    def too_deep(path):
        plain(path)
        here = os.getcwd()
        try:
            os.chdir(path)
            for _ in range(1200):  # deeper than Python may recurse
                os.mkdir("d")
                os.chdir("d")
        finally:
            os.chdir(here)

    with pytest.raises(
        StoreError, match=r"cannot be read \(nested more than 200 directories deep\): the build could not be"
    ):
        store.audit("c", generate=too_deep)
    assert not [name for name in os.listdir(store.root) if name.startswith(audit.SCRATCH_PREFIX)]
