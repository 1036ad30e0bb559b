"""`cachewatch report --list`: the bundles as a table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.cli.report import list_bundles

FIRST, SECOND = "20261120T151010Z-llama-7cff96", "20261121T023000Z-qwen-0a1b2c"


def bundle(root: Path, directory: str, report: Any) -> None:
    (root / directory).mkdir()
    (root / directory / "report.json").write_text(report if isinstance(report, str) else json.dumps(report))


def test_a_bundle_is_a_line_with_date_job_cause_and_name(tmp_path):
    bundle(tmp_path, FIRST, {"name": "llama", "diagnosis": {"category": "disk_full"}})
    bundle(tmp_path, SECOND, {"name": "qwen", "diagnosis": {"category": "waiting_for_lock"}})
    assert list(list_bundles(tmp_path)) == [
        "WHEN (UTC)        JOB    CAUSE             BUNDLE",
        f"2026-11-21 02:30  qwen   waiting_for_lock  {SECOND}",
        f"2026-11-20 15:10  llama  disk_full         {FIRST}",
        "",
        f"They are in {tmp_path}; cachewatch report BUNDLE shows one.",
    ]


def test_long_names_fit_80_columns(tmp_path):
    name = f"20261120T151010Z-{'n' * 40}-7cff96"
    bundle(tmp_path, name, {"name": "n" * 99, "diagnosis": {"category": "c" * 99}})
    lines = list(list_bundles(tmp_path))[:-2]
    assert max(map(len, lines)) <= 80 and lines[2] == f"    {name}"


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "null"])
def test_what_is_no_report_is_told_and_the_others_are_listed(tmp_path, text):
    bundle(tmp_path, FIRST, {"name": "\x1b[2J", "diagnosis": {"category": "disk_full"}})
    bundle(tmp_path, SECOND, text)
    lines = list(list_bundles(tmp_path))
    assert "report not readable" in lines[1] and "disk_full" in lines[2] and "\x1b" not in lines[2]


def test_pipes_links_and_huge_files_are_not_waited_for(tmp_path):
    for number in range(4):
        (tmp_path / f"20261120T15101{number}Z-llama-7cff96").mkdir()
    pipe, link, huge, odd = (path / "report.json" for path in sorted(tmp_path.iterdir()))
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    with open(huge, "wb") as file:
        file.truncate(1 << 40)
    odd.write_text('{"diagnosis": 7}')
    os.mkfifo(tmp_path / "20261120T151019Z-llama-7cff96")
    lines = list(list_bundles(tmp_path))
    assert sum("report not readable" in line for line in lines) == 5
