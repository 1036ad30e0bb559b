"""The rate law, the exact chain and the simulation: figures by hand, and rules that hold for every plan."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.capacity import PlanInput
from prefect_cachewatch.capacity.chain import steady
from prefect_cachewatch.capacity.inputs import ServiceCurve, WorkloadClass
from prefect_cachewatch.capacity.law import burst_seconds, curve_bytes_per_s, whole_burst_s
from prefect_cachewatch.capacity.simulation import _Run, simulate


def inputs(storage: dict[str, object], link: object = None, **job: object) -> PlanInput:
    workload = {"name": "caches", "burst_bytes": 10**9, "think_s": 10} | job
    given = {"storage": {"name": "x"} | storage, "workloads": [workload], "policy": {"derate": 0}}
    return PlanInput.model_validate(given | ({"link": link} if link else {}))


def test_measured_points_are_joined_by_straight_lines_and_go_on_flat() -> None:
    curve = ServiceCurve.model_validate({"points": [{"n": 1, "bytes_per_s": 100}, {"n": 4, "bytes_per_s": 250}]})
    assert [curve_bytes_per_s(curve, n) for n in (0.5, 1, 2, 4, 99)] == [50, 100, 150, 250, 250]


def test_the_edges_of_a_measured_point_are_half_its_spread() -> None:
    curve = ServiceCurve.model_validate({"points": [{"n": 1, "bytes_per_s": 100, "spread": 0.4}]})
    assert [curve_bytes_per_s(curve, 1, side) for side in ("low", "middle", "high")] == [80, 100, 120]


@pytest.mark.parametrize(
    ("changes", "link", "n", "seconds"),
    [
        ({}, None, 1, 10.0),
        ({}, None, 20, 20.0),  # 1 GB at 1/20 of 1 GB/s
        ({}, {"bytes_per_s": "50MB/s", "hosts": 4}, 1, 20.0),  # a stream stays on its host
        ({}, {"bytes_per_s": "50MB/s", "hosts": 4}, 8, 40.0),  # two on each host
        ({"port_bytes_per_s": "200MB/s"}, None, 4, 20.0),
        ({"ops_per_s": 100}, None, 4, 4 * 10**9 / (100 * 2**20)),
        ({"small_file_s": 3}, None, 1, 13.0),
        ({"small_file_s": 3, "files_per_s": 0.5}, None, 4, 18.0),
    ],
)
def test_a_burst_takes_as_long_as_the_tightest_ceiling_and_its_files(
    changes: dict[str, object], link: object, n: int, seconds: float
) -> None:
    curve = {"one_bytes_per_s": 1e8, "all_bytes_per_s": 1e9}
    given = inputs({"write": curve} | changes, link)
    assert whole_burst_s(burst_seconds(given, given.workloads[0], n, n)) == pytest.approx(seconds)


@pytest.mark.parametrize(("servers", "x", "r"), [(1, 0.49080771, 10.37457786), (2, 0.75962785, 3.16434099)])
def test_the_chain_is_the_machine_repairman(servers: int, x: float, r: float) -> None:
    """N = 10, Z = 10, D = 2: the values of octave-queueing, an independent code."""
    found = steady([2.0 * max(1.0, n / servers) for n in range(1, 11)], 10.0, 10)
    assert (found.bursts_per_s, found.burst_s) == (pytest.approx(x, rel=1e-7), pytest.approx(r, rel=1e-7))


times = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40)


@given(times, st.floats(0, 1e4))
def test_littles_law_holds_and_neither_ceiling_nor_pause_is_beaten(steps: list[float], think_s: float) -> None:
    one_burst_s = [sum(steps[: i + 1]) for i in range(len(steps))]  # more streams are never faster
    jobs = len(one_burst_s)
    found = steady(one_burst_s, think_s, jobs)
    assert found.bursts_per_s * (think_s + found.burst_s) == pytest.approx(jobs, rel=1e-6)
    assert found.bursts_per_s <= max(n / t for n, t in enumerate(one_burst_s, start=1)) * (1 + 1e-9)
    assert found.burst_s >= one_burst_s[0] * (1 - 1e-6)
    assert 0 <= found.streams <= jobs * (1 + 1e-9)


@settings(max_examples=25)
@given(times, st.floats(0.1, 100), st.integers(1, 12))
def test_more_load_never_waits_less(steps: list[float], think_s: float, jobs: int) -> None:
    one_burst_s = [sum(steps[: i + 1]) for i in range(len(steps))]
    one_burst_s += [one_burst_s[-1] * n for n in range(2, 20)]
    waits = [steady(one_burst_s, think_s, n).burst_s for n in range(1, jobs + 1)]
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(waits))


def job(think_s: float, **changes: object) -> WorkloadClass:
    return WorkloadClass.model_validate({"name": "a", "burst_bytes": 1000, "think_s": think_s} | changes)


@pytest.mark.parametrize("limit", [1, 3, 6, 12])
def test_the_simulation_has_the_means_of_the_chain(limit: int) -> None:
    one_burst_s = [max(4.0, 1.0 * n) for n in range(1, 20)]
    found = simulate([job(10)], [one_burst_s], limit, bursts=10_000)
    exact = steady(one_burst_s, 10.0, limit)
    (mine,) = found.classes
    assert mine.burst_s == pytest.approx(exact.burst_s, rel=0.08)
    assert mine.bytes_per_s == pytest.approx(1000 * exact.bursts_per_s, rel=0.03)
    assert found.streams == pytest.approx(exact.streams, rel=0.08)


@pytest.mark.parametrize(
    ("job_", "step_s", "limit", "bursts", "seconds"),
    [
        # 12 jobs of 200 bursts, 4 at once, nobody waits: three rounds of 200 x (5 + 2) s.
        (job(5, bursts_per_job=200, jobs=12), 0.0, 4, 5000, 4200),
        # 10,000 jobs of 1,000 bursts at 1 burst a second together: 10 million seconds, and not simulated whole.
        (job(5, bursts_per_job=1000, jobs=10_000), 1.0, 50, 3000, 1e7),
        # 90,000 jobs of 10 bursts, 900 at once and 5 abreast, nobody waits: 100 rounds of 10 x (5 + 2) s.
        (job(5, bursts_per_job=10, jobs=90_000), 0.0, 900, 5000, 7000),
    ],
)
def test_a_batch_is_as_long_as_its_rounds_or_its_bytes(
    job_: WorkloadClass, step_s: float, limit: int, bursts: int, seconds: float
) -> None:
    times = [[step_s * n or 2.0 for n in range(1, limit + 1)]]
    (found,) = simulate([job_], times, limit, bursts).classes
    assert found.batch_s == pytest.approx(seconds, rel=0.05)
    assert simulate([job_], times, limit, bursts).classes == (found,)


@pytest.mark.parametrize("jobs", [20, 999, 10**6])
@pytest.mark.parametrize("running", [0, 999])
def test_no_plan_has_more_events_than_its_budget(monkeypatch: pytest.MonkeyPatch, jobs: int, running: int) -> None:
    events, step = [0], _Run._step

    def counted(run: _Run) -> object:
        events[0] += 1
        return step(run)

    monkeypatch.setattr(_Run, "_step", counted)
    batch, beside = job(9, bursts_per_job=50, jobs=jobs), job(0.001, name="b", running=running)
    limit = min(jobs, 999)
    simulate([batch, beside], [[0.1 * n for n in range(1, limit + running + 1)]] * 2, limit, bursts=5000)
    assert events[0] <= 6 * 5000  # each burst begins and ends, and others are under way


def test_what_always_runs_does_not_end_the_batch_early() -> None:
    # The class beside makes 100 bursts for each of the batch's: the batch goes on at its rate.
    jobs = [job(9, bursts_per_job=50, jobs=4), job(0.09, name="b", running=2)]
    found = simulate(jobs, [[1.0] * 5, [0.01] * 5], 2, bursts=1000)
    assert found.classes[0].batch_s == pytest.approx(1000, rel=0.1)


@st.composite
def mixes(draw: st.DrawFn) -> tuple[list[WorkloadClass], list[list[float]], int]:
    """A batch beside classes whose bursts are up to 10,000 times as small; one stream of each, and all of them, are limited."""
    limit, sizes = draw(st.integers(1, 12)), [1.0, *draw(st.lists(st.floats(1e-4, 1), min_size=1, max_size=2))]
    classes, times = [], []
    for i, size in enumerate(draw(st.permutations(sizes))):
        asks = size == 1.0 or draw(st.booleans())
        more = {"jobs": draw(st.integers(1, 40)), "bursts_per_job": math.ceil(draw(st.integers(1, 30)) / size)}
        think_s = 20 * size * draw(st.floats(0, 3))
        classes.append(job(think_s, name=str(i), **more if asks else {"running": draw(st.integers(1, 20))}))
        alone_s, demand_s = 20 * size, 20 * size * draw(st.floats(0.05, 1))
        times.append([max(alone_s, n * demand_s) for n in range(1, 60)])
    return classes, times, limit


@settings(max_examples=60, deadline=None)
@given(mixes())
def test_no_batch_beats_its_rounds_and_no_mix_its_ceilings(
    mix: tuple[list[WorkloadClass], list[list[float]], int],
) -> None:
    classes, times, limit = mix
    whole = simulate(classes, times, limit, bursts=2000)
    found, batch_s = whole.classes, whole.batch_s or 0.0
    per_s = {each.name: each.bytes_per_s / 1000 for each in found}
    demands_s = [min(burst_s / n for n, burst_s in enumerate(mine, start=1)) for mine in times]
    assert sum(per_s[w.name] * d for w, d in zip(classes, demands_s, strict=True)) <= 1 + 1e-6
    asking = [(w, each.burst_s) for w, each in zip(classes, found, strict=True) if w.jobs]
    for w, _ in asking:  # nothing is left out and nothing scaled
        assert per_s[w.name] * batch_s == pytest.approx((w.jobs or 0) * w.bursts_per_job, rel=1e-6)
    # In its slots each job thinks and moves its bursts; pauses vary by half, so few of them are up to 40 % short.
    bursts = min((w.jobs or 0) * w.bursts_per_job for w, _ in asking)
    slack = min(0.4, 1.5 / math.sqrt(bursts))
    busy_s = sum((w.jobs or 0) * w.bursts_per_job * ((1 - slack) * w.think_s + burst_s) for w, burst_s in asking)
    assert batch_s >= busy_s / limit * (1 - 1e-6)


@settings(max_examples=15, deadline=None)
@given(mixes())
def test_bursts_that_are_moved_as_one_make_the_same_batch(
    mix: tuple[list[WorkloadClass], list[list[float]], int],
) -> None:
    whole, few = (simulate(*mix, bursts=n).classes for n in (20_000, 3000))
    jobs = sum(w.jobs or 0 for w in mix[0])
    for one, other in zip(whole, few, strict=True):
        assert other.burst_s == pytest.approx(one.burst_s, rel=0.15)
        if one.batch_s and jobs > 3 * mix[2]:
            assert other.batch_s == pytest.approx(one.batch_s, rel=0.15)
