"""What an earlier run of a fleet has completed counts only while it still lies there."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.fleet.host import missing_caches
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.store import CacheStore
from prefect_cachewatch.publish.target import BuildRecipe
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


def test_many_caches_are_looked_at_side_by_side_and_this_process_stays_where_it_stands(tmp_path, monkeypatch, files):
    monkeypatch.chdir(tmp_path)
    jobs = []
    for number in range(40):
        for part in range(5):
            (tmp_path / f"cache{number}" / f"d{part}").mkdir(parents=True)
            (tmp_path / f"cache{number}" / f"d{part}" / "a.bin").write_bytes(b"x" * 100)
        jobs.append(job(tmp_path / f"cache{number}").model_copy(update={"name": f"c{number}"}))
    assert missing_caches(jobs, files, elsewhere=False) == {}
    assert os.getcwd() == str(tmp_path)


def test_a_directory_of_another_host_is_not_judged_from_here(tmp_path, files):
    assert missing_caches([job("/nowhere/at/all")], files, elsewhere=True) == {}
    assert "c" in missing_caches([job(tmp_path / "cache")], files, elsewhere=True), "its storage is seen from here"


def test_an_empty_directory_is_there_where_it_may_be_empty_and_a_volume_is_not_seen(tmp_path, files):
    assert missing_caches([job(tmp_path, allow_empty=True)], files, elsewhere=False) == {}
    container = {"image": "x", "mounts": [{"source": "caches", "target": "/mnt"}]}
    assert missing_caches([job("volume:caches/llama", container=container)], files, elsewhere=False) == {}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_published_cache_is_there_while_its_manifest_says_so(tmp_path, files, elsewhere):
    def missing(force=False):
        publish = {"store": str(tmp_path), "force": force}
        done = FleetJob(name="c", command=["gen", "{cache_dir}"], publish=publish)
        return missing_caches([done], files, elsewhere=elsewhere).get("c")

    assert missing() == "no whole build of it is current"
    store, policy = CacheStore(tmp_path), PublishPolicy(store=tmp_path)
    with store.begin("c", BuildRecipe.of(["gen", "{cache_dir}"], policy)) as build:
        Path(build.path, "a.bin").write_bytes(b"x")
        build.publish(policy, findings=build.check(policy))
    assert missing() == "no whole build of it is current"
    store.activate("c", build.build_id)
    assert missing() is None and missing(force=True) is None
    Path(build.path, "a.bin").unlink()
    assert missing() == "no whole build of it is current"


def test_a_store_that_is_not_seen_from_here_is_not_judged(tmp_path, files):
    done = FleetJob(name="c", command=["gen", "{cache_dir}"], publish={"store": str(tmp_path / "elsewhere")})
    assert missing_caches([done], files, elsewhere=True) == {}
    assert "does not exist" in missing_caches([done], files, elsewhere=False)["c"]


class OfNoUse:
    """The first look ends in the death of its process."""

    def __init__(self, files):
        self._files, self._looks = files, 0

    def run(self, function, *arguments, timeout_s):
        self._looks += 1
        if self._looks == 1:
            raise OSError(errno.EPIPE, "the process that was to do it has died")
        return self._files.run(function, *arguments, timeout_s=timeout_s)


def test_a_look_that_dies_costs_its_job_another_run_and_no_other_job(tmp_path, files):
    (tmp_path / "a.bin").write_bytes(b"x")
    jobs = [job(tmp_path, allow_empty=True, storage="nfs").model_copy(update={"name": name}) for name in ("c", "d")]
    why = "its directory did not answer within 60 s"
    assert missing_caches(jobs, OfNoUse(files), elsewhere=False) == {"c": why}
