"""Erlang's formulas, the bounds and the exact means, against published and independent answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.capacity import bounds, erlang_b, erlang_c, solve_closed
from prefect_cachewatch.capacity.model.convolution import MAX_STATES, ClosedNetwork
from prefect_cachewatch.capacity.model.queueing import stall_bound
from prefect_cachewatch.errors import InputError


@pytest.mark.parametrize(
    ("servers", "load", "waits"), [(2, 1, 1 / 3), (10, 8, 0.40918015), (5, 4, 0.55411255), (4, 3, 0.50943396)]
)
def test_erlang_c_gives_the_published_probabilities(servers: int, load: float, waits: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(waits, abs=5e-9)


def test_erlang_b_gives_the_published_probability() -> None:
    assert erlang_b(10, 5) == pytest.approx(0.01838457, abs=5e-9)


def test_everybody_waits_when_the_load_is_as_large_as_the_servers() -> None:
    assert erlang_c(4, 4) == 1.0
    assert erlang_c(4, 9) == 1.0


def test_erlang_formulas_survive_very_many_servers() -> None:
    assert 0 < erlang_b(100_000, 99_000) < 0.01


@pytest.mark.parametrize(
    ("servers", "load"), [(0, 1), (-1, 1), (2.5, 1), (True, 1), (3, -1), (3, math.nan), (3, math.inf)]
)
def test_impossible_servers_and_loads_are_refused(servers: int, load: float) -> None:
    for formula in (erlang_b, erlang_c):
        with pytest.raises(InputError):
            formula(servers, load)


def test_lazowskas_two_classes_come_out_exactly() -> None:
    answer = solve_closed((1, 1), [[1, 3], [2, 4]], (0, 0))
    assert answer.throughput_per_s == pytest.approx([3 / 19, 2 / 19], rel=1e-12)
    assert answer.residence_s == pytest.approx(np.array([[4 / 3, 5], [5 / 2, 7]]), rel=1e-12)


def test_one_class_with_think_time_comes_out_as_octave_has_it() -> None:
    answer = solve_closed(3, (0.605, 2.1, 1.35), 15)
    assert answer.throughput_per_s[0] == pytest.approx(0.1515164923, abs=5e-11)
    assert answer.response_s[0] == pytest.approx(4.7998248, abs=5e-8)


def test_jains_example_comes_out_by_visit() -> None:
    visits = np.array([16, 10, 5])
    answer = solve_closed(20, visits * [0.125, 0.3, 0.2], 4)
    assert answer.throughput_per_s[0] == pytest.approx(0.33324651, abs=5e-9)
    assert answer.residence_s[0] / visits == pytest.approx([0.37333911, 4.85425969, 0.29992185], abs=5e-9)


def test_one_and_two_repairmen_come_out_as_octave_has_them() -> None:
    one, two = solve_closed(10, [2], 10), solve_closed(10, [2], 10, [1, 2])
    assert (one.throughput_per_s[0], one.response_s[0]) == pytest.approx((0.49080771, 10.37457786), abs=5e-9)
    assert (two.throughput_per_s[0], two.response_s[0]) == pytest.approx((0.75962785, 3.16434099), abs=5e-9)
    assert two.utilisation[0] == pytest.approx(0.75962785 * 2 / 2, abs=5e-9)


def test_a_station_that_scales_by_the_usl_comes_out_as_two_other_methods_have_it() -> None:
    n = np.arange(1, 13)
    answer = solve_closed(12, [1.5], 10, n / (1 + 0.05 * (n - 1) + 0.01 * n * (n - 1)))
    assert (answer.throughput_per_s[0], answer.response_s[0]) == pytest.approx((1.02542931, 1.70241568), abs=5e-9)


def test_three_classes_come_out_as_octave_has_them() -> None:
    answer = solve_closed((4, 6, 8), [[0.5, 0.8], [1.2, 0.1], [0.9, 0.4]], (2, 20, 10))
    assert answer.throughput_per_s == pytest.approx([0.57298983, 0.21260217, 0.47344550], abs=5e-9)


@pytest.mark.parametrize(
    ("link", "knee", "rate", "burst"), [(1.25e9, 7.333, 0.61513032, 9.50806), (5e9, 26.333, 1.11039745, 0.80694)]
)
def test_the_chassis_behind_ten_and_forty_gigabit(link: float, knee: float, rate: float, burst: float) -> None:
    demands = [2e9 / link, 2e9 / 15e9]
    answer = solve_closed(12, demands, 10)
    assert bounds(12, demands, 10).knee_n == pytest.approx(knee, abs=5e-4)
    assert answer.throughput_per_s[0] == pytest.approx(rate, abs=5e-9)
    assert answer.response_s[0] == pytest.approx(burst, abs=5e-6)


def test_a_million_reads_a_second_at_15_gb_are_15_kb_each_and_a_thousand_in_flight() -> None:
    assert 15e9 / 1e6 == 15_000
    # Little's Law through the solver: 1,000 jobs that only read, 1 ms each, on a station that serves them all.
    answer = solve_closed(1000, [0.001], 0, list(range(1, 1001)))
    assert answer.throughput_per_s[0] == pytest.approx(1e6, rel=1e-9)


def test_the_stall_bound_gives_the_stated_limits() -> None:
    demand = 2e9 / (125 * 2**20)
    assert (stall_bound(300, 10, demand, 1.5), stall_bound(180, 10, demand, 1.5)) == (13, 8)
    assert stall_bound(5, 10, demand, 1.5) == 0


def _repairman(jobs: int, demand: float, think: float, alpha: list[float]) -> tuple[float, float]:
    """The birth-death chain, summed directly: p_j ~ prod (N-i+1) D / (Z alpha(i))."""
    weights = [1.0]
    for j in range(1, jobs + 1):
        weights.append(weights[-1] * (jobs - j + 1) * demand / (think * alpha[j - 1]))
    total = sum(weights)
    rate = sum(w / total * alpha[j - 1] / demand for j, w in enumerate(weights) if j)
    return rate, sum(j * w / total for j, w in enumerate(weights)) / rate


@given(
    st.integers(1, 12),
    st.floats(0.01, 20),
    st.floats(0.1, 100),
    st.lists(st.floats(0.2, 8), min_size=12, max_size=12),
)
def test_one_class_is_the_birth_death_chain(jobs: int, demand: float, think: float, alpha: list[float]) -> None:
    answer = solve_closed(jobs, [demand], think, alpha)
    assert (answer.throughput_per_s[0], answer.response_s[0]) == pytest.approx(_repairman(jobs, demand, think, alpha))


def _markov_chain(
    counts: tuple[int, ...], demands: np.ndarray, think: np.ndarray, alpha: list[float]
) -> tuple[np.ndarray, np.ndarray]:
    """The network as a Markov chain with exponential times, its balance equations solved outright.

    Place 0 is thinking; then the stations in order, the last of them load-dependent.
    """
    classes, stations = demands.shape
    places = stations + 1
    splits = [[split for split in itertools.product(range(n + 1), repeat=places) if sum(split) == n] for n in counts]
    states = list(itertools.product(*splits))
    index = {state: i for i, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    done = np.zeros((len(states), classes))
    for state, i in index.items():
        for c in range(classes):
            for place in range(places):
                here = state[c][place]
                if not here:
                    continue
                if place == 0:
                    speed = here / think[c]
                else:
                    total = sum(state[d][place] for d in range(classes))
                    power = alpha[total - 1] if place == stations else 1.0
                    speed = power * here / total / demands[c, place - 1]
                moved = list(state[c])
                moved[place] -= 1
                moved[(place + 1) % places] += 1
                rates[i, index[(*state[:c], tuple(moved), *state[c + 1 :])]] += speed
                if place == 0:
                    done[i, c] += speed
    np.fill_diagonal(rates, -rates.sum(axis=1))
    system = np.vstack([rates.T, np.ones(len(states))])
    chances = np.linalg.lstsq(system, np.append(np.zeros(len(states)), 1.0), rcond=None)[0]
    queue = np.array(
        [
            [sum(p * s[c][k + 1] for p, s in zip(chances, states, strict=True)) for k in range(stations)]
            for c in range(classes)
        ]
    )
    return chances @ done, queue


@pytest.mark.parametrize("seed", range(6))
def test_two_classes_with_a_load_dependent_station_are_the_markov_chain(seed: int) -> None:
    random = np.random.default_rng(seed)
    counts = (int(random.integers(1, 4)), int(random.integers(1, 3)))
    demands, think = random.uniform(0.1, 2, (2, 2)), random.uniform(0.5, 5, 2)
    alpha = list(np.cumsum(random.uniform(0.1, 1.0, 5)))
    rate, queue = _markov_chain(counts, demands, think, alpha)
    answer = solve_closed(counts, demands, think, alpha)
    assert answer.throughput_per_s == pytest.approx(rate, rel=1e-9)
    assert answer.queue_length == pytest.approx(queue, rel=1e-9)


networks = st.integers(1, 3).flatmap(
    lambda classes: st.integers(1, 3).flatmap(
        lambda stations: st.tuples(
            st.lists(st.integers(1, 6), min_size=classes, max_size=classes),
            st.lists(
                st.lists(st.floats(0.01, 10), min_size=stations, max_size=stations), min_size=classes, max_size=classes
            ),
            st.lists(st.floats(0, 50), min_size=classes, max_size=classes),
            st.none() | st.lists(st.floats(0.3, 3), min_size=1, max_size=18).map(lambda steps: list(np.cumsum(steps))),
        )
    )
)


@given(networks)
def test_every_job_is_somewhere(network: tuple) -> None:
    counts, demands, think, alpha = network
    answer = solve_closed(counts, demands, think, alpha)
    at_stations = answer.queue_length.sum(axis=1)
    assert at_stations + answer.throughput_per_s * think == pytest.approx(np.array(counts, dtype=float), rel=1e-9)


@given(networks)
def test_littles_law_holds_at_every_station(network: tuple) -> None:
    answer = solve_closed(*network)
    assert answer.queue_length == pytest.approx(answer.throughput_per_s[:, None] * answer.residence_s, rel=1e-12)


@given(networks)
def test_no_station_does_more_than_it_can(network: tuple) -> None:
    answer = solve_closed(*network)
    assert (answer.utilisation <= 1 + 1e-9).all()
    assert (answer.utilisation > 0).all()


@given(networks, st.randoms(use_true_random=False))
def test_permuting_the_classes_permutes_the_answer(network: tuple, random: object) -> None:
    counts, demands, think, alpha = network
    order = list(range(len(counts)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = solve_closed(counts, demands, think, alpha)
    mixed = solve_closed([counts[c] for c in order], [demands[c] for c in order], [think[c] for c in order], alpha)
    assert mixed.throughput_per_s == pytest.approx(plain.throughput_per_s[order], rel=1e-9)
    assert mixed.residence_s == pytest.approx(plain.residence_s[order], rel=1e-9)


@given(networks, st.floats(1.0, 3.0), st.data())
def test_a_faster_station_never_slows_a_lone_class(network: tuple, factor: float, data: st.DataObject) -> None:
    counts, demands, think, _ = network
    station = data.draw(st.integers(0, len(demands[0]) - 1))
    faster = [value / factor if k == station else value for k, value in enumerate(demands[0])]
    before, after = solve_closed(counts[0], demands[0], think[0]), solve_closed(counts[0], faster, think[0])
    assert after.throughput_per_s[0] >= before.throughput_per_s[0] * (1 - 1e-9)
    assert after.response_s[0] <= before.response_s[0] * (1 + 1e-9)


@given(
    st.integers(1, 15),
    st.floats(0.01, 10),
    st.floats(0.1, 50),
    st.lists(st.tuples(st.floats(0.2, 5), st.floats(1, 4)), min_size=15, max_size=15),
)
def test_more_capacity_never_lowers_throughput(
    jobs: int, demand: float, think: float, steps: list[tuple[float, float]]
) -> None:
    low, high = [a for a, _ in steps], [a * more for a, more in steps]
    before, after = solve_closed(jobs, [demand], think, low), solve_closed(jobs, [demand], think, high)
    assert after.throughput_per_s[0] >= before.throughput_per_s[0] * (1 - 1e-9)
    assert after.response_s[0] <= before.response_s[0] * (1 + 1e-9)


@given(networks)
def test_the_bounds_hold(network: tuple) -> None:
    counts, demands, think, alpha = network
    edge = bounds(counts[0], demands[0], think[0], alpha)
    answer = solve_closed(counts[0], demands[0], think[0], alpha)
    assert answer.throughput_per_s[0] <= edge.throughput_max_per_s * (1 + 1e-9)
    assert answer.response_s[0] >= edge.residence_min_s * (1 - 1e-9)


def test_a_prepared_network_answers_for_every_smaller_population() -> None:
    demands, think, alpha = [[0.5, 0.8], [1.2, 0.1]], (2, 20), [1, 1.8, 2.4, 2.6]
    network = ClosedNetwork((5, 4), demands, think, alpha)
    for counts in [(0, 0), (1, 0), (0, 3), (5, 4), (2, 2)]:
        alone = solve_closed(counts, demands, think, alpha)
        assert network.at(counts).throughput_per_s == pytest.approx(alone.throughput_per_s, rel=1e-12)
    with pytest.raises(InputError, match="exceed"):
        network.at((6, 1))


def test_large_populations_neither_overflow_nor_lose_digits() -> None:
    answer = solve_closed(3000, [2e-3, 1e-3], 1.0)
    assert answer.throughput_per_s[0] == pytest.approx(500, rel=1e-9)
    assert answer.throughput_per_s[0] * (1.0 + answer.response_s[0]) == pytest.approx(3000, rel=1e-9)


@settings(max_examples=20)
@given(st.floats(1e-9, 1e9))
def test_the_unit_of_time_does_not_matter(scale: float) -> None:
    plain = solve_closed((4, 6), [[0.5, 0.8], [1.2, 0.1]], (2, 20))
    scaled = solve_closed((4, 6), np.array([[0.5, 0.8], [1.2, 0.1]]) * scale, (2 * scale, 20 * scale))
    assert scaled.throughput_per_s * scale == pytest.approx(plain.throughput_per_s, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((0.5, [1], 1), "number of jobs"),
        ((-1, [1], 1), "number of jobs"),
        (((), [[1]], 1), "at least one class"),
        ((2, [0, 0], 1), "all zero"),
        ((2, [1, -1], 1), "negative"),
        ((2, [math.nan], 1), "negative or infinite"),
        ((2, [1], -3), "think_s"),
        ((2, [1], math.inf), "think_s"),
        ((2, "abc", 1), "table of seconds"),
        (((1, 1), [[1]], 1), "one row"),
        (((1, 1), [[1], [2]], (1, 2, 3)), "3 values for 2 classes"),
        ((2, [1], 1, []), "alpha"),
        ((2, [1], 1, [1, 0]), "above 0"),
        (((200, 200, 200), [[1], [1], [1]], 1), f"{MAX_STATES:,} are solved exactly"),
    ],
)
def test_bad_networks_are_refused_in_one_sentence(arguments: tuple, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        solve_closed(*arguments)
    assert "\n" not in caught.value.message


def test_a_station_that_does_not_exist_cannot_be_load_dependent() -> None:
    with pytest.raises(InputError, match="is not one of 1 stations"):
        solve_closed(2, [1], 1, [1, 2], load_dependent_station=1)


@pytest.mark.parametrize(
    "arguments",
    [(-1, [1], 1), (2, [], 1), (2, [0], 1), (2, [-1, 2], 1), (2, [1], -1), (2, [1], 1, [0]), (2, [1], 1, [])],
)
def test_bounds_refuse_what_cannot_be(arguments: tuple) -> None:
    with pytest.raises(InputError):
        bounds(*arguments)
