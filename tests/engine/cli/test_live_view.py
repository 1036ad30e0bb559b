"""The live view: lines that fit, plain without colour, one write a redraw; and it costs next to nothing."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.cli import fleet_view
from prefect_cachewatch.cli.cursor import Cursor
from prefect_cachewatch.cli.live import LiveBlock, render_live, render_wait, sparkline, wants_colour
from prefect_cachewatch.cli.plain import LiveState, render_plain, told_text
from prefect_cachewatch.common.console import ConsoleWriter
from prefect_cachewatch.fleet.rows import JobRow
from prefect_cachewatch.watching.sections import LoggedProgress

STATE = LiveState(
    "llama-3-70b",
    723,
    1159641170,
    43,
    12.3 * 2**20,
    72,
    300,
    last_file="/mnt/cache/layers.7.w2.tensorbin",
    suspicion="no growth for 72 s; the longest pause so far was 24 s",
    rates=(0.0, 1.0, 4.0),
)


def plain(state: LiveState, width: int = 80) -> list[str]:
    return [line.plain for line in render_live(state, width)]


def test_the_view_says_bytes_rate_files_last_file_pause_and_suspicion():
    assert plain(STATE) == [
        "llama-3-70b  1.08 GiB in 43 files  12.3 MiB/s  12 min 3 s  ▁▂█",
        "last   layers.7.w2.tensorbin",
        "pause  ██████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  72 s of 5 minutes",
        "suspected: no growth for 72 s; the longest pause so far was 24 s",
    ]


def test_an_expected_size_gives_a_share_and_the_time_left():
    growing = replace(STATE, expected_bytes=2 * 1159641170, pause_s=2, suspicion=None)
    assert "50 %, 90 s left" in plain(growing)[0]
    assert "left" not in plain(replace(growing, pause_s=200))[0], "a pause makes a guess worthless"


def test_before_the_first_byte_it_says_so():
    waiting = replace(STATE, started=False, last_file=None, suspicion=None, pause_s=30, window_s=1200)
    assert plain(waiting)[1].endswith("30 s of 20 minutes (no byte yet)")


def test_a_servers_warm_up_says_what_is_waited_for_and_raises_no_alarm():
    warming = replace(
        STATE, suspicion=None, pause_s=1500, window_s=1800, warmup="http://h:1/health (connection refused)"
    )
    lines = render_live(warming, 80)
    assert [line.plain for line in lines][2:] == [
        "warmup █████████████████████████████████░░░░░░░  25 minutes of 30 minutes",
        "until  http://h:1/health (connection refused)",
    ]
    assert "green" in {str(span.style) for span in lines[2].spans}
    assert render_plain(warming).endswith(
        "warm-up 25 minutes of 30 minutes; waiting for http://h:1/health (connection refused)"
    )


names = st.text(max_size=300)


@given(names, names, st.integers(20, 200), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**15))
def test_no_line_is_wider_than_the_terminal_whatever_the_names(name, file, width, pause_s, window_s, size):
    state = replace(
        STATE, name=name, last_file=file, pause_s=pause_s, window_s=window_s, bytes_present=size, suspicion=name
    )
    for line in render_live(state, width):
        assert line.cell_len <= width
        assert "\n" not in line.plain and "\x1b" not in line.plain


@given(names)
def test_a_plain_line_is_one_line_without_control_characters(name):
    line = render_plain(replace(STATE, suspicion=name))
    assert len(line) <= 400
    assert "\n" not in line and "\x1b" not in line


def test_without_colour_only_cursor_movements_are_written():
    written: list[bytes] = []
    block = LiveBlock(written.append, colour=False)
    block.draw(render_live(STATE), 80)
    assert b"m" not in written[0].replace(b"llama", b"").split(b"\x1b[", 2)[1][:6]
    assert b"\x1b[3" not in written[0] and b"\x1b[1" not in written[0]


def test_a_redraw_is_one_write_that_goes_up_and_leaves_nothing_behind():
    written: list[bytes] = []
    block = LiveBlock(written.append, colour=True)
    block.draw(render_live(STATE), 80)
    block.draw(render_live(replace(STATE, suspicion=None)), 80)
    assert len(written) == 2
    assert written[1].startswith(b"\x1b[?2026h\r\x1b[3A")
    assert written[1].endswith(b"\x1b[J\x1b[?2026l")
    block.clear()
    block.clear()
    assert written[2:] == [b"\r\x1b[2A\x1b[J"]


def test_no_color_and_dumb_terminals_are_respected():
    assert not wants_colour({"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert not wants_colour({"TERM": "dumb"})
    assert not wants_colour({})
    assert wants_colour({"TERM": "xterm-256color", "NO_COLOR": ""})


def test_a_sparkline_of_nothing_is_flat():
    assert sparkline([0.0, 0.0], 5) == "▁▁"
    assert sparkline([], 5) == ""


def test_two_redraws_a_second_cost_less_than_one_per_cent_of_a_core():
    block = LiveBlock(lambda data: None, colour=True)
    block.draw(render_live(STATE), 80)
    started = time.process_time()
    for _ in range(50):
        block.draw(render_live(STATE), 80)
    assert (time.process_time() - started) / 50 * 2 < 0.01


def test_a_fleets_table_has_left_the_screen_before_anything_else_is_said(monkeypatch):
    reading, writing = os.pipe()
    console = ConsoleWriter(writing)
    write_some = console._write_some
    monkeypatch.setattr(console, "_write_some", lambda piece: (time.sleep(0.05), write_some(piece))[1])
    monkeypatch.setattr(fleet_view, "standard_error", lambda: console)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    view = fleet_view.TerminalView()
    view.show("nightly", [JobRow("llama", "Running", "running", 2**20)])
    view.close()
    os.write(writing, b"said next")
    said = os.read(reading, 65536)
    assert b"llama" in said and said.endswith(b"\x1b[Jsaid next")
    os.close(reading)
    os.close(writing)


def test_what_the_output_told_is_shown_with_the_time_left_by_now():
    logged = LoggedProgress(3, 5.0, 65.0, "shard 2/4", 2.0, 4.0, 50.0, 90.0)
    told = told_text(logged, 100.0)
    assert told == "told 2 of 4 (50 %), 55 s left"
    assert plain(replace(STATE, told=told))[-2] == f"log    {told}"
    assert "of 5 minutes; told 2 of 4 (50 %), 55 s left; suspected" in render_plain(replace(STATE, told=told))
    assert told_text(logged, 400.0) == "told 2 of 4 (50 %)"
    assert told_text(LoggedProgress(1, 5.0, 5.0, "graph 7 token=hunter2hunter2"), 9.0) == "told graph 7 token=***"


@pytest.mark.parametrize(
    ("written", "column"),
    [
        ([], 0),
        ([b"a line\n"], 0),
        ([b"50 %"], 4),
        ([b"50 %\r"], 0),
        ([b"\r50 %", b"\r100 %"], 5),
        ([b"\x1b[31m50 %\x1b[0m\x1b[K"], 4),
        ([b"\x1b[3", b"1m50 %"], 4),
        (["größe".encode()[:3], "größe".encode()[3:]], 5),
        (["日本".encode()], 4),
        ([b"a\tb"], 9),
        ([b"x" * 85], 5),
        ([b"x" * 80], None),
        ([b"up\x1b[1A"], None),
        ([b"outer\ninner\x1b[1A\router\n"], None),
        ([b"outer\ninner\x1b[1A\r", b"outer\n", b"a line\n"], 0),
        ([b"back\b"], None),
        ([b"x" * 20_000], None),
        ([b"x" * 20_000, b"\nnew"], 3),
    ],
)
def test_the_cursor_is_known_where_a_view_can_be_drawn_below_it(written, column):
    cursor = Cursor()
    for piece in written:
        cursor.follow(piece)
    assert cursor.column(80) == column


def test_the_number_of_a_further_attempt_and_the_time_to_it_are_shown():
    assert plain(replace(STATE, attempt=(1, 3))) == plain(STATE)
    assert plain(replace(STATE, attempt=(2, 3)))[0].startswith("llama-3-70b  attempt 2 of 3  1.08 GiB")
    assert [line.plain for line in render_wait((2, 3), 61.0)] == ["attempt 3 of 3 begins in 61 s"]
