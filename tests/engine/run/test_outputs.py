"""Outputs of ours that would overwrite each other, or be taken for the generator's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_cachewatch.config import DEFAULT_IGNORE
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.outputs import check_outputs


@pytest.mark.parametrize("how", ["the same", "new", "another spelling", "a hard link", "a link", "a link to nothing"])
def test_two_outputs_on_one_file_are_refused(tmp_path: Path, how: str) -> None:
    log = report = tmp_path / "f"
    other = tmp_path / "other"
    if how not in ("new", "a link to nothing"):
        log.write_text("old")
    if how == "another spelling":
        (tmp_path / "d").mkdir()
        report = tmp_path / "d" / ".." / "f"
    elif how == "a hard link":
        os.link(log, other)
        report = other
    elif how.startswith("a link"):
        other.symlink_to(log)
        report = other
    with pytest.raises(InputError, match=r"log file .* and report file .* are one and the same file: name another one"):
        check_outputs([], [], log=log, report=report)


def test_outputs_of_their_own_and_devices_are_let_through(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    check_outputs([], [], log=tmp_path / "a", report=tmp_path / "b", record=tmp_path / "c")
    check_outputs([], [], log=Path("/dev/null"), report=Path("/dev/null"))


def test_what_is_published_holds_no_report(tmp_path: Path) -> None:
    inside = tmp_path / "r.json"
    check_outputs([tmp_path], [], report=inside)
    with pytest.raises(
        InputError, match=r"lies in cache directory .*, where it would be a part of it: put it elsewhere$"
    ):
        check_outputs([tmp_path], [], report=inside, published=DEFAULT_IGNORE)
    with pytest.raises(InputError, match=r"report file .* would count as growth: put it elsewhere$"):
        check_outputs([tmp_path], [], report=inside, rewritten=True)
    check_outputs([tmp_path], ["*.json"], report=inside, rewritten=True)
    with pytest.raises(InputError, match="would count as growth: put it elsewhere, or name it"):
        check_outputs([tmp_path], [], log=tmp_path / "out.txt")
    check_outputs([tmp_path], ["*.log"], log=tmp_path / "out.log")
    with pytest.raises(InputError, match=r"would be a part of it: put it elsewhere$"):
        check_outputs([tmp_path], [], bundle_dir=tmp_path / "bundles")


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("what", ["log", "report", "record", "bundle_dir"])
def test_a_cache_directory_itself_is_no_output(tmp_path: Path, what: str, made: bool) -> None:
    cache = tmp_path / "cache"
    if made:
        cache.mkdir()
    with pytest.raises(InputError, match=r"cache is a cache directory itself: name a (file|directory) elsewhere$"):
        check_outputs([cache], ["*"], **{what: tmp_path / "x" / ".." / "cache" if not made else cache})
