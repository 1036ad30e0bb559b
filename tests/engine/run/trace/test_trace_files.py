"""Trace files: what is written is read back, what is not a trace is refused with its line number."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.cli.group import command_group
from prefect_cachewatch.cli.main import COMMANDS
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.files import TRACE_COLUMNS, TraceWriter, format_row, read_trace
from prefect_cachewatch.run.trace.recorder import attempt_path
from prefect_cachewatch.run.trace.replay import find_enough, replay_trace
from prefect_cachewatch.run.trace.rows import TraceRow

TRACES = Path(__file__).parents[3] / "data/traces"
DOCS = Path(__file__).parents[4] / "docs"
HEADER = "t_s,total_bytes,file_count"
FULL = TraceRow(15.25, 900, 3, 4096, 1000, 900, 8192, 4096, 14.5, 14.75, 0.125, 0.5, 15.0, "")


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_what_is_written_is_read_back(tmp_path):
    rows = (TraceRow(0.0, 0, 0, None, 0, 0, 0, 0), FULL, TraceRow(20.0, 900, 3, event="unreadable"),
            TraceRow(30.0, 900, 3, event="missing"), TraceRow(30.0, 900, 3, event="stopped"))  # fmt: skip
    writer = TraceWriter(tmp_path / "t.csv")
    for row in rows:
        writer.write(format_row(row))
    writer.close()
    trace = read_trace(tmp_path / "t.csv")
    assert trace.rows == rows
    assert (trace.name, trace.recorded, trace.torn, trace.ending) == ("t.csv", True, False, "stopped")


def test_each_attempt_has_a_file_of_its_own():
    assert [attempt_path(Path("/d/a.b.csv"), n).name for n in (1, 2, 3)] == ["a.b.csv", "a.b-2.csv", "a.b-3.csv"]


def test_columns_are_found_by_name_and_others_do_not_matter(tmp_path):
    text = '﻿x,file_count,"total_bytes", t_s\r\nwhat,1,2,0.5\r\n\r\never,2,3,0.5\r\n'
    rows = read_trace(written(tmp_path / "t.csv", text)).rows
    assert rows == (TraceRow(0.5, 2, 1), TraceRow(0.5, 3, 2))


def test_a_last_line_without_its_end_counts_where_another_sampler_wrote_it_whole(tmp_path):
    assert len(read_trace(written(tmp_path / "a.csv", f"{HEADER}\n0,1,1\n1,2,1")).rows) == 2
    torn = read_trace(written(tmp_path / "b.csv", f"{HEADER}\n0,1,1\n1,2"))
    assert (len(torn.rows), torn.torn) == (1, True)


numbers = st.one_of(st.just(""), st.integers(0, 2000).map(str), st.floats(0, 2000).map(lambda value: f"{value:.3f}"))
lines = st.lists(
    st.tuples(st.floats(0, 40), st.lists(numbers, min_size=12, max_size=12), st.sampled_from(["", "", "", "unreadable", "missing"])),
    min_size=1, max_size=15,
)  # fmt: skip


@pytest.mark.campaign
@pytest.mark.timeout(900)
@settings(max_examples=100)
@given(
    lines, st.sampled_from(["", "exited", "ready", "stopped"]), st.one_of(st.none(), st.floats(0, 800)), st.booleans()
)
def test_any_table_of_numbers_is_replayed_to_an_end(tmp_path, table, ending, hang_at_s, touching):
    t_s, text, sums = 0.0, ",".join(TRACE_COLUMNS) + "\n", [0, 0]
    for number, (wait_s, fields, event) in enumerate(table, start=1):
        t_s += wait_s
        whole = [field.partition(".")[0] for field in fields[:7]]
        for place, column in enumerate((3, 5)):  # what was written never falls
            sums[place] += int(whole[column] or 0)
            whole[column] = whole[column] and str(sums[place])
        cells = [f"{t_s:.3f}", whole[0] or "0", whole[1] or "0", *whole[2:], *fields[7:]]
        text += ",".join([*cells, ending if ending and number == len(table) else event]) + "\n"
    path = written(tmp_path / "t.csv", text)
    policy = StallPolicy(stall_after_s=60, poll_s=2, progress="any" if touching else "bytes")
    trace = read_trace(path)
    found = replay_trace(trace, policy, hang_at_s)
    assert found.at_s >= 0
    assert found.status == "ended" or found.window_s > 0
    find_enough(trace, policy, hang_at_s)


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)), st.booleans())
def test_any_bytes_are_a_trace_or_refused_in_one_sentence(tmp_path, data, with_header):
    path = written(tmp_path / "t.csv", (f"{HEADER}\n".encode() if with_header else b"") + data)
    try:
        assert read_trace(path).rows
    except InputError as error:
        assert "\n" not in error.message


def replayed(*args: object) -> str:
    done = CliRunner().invoke(command_group(COMMANDS), ["replay", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_the_command_says_what_would_have_happened_within_eighty_columns():
    text = replayed(TRACES / "torch_inductor.detail.csv", "--stall-after", "5s", "--poll", "1s")
    assert text.splitlines() == [
        "torch_inductor.detail.csv: 219 samples over 43.6 s",
        "window 5 s, first write within 20 minutes, poll 1 s",
        "",
        "verdict        stopped after 22.2 s: no_growth",
        "               5.0 s after the last growth",
        "               in vain: 1.6 s later it grew again",
        "written        139 KiB",
        "first growth   after 7.6 s",
        "longest pause  3.8 s",
        "suspicions     2, 1 of them refuted by growth",
        "               at 10.6 s, until 11.4 s",
        "                 no growth for 3 s; a stall after 5 s",
        "               at 20.2 s",
        "                 no growth for 3 s; a stall after 5 s",
        "enough         --stall-after 6.7s --first-write-within 7.6s",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_the_windows_that_it_calls_enough_can_be_given_back_to_it():
    path = TRACES / "torch_inductor.detail.csv"
    options = replayed(path, "--poll", "1s").splitlines()[-1].removeprefix("enough").split()
    assert "verdict        no stall: the trace ends after 43.6 s" in replayed(path, "--poll", "1s", *options)


def test_every_column_is_described():
    page = (DOCS / "replay.md").read_text()
    assert [name for name in TRACE_COLUMNS if f"| `{name}` |" not in page] == []
