"""Bundles on a real disk: private, complete or saying what is cut, pruned, and without secrets."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest

from prefect_cachewatch.postmortem.bundle import BundleContent, write_bundle
from prefect_cachewatch.postmortem.bundlestore import choose_bundle_root, find_bundles, load_report
from prefect_cachewatch.postmortem.diagnosis import diagnose
from prefect_cachewatch.postmortem.model import Evidence, FilesystemFacts, GrowthFacts, ProcessFacts, PythonThread

HOSTILE = [
    "<script>document.title='owned'<",
    '"><img src=x onerror=alert(1)>',
    "a\u202etxt.exe",
    "x\x1b[2J\n",
    "javascript:alert(1)",
    "`|[x](http:",
]


def content(cache: Path, **more) -> BundleContent:
    evidence = more.pop(
        "evidence",
        Evidence(
            growth=GrowthFacts(samples=((0.0, 0, 0), (10.0, 100, 4096))),
            processes=(
                ProcessFacts(
                    7, 1, "gen", ("gen", "--token", "***"), python_threads=(PythonThread(7, "M", ("f (a:1)",)),)
                ),
            ),
        ),
    )
    report = {
        "schema_version": 1,
        "outcome": "stalled",
        "stall": {"kind": "no_growth", "window_s": 5.0, "pause_s": 5.0},
        "message": "Tensor cache generation stalled.",
        "name": "llama",
        "growth": {"last_growth_s": 10.0, "bytes_written": 100, "samples": []},
        "duration_s": 15.0,
        "listing": {"total_files": 0, "total_bytes": 0, "entries": [], "rest": []},
    } | more.pop("report", {})
    diagnosis = more.pop("diagnosis", diagnose(evidence))
    return BundleContent("Llama 3 / 70B", report, evidence, diagnosis, [str(cache)], **more)


@pytest.fixture
def cache(tmp_path):
    made = tmp_path / "cache"
    (made / "sub").mkdir(parents=True)
    for index, name in enumerate(HOSTILE):
        (made / name).write_bytes(b"x" * index)
    with open(os.fsencode(made / "sub") + b"/\xff\xfe.bin", "wb") as file:
        file.write(b"12345")
    (made / "link").symlink_to("/etc")
    return made


@pytest.mark.parametrize("broken", [{"log": lambda size: 1 / 0}, {"report": {"notes": [object()]}}])
def test_of_a_bundle_that_cannot_be_written_nothing_stays(tmp_path, cache, broken):
    with pytest.raises((ZeroDivisionError, TypeError)):
        write_bundle(tmp_path / "bundles", content(cache, **broken))
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_listing_that_takes_too_long_is_cut_and_says_so(tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    for index in range(3000):
        (many / f"f{index}").touch()
    written = write_bundle(tmp_path / "bundles", content(many), listing_s=0.0)
    lines = [json.loads(line) for line in gzip.open(written.path / "listing.jsonl.gz")]
    assert lines[-1] == {"end": True, "files": 1000, "bytes": 0, "cut": "after 0 s"}
    assert written.cut == ("listing.jsonl.gz holds the first 1000 files: cut after 0 s",)
    assert load_report(written.path)["cut"] == list(written.cut)


def test_a_file_system_that_hangs_is_not_listed(tmp_path, cache):
    evidence = Evidence(filesystems=(FilesystemFacts(str(cache), responded=False),))
    written = write_bundle(tmp_path / "bundles", content(cache, evidence=evidence))
    assert gzip.open(written.path / "listing.jsonl.gz").read() == b""
    assert written.cut == (f"listing.jsonl.gz is empty: {cache} does not answer",)


def test_a_log_of_many_megabytes_is_bounded_in_size_and_time(tmp_path, cache):
    log = b"layer 1 done, password=sesame\n" * 400_000
    started = time.monotonic()
    written = write_bundle(tmp_path / "bundles", content(cache, log=lambda size: log[-size:]), log_s=0.3)
    assert time.monotonic() - started < 60
    text = gzip.open(written.path / "generator.log.gz").read()
    assert 0 < len(text) <= 4 << 20
    assert b"sesame" not in text
    assert any("generator.log.gz" in cut for cut in written.cut)


def test_an_unfinished_bundle_is_not_found(tmp_path, cache):
    root = tmp_path / "bundles"
    write_bundle(root, content(cache))
    (root / ".20260101T000000Z-x-abcdef.partial").mkdir()
    (root / "notes").mkdir()
    assert len(find_bundles(root)) == 1


MOUNTS = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - ext4 /dev/b rw\n3 1 0:3 / /dev/shm rw - tmpfs t rw\n"


@pytest.mark.parametrize(
    ("facts", "place", "noted"),
    [
        (FilesystemFacts("/c", mount_point="/", free_bytes=0), "/home/me/.local/state/cachewatch/bundles", False),
        (
            FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10),
            "/home/me/.local/state/cachewatch/bundles",
            True,
        ),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=0), None, True),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10, responded=False), None, True),
    ],
)
def test_a_bundle_does_not_go_where_the_trouble_is(facts, place, noted):
    root = choose_bundle_root([facts], None, {"HOME": "/home/me"}, MOUNTS)
    assert bool(root.note) is noted
    if place:
        assert str(root.path) == place
    else:
        assert not str(root.path).startswith("/home")
