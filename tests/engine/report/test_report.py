"""The report: every field of its schema, exact and lossless."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from pathlib import Path

import pytest

from prefect_cachewatch import __version__
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.report.report import Report, build_report, check_report_path, report_json
from prefect_cachewatch.run.delivery import Publication
from prefect_cachewatch.supervise.supervisor import TreeEnd
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.monitor import Sample
from prefect_cachewatch.watching.stall import Suspicion

STARTED = 1_700_000_000.25


def process(pid=7, argv=("python", "gen.py", "--token", "s3cret")):
    return {"pid": pid, "start_ticks": 1, "state": "S", "argv": list(argv)}


def outcome(**changes):
    raw = {
        "entries": [{"path": "/c/a\udcff", "size_bytes": 10, "allocated_bytes": 4096,
                     "modified_ns": int((STARTED + 1) * 1e9), "grown_scan": 1, "written_bytes": 10}],
        "rest": [["/c/sub/", 3, 30]], "total_files": 4, "total_bytes": 40,
    }  # fmt: skip
    values = {
        "name": "stalled", "kind": "no_growth", "facts": "It stalled.", "exit_code": None, "signal": 15,
        "started_at": STARTED, "duration_s": 312.34567,
        "growth": Growth(100, 4096, 90, 4096, 40, 8192, 4, None, None, "/c/a"),
        "first_write_s": 2.00049, "last_growth_s": 12.0, "longest_pause_s": 3.14159,
        "suspicions": (Suspicion(180.0, 168.0, "no growth for 168 s", None),),
        "samples": (Sample(0.0, 0, 0, 0, 0), Sample(15.0, 100, 4096, 40, 4, 12.5)),
        "stop": TreeEnd("stop", None, 15, 0.01234567, [process(7)], [process(8)], [{"pid": 9, "state": "D"}]),
        "decided_after_last_growth_s": 300.0001, "window_s": 300.0, "pause_s": 300.0, "listing": raw,
        "grown_since_scan": 1, "paths": ("/c",), "notes": ("a note",),
    }  # fmt: skip
    return Outcome(**(values | changes))


def built(**changes):
    more = {"name": "job", "command": ["gen", "--api-key=k"], "log_tail": ["last line"]}
    return json.loads(report_json(build_report(outcome(**changes), **more)))


def test_every_field_of_the_schema_has_its_value():
    expected = {
        "schema_version": 1,
        "outcome": "stalled",
        "stall": {"kind": "no_growth", "window_s": 300.0, "pause_s": 300.0, "learned": False},
        "message": "It stalled.",
        "exit_code": None,
        "signal": 15,
        "name": "job",
        "command": ["gen", "--api-key=***"],
        "cache_dirs": ["/c"],
        "attempt": 1,
        "started_at": "2023-11-14T22:13:20.250+00:00",
        "duration_s": 312.346,
        "growth": {
            "bytes_written": 100,
            "allocated_written": 4096,
            "bytes_present": 40,
            "files_present": 4,
            "first_write_s": 2.0,
            "last_growth_s": 12.0,
            "longest_pause_s": 3.142,
            "suspected": [{"at_s": 180.0, "pause_s": 168.0, "message": "no growth for 168 s", "cleared_at_s": None}],
            "samples": [
                {"at_s": 0.0, "bytes_written": 0, "allocated_written": 0, "percent": None},
                {"at_s": 15.0, "bytes_written": 100, "allocated_written": 4096, "percent": 12.5},
            ],
        },
        "stop": {
            "decided_after_last_growth_s": 300.0,
            "gone_after_s": 0.0123,
            "terminated": [{"pid": 7, "state": "S", "argv": ["python", "gen.py", "--token", "***"]}],
            "killed": [{"pid": 8, "state": "S", "argv": ["python", "gen.py", "--token", "***"]}],
            "survivors": [{"pid": 9, "state": "D", "argv": []}],
        },
        "listing": {
            "total_files": 4,
            "total_bytes": 40,
            "truncated": True,
            "entries": [
                {
                    "path": "/c/a\udcff",
                    "size_bytes": 10,
                    "allocated_bytes": 4096,
                    "modified_at": "2023-11-14T22:13:21.250+00:00",
                    "age_s": 311.346,
                    "flags": ["suspect_partial", "grew_in_window"],
                }
            ],
            "rest": [{"path": "/c/sub/", "files": 3, "bytes": 30}],
        },
        "log_tail": ["last line"],
        "notes": ["a note"],
        "diagnosis": None,
        "bundle": None,
        "publication": None,
        "cachewatch_version": __version__,
    }
    seen = built()
    assert {name: seen[name] for name in expected} == expected
    assert set(seen) == {field.name for field in dataclasses.fields(Report)}


@pytest.mark.parametrize(
    ("name", "why"), [("missing/r.json", "does not exist; create it first"), ("", "is a directory")]
)
def test_a_report_path_is_checked_before_the_start(tmp_path, name, why):
    with pytest.raises(InputError, match=why):
        check_report_path(tmp_path / name)
    check_report_path(tmp_path / "r.json")


def test_the_schema_is_documented_field_by_field():
    docs = Path(__file__).parents[3] / "docs"
    spans = " ".join(re.findall(r"`[^`]+`", (docs / "report.md").read_text() + (docs / "post-mortem.md").read_text()))
    words = set(re.findall(r"\w+", spans))
    seen, queue = set(), [Report]
    while queue:
        model = queue.pop()
        if model in seen:
            continue
        seen.add(model)
        for field in dataclasses.fields(model):
            assert field.name in words, f"{model.__name__}.{field.name} is not in docs/report.md"
        for hint in typing.get_type_hints(model, localns={"Publication": Publication}).values():
            queue.extend(a for a in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(a))
    assert len(seen) >= 9
