"""The listing as a table for people: its columns, its bound, its totals."""

from __future__ import annotations

import json

from prefect_cachewatch.report.markdown import FILES_MAX, listing_rows
from prefect_cachewatch.report.report import DirectoryTotal, GrowthReport, Listing, ListingEntry, Report, StallReport


def report(listing: Listing | None, *roots: str, notes: tuple[str, ...] = ()) -> Report:
    growth = GrowthReport(0, 0, 0, 0)
    return Report(
        "stalled", StallReport(), "It stalled.", None, 15, "llama", ["gen"], list(roots or ("/c",)), 1,
        "2026-11-20T14:00:00+00:00", 60.0, growth, listing=listing, notes=list(notes),
    )  # fmt: skip


def entry(path: str, *flags, size: int = 1024, age_s: float = 12.0) -> ListingEntry:
    return ListingEntry(path, size, 2 * size, "2026-11-20T14:00:00.000+00:00", age_s, list(flags))


def test_file_flags_age_and_size_come_first_and_the_totals_are_the_first_row():
    rows = listing_rows(
        report(Listing(2, 2048, False, [entry("/c/d/a", "suspect_partial", "temporary"), entry("/c/b")], []))
    )
    assert [list(row.values()) for row in rows] == [
        ["total: 2 files in 2 directories", "1 suspect_partial", "", "2.00 KiB", ""],
        ["d/a", "suspect_partial, temporary", "12 s", "1.00 KiB", "2.00 KiB"],
        ["b", "", "12 s", "1.00 KiB", "2.00 KiB"],
    ]
    assert list(rows[0]) == ["file", "flags", "age", "size", "on disk"]


def test_a_hundred_thousand_files_make_a_small_table_that_accounts_for_each():
    entries = [entry(f"/c/layers/{n:04}.tensorbin") for n in range(1000)]
    rest = [DirectoryTotal(f"/c/layers-{n:03}/", 990, 990 * 1024) for n in range(100)]
    rows = listing_rows(report(Listing(100_000, 100_000 * 1024, True, entries, rest)))
    assert rows[0]["file"] == "total: 100,000 files in 101 directories"
    assert len(rows) == 1 + FILES_MAX + 1
    assert rows[-1]["file"] == "99,800 files more"
    assert len(json.dumps(rows)) < 40_000


def test_a_long_name_is_cut_in_the_middle_and_whole_in_the_last_column():
    name = "model.layers.0.self_attn.wqkv_dtype_BFLOAT8_B_layout_TILE.tensorbin"
    total, cut, short = listing_rows(report(Listing(2, 2, False, [entry(f"/c/{name}"), entry("/c/b")], [])))
    assert (cut["file"], cut["whole name"]) == ("model.layers…B_layout_TILE.tensorbin", name)
    assert (total["whole name"], short["file"], short["whole name"]) == ("", "b", "")
    assert list(cut) == ["file", "flags", "age", "size", "on disk", "whole name"]


def test_a_cut_name_makes_no_element():
    for length in range(20):
        name = "a" * length + "<img src=x onerror=1>" * 3
        assert "<" not in listing_rows(report(Listing(1, 1, False, [entry(f"/c/{name}")], [])))[1]["file"].replace(
            "\\<", ""
        )


def test_without_a_listing_the_table_says_why():
    (row,) = listing_rows(report(None, notes=("no listing: the cache directory does not answer",)))
    assert (row["file"], row["flags"]) == ("no listing", "no listing: the cache directory does not answer")


def test_a_name_makes_no_link_in_the_ui_that_reads_cells_as_markdown():
    names = ["[x](javascript:1)", "<javascript:1>", "\\\\<javascript:1>"]
    rows = listing_rows(report(Listing(3, 3, False, [entry(f"/c/{name}") for name in names], [])))
    assert [row["file"] for row in rows[1:]] == [
        "[x]\\(javascript:1)", "\\<javascript:1>", "\\\\\\\\\\<javascript:1>"
    ]  # fmt: skip
