"""Bundles that cannot be whole: nothing stays, or what is cut is said; and where they go when their place is in trouble."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.common.mounts import parse_mountinfo
from prefect_cachewatch.evidence.model import Evidence, FilesystemFacts
from prefect_cachewatch.evidence.rules import find_cause
from prefect_cachewatch.report import bundle
from prefect_cachewatch.report.report import GrowthReport, Report, StallReport

REPORT = Report(
    "stalled", StallReport(), "It stalled.", None, 15, "x", ["gen"], [], 1, "2026-11-20T14:00:00+00:00", 60.0, GrowthReport(0, 0, 0, 0)
)  # fmt: skip


def write(root: Path, cache: Path, *filesystems: FilesystemFacts) -> tuple[str | None, list[str]]:
    cache.mkdir(exist_ok=True)
    evidence = Evidence(filesystems=filesystems)
    return bundle.write_bundle(bundle.BundleContent(REPORT, evidence, find_cause(evidence), [str(cache)]), root)


def listed(path: str | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(line) for line in gzip.open(Path(path) / "listing.jsonl.gz")]


def test_of_a_bundle_that_cannot_be_written_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "write_page", lambda *_: 1 / 0)
    root = tmp_path / "bundles"
    assert write(root, tmp_path / "cache") == (
        None,
        [f"no bundle was written in {root}: ZeroDivisionError: division by zero"],
    )
    assert list(root.iterdir()) == []


def test_a_listing_that_takes_too_long_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_LISTING_S", 0.0)
    (cache := tmp_path / "cache").mkdir()
    (cache / "a").touch()
    path, told = write(tmp_path / "bundles", cache)
    end = listed(path)[-1]
    assert (end["end"], end["files"], bool(end["cut"])) == (True, 0, True)
    assert told == bundle.load_report(Path(path or ""))["cut"] != []


def test_a_file_system_that_hangs_is_not_listed(tmp_path: Path) -> None:
    hung = FilesystemFacts(str(tmp_path / "cache"), responded=False)
    path, told = write(tmp_path / "bundles", tmp_path / "cache", hung)
    (end,) = listed(path)
    assert end["files"] == 0 and "does not answer" in end["cut"] and len(told) == 1


MOUNTS = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - ext4 /dev/b rw\n3 1 0:3 / /dev/shm rw - tmpfs t rw\n"


@pytest.mark.parametrize(
    ("facts", "moves"),
    [
        (FilesystemFacts("/c", mount_point="/", free_bytes=0), False),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10), False),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=0), True),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10, responded=False), True),
        (FilesystemFacts("/home/c", mount_point="/home", free_bytes=10**10, options=("ro",)), True),
    ],
)
def test_a_bundle_does_not_go_where_the_trouble_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: FilesystemFacts, moves: bool
) -> None:
    monkeypatch.setattr(bundle, "read_mounts", lambda: parse_mountinfo(MOUNTS))
    root, note = bundle.choose_bundle_root([facts], {"HOME": "/home/me", "XDG_RUNTIME_DIR": str(tmp_path)})
    usual = Path("/home/me/.local/state/cachewatch/bundles")
    assert (root.parent, bool(note)) == ((tmp_path, True) if moves else (usual.parent, False))
