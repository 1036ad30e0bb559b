"""The listing of a report: order, bound, flags, totals."""

from __future__ import annotations

import pytest

from prefect_cachewatch.report.report import build_listing

NOW_S = 1_700_000_000.0


def entry(path="/c/a", size=100, allocated=None, age_s=10.0, grown_scan=0):
    return {
        "path": path,
        "size_bytes": size,
        "allocated_bytes": size if allocated is None else allocated,
        "modified_ns": int((NOW_S - age_s) * 1e9),
        "grown_scan": grown_scan,
        "written_bytes": size,
    }


def listing(*entries, finished=False, grown_since_scan=100, rest=(), total=None):
    raw = {"entries": list(entries), "rest": list(rest), "total_files": total or len(entries), "total_bytes": 1}
    return build_listing(raw, now_s=NOW_S, finished=finished, grown_since_scan=grown_since_scan)


def flags(*entries, **more):
    return [e.flags for e in listing(*entries, **more).entries]


def test_an_entry_says_what_the_scan_saw():
    shown = listing(entry("/c/layers.0", 5000, 8192, age_s=12.5)).entries[0]
    assert (shown.path, shown.size_bytes, shown.allocated_bytes) == ("/c/layers.0", 5000, 8192)
    assert (shown.modified_at, shown.age_s, shown.flags) == ("2023-11-14T22:13:07.500+00:00", 12.5, [])


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("a.tmp", True), ("a.tensorbin.tmp.77.0", True), ("m.partial", True), ("m.incomplete", True), ("m.part", True),
        ("a.tensorbin", False), ("tmp", False), ("a.TMP", True), ("atmp", False),
    ],
)  # fmt: skip
def test_temporary_files_are_known_by_their_names(name, temporary):
    assert flags(entry(f"/c.tmp/{name}")) == [["suspect_partial", "temporary"] if temporary else []]


def test_what_grew_in_the_last_scan_that_saw_growth_may_be_cut_in_the_middle():
    older, last, start = entry("/c/a", grown_scan=4), entry("/c/b", grown_scan=7), entry("/c/s", grown_scan=-1)
    assert flags(older, last, start) == [["suspect_partial"], [], []]


def test_a_start_without_growth_has_no_suspects():
    assert flags(entry("/c/a", grown_scan=-1), entry("/c/b", grown_scan=-1)) == [[], []]


def test_empty_and_sparse_files_are_flagged():
    assert flags(entry(size=0)) == [["empty"]]
    assert flags(entry(size=2**20, allocated=2**18)) == [["sparse"]]
    assert flags(entry(size=4097, allocated=4096)) == [[]]
    assert flags(entry(size=2**20, allocated=2**20 - 4096)) == [[]]


def test_files_that_grew_within_the_window_are_flagged():
    assert flags(entry("/c/a", grown_scan=4), entry("/c/b", grown_scan=5), entry("/c/z", grown_scan=9),
                 grown_since_scan=5) == [["suspect_partial", "grew_in_window"], [], ["grew_in_window"]]  # fmt: skip
    assert flags(entry(grown_scan=-1), grown_since_scan=0) == [[]]


def test_what_may_be_cut_stands_on_top_in_the_order_of_growth():
    shown = listing(entry("/c/new", grown_scan=3), entry("/c/a.tmp"), entry("/c/last", grown_scan=9), entry("/c/b.tmp"))
    assert [e.path for e in shown.entries] == ["/c/a.tmp", "/c/last", "/c/b.tmp", "/c/new"]
