"""The live view: lines that fit, plain without colour, one write a redraw; and it costs next to nothing."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.cli import fleet_view
from prefect_cachewatch.cli.live import LiveBlock, render_live, sparkline, wants_colour
from prefect_cachewatch.cli.plain import LiveState, render_plain
from prefect_cachewatch.common.console import ConsoleWriter
from prefect_cachewatch.fleet.rows import JobRow

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
