"""What an earlier run of a fleet has completed counts only while it still lies there."""

import json
from dataclasses import asdict

from prefect_cachewatch.fleet.finished import missing_caches
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.runhistory import PastRun, history_path


def job(path, **more):
    return FleetJob(name="c", command=["gen"], cache_dirs=[str(path)], **more)


def test_a_cache_that_was_removed_emptied_or_cut_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cache = tmp_path / "cache"
    assert missing_caches([job(cache)], elsewhere=False) == {"c": f"{cache} is not there"}
    cache.mkdir()
    assert missing_caches([job(cache)], elsewhere=False) == {"c": f"{cache} is empty"}
    (cache / "run.log").write_text("ignored")
    assert missing_caches([job(cache)], elsewhere=False) == {"c": f"{cache} is empty"}
    (cache / "a.bin").write_bytes(b"x" * 900)
    assert missing_caches([job(cache)], elsewhere=False) == {}
    history = history_path("c", [str(cache)])
    history.parent.mkdir(parents=True, exist_ok=True)
    history.write_text(json.dumps(asdict(PastRun("", 1.0, 1000, 1000, None, 0.0))) + "\n")
    assert missing_caches([job(cache)], elsewhere=False) == {"c": "it has 900 B of the 1000 B that its run left"}


def test_a_directory_of_another_host_is_not_judged_from_here(tmp_path):
    assert missing_caches([job("/nowhere/at/all")], elsewhere=True) == {}
    assert "c" in missing_caches([job(tmp_path / "cache")], elsewhere=True), "its storage is seen from here"
