"""What a person is told of an attempt, and that each writer makes texts from outside harmless."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.model import Evidence, ProcessFacts
from prefect_cachewatch.report.html import write_page
from prefect_cachewatch.report.markdown import write_markdown
from prefect_cachewatch.report.report import (
    GrowthReport,
    Listing,
    ListingEntry,
    Report,
    StallReport,
    read_report,
    report_json,
)
from prefect_cachewatch.report.sections import make_verdict, numbers, sections
from prefect_cachewatch.report.terminal import write_terminal
from prefect_cachewatch.watching.sections import NextAttempt, Where, Windows

WHERE = Where(
    host="gpu-7", user="ml", pid=4711, windows=Windows(1200, 300, warmup_within_s=600, max_duration_s=7200), attempts=3,
    log="/state/generator-2.log", worker="night", flow_run="http://prefect:4200/runs/flow-run/1",
)  # fmt: skip
ENTRY = ListingEntry("/c/a.bin", 5, 4096, "2026-11-20T14:00:00+00:00", 12.0, ["suspect_partial"])
REPORT = Report(
    "stalled", StallReport("no_growth", 300.0, 300.0), "Tensor cache generation stalled.", None, 15, "llama", ["gen"], ["/c"], 2,
    "2026-11-20T14:00:00+00:00", 60.0, GrowthReport(9000, 9000, 9000, 1, 2.0, 12.0), listing=Listing(1, 5, False, [ENTRY], []),
    log_tail=["layer 1", "layer 2"], headline="llama stalled: it waits. No growth for 5 minutes.", where=WHERE,
    diagnosis=Cause("waiting_for_lock", "it waits", ("seen so",), said=("waiting for the lock",)), bundle="/b/x",
    retry=NextAttempt(True, "waiting_for_lock", "again after 30 s"),
)  # fmt: skip


def test_everything_that_is_known_of_the_place_is_a_row() -> None:
    rows = dict(numbers(REPORT))
    wanted = {
        "Attempt": "2 of 3, 1 minute",
        "Host": "gpu-7, pid 4711 of ml",
        "Worker": "night",
        "Flow run": "http://prefect:4200/runs/flow-run/1",
        "Log of the generator": "/state/generator-2.log",
        "Windows": "first byte 20 minutes, growth 5 minutes, warm-up 10 minutes, in all 2 h",
    }
    assert {label: rows[label] for label in wanted} == wanted
    alone = dict(numbers(replace(REPORT, where=None)))
    assert alone["Attempt"] == "2, 1 minute" and "Host" not in alone


def faces(report: Report, *processes: ProcessFacts) -> dict[str, str]:
    verdict = make_verdict(report)
    return {
        "page": write_page(verdict, sections(report, Evidence(processes=processes)), "end"),
        "artifact": write_markdown(verdict, sections(report)),
        "terminal": "\n".join(write_terminal(verdict, sections(report))),
    }


@pytest.mark.parametrize("face", ["page", "artifact", "terminal"])
def test_each_face_has_cause_next_step_retry_facts_evidence_and_the_last_lines(face: str) -> None:
    told = " ".join(faces(REPORT)[face].replace("&#39;", "'").split())
    assert REPORT.diagnosis is not None
    wanted = ("It waits", "See what the holder does", "again after 30 s", REPORT.facts, "seen so", "waiting for the lock",
              "layer 1", "layer 2")  # fmt: skip
    assert [words for words in wanted if words not in told] == []
    places = [told.index(words) for words in wanted[:5]]
    assert places == sorted(places), "the cause first"


@pytest.mark.parametrize("face", ["page", "artifact", "terminal"])
def test_a_text_from_outside_is_no_markup_and_no_code_for_a_terminal(face: str) -> None:
    odd = "<b>x</b>\x1b[2J[y](javascript:1)\u202e"
    entry = replace(ENTRY, path=f"/c/{odd}")
    hostile = replace(
        REPORT, name=odd, facts=odd, command=[odd], notes=[odd], log_tail=[odd, "```", "</pre>"], listing=Listing(1, 1, False, [entry], []),
        diagnosis=Cause("unknown", odd, (odd,), said=(odd,)), retry=NextAttempt(True, None, odd),
    )  # fmt: skip
    told = faces(hostile, ProcessFacts(7, 1, odd, (odd,)))[face]
    assert "\x1b" not in told and "\u202e" not in told
    if face == "page":
        assert "<b>" not in told and told.count("</pre>") == told.count("<pre")
    if face == "artifact":
        text, _, rest = told.partition("````text")
        assert rest.count("````") == 1, "the fence is longer than any in the log"
        text = re.sub(r"`[^`]*`", "", text)
        assert "<b>" not in text and not re.search(r"(?<!\\)\]\(javascript", text)


def test_a_report_is_read_back_as_it_was() -> None:
    assert read_report(json.loads(report_json(REPORT))) == REPORT


@pytest.mark.parametrize("odd", [{"growth": 7}, {"listing": {}}, {"diagnosis": {"category": "no such", "summary": ""}}, {"attempt": "1"}])  # fmt: skip
def test_what_is_no_report_is_not_read(odd: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        read_report(json.loads(report_json(REPORT)) | odd)
