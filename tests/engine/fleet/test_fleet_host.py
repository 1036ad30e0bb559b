"""What an earlier run of a fleet has completed counts only while it still lies there."""

import contextlib

import pytest

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.fleet.host import missing_caches
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.run.history import PastRun, add_run, place_of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # what runs aside has the environment of its start
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("CACHEWATCH_STATE", raising=False)
        yield from _files()


def _files():
    with contextlib.closing(Aside.spawn()) as files:
        yield files


def job(path, **more):
    return FleetJob(name="c", command=["gen"], cache_dirs=[str(path)], **more)


def test_a_cache_that_was_removed_emptied_or_cut_is_missing(tmp_path, files):
    cache = tmp_path / "cache"
    assert missing_caches([job(cache)], files, elsewhere=False) == {"c": f"{cache} is not there"}
    cache.mkdir()
    assert missing_caches([job(cache)], files, elsewhere=False) == {"c": f"{cache} is empty"}
    (cache / "run.log").write_text("ignored")
    assert missing_caches([job(cache)], files, elsewhere=False) == {"c": f"{cache} is empty"}
    (cache / "a.bin").write_bytes(b"x" * 900)
    assert missing_caches([job(cache)], files, elsewhere=False) == {}
    add_run("c", PastRun("", "completed", 1.0, 1000, 1000, place=place_of([str(cache)])))
    assert missing_caches([job(cache)], files, elsewhere=False) == {"c": "it has 900 B of the 1000 B that its run left"}


def test_a_directory_of_another_host_is_not_judged_from_here(tmp_path, files):
    assert missing_caches([job("/nowhere/at/all")], files, elsewhere=True) == {}
    assert "c" in missing_caches([job(tmp_path / "cache")], files, elsewhere=True), "its storage is seen from here"


def test_an_empty_directory_is_there_where_it_may_be_empty_and_a_volume_is_not_seen(tmp_path, files):
    assert missing_caches([job(tmp_path, allow_empty=True)], files, elsewhere=False) == {}
    container = {"image": "x", "mounts": [{"source": "caches", "target": "/mnt"}]}
    assert missing_caches([job("volume:caches/llama", container=container)], files, elsewhere=False) == {}


def test_a_store_that_is_not_seen_from_here_is_not_judged(tmp_path, files):
    done = FleetJob(name="c", command=["gen", "{cache_dir}"], publish={"store": str(tmp_path / "elsewhere")})
    assert missing_caches([done], files, elsewhere=True) == {}
    assert "does not exist" in missing_caches([done], files, elsewhere=False)["c"]
