"""The simulation: seeded, unbiased, and honest about what it saw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prefect_cachewatch.capacity import (
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    WorkloadClass,
    simulate,
    solve_closed,
)
from prefect_cachewatch.capacity.model.demands import Scenario
from prefect_cachewatch.capacity.model.estimates import Estimate
from prefect_cachewatch.capacity.model.limits import ClassSearch
from prefect_cachewatch.errors import InputError

CHASSIS = ((12,), [[1.6, 2 / 15]], 10)


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    first, again, other = (simulate(*CHASSIS, events=20_000, seed=seed) for seed in (7, 7, 8))
    assert first.classes == again.classes
    assert first.classes != other.classes


@pytest.mark.parametrize(("burst", "cv"), [("constant", 1.0), ("exponential", 1.0), ("lognormal", 0.5)])
def test_means_do_not_depend_on_the_bursts_distribution(burst: str, cv: float) -> None:
    exact = solve_closed(*CHASSIS)
    run = simulate(*CHASSIS, burst=burst, burst_cv=cv, events=400_000, seed=1).classes[0]
    assert run.throughput_per_s.mean == pytest.approx(exact.throughput_per_s[0], rel=0.02)
    assert run.burst_s.mean == pytest.approx(exact.response_s[0], rel=0.03)


def test_tails_do_depend_on_the_bursts_distribution() -> None:
    constant, exponential = (
        simulate(*CHASSIS, burst=kind, events=100_000).classes[0] for kind in ("constant", "exponential")
    )
    assert constant.burst_p99_s / constant.burst_s.mean < 2
    assert exponential.burst_p99_s / exponential.burst_s.mean > 4


@pytest.mark.parametrize("think_s", [0.5, 5.0, 30.0])
@pytest.mark.parametrize(("cv", "burst"), [(0, "constant"), (1, "exponential")])
def test_a_plan_takes_silences_for_no_shorter_than_they_are(think_s: float, cv: int, burst: str) -> None:
    """Pauses vary by half: one in a hundred is half as long again, which matters where they are longer than the bursts."""
    disk = ServiceCurve(points=[{"n": n, "throughput_bytes_per_s": 1e9 * min(n, 4)} for n in (1, 2, 4, 8)])
    jobs = WorkloadClass(name="jobs", burst_bytes=10**9, think_s=think_s, burst_cv=cv)
    policy = Policy(derate=0, max_slowdown=1000)
    search = ClassSearch(
        Scenario(StorageProfile(name="disk", sequential_write=disk), LinkProfile(), (jobs,), policy), 0
    )
    for n in (1, 4, 8):
        alpha = [min(k, 4) for k in range(1, n + 1)]
        run = simulate(n, [1.0], think_s, alpha, burst=burst, think="uniform", events=60_000, seed=n).classes[0]
        assert 0.9 < search.mine(n).gap_p99_s / run.gap_quantiles_s[0.99] < 1.8


def test_a_load_dependent_station_is_simulated_with_its_alpha() -> None:
    n = np.arange(1, 13)
    alpha = n / (1 + 0.05 * (n - 1) + 0.01 * n * (n - 1))
    run = simulate(12, [1.5], 10, alpha, events=300_000, seed=2).classes[0]
    assert run.throughput_per_s.mean == pytest.approx(1.02542931, rel=0.01)
    assert run.burst_s.mean == pytest.approx(1.70241568, rel=0.02)


def test_several_classes_share_as_the_exact_answer_says() -> None:
    network = ((4, 6, 8), [[0.5, 0.8], [1.2, 0.1], [0.9, 0.4]], (2, 20, 10))
    exact, run = solve_closed(*network), simulate(*network, events=400_000, seed=3)
    for c, seen in enumerate(run.classes):
        assert seen.throughput_per_s.mean == pytest.approx(exact.throughput_per_s[c], rel=0.02)
        assert seen.burst_s.mean == pytest.approx(exact.response_s[c], rel=0.03)


def test_most_confidence_intervals_hold_the_truth() -> None:
    exact = solve_closed(6, [1.0, 0.4], 5)
    held = sum(
        simulate(6, [1.0, 0.4], 5, events=30_000, seed=seed)
        .classes[0]
        .throughput_per_s.holds(float(exact.throughput_per_s[0]))
        for seed in range(40)
    )
    assert held >= 33  # 95 % of 40 is 38; fewer than 33 happens to one correct program in a thousand


def test_a_lone_job_with_constant_times_is_silent_for_think_plus_burst() -> None:
    run = simulate(1, [2.0, 0.5], 10, think="constant", events=3_000, poll_s=1).classes[0]
    assert run.burst_s.mean == pytest.approx(2.5)
    assert run.gap_quantiles_s[0.5] == pytest.approx(12.5)
    assert run.gap_max_s == pytest.approx(12.5)
    # From scan to scan the silence is whole polls, 12 or 13 of them.
    assert run.seen_gap_max_s == 13


def test_files_of_a_burst_end_the_silence_early() -> None:
    run = simulate(1, [8.0], 10, think="constant", growths_per_burst=4, events=3_000).classes[0]
    assert run.gap_max_s == pytest.approx(12)  # ten of thinking, and the first file
    assert run.gap_quantiles_s[0.5] == pytest.approx(2)


def test_a_class_that_never_moves_a_byte_is_no_reason_to_crash() -> None:
    run = simulate((3, 0), [[1.0], [2.0]], 1, events=2_000)
    assert run.classes[1].bursts == 0
    assert math.isnan(run.classes[1].burst_p99_s)


def test_an_estimate_knows_what_it_holds() -> None:
    assert Estimate(1, 0.9, 1.1).holds(1.05)
    assert not Estimate(1, 0.9, 1.1).holds(1.2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"events": 10}, "events 10"),
        ({"burst": "pareto"}, "no distribution"),
        ({"burst": ["constant", "constant"]}, "2 values for 1 classes"),
        ({"burst": "lognormal", "burst_cv": -1.0}, "burst_cv"),
        ({"think": "sometimes"}, "no distribution of thinking"),
        ({"growths_per_burst": 0}, "growths_per_burst"),
        ({"poll_s": 0}, "poll_s"),
    ],
)
def test_bad_simulations_are_refused(options: dict, told: str) -> None:
    with pytest.raises(InputError, match=told):
        simulate(*CHASSIS, **options)


def test_a_simulation_of_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="no job at all"):
        simulate(0, [1.0], 1)
