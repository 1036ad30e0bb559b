"""Trace files: what is written is read back, what is not a trace is refused with its line number."""

from __future__ import annotations

import json
import resource
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


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert "\n" not in caught.value.message
    return caught.value.message.replace(str(path), "FILE")


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


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.csv")), ids=lambda path: path.name)
def test_the_projects_own_traces_are_read(path):
    trace = read_trace(path)
    assert len(trace.rows) == len(path.read_text().splitlines()) - 1
    assert (trace.recorded, trace.ending) == (False, "unknown")
    assert (trace.rows[-1].written_bytes is not None) == path.name.endswith(".detail.csv")


def test_a_recording_is_a_valid_trace_after_each_row_and_after_a_kill_in_the_middle_of_one(tmp_path):
    path = tmp_path / "t.csv"
    writer = TraceWriter(path)
    assert refusal(path) == "trace FILE has no rows below its header: nothing was measured"
    for number in range(3):
        writer.write(format_row(TraceRow(float(number), number, 1)))
        assert [row.t_s for row in read_trace(path).rows] == list(range(number + 1))
    whole = path.read_bytes()
    writer.close()
    begins = len(whole) - len(whole.splitlines()[-1])
    for cut in range(begins, len(whole)):
        path.write_bytes(whole[:cut])
        trace = read_trace(path)
        # A number whose end is missing is another number: nothing of a torn line is used.
        assert ([row.t_s for row in trace.rows], trace.torn) == ([0, 1], cut > begins - 1)
        assert trace.ending == "cut_off"


def test_a_full_disk_leaves_whole_lines(tmp_path):
    path = tmp_path / "t.csv"
    writer = TraceWriter(path)
    writer.write(format_row(FULL))
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (len(whole) + 10, hard)
    )  # ten bytes of the next row fit, as on a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write(format_row(FULL))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.close()
    assert path.read_bytes() == whole


def test_nothing_is_overwritten_and_an_empty_recording_is_removed(tmp_path):
    path = written(tmp_path / "t.csv", "mine")
    with pytest.raises(
        InputError, match="exists already: name another file, or a directory, where each run gets its own"
    ):
        TraceWriter(path)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match="does not exist; create it first"):
        TraceWriter(tmp_path / "none" / "t.csv")
    TraceWriter(tmp_path / "empty.csv").close()
    assert not (tmp_path / "empty.csv").exists()


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"trace FILE is empty: a trace begins with the line {HEADER}"),
        (f"{HEADER}\n", "trace FILE has no rows below its header: nothing was measured"),
        ("t_s,bytes\n0,1\n", f"trace FILE, line 1: no column total_bytes: a trace begins with the line {HEADER}"),
        (f"{HEADER}\n0,1,1\n1,2\n", "trace FILE, line 3: 2 fields, and the header names 3"),
        (f"{HEADER}\n0,1,1\nsoon,2,1\n", "trace FILE, line 3: t_s is 'soon', which is not a number of seconds"),
        (f"{HEADER}\nnan,2,1\n", "trace FILE, line 2: t_s is nan, which is out of range: a number of seconds, not negative"),
        (f"{HEADER}\n0,-5,1\n", "trace FILE, line 2: total_bytes is -5, which is out of range: a whole number of bytes or files, not negative"),
        (f"{HEADER}\n5,1,1\n4,1,1\n", "trace FILE, line 3: t_s goes back from 5 to 4: rows must be in the order of time"),
        (f"{HEADER},event\n0,1,1,exited\n1,1,1,\n", "trace FILE, line 3: a row after the run's end (exited): a trace holds one run"),
        (f"{HEADER},written_bytes\n0,1,1,9\n1,1,1,8\n", "trace FILE, line 3: written_bytes falls from 9 to 8: what was written can only grow"),
        (b"\x80\x81\n", "trace FILE, line 1: not text in UTF-8; a trace is CSV with a header"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_line(tmp_path, text, message):
    assert refusal(written(tmp_path / "t.csv", text)) == message


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


def test_the_command_says_the_same_as_one_json_object():
    data = json.loads(replayed(TRACES / "ttnn_as_tensor.csv", "--hang-at", "10s", "--json"))
    assert data["trace"] == {
        "name": "ttnn_as_tensor.csv",
        "rows": 116,
        "duration_s": 23.0,
        "ending": "unknown",
        "torn": False,
    }
    assert data["policy"]["stall_after_s"] == 300
    assert (data["status"], data["kind"], data["at_s"], data["stopped_in_vain"]) == ("stalled", "no_growth", 310, False)
    assert (data["hang_at_s"], data["after_last_growth_s"], data["grew_again_s"]) == (10, 300, None)
    assert data["suspicions"][0]["at_s"] == 190
    assert data["enough"] == {"stall_after_s": 0.5, "first_write_within_s": 2.1}


def test_a_torn_trace_is_replayed_with_a_note(tmp_path):
    done = CliRunner().invoke(
        command_group(COMMANDS), ["replay", str(written(tmp_path / "t.csv", f"{HEADER},event\n0,1,1,\n1,2"))]
    )
    assert done.exit_code == 0
    assert "cachewatch: the last line of the trace was cut off and is not used" in done.output
    assert "no stall: the recording was cut off after 0.0 s" in done.output


def test_every_column_is_described():
    page = (DOCS / "replay.md").read_text()
    assert [name for name in TRACE_COLUMNS if f"| `{name}` |" not in page] == []
