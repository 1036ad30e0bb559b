"""The live view: lines that fit, without control characters; and it leaves the screen before other output."""

from __future__ import annotations

import io
import os
import sys
import time
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from prefect_cachewatch.cli import fleet_view, live
from prefect_cachewatch.cli.live import render_live
from prefect_cachewatch.cli.plain import Shown, render_plain
from prefect_cachewatch.common.console import ConsoleWriter
from prefect_cachewatch.engine.events import Progress, Ready
from prefect_cachewatch.engine.narrator import describe_told
from prefect_cachewatch.fleet.rows import JobRow
from prefect_cachewatch.watching.sections import LoggedProgress

NOW = Progress(
    723, bytes_present=1159641170, files_present=43, rate_bytes_per_s=12.3 * 2**20, pause_s=72, window_s=300,
    phase="writing", last_file="/mnt/cache/layers.7.w2.tensorbin",
)  # fmt: skip
SUSPECTED = "no growth for 72 s; the longest pause so far was 24 s"
SHOWN = Shown(Ready("llama-3-70b"), suspicion=SUSPECTED)
CALM = Shown(Ready("llama-3-70b"))


def plain(shown: Shown, now: Progress, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render_live(shown, now))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_the_view_says_bytes_rate_files_last_file_pause_and_suspicion():
    assert plain(SHOWN, NOW) == [
        "llama-3-70b  1.08 GiB in 43 files  12.3 MiB/s  12 min 3 s",
        "last   layers.7.w2.tensorbin",
        "pause  ━━━╸              72 s of 5 minutes",
        "suspected: no growth for 72 s; the longest pause so far was 24 s",
    ]


def test_an_expected_size_gives_a_share_and_the_time_left():
    sized = Shown(Ready("llama", expected_bytes=2 * 1159641170))
    assert "50 %, 90 s left" in plain(sized, replace(NOW, pause_s=2))[0]
    assert "left" not in plain(sized, replace(NOW, pause_s=200))[0], "a pause makes a guess worthless"


def test_a_servers_warm_up_says_what_is_waited_for():
    warming = replace(NOW, pause_s=1500, window_s=1800, waiting_for="http://h:1/health (connection refused)")
    _, _, bar, until = plain(CALM, warming)
    assert bar.startswith("warmup  ━") and bar.endswith("25 minutes of 30 minutes")
    assert until == "until   http://h:1/health (connection refused)"
    assert render_plain(CALM, warming).endswith(
        "warm-up 25 minutes of 30 minutes; waiting for http://h:1/health (connection refused)"
    )


names = st.text(max_size=300)


@given(names, names, st.integers(60, 200), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**15))
def test_the_view_has_few_lines_that_fit_whatever_the_names(name, file, width, pause_s, window_s, size):
    now = replace(NOW, last_file=file, pause_s=pause_s, window_s=window_s, bytes_present=size)
    lines = plain(Shown(Ready(name), suspicion=name), now, width)
    assert len(lines) <= 4
    assert "\x1b" not in "".join(lines)


@given(names)
def test_a_plain_line_is_one_line_without_control_characters(name):
    line = render_plain(Shown(Ready("llama"), suspicion=name), NOW)
    assert len(line) <= 400
    assert "\n" not in line and "\x1b" not in line


def test_a_fleets_table_has_left_the_screen_before_anything_else_is_said(monkeypatch):
    reading, writing = os.pipe()
    console = ConsoleWriter(writing)
    write_some = console._write_some
    monkeypatch.setattr(console, "_write_some", lambda piece: (time.sleep(0.05), write_some(piece))[1])
    for module in (fleet_view, live):
        monkeypatch.setattr(module, "standard_error", lambda: console)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    view = fleet_view.TerminalView()
    view.show("nightly", [JobRow("llama", "Running", "running", 2**20)])
    view.close()
    os.write(writing, b"said next")
    said = os.read(reading, 65536)
    shown, _, after = said.partition(b"llama")
    assert shown
    assert after.count(b"\x1b[2K") >= 2 and said.endswith(b"said next")
    os.close(reading)
    os.close(writing)


def test_what_the_output_told_is_shown_with_the_time_left_by_now():
    logged = LoggedProgress(3, 5.0, 65.0, "shard 2/4", 2.0, 4.0, 50.0, 90.0)
    told = describe_told(logged, 100.0)
    assert told == "told 2 of 4 (50 %), 55 s left"
    assert plain(SHOWN, replace(NOW, told=told))[-2] == f"log    {told}"
    assert "of 5 minutes; told 2 of 4 (50 %), 55 s left; suspected" in render_plain(SHOWN, replace(NOW, told=told))
    assert describe_told(logged, 400.0) == "told 2 of 4 (50 %)"
    assert describe_told(LoggedProgress(1, 5.0, 5.0, "graph 7 token=hunter2hunter2"), 9.0) == "told graph 7 token=***"
