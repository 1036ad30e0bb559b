"""The watch in simulated time: literal traces, exact verdicts; and properties over random ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.walk import Part
from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.run.trace.replay import find_enough, replay_trace
from prefect_cachewatch.run.trace.rows import Trace, TraceFiles, TraceRow

TRACES = Path(__file__).parents[3] / "data/traces"
MIB = 2**20
POLICY = StallPolicy()  # 300 s, 1200 s, 15 s


def trace(*points: tuple[float, int], recorded: bool = False) -> Trace:
    """A trace of (time, total bytes)."""
    return Trace("t", tuple(TraceRow(float(t), size, 1) for t, size in points), recorded)


def recorded(*rows: TraceRow) -> Trace:
    return Trace("t", rows, recorded=True)


def grown(t_s: float, written: int, kept: int | None = None, **more: object) -> TraceRow:
    """A row as the recorder writes it; blocks follow the bytes."""
    kept = written if kept is None else kept
    given = {"alloc_bytes": kept, "written_bytes": written, "kept_bytes": kept, "written_alloc_bytes": written,
             "kept_alloc_bytes": kept, "grew_at_s": t_s if written else None}  # fmt: skip
    return TraceRow(t_s, kept, 1, **(given | more))


def test_a_pause_beyond_the_window_would_have_been_stopped_in_vain():
    found = replay_trace(trace((0, 0), (10, MIB), (400, 2 * MIB), (420, 3 * MIB)), POLICY)
    assert (found.status, found.kind, found.at_s, found.window_s) == ("stalled", "no_growth", 310, 300)
    assert (found.first_write_s, found.last_growth_s, found.after_last_growth_s) == (10, 10, 300)
    assert found.grew_again_s == 400


def test_a_trace_without_a_long_pause_comes_to_its_end():
    found = replay_trace(trace((0, 0), (10, MIB), (290, 2 * MIB), (420, 3 * MIB)), POLICY)
    assert (found.status, found.kind, found.at_s, found.grew_again_s) == ("ended", None, 420, None)
    assert found.bytes_written == 3 * MIB
    assert found.last_growth_s == 420


def test_a_window_of_just_the_longest_pause_stops_nothing_but_one_below_does():
    points = trace((0, 0), (10, MIB), (400, 2 * MIB), (420, 3 * MIB))
    enough = find_enough(points, POLICY)
    assert (enough.stall_after_s, enough.first_write_within_s) == (390.1, 10.1)
    for window_s, status in ((390.1, "ended"), (389.9, "stalled")):
        assert replay_trace(points, StallPolicy(stall_after_s=window_s)).status == status
    assert replay_trace(points, StallPolicy(stall_after_s=500, first_write_within_s=9.9)).kind == "never_started"


def test_the_silence_before_the_end_counts_if_the_generator_ended_there():
    rows = (grown(0, 0), grown(10, MIB), grown(20, 2 * MIB))
    silent = [replace(rows[-1], t_s=220.0, grew_at_s=None)]
    exited = recorded(*rows, *silent, replace(silent[-1], event="exited"))
    stopped = recorded(*rows, *silent, replace(silent[-1], event="stopped"))
    cut_off = recorded(*rows, *silent)
    assert [each.ending for each in (exited, stopped, cut_off)] == ["exited", "stopped", "cut_off"]
    assert [find_enough(each, POLICY).stall_after_s for each in (exited, stopped, cut_off)] == [200.1, 10.1, 10.1]


def test_a_hang_is_said_one_window_after_the_last_growth_before_it():
    points = trace(*((t, t * MIB) for t in range(0, 1000, 7)))
    found = replay_trace(points, POLICY, hang_at_s=500)
    assert (found.status, found.kind, found.hang_at_s) == ("stalled", "no_growth", 500)
    assert (found.last_growth_s, found.at_s, found.grew_again_s) == (497, 797, None)
    assert find_enough(points, POLICY, hang_at_s=500).stall_after_s == 7.1


def test_a_hang_from_the_start_never_started():
    found = replay_trace(trace((0, 0), (10, MIB)), POLICY, hang_at_s=0)
    assert (found.kind, found.at_s, found.last_growth_s, found.bytes_written) == ("never_started", 1200, None, 0)


def test_a_suspicion_that_growth_refutes_is_a_false_one():
    found = replay_trace(trace((0, 0), (10, MIB), (250, 2 * MIB), (255, 3 * MIB)), POLICY)
    assert [(s.at_s, s.cleared_at_s) for s in found.suspicions] == [(190, 250)]
    assert found.false_suspicions == found.suspicions
    frozen = replay_trace(trace((0, 0), (10, MIB)), POLICY, hang_at_s=20)
    assert [(s.at_s, s.cleared_at_s) for s in frozen.suspicions] == [(190, None)]
    assert frozen.false_suspicions == ()


def test_growth_is_there_from_its_own_time_and_not_from_the_scan_that_saw_it():
    late = recorded(grown(0, 0), grown(10, MIB), grown(312, 2 * MIB, grew_at_s=309.0), grown(320, 3 * MIB))
    assert replay_trace(late, POLICY).status == "ended"
    assert find_enough(late, POLICY).stall_after_s == 299.1


def test_a_directory_that_cannot_be_measured_is_neither_silence_nor_growth():
    def unreadable(t_s: float, event: str) -> TraceRow:
        return grown(t_s, MIB, grew_at_s=None, scan_s=0.0, event=event)

    blind = [unreadable(t, "unreadable") for t in range(30, 300, 15)]
    back = recorded(grown(0, 0), grown(15, MIB), *blind, grown(300, MIB, grew_at_s=None), grown(500, 2 * MIB))
    assert replay_trace(back, POLICY).status == "ended"
    for event, kind in (("unreadable", "filesystem_unresponsive"), ("missing", "cache_directory_missing")):
        gone = [unreadable(t, event) for t in range(30, 400, 15)]
        found = replay_trace(recorded(grown(0, 0), grown(15, MIB), *gone), POLICY)
        # The time of blindness began with the last good measurement.
        assert (found.status, found.kind, found.at_s) == ("stalled", kind, 315)


def test_a_machine_that_stood_still_is_no_pause():
    still = recorded(
        grown(0, 0), grown(15, MIB), grown(30, MIB, grew_at_s=None), grown(3645, MIB, grew_at_s=None, late_s=3600.0),
        grown(3660, 2 * MIB),
    )  # fmt: skip
    found = replay_trace(still, POLICY)
    assert (found.status, found.suspicions) == ("ended", ())
    # Where within a poll the machine stopped is not known, so that up to one poll of it counts.
    assert 45.1 <= find_enough(still, POLICY).stall_after_s <= 60.1


def test_changed_times_count_where_the_policy_says_so():
    touched = [grown(t, MIB, grew_at_s=None, touched_at_s=float(t)) for t in range(20, 900, 10)]
    rows = recorded(grown(0, 0), grown(10, MIB), *touched)
    assert replay_trace(rows, POLICY).at_s == 310
    assert replay_trace(rows, StallPolicy(progress="any")).status == "ended"
    assert find_enough(rows, StallPolicy(progress="any")).stall_after_s == 10.1


def test_a_trace_that_needs_too_many_measurements_is_refused_in_a_sentence():
    with pytest.raises(InputError, match=r"more than 5,000,000 measurements: give a longer --poll"):
        replay_trace(trace((0, 0), (10**7, MIB)), StallPolicy(poll_s=0.05))
    with pytest.raises(InputError, match="longer --poll"):
        replay_trace(trace((0, 0), (1, MIB)), StallPolicy(poll_s=0.05), hang_at_s=10**9)


def test_a_trace_of_one_row_ends_where_it_begins():
    found = replay_trace(trace((5, 100)), POLICY)
    assert (found.status, found.at_s, found.bytes_written) == ("ended", 0, 0)
    assert find_enough(trace((5, 100)), POLICY).stall_after_s is None


@pytest.mark.parametrize(
    ("name", "stall_s", "first_s"),
    [
        ("ttnn_as_tensor.detail", 3.1, 2.1),
        ("torch_inductor.detail", 6.7, 7.6),
        ("safetensors_shards.detail", 1.5, 1.9),
        ("memmap_fill.detail", 1.7, 0.5),
        ("memmap_fill", 8.6, 0.5),
        ("ttnn_warm_rerun", None, 11.1),
    ],
)
def test_the_windows_that_are_enough_for_real_generators(name, stall_s, first_s):
    real, policy = read_trace(TRACES / f"{name}.csv"), StallPolicy(poll_s=0.2)
    enough = find_enough(real, policy)
    assert (enough.stall_after_s, enough.first_write_within_s) == (stall_s, first_s)
    exact = StallPolicy(stall_after_s=stall_s or 300, first_write_within_s=first_s, poll_s=0.2)
    assert replay_trace(real, exact).status == "ended"
    if stall_s:
        assert replay_trace(real, exact.model_copy(update={"stall_after_s": stall_s - 0.3})).kind == "no_growth"


gaps = st.lists(st.integers(1, 400), min_size=1, max_size=40)
# (seconds, blocks written, share of what was kept that is deleted, in percent)
steps = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 10_000), st.integers(0, 100)), min_size=1, max_size=30
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(steps)
def test_the_ledger_reads_the_recorded_totals_out_of_the_files_that_are_made_for_it(changes):
    rows, t, written, kept = [grown(0, 0)], 0, 0, 0
    for wait, blocks, percent in changes:
        t, size = t + wait, blocks * 512
        written += size
        kept = kept - kept * percent // 100 // 512 * 512 + size
        rows.append(grown(float(t), written, kept, grew_at_s=float(t) if size else None))
    files, ledger = TraceFiles(recorded(*rows)), Ledger()
    for row in rows:
        present = files.at(row.t_s)
        ledger.begin()
        ledger.take("/", [Part("/", "", [str(file.st_ino) for file in present], present)])
        growth = ledger.end()
        assert (growth.bytes_written, growth.bytes_kept) == (row.written_bytes, row.kept_bytes)
        assert (growth.allocated_written, growth.allocated_kept) == (row.written_alloc_bytes, row.kept_alloc_bytes)


@settings(max_examples=150, deadline=None)
@given(gaps, st.sampled_from([0.5, 3.0, 15.0]), st.sampled_from([5.0, 40.0, 300.0]))
def test_a_stall_is_said_exactly_one_window_after_a_growth(waits, poll_s, window_s):
    times = [0, *itertools.accumulate(waits)]
    points = trace(*((t, (n + 1) * MIB) for n, t in enumerate(times)))
    policy = StallPolicy(stall_after_s=window_s, first_write_within_s=500, poll_s=poll_s)
    found = replay_trace(points, policy)
    stops = [a for a, b in itertools.pairwise(times[1:]) if b - a > window_s]
    if stops:
        assert found.kind == "no_growth"
        assert found.at_s == pytest.approx(stops[0] + window_s, abs=0.002)
        assert found.grew_again_s is not None
    elif found.status != "ended":  # a pause of just the window may be called either way
        assert any(b - a == window_s for a, b in itertools.pairwise(times[1:]))


@pytest.mark.campaign
@settings(max_examples=100, deadline=None)
@given(gaps, st.sampled_from([0.5, 3.0, 15.0]))
def test_windows_that_are_called_enough_stop_nothing_and_are_no_longer_than_needed(waits, poll_s):
    times = [0, *itertools.accumulate(waits)]
    points = trace(*((t, (n + 1) * MIB) for n, t in enumerate(times)))
    enough = find_enough(points, StallPolicy(poll_s=poll_s))
    policy = StallPolicy(
        stall_after_s=enough.stall_after_s, first_write_within_s=enough.first_write_within_s, poll_s=poll_s
    )
    assert replay_trace(points, policy).status == "ended"
    longest = max((b - a for a, b in itertools.pairwise(times[1:])), default=0)
    assert enough.stall_after_s <= max(0.2, longest + 0.1)
    assert enough.first_write_within_s == times[1] + 0.1


def test_lines_of_progress_end_pauses_in_a_replay_and_count_for_what_would_have_been_enough():
    rows = (
        recorded(grown(0, 0), grown(60, MIB), grown(300, MIB, grew_at_s=None, told_at_s=290.0),
                 grown(500, MIB, grew_at_s=None), grown(550, 2 * MIB), grown(560, 2 * MIB, grew_at_s=None, event="exited"))
    )  # fmt: skip
    found = replay_trace(rows, POLICY)
    assert (found.status, found.longest_pause_s) == ("ended", 260)
    assert find_enough(rows, POLICY).stall_after_s == 260.1
    assert replay_trace(rows, POLICY, hang_at_s=400).at_s == 590
    without = Trace("t", tuple(replace(row, told_at_s=None) for row in rows.rows), recorded=True)
    assert (replay_trace(without, POLICY).at_s, find_enough(without, POLICY).stall_after_s) == (360, 490.1)


def test_lines_of_progress_before_the_first_byte_shorten_its_window():
    told = recorded(grown(0, 0), grown(100, 0, told_at_s=100.0), grown(150, MIB), grown(160, MIB, grew_at_s=None))
    assert find_enough(told, POLICY).first_write_within_s == 100.1
