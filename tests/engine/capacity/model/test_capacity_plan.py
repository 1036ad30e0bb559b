"""The plan: which rule binds, the band, shared slots, and what a purchase changes."""

from __future__ import annotations

import dataclasses
import json
import pickle
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.capacity import (
    LimitPlan,
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    WorkloadClass,
    plan,
    solve_closed,
)
from prefect_cachewatch.capacity.model.agreement import with_simulation
from prefect_cachewatch.capacity.model.demands import Scenario, demands_of
from prefect_cachewatch.capacity.model.results import as_json
from prefect_cachewatch.errors import InputError

MIB = 2**20
POINTS = [(1, 180e6), (2, 330e6), (4, 560e6), (8, 760e6), (16, 800e6)]


def flat(rate: float = 125 * MIB, **more: Any) -> StorageProfile:
    """A storage on which streams only share what one could have alone."""
    curve = ServiceCurve(per_stream_bytes_per_s=rate, aggregate_bytes_per_s=rate)
    return StorageProfile(**{"name": "disk", "sequential_write": curve, "sequential_read": curve} | more)


def measured(**more: Any) -> StorageProfile:
    curve = ServiceCurve(points=[{"n": n, "throughput_bytes_per_s": x} for n, x in POINTS])
    return StorageProfile(**{"name": "nfs-a", "basis": "measured", "sequential_write": curve} | more)


def caches(**more: Any) -> WorkloadClass:
    return WorkloadClass(**{"name": "caches", "burst_bytes": 2e9, "think_s": 10} | more)


def loose(**more: Any) -> Policy:
    """No derate and no slowdown worth speaking of: one rule at a time."""
    return Policy(**{"derate": 0, "p99_factor": 1.5, "max_slowdown": 100} | more)


@pytest.mark.parametrize(("window_s", "limit"), [(300, 13), (180, 8)])
def test_the_stall_window_alone_admits_what_the_formula_says(window_s: float, limit: int) -> None:
    answer = plan(flat(), LinkProfile(), [caches()], loose(stall_window_s=window_s))
    assert (answer.most, answer.binding, answer.bounds["stall_n"]) == (limit, "stall", limit)
    assert answer.limit == 4  # more is slower for each, and within 2 % as fast for all
    assert f"of a {window_s} s stall window" in answer.answer
    assert f"at {limit + 1} the slowest burst is silent" in answer.answer


def test_the_slowdown_rule_takes_the_largest_n_that_is_accepted() -> None:
    policy = Policy(derate=0, max_slowdown=1.5)
    answer = plan(flat(1e9), LinkProfile(), [caches()], policy)

    def slowdown(n: int) -> float:
        return float((10 + solve_closed(n, [2.0], 10).response_s[0]) / 12)

    assert answer.binding == "slowdown"
    assert slowdown(answer.most) <= 1.5 < slowdown(answer.most + 1)


def test_predictions_are_the_exact_means_of_the_derated_network() -> None:
    answer = plan(
        flat(1e9), LinkProfile(name="10G", bytes_per_s=1.25e9), [caches(bursts_per_job=5, jobs=7)], Policy(derate=0.2)
    )
    row = answer.table[2][0]
    exact = solve_closed(row.n, [2e9 / 1.25e9 / 0.8, 2e9 / 1e9 / 0.8], 10)
    assert row.burst_s == pytest.approx(float(exact.response_s[0]))
    assert row.throughput_per_s == pytest.approx(float(exact.throughput_per_s[0]))
    assert row.bytes_per_s == pytest.approx(row.throughput_per_s * 2e9)
    assert row.job_s == pytest.approx(5 * (10 + row.burst_s))
    last = solve_closed(7 % row.n, [2e9 / 1.25e9 / 0.8, 2e9 / 1e9 / 0.8], 10)  # 7 jobs, 3 at once: 3, 3 and 1
    assert row.batch_s == pytest.approx(2 * row.job_s + 5 * (10 + float(last.response_s[0])))
    assert row.burst_low_s < row.burst_s < row.burst_high_s


def test_the_chassis_example_has_its_knee() -> None:
    chassis = StorageProfile(
        name="chassis", sequential_write=ServiceCurve(per_stream_bytes_per_s=15e9, aggregate_bytes_per_s=15e9)
    )
    for rate, knee in ((1.25e9, 7.333), (5e9, 26.333)):
        answer = plan(chassis, LinkProfile(bytes_per_s=rate), [caches()], loose())
        assert answer.knee_n == pytest.approx(knee, abs=5e-4)
        assert answer.bottleneck.startswith("the link")


def test_free_bytes_bound_the_caches_that_can_be_made_at_once() -> None:
    answer = plan(flat(1e9, free_bytes=45e9), LinkProfile(), [caches(bursts_per_job=5)], loose())
    assert (answer.most, answer.binding) == (4, "capacity")
    assert "are free" in answer.answer


def test_nothing_is_promised_beyond_twice_the_largest_measured_n() -> None:
    free = loose(stall_window_s=7 * 86400, max_slowdown=1000)
    answer = plan(measured(), LinkProfile(), [caches(think_s=600)], free)
    assert (answer.most, answer.binding, answer.measured_n) == (32, "measured_n", 16)
    assert (answer.limit, answer.slots) == (16, 16)
    assert answer.answer.endswith("Recommended: 16 at once, the rules admit 32, but no more than 16 were measured")
    forced = plan(measured(), LinkProfile(), [caches(think_s=600)], free.model_copy(update={"beyond_measured": True}))
    assert forced.limit == forced.slots == 32


def test_a_peak_of_the_curve_binds_by_the_bursts_at_the_storage() -> None:
    points = [
        {"n": n, "throughput_bytes_per_s": 1e9 * n / (1 + 0.02 * (n - 1) + 0.02 * n * (n - 1))}
        for n in (1, 2, 4, 8, 16, 32)
    ]
    storage = StorageProfile(name="s", sequential_write=ServiceCurve(points=points))
    busy = plan(storage, LinkProfile(), [caches(think_s=0)], loose(stall_window_s=86400, max_slowdown=1000))
    assert (busy.most, busy.binding) == (7, "usl_peak")  # sqrt(.98/.02) = 7, with no thinking in between
    idle = plan(storage, LinkProfile(), [caches(think_s=60)], loose(stall_window_s=86400, max_slowdown=1000))
    assert idle.most > 20  # thinking jobs do not load the storage


def test_a_deadline_of_whoever_always_runs_binds() -> None:
    training = WorkloadClass(
        name="training", kind="training", burst_bytes=1e9, think_s=1, running=1, bursts_per_job=100, deadline_s=400
    )
    alone = plan(flat(1e9), LinkProfile(), [caches(), training], loose(stall_window_s=86400))
    assert alone.binding == "deadline"
    assert "training takes" in alone.answer
    late = next(row for row in alone.table if row[0].n == alone.most + 1)[1]
    kept = next(row for row in alone.table if row[0].n == alone.most)[1]
    assert kept.batch_s <= 400 < late.batch_s


def test_a_deadline_that_cannot_be_met_is_said_and_does_not_hide_the_limit() -> None:
    answer = plan(flat(), LinkProfile(), [caches(jobs=1000, bursts_per_job=10, deadline_s=60)], loose())
    rule = next(rule for rule in answer.classes[0].rules if rule.rule == "deadline")
    assert rule.n is None
    assert rule.sentence.startswith("missed: caches takes")
    assert answer.most == 13


def test_not_even_one_is_said_and_the_limit_is_never_zero() -> None:
    answer = plan(flat(), LinkProfile(), [caches(burst_bytes=100e9)], Policy())
    assert (answer.limit, answer.feasible) == (1, False)
    assert answer.answer.startswith("not even 1 generation of caches meets the policy on disk: at 1 ")


def test_silence_does_not_bind_whom_nobody_watches() -> None:
    loads = WorkloadClass(name="loads", kind="inference", burst_bytes=2e9, think_s=10)
    answer = plan(flat(), LinkProfile(), [loads], loose(stall_window_s=30))
    assert answer.binding != "stall"
    watched = plan(flat(), LinkProfile(), [loads.model_copy(update={"watched": True})], loose(stall_window_s=30))
    assert watched.binding == "stall"


def test_bytes_that_appear_while_moving_leave_only_the_thinking_silent() -> None:
    answer = plan(flat(), LinkProfile(), [caches(bytes_appear="while_moving")], loose(stall_window_s=30))
    assert answer.table[-1][0].gap_p99_s == pytest.approx(14.9)  # pauses of 5 to 15 s


def test_the_band_holds_the_limit_and_widens_with_it() -> None:
    narrow, wide = (plan(flat(), LinkProfile(), [caches()], loose(band=band)) for band in (0.05, 0.4))
    assert wide.low <= narrow.low <= 13 <= narrow.high <= wide.high
    assert wide.low < narrow.low
    assert f"; 13 ({narrow.low}-{narrow.high}) is the most that the stall window admits (at 14 " in narrow.answer


def test_a_vendors_two_numbers_are_planned_with_the_lower_edge() -> None:
    curve = ServiceCurve(per_stream_bytes_per_s=100e6, aggregate_bytes_per_s=800e6)
    storage = StorageProfile(name="v", basis="vendor ceiling", sequential_write=curve)
    demands = demands_of(Scenario(storage, LinkProfile(), (caches(),), loose()), 8)
    assert demands.alpha[7] == pytest.approx(8 / (1 + 7 / 8))
    assert demands.measured_n is None


def test_small_files_cost_their_measured_time_each() -> None:
    storage = flat(1e9, small_file_s=0.004)
    demands = demands_of(Scenario(storage, LinkProfile(), (caches(files_per_burst=1000),), loose()), 1)
    assert demands.alone_s[0] == pytest.approx(1000 * 0.004 + 2.0)
    answer = plan(storage, LinkProfile(), [caches(files_per_burst=1000)], loose(stall_window_s=40))
    change = next(change for change in answer.what_if if change.change == "one serialized file")
    assert "batch" in change.sentence
    assert dict(answer.small_files)[10_000] == pytest.approx(42)


def test_read_amplification_multiplies_what_crosses_the_wire() -> None:
    loads = WorkloadClass(name="loads", kind="inference", burst_bytes=1e9, think_s=1, read_amplification=8)
    demands = demands_of(Scenario(flat(1e9), LinkProfile(bytes_per_s=4e9), (loads,), loose()), 1)
    assert demands.demands_s[0] == pytest.approx([2.0, 8.0])


def test_a_codec_moves_fewer_bytes_and_needs_its_cores() -> None:
    codec = {"name": "zstd", "ratio": 2.0, "compress_cpu_s_per_gb": 4.0, "decompress_cpu_s_per_gb": 1.0, "cores": 4}
    demands = demands_of(Scenario(flat(1e9), LinkProfile(), (caches(codec=codec),), loose()), 1)
    assert demands.stations == ("codec", "storage")
    assert demands.demands_s[0] == pytest.approx([8 / 4, 1.0])
    assert demands.delay_s[0] == pytest.approx(6.0)  # the rest of the 8 CPU seconds, on cores of its own
    assert demands.alone_s[0] == pytest.approx(9.0)


@pytest.mark.parametrize(("cpu_s_per_gb", "pays"), [(0.5, True), (60.0, False)])
def test_compression_is_worth_it_only_if_the_bottleneck_falls(cpu_s_per_gb: float, pays: bool) -> None:
    codec = {
        "name": "zstd",
        "ratio": 1.5,
        "compress_cpu_s_per_gb": cpu_s_per_gb,
        "decompress_cpu_s_per_gb": 1,
        "cores": 2,
    }
    storage = flat(0.5e9, codecs=[codec])
    answer = plan(storage, LinkProfile(), [caches(jobs=40)], loose(stall_window_s=120))
    change = next(change for change in answer.what_if if change.change.startswith("compression (zstd"))
    assert (change.batch_s < 0.9 * answer.table[answer.limit - 1][0].batch_s) is pays


def test_doubling_the_bottleneck_helps_and_doubling_the_rest_does_not() -> None:
    answer = plan(flat(1e9), LinkProfile(bytes_per_s=100e9), [caches(jobs=40)], Policy())
    gains = {change.change: change for change in answer.what_if}
    assert gains["2 x storage"].limit > answer.limit
    assert gains["2 x link"].sentence == "changes nothing"


def test_hosts_with_links_of_their_own_share_the_load() -> None:
    def limit(hosts: int) -> int:
        return plan(flat(20e9), LinkProfile(bytes_per_s=1.25e9, hosts=hosts), [caches()], Policy()).most

    assert limit(1) < limit(2) < limit(4)


MIXED = [
    caches(jobs=20),
    WorkloadClass(name="loads", kind="inference", burst_bytes=6e9, think_s=5),
    WorkloadClass(name="training", kind="training", burst_bytes=64e6, think_s=1, running=2),
]


def test_classes_that_share_a_limit_get_weights_and_every_extreme_mix_holds() -> None:
    policy = Policy(max_slowdown=2)
    answer = plan(flat(1e9), LinkProfile(), MIXED, policy)
    weights = [entry.occupy for entry in answer.classes]
    assert [entry.name for entry in answer.classes] == ["caches", "loads"]
    assert any("extreme mixes were solved exactly and hold" in line for line in answer.assumptions)
    demands = demands_of(Scenario(flat(1e9), LinkProfile(), tuple(MIXED), policy), 200)
    for first in range(answer.slots // weights[0] + 1):
        second = (answer.slots - first * weights[0]) // weights[1]
        for counts in ([first, second, 2], [first, max(0, second - 1), 2]):
            exact = demands.network(counts).at(counts)
            for c in (0, 1):
                if counts[c]:
                    alone = MIXED[c].think_s + demands.alone_s[c]
                    assert (MIXED[c].think_s + float(exact.response_s[c])) / alone <= 2 + 1e-9
    assert answer.occupy("loads") == weights[1]
    with pytest.raises(KeyError):
        answer.occupy("training")


def test_isolated_clusters_are_planned_each_for_itself() -> None:
    shared = plan(flat(1e9), LinkProfile(), MIXED, Policy(max_slowdown=2))
    isolated = plan(flat(1e9), LinkProfile(), MIXED, Policy(max_slowdown=2, isolated=True))
    alone = plan(flat(1e9), LinkProfile(), MIXED[:1], Policy(max_slowdown=2))
    assert isolated.limit == alone.limit >= shared.limit
    assert isolated.most == alone.most > shared.most
    assert [entry.name for entry in isolated.table[0]] == ["caches"]


def test_the_simulation_agrees_and_leaves_the_plan_as_it_is() -> None:
    answer = plan(measured(), LinkProfile(), [caches()], Policy())
    checked = with_simulation(answer, measured(), LinkProfile(), [caches()], Policy(), events=200_000, seed=4)
    assert checked.simulation is not None
    assert checked.simulation.agrees
    assert abs(checked.simulation.throughput_deviation) < 0.02
    assert dataclasses.replace(checked, simulation=None) == answer


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1e8, 1e10),
    st.integers(10**8, 2 * 10**10),
    st.floats(0, 60),
    st.floats(1.1, 4),
    st.floats(20, 600),
    st.floats(1.05, 3),
)
def test_better_equipment_never_lowers_what_the_stall_window_admits(
    rate: float, burst: int, think: float, slowdown: float, window: float, factor: float
) -> None:
    def limit(speed: float) -> int:
        answer = plan(
            flat(speed),
            LinkProfile(),
            [caches(burst_bytes=burst, think_s=think)],
            Policy(stall_window_s=window, max_slowdown=1000),
        )
        return answer.most

    assert limit(rate * factor) >= limit(rate)


def test_a_plan_crosses_into_other_processes_and_becomes_json() -> None:
    answer = plan(measured(), LinkProfile(), MIXED[:1], Policy())
    assert pickle.loads(pickle.dumps(answer)) == answer
    data = json.loads(json.dumps(as_json(answer), allow_nan=False))
    assert data["limit"] == answer.limit
    assert data["table"][0][0]["n"] == 1
    assert isinstance(answer, LimitPlan)


@pytest.mark.parametrize(
    ("storage", "link", "workloads", "told"),
    [
        (flat(), LinkProfile(), [], "workloads is empty"),
        (flat(), LinkProfile(), [caches(), caches()], "'caches' twice"),
        (flat(), LinkProfile(), [caches(running=3)], "leave out `running`"),
        (flat(shared=False), LinkProfile(bytes_per_s=1e9, hosts=2), [caches()], "cannot be mounted by several hosts"),
        (measured(), LinkProfile(), [caches(kind="inference")], "no sequential_read curve"),
        (flat(), LinkProfile(), [caches(), *(caches(name=f"t{i}", running=60) for i in range(4))], "planned exactly"),
    ],
)
def test_plans_that_cannot_be_made_are_refused_in_one_sentence(
    storage: StorageProfile, link: LinkProfile, workloads: list[WorkloadClass], told: str
) -> None:
    with pytest.raises(InputError, match=told) as caught:
        plan(storage, link, workloads, Policy())
    assert "\n" not in caught.value.message


def test_a_plan_of_three_classes_is_quick() -> None:
    started = time.process_time()
    plan(
        measured(sequential_read=measured().sequential_write), LinkProfile(bytes_per_s=1.25e9, hosts=2), MIXED, Policy()
    )
    assert time.process_time() - started < 10  # 0.6 s on an idle machine; the benchmark holds the 1 s
