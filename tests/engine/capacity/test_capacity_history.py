"""Past runs: records, Little's law, hours, and their check against a plan."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.capacity.history import (
    RunRecord,
    hours_of,
    little_law,
    read_run_record,
    run_record_json,
    suggest_stall_window,
)
from prefect_cachewatch.capacity.history_check import check_history, unplanned_history
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.planning import plan
from prefect_cachewatch.capacity.model.profile import LinkProfile, ServiceCurve, StorageProfile
from prefect_cachewatch.errors import InputError

BURST = 2e9
THINK_S = 10.0


def make_plan(derate=0.15, rate=125e6):
    curve = ServiceCurve(per_stream_bytes_per_s=rate, aggregate_bytes_per_s=rate)
    return plan(
        StorageProfile(name="nfs-a", sequential_write=curve),
        LinkProfile(),
        [WorkloadClass(name="caches", burst_bytes=BURST, think_s=THINK_S)],
        Policy(derate=derate),
    )


def run(i, start_s, end_s, **changes):
    return RunRecord(
        **{"run_id": str(i), "storage": "nfs-a", "job": "j", "started_s": start_s, "ended_s": end_s} | changes
    )


def runs_as_planned(limit_plan, n, count=12, bursts=50, speed=1.0):
    """`count` runs, `n` at a time, each as fast as the plan says, times `speed`."""
    row = next(entry for row in limit_plan.table for entry in row if entry.n == n)
    service_s = bursts * (row.n / row.throughput_per_s) / speed
    return [
        run(i, i // n * service_s, (i // n + 1) * service_s, bytes_written=int(bursts * BURST)) for i in range(count)
    ], math.ceil(count / n) * service_s


times = st.floats(0, 1e5)
records = st.builds(
    lambda i, start, wait, length, moved, state: run(
        i, start, start + wait + length, slot_wait_s=wait, bytes_written=moved, state=state
    ),
    st.uuids(), times, st.floats(0, 1e4), st.floats(0, 2e4), st.none() | st.integers(0, 10**15),
    st.sampled_from(["Completed", "Stalled", "Crashed"]),
)  # fmt: skip


@given(records)
def test_a_record_written_is_the_record_read(record):
    assert read_run_record(run_record_json(record)) == record
    assert read_run_record(f"```json\n{run_record_json(record)}\n```") == record
    assert read_run_record(json.loads(run_record_json(record))) == record


@given(
    st.text() | st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_what_is_no_record_is_none_and_never_an_error(data):
    assert read_run_record(data) is None


@pytest.mark.parametrize(
    "change",
    [
        {"started_s": "soon"}, {"started_s": math.inf}, {"run_id": None}, {"slots": 0}, {"slot_wait_s": -1},
        {"bytes_written": -5}, {"ended_s": 1}, {"bytes_written": True}, {"attempts": []}, {"cachewatch_run_record": "1"},
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_true_is_none(change):
    good = json.loads(run_record_json(run(1, 1000.0, 2000.0)))
    assert read_run_record(good) is not None
    assert read_run_record({key: value for key, value in (good | change).items() if value is not None}) is None


def test_fields_of_a_later_version_are_left_out():
    data = json.loads(run_record_json(run(1, 1000.0, 2000.0))) | {"cachewatch_run_record": 2, "colour": "blue"}
    assert read_run_record(data) == run(1, 1000.0, 2000.0)


@given(st.lists(records, min_size=1, max_size=20, unique_by=lambda r: r.run_id))
def test_littles_law_is_exact_where_no_run_is_cut_by_an_edge(some):
    end_s = max(record.ended_s for record in some) + 1
    law = little_law(some, 0, end_s)
    if law.concurrency > 0:
        entered = [r for r in some if r.service_s > 0]
        assert law.runs == len(entered)
        assert law.concurrency == pytest.approx(law.arrivals_per_s * law.duration_s, rel=1e-9)
        assert law.edge_effect == pytest.approx(0, abs=1e-9)


def test_the_wait_for_a_slot_is_not_time_on_the_storage():
    law = little_law([run(1, 0, 100, slot_wait_s=60)], 0, 1000)
    assert (law.concurrency, law.duration_s, law.slot_wait_s) == (0.04, 40.0, 60.0)


def test_a_run_is_clipped_to_the_window_and_the_edge_effect_is_told():
    steady = [run(i, 10.0 * i, 10.0 * i + 100) for i in range(-20, 40)]  # 10 at a time
    short, long = little_law(steady, 0, 150), little_law(steady, 0, 150_0 / 10)
    assert short == long
    assert short.concurrency == 10.0
    assert (short.arrivals_per_s, short.duration_s) == (0.1, 100.0)
    assert short.windows_per_run == 1.5
    ramp = little_law([run(i, 10.0 * i, 10.0 * i + 100) for i in range(15)], 0, 150)
    assert ramp.concurrency < 10
    assert ramp.edge_effect == pytest.approx(10 / ramp.concurrency - 1)


def test_a_run_under_way_counts_up_to_the_windows_end():
    law = little_law([run(1, 500, None)], 0, 1000)
    assert (law.concurrency, law.runs, law.duration_s) == (0.5, 1, 0.0)


def test_a_window_without_runs_is_zeros_and_an_empty_window_is_refused():
    law = little_law([], 0, 100)
    assert (law.runs, law.concurrency, law.edge_effect, law.windows_per_run) == (0, 0.0, 0.0, math.inf)
    with pytest.raises(InputError, match="window of the check is empty"):
        little_law([], 100, 100)


@given(st.lists(records, max_size=10, unique_by=lambda r: r.run_id))
def test_the_hours_together_hold_all_bytes_that_were_written_in_the_window(some):
    hours = hours_of(some, 0, 40 * 3600)
    inside = [r for r in some if r.service_s > 0 and r.bytes_written is not None]
    moved = sum(hour.bytes_per_s * 3600 for hour in hours if hour.bytes_per_s is not None)
    assert moved == pytest.approx(sum(r.bytes_written for r in inside), rel=1e-6)
    total = sum(hour.concurrency * 3600 for hour in hours)
    assert total == pytest.approx(sum(r.service_s for r in some), rel=1e-6, abs=1e-3)


def test_hours_are_named_in_utc_and_empty_ones_left_out():
    hours = hours_of([run(1, 3600 * 5 + 1800, 3600 * 6 + 900)], 0, 3600 * 24)
    assert [(hour.start, hour.concurrency) for hour in hours] == [
        ("1970-01-01T05:00:00+00:00", 0.5), ("1970-01-01T06:00:00+00:00", 0.25),
    ]  # fmt: skip


def test_pauses_of_runs_that_failed_suggest_nothing():
    good = [run(i, 0, 900, longest_pause_s=31.0) for i in range(5)]
    assert suggest_stall_window(good) == 100.0
    assert suggest_stall_window([*good, run(9, 0, 900, longest_pause_s=600.0, state="Stalled")]) == 100.0
    assert suggest_stall_window(good[:4]) is None
    assert suggest_stall_window([run(i, 0, 900, longest_pause_s=1.0) for i in range(5)]) == 60.0


@pytest.mark.parametrize("n", [1, 2, 4])
def test_runs_as_fast_as_the_plan_are_ok_and_change_no_derate(n):
    limit_plan = make_plan()
    some, end_s = runs_as_planned(limit_plan, n)
    check = check_history(some, limit_plan, 0, end_s, replan=make_plan)
    assert check.verdict == "ok"
    assert check.bytes_per_s == pytest.approx(check.expected_bytes_per_s, rel=1e-6)
    assert check.burst_s == pytest.approx(check.expected_burst_s, rel=1e-6)
    assert check.derate == pytest.approx(0.15, abs=0.005)
    assert check.concurrency == pytest.approx(n)
    assert check.edge_effect == pytest.approx(0)
    assert f"at the {n:.1f} at once they met: 1.00 x, within 25%" in check.reason


@pytest.mark.parametrize(("speed", "verdict"), [(0.74, "slower"), (0.76, "ok"), (1.24, "ok"), (1.26, "faster")])
def test_the_verdict_turns_at_the_band(speed, verdict):
    limit_plan = make_plan()
    some, end_s = runs_as_planned(limit_plan, 2, speed=speed)
    assert check_history(some, limit_plan, 0, end_s).verdict == verdict


@pytest.mark.parametrize("truth", [0.0, 0.05, 0.4, 0.7])
def test_the_derate_is_calibrated_to_what_really_happened(truth):
    some, end_s = runs_as_planned(make_plan(truth), 4)
    check = check_history(some, make_plan(), 0, end_s, replan=make_plan)
    assert check.derate == pytest.approx(truth, abs=0.006)
    rough = check_history(some, make_plan(), 0, end_s)
    assert abs(rough.derate - truth) <= 0.15


def test_a_storage_faster_than_its_profile_calibrates_to_no_derate():
    some, end_s = runs_as_planned(make_plan(0, rate=400e6), 4)
    check = check_history(some, make_plan(), 0, end_s, replan=make_plan)
    assert (check.verdict, check.derate) == ("faster", 0.0)


def test_loading_before_the_first_byte_is_no_slow_storage():
    limit_plan = make_plan()
    some, end_s = runs_as_planned(limit_plan, 1, bursts=20)
    row = next(entry for row in limit_plan.table for entry in row if entry.n == 1)
    load_s = 900.0
    late = [
        dataclasses.replace(
            r, started_s=r.started_s + i * load_s, ended_s=r.ended_s + (i + 1) * load_s,
            first_write_s=load_s + row.n / row.throughput_per_s,
        )
        for i, r in enumerate(some)
    ]  # fmt: skip
    check = check_history(late, limit_plan, 0, end_s + 12 * load_s)
    assert check.burst_s == pytest.approx(check.expected_burst_s, rel=1e-6)
    assert check.verdict == "ok"


@pytest.mark.parametrize(
    "change",
    [{"state": "Stalled"}, {"state": "Cached"}, {"attempts": 2}, {"bytes_written": None}, {"bytes_written": 0}],
)
def test_runs_that_say_nothing_of_the_rate_are_insufficient_data(change):
    limit_plan = make_plan()
    some, end_s = runs_as_planned(limit_plan, 2)
    check = check_history([dataclasses.replace(r, **change) for r in some], limit_plan, 0, end_s)
    assert check.verdict == "insufficient data"
    assert check.reason.startswith("12 runs in the window, 0 of them whole")
    assert (check.derate, check.bytes_per_s) == (None, None)
    assert check.concurrency == pytest.approx(2)


def test_no_history_at_all_is_insufficient_data_with_what_to_do():
    check = check_history([], make_plan(), 0, 3600)
    assert (check.verdict, check.runs) == ("insufficient data", 0)
    assert check.reason.endswith("widen the window or wait for more")


def test_a_window_of_few_runs_length_has_its_edge_effect_in_the_reason():
    limit_plan = make_plan()
    some, end_s = runs_as_planned(limit_plan, 4, count=8)
    check = check_history(some, limit_plan, -0.25 * end_s, 0.8 * end_s)
    assert "mean runs long, so runs cut by its edges shift Little's law by" in check.reason
    assert check.edge_effect != 0


def test_the_class_that_always_runs_beside_is_not_taken_for_the_generations():
    curve = ServiceCurve(per_stream_bytes_per_s=1e9, aggregate_bytes_per_s=2e9)
    limit_plan = plan(
        StorageProfile(name="nfs-a", sequential_write=curve, sequential_read=curve, random_read=curve),
        LinkProfile(),
        [
            WorkloadClass(name="training", kind="training", burst_bytes=1e6, think_s=0.1, running=2),
            WorkloadClass(name="caches", burst_bytes=BURST, think_s=THINK_S),
        ],
    )
    row = next(entry for entry in limit_plan.table[0] if entry.name == "caches")
    service_s = 50 * row.n / row.throughput_per_s
    some = [run(i, 0, service_s, bytes_written=int(50 * BURST)) for i in range(row.n)]
    check = check_history(some, limit_plan, 0, service_s)
    assert check.bytes_per_s == pytest.approx(check.expected_bytes_per_s, rel=1e-6)


def test_a_storage_without_a_plan_still_has_its_law_and_hours():
    some = [run(i, 100.0 * i, 100.0 * i + 50, bytes_written=5000, longest_pause_s=9.0) for i in range(10)]
    check = unplanned_history("nfs-b", some, 0, 1000)
    assert (check.storage, check.verdict, check.concurrency) == ("nfs-b", "insufficient data", 0.5)
    assert check.bytes_per_s == 100.0
    assert check.suggested_stall_window_s == 60.0
    assert "there is no plan for this storage" in check.reason
