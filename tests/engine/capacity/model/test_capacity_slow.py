"""The planner against independent codes: octave's queueing package, ciw, simpy, and long simulations.

Slow: `make test-capacity` runs it and installs what it needs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.engine.capacity.model.capacity_peers import Jobs, ciw_network, simpy_batch, simpy_network
from tests.engine.capacity.model.capacity_scenarios import compare

from prefect_cachewatch.capacity import (
    LinkProfile,
    Policy,
    ServiceCurve,
    StorageProfile,
    WorkloadClass,
    erlang_b,
    erlang_c,
    simulate,
    solve_closed,
)
from prefect_cachewatch.capacity.model.demands import Scenario
from prefect_cachewatch.capacity.model.limits import ClassSearch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _octave(script: str, tmp_path: Path) -> list[list[float]]:
    """Run a script; the numbers of each line that it prints."""
    program = shutil.which("octave-cli")
    assert program, "octave-cli is not installed: apt install octave octave-queueing"
    path = tmp_path / "networks.m"
    # Writing the answer out and leaving by exit: octave reports an error of its own while it shuts down.
    path.write_text("pkg load queueing;\n" + script)
    run = subprocess.run([program, "--quiet", "--no-gui", str(path)], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert lines, f"octave said: {run.stderr[-2000:]}"
    return lines


def _matrix(values: object) -> str:
    return "[" + ";".join(",".join(f"{v:.17g}" for v in row) for row in np.atleast_2d(np.asarray(values))) + "]"


def _printing(*names: str) -> str:
    together = ", ".join(f"reshape({name}, 1, [])" for name in names)
    return f"v = [{together}]; printf('[%s]\\n', strjoin(arrayfun(@(x) sprintf('%.17g', x), v, 'UniformOutput', false), ','));\n"


def test_two_hundred_random_networks_agree_with_octave(tmp_path: Path) -> None:
    random = np.random.default_rng(20261120)
    script, networks = "", []
    for i in range(200):
        stations = int(random.integers(1, 5))
        if i % 2:  # several classes, load-independent
            classes = int(random.integers(1, 4))
            counts = [int(n) for n in random.integers(1, 7, classes)]
            demands, think = random.uniform(0.01, 3, (classes, stations)), random.uniform(0, 30, classes)
            networks.append((counts, demands, think, None))
            ones = _matrix(np.ones((classes, stations)))
            script += f"[U, R, Q, X] = qncmmva({_matrix(counts)}, {_matrix(demands)}, {ones}, ones(1,{stations}), {_matrix(think)});\n"
            script += "X1 = X(:,1);\n" + _printing("X1", "R", "Q")
        else:  # one class, the last station load-dependent
            n = int(random.integers(1, 25))
            demands, think = random.uniform(0.01, 3, stations), float(random.uniform(0, 30))
            alpha = np.arange(1, n + 1) / (
                1 + random.uniform(0, 0.5) * np.arange(n) + random.uniform(0, 0.02) * np.arange(n) * np.arange(1, n + 1)
            )
            networks.append(([n], demands[None, :], np.array([think]), alpha))
            service = np.repeat(demands[:, None], n, axis=1)
            service[-1] /= alpha
            script += f"[U, R, Q, X] = qncsmvald({n}, {_matrix(service)}, ones(1,{stations}), {think:.17g});\n"
            script += "X1 = X(1);\n" + _printing("X1", "R", "Q")
    answers = _octave(script, tmp_path)
    assert len(answers) == 200
    for (counts, demands, think, alpha), answer in zip(networks, answers, strict=True):
        classes, stations = demands.shape
        mine = solve_closed(counts, demands, think, alpha)
        theirs = np.array(answer)
        assert mine.throughput_per_s == pytest.approx(theirs[:classes], rel=1e-6)
        residence = theirs[classes : classes + classes * stations].reshape((classes, stations), order="F")
        queue = theirs[classes + classes * stations :].reshape((classes, stations), order="F")
        assert mine.residence_s == pytest.approx(residence, rel=1e-6)
        assert mine.queue_length == pytest.approx(queue, rel=1e-6, abs=1e-9)


def test_erlangs_formulas_agree_with_octave(tmp_path: Path) -> None:
    cases = [(1, 0.5), (2, 1.0), (10, 8.0), (40, 33.3), (100, 99.0)]
    script = "".join(
        f"b = erlangb({load}, {servers}); c = erlangc({load}, {servers});\n" + _printing("b", "c")
        for servers, load in cases
    )
    for (servers, load), (lost, waits) in zip(cases, _octave(script, tmp_path), strict=True):
        assert (erlang_b(servers, load), erlang_c(servers, load)) == pytest.approx((lost, waits), rel=1e-9)


@pytest.mark.parametrize("burst", ["constant", "exponential"])
@pytest.mark.parametrize(
    "network",
    [
        ((12,), [[1.6, 2 / 15]], 10, None),
        ((16,), [[1.0]], 10, [min(n, 4) for n in range(1, 17)]),
        ((4, 6, 8), [[0.5, 0.8], [1.2, 0.1], [0.9, 0.4]], (2, 20, 10), None),
    ],
    ids=["chassis", "four-fold", "three-classes"],
)
def test_a_million_events_agree_with_the_exact_means_within_one_percent(network: tuple, burst: str) -> None:
    exact = solve_closed(*network)
    # The rarest of three classes has a sixth of the bursts, whose mean varies by 0.8 % from one million
    # exponential events to the next: there, four millions are taken.
    runs = 4 if burst == "exponential" and len(network[0]) > 1 else 1
    seen = [simulate(*network, burst=burst, events=1_000_000, seed=seed).classes for seed in range(runs)]
    for c in range(len(network[0])):
        rate = np.mean([classes[c].throughput_per_s.mean for classes in seen])
        time = np.mean([classes[c].burst_s.mean for classes in seen])
        assert rate == pytest.approx(float(exact.throughput_per_s[c]), rel=0.01)
        assert time == pytest.approx(float(exact.response_s[c]), rel=0.01)


def _random_network(seed: int) -> tuple[list[int], list[list[float]], list[float]]:
    random = np.random.default_rng(seed)
    classes, stations = int(random.integers(1, 3)), int(random.integers(1, 3))
    counts = [int(n) for n in random.integers(2, 6, classes)]
    return counts, random.uniform(0.2, 1.5, (classes, stations)).tolist(), random.uniform(2, 8, classes).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_random_networks_agree_with_ciw_within_confidence_intervals(seed: int) -> None:
    pytest.importorskip("ciw", reason="pip install ciw, or make test-capacity")
    network = _random_network(seed)
    _holds(network, [ciw_network(*network, until_s=6_000, seed=run) for run in range(8)])


@pytest.mark.parametrize("seed", range(5, 10))
def test_random_networks_agree_with_simpy_within_confidence_intervals(seed: int) -> None:
    pytest.importorskip("simpy", reason="pip install simpy, or make test-capacity")
    network = _random_network(seed)
    _holds(network, [simpy_network(*network, until_s=6_000, seed=run) for run in range(8)])


@pytest.mark.parametrize(("jobs", "slots"), [(40, 29), (40, 20), (40, 13), (100, 18), (7, 3)])
def test_batches_take_as_long_as_the_plan_says(jobs: int, slots: int) -> None:
    pytest.importorskip("simpy", reason="pip install simpy, or make test-capacity")
    points = [(1, 180e6), (2, 330e6), (4, 560e6), (8, 760e6), (16, 800e6)]
    curve = ServiceCurve(points=[{"n": n, "throughput_bytes_per_s": rate} for n, rate in points])
    builds = WorkloadClass(name="builds", burst_bytes=2e9, think_s=10, bursts_per_job=80, jobs=jobs)
    storage = StorageProfile(name="nfs", sequential_write=curve)
    search = ClassSearch(Scenario(storage, LinkProfile(), (builds,), Policy(derate=0, max_slowdown=4)), 0)
    mine = [Jobs(2e9, 10, wanted=jobs, bursts=80)]
    took = [simpy_batch(mine, slots, points, seed) for seed in range(3)]
    assert search.mine(slots).batch_s == pytest.approx(np.mean(took), rel=0.02)


def test_random_plans_agree_with_simpy_and_recommend_what_it_finds_good() -> None:
    """Seeds of which docs/capacity.md has more; the means of a plan do not know the slowest job of a short batch."""
    pytest.importorskip("simpy", reason="pip install simpy, or make test-capacity")
    found = [compare(seed) for seed in range(6)]
    assert np.median([abs(each.error) for each in found]) < 0.06
    assert max(abs(each.error) for each in found) < 0.30
    assert max(each.behind for each in found) < 0.15
    assert {each.classes for each in found} == {1, 2}


def _holds(network: tuple, runs: list[list[tuple[float, float]]]) -> None:
    """The exact means lie in the 99.9 % interval of independent runs, and those agree within 5 %."""
    exact = solve_closed(*network)
    truth = np.stack([exact.throughput_per_s, exact.response_s], axis=1)
    seen = np.array(runs)
    mean, error = seen.mean(axis=0), seen.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert mean == pytest.approx(truth, rel=0.05)
    assert (np.abs(mean - truth) <= 5.41 * error).all()  # Student's t, 7 degrees of freedom
