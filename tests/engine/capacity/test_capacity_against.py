"""Past runs: records, Little's law, and "planned 24 s, got 27 s over 312 runs"."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_cachewatch.capacity import PlanInput
from prefect_cachewatch.capacity.against import check_history
from prefect_cachewatch.capacity.history import RunRecord, little_law, read_run_record, run_record_json
from prefect_cachewatch.capacity.planning import expected_burst_s
from prefect_cachewatch.errors import InputError

BURST, BURSTS, THINK_S = 2_000_000_000, 50, 10.0


def inputs() -> PlanInput:
    storage = {"name": "nfs-a", "write": {"points": [{"n": 1, "bytes_per_s": 2e8}, {"n": 4, "bytes_per_s": 4e8}]}}
    job = {"name": "caches", "burst_bytes": BURST, "think_s": THINK_S}
    return PlanInput.model_validate({"storage": storage, "workloads": [job]})


def run(i: object, start_s: float, end_s: float | None, **changes: Any) -> RunRecord:
    return RunRecord(
        **{"run_id": str(i), "storage": "nfs-a", "job": "j", "started_s": start_s, "ended_s": end_s} | changes
    )


def runs_as_planned(n: int) -> tuple[list[RunRecord], float]:
    """Twelve runs, `n` at a time, each as fast as the plan says, and when the last one ends."""
    service_s = BURSTS * (THINK_S + expected_burst_s(inputs(), n))
    some = [run(i, i // n * service_s, (i // n + 1) * service_s, bytes_written=BURSTS * BURST) for i in range(12)]
    return some, math.ceil(12 / n) * service_s


times = st.floats(0, 1e5)
records = st.builds(
    lambda i, start, wait, length, moved, state: run(
        i, start, start + wait + length, slot_wait_s=wait, bytes_written=moved, state=state
    ),
    st.uuids(), times, st.floats(0, 1e4), st.floats(0, 2e4), st.none() | st.integers(0, 10**15),
    st.sampled_from(["Completed", "Stalled", "Crashed"]),
)  # fmt: skip


@given(records)
def test_a_record_written_is_the_record_read(record: RunRecord) -> None:
    assert read_run_record(run_record_json(record)) == record
    assert read_run_record(f"```json\n{run_record_json(record)}\n```") == record
    assert read_run_record(json.loads(run_record_json(record))) == record


@given(
    st.text() | st.recursive(st.none() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_what_is_no_record_is_none_and_never_an_error(data: object) -> None:
    assert read_run_record(data) is None


@pytest.mark.parametrize(
    "change",
    [
        {"started_s": "soon"}, {"started_s": math.inf}, {"run_id": None}, {"slots": 0}, {"slot_wait_s": -1},
        {"bytes_written": -5}, {"ended_s": 1}, {"bytes_written": True}, {"bytes_written": 10**400}, {"attempts": []},
        {"cachewatch_run_record": "1"}, {"first_write_s": math.nan},
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_true_is_none(change: dict[str, Any]) -> None:
    good = json.loads(run_record_json(run(1, 1000.0, 2000.0)))
    assert read_run_record(good) is not None
    assert read_run_record({key: value for key, value in (good | change).items() if value is not None}) is None


def test_fields_of_a_later_version_are_left_out() -> None:
    data = json.loads(run_record_json(run(1, 1000.0, 2000.0))) | {"cachewatch_run_record": 2, "colour": "blue"}
    assert read_run_record(data) == run(1, 1000.0, 2000.0)


@given(st.lists(records, min_size=1, max_size=20, unique_by=lambda r: r.run_id))
def test_littles_law_is_exact_where_no_run_is_cut_by_an_edge(some: list[RunRecord]) -> None:
    law = little_law(some, 0, max(record.ended_s or 0 for record in some) + 1)
    if law.concurrency > 0:
        assert law.concurrency == pytest.approx(law.arrivals_per_s * law.duration_s, rel=1e-9)


def test_a_run_is_clipped_to_the_window() -> None:
    steady = [run(i, 10.0 * i, 10.0 * i + 100) for i in range(60)]  # 10 at a time
    law = little_law(steady, 200, 350)
    assert (law.concurrency, law.arrivals_per_s, law.duration_s) == (10.0, 0.1, 100.0)
    waited = little_law([run(1, 0, 100, slot_wait_s=60)], 0, 1000)
    assert (waited.concurrency, waited.duration_s, waited.slot_wait_s) == (0.04, 40.0, 60.0)
    with pytest.raises(InputError, match="window of the check is empty"):
        little_law([], 100, 100)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_runs_as_fast_as_planned_are_ok(n: int) -> None:
    some, end_s = runs_as_planned(n)
    check = check_history(some, inputs(), 0, end_s)
    assert check.verdict == "ok"
    assert check.got_burst_s == pytest.approx(check.planned_burst_s, rel=1e-6)
    assert check.law.concurrency == pytest.approx(n)
    assert f"over 12 runs at {n} at once: within 25%" in check.reason
    assert check.reason.startswith("planned ")


@pytest.mark.parametrize(("times", "verdict"), [(0.74, "faster"), (0.76, "ok"), (1.24, "ok"), (1.26, "slower")])
def test_the_verdict_turns_at_a_quarter(times: float, verdict: str) -> None:
    burst_s = expected_burst_s(inputs(), 2) * times
    some = [run(i, 0, BURSTS * (THINK_S + burst_s), bytes_written=BURSTS * BURST) for i in range(2)]
    some += [run(i, 10_000, 10_000 + BURSTS * (THINK_S + burst_s), bytes_written=BURSTS * BURST) for i in range(2, 4)]
    some += [run(i, 20_000, 20_000 + BURSTS * (THINK_S + burst_s), bytes_written=BURSTS * BURST) for i in range(4, 6)]
    assert check_history(some, inputs(), 0, 30_000).verdict == verdict


def test_loading_before_the_first_byte_is_no_slow_storage() -> None:
    some, end_s = runs_as_planned(1)
    load_s = 900.0
    late = [
        dataclasses.replace(
            r, started_s=r.started_s + i * load_s, ended_s=(r.ended_s or 0) + (i + 1) * load_s,
            first_write_s=load_s + THINK_S + expected_burst_s(inputs(), 1),
        )
        for i, r in enumerate(some)
    ]  # fmt: skip
    check = check_history(late, inputs(), 0, end_s + 12 * load_s)
    assert (check.verdict, check.got_burst_s) == ("ok", pytest.approx(check.planned_burst_s, rel=1e-6))


@pytest.mark.parametrize(
    "change", [{"state": "Stalled"}, {"attempts": 2}, {"bytes_written": None}, {"bytes_written": 0}]
)
def test_runs_that_say_nothing_of_the_rate_are_insufficient_data(change: dict[str, Any]) -> None:
    some, end_s = runs_as_planned(2)
    check = check_history([dataclasses.replace(r, **change) for r in some], inputs(), 0, end_s)
    assert check.verdict == "insufficient data"
    assert check.reason.startswith("12 runs in the window, 0 of them whole")
    assert check.law.concurrency == pytest.approx(2)
    check = check_history([], inputs(), 0, 3600)
    assert (check.verdict, check.law.runs) == ("insufficient data", 0)
    assert check.reason.endswith("widen the window or wait for more")
