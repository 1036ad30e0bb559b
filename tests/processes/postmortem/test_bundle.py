"""Bundles on a real disk: private, complete or saying what is cut, pruned, and without secrets."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from prefect_cachewatch.evidence.model import Evidence, FilesystemFacts
from prefect_cachewatch.evidence.rules import find_cause
from prefect_cachewatch.report.bundle import BundleContent, write_bundle
from prefect_cachewatch.report.bundlestore import choose_bundle_root, find_bundles, load_report
from prefect_cachewatch.report.listing import Listing
from prefect_cachewatch.report.report import GrowthReport, Report, SampleReport, StallReport


def content(**more: Any) -> BundleContent:
    growth = GrowthReport(100, 4096, 100, 1, samples=[SampleReport(0.0, 0, 0), SampleReport(10.0, 100, 4096)])
    report = Report(
        "stalled", StallReport(), "It stalled.", None, 15, "x", ["gen"], [], 1, "2026-11-20T14:00:00+00:00", 60.0, growth,
        listing=Listing(0, 0, False, [], []), notes=more.pop("notes", []),
    )  # fmt: skip
    evidence = more.pop("evidence", Evidence())
    return BundleContent(report, evidence, find_cause(evidence), **more)


@pytest.fixture
def cache(tmp_path):
    (made := tmp_path / "cache").mkdir()
    (made / "a").write_bytes(b"12345")
    return made


@pytest.mark.parametrize("broken", [{"log": lambda size: 1 / 0}, {"notes": [object()]}])
def test_of_a_bundle_that_cannot_be_written_nothing_stays(tmp_path, cache, broken):
    with pytest.raises((ZeroDivisionError, TypeError, AttributeError)):
        write_bundle(tmp_path / "bundles", content(**broken), [str(cache)])
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_listing_that_takes_too_long_is_cut_and_says_so(tmp_path):
    many = tmp_path / "many"
    many.mkdir()
    for index in range(3000):
        (many / f"f{index}").touch()
    written = write_bundle(tmp_path / "bundles", content(), [str(many)], listing_s=0.0)
    lines = [json.loads(line) for line in gzip.open(written.path / "listing.jsonl.gz")]
    assert lines[-1] == {"end": True, "files": 1000, "bytes": 0, "cut": "after 0 s"}
    assert written.cut == ("listing.jsonl.gz holds the first 1000 files: cut after 0 s",)
    assert load_report(written.path)["cut"] == list(written.cut)


def test_a_file_system_that_hangs_is_not_listed(tmp_path, cache):
    evidence = Evidence(filesystems=(FilesystemFacts(str(cache), responded=False),))
    written = write_bundle(tmp_path / "bundles", content(evidence=evidence), [str(cache)])
    assert gzip.open(written.path / "listing.jsonl.gz").read() == b""
    assert written.cut == (f"listing.jsonl.gz is empty: {cache} does not answer",)


def test_an_unfinished_bundle_is_not_found(tmp_path, cache):
    root = tmp_path / "bundles"
    write_bundle(root, content(), [str(cache)])
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
