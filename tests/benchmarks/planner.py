"""The planner's speed: exact means beside octave, simulation beside ciw, a plan beside its promise.

`ratio` is how many times faster ours is than the peer; a peer that is not installed is None. The
same network is given to both, and their answers are compared before their times are.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from prefect_cachewatch.capacity import plan, simulate, solve_closed
from prefect_cachewatch.capacity.planfile import read_plan

__all__ = ["run"]

DEMANDS = [[0.5, 0.8], [1.2, 0.1], [0.9, 0.4]]
THINK = (2.0, 20.0, 10.0)
LARGE = (32, 32, 8)
SMALL = (10, 10, 5)  # octave's recursion over every state takes minutes at the large one
SOLVE_TARGET_S, PLAN_TARGET_S, EVENTS_TARGET_PER_S = 0.2, 1.0, 200_000
PLAN = Path(__file__).parents[2] / "examples" / "planner" / "shared-cluster.yaml"


def run() -> list[dict[str, Any]]:
    """Measure everything once.

    Returns:
        Rows of name, unit, ours, peer (whose figure it is), peer_value, ratio (above 1: ours is better).
    """
    alpha = np.minimum(np.arange(1, sum(LARGE) + 1), 6.0)
    large_s = _best_s(lambda: solve_closed(LARGE, DEMANDS, THINK, alpha))
    small_s = _best_s(lambda: solve_closed(SMALL, DEMANDS, THINK))
    given = read_plan(PLAN)
    plan_s = _best_s(lambda: plan(given.storage, given.link, given.workloads, given.policy), repeat=3)
    events = simulate(12, [1.6, 2 / 15], 10, events=500_000, seed=1).events_per_s
    bursts = _bursts_per_s()
    return [
        _row("exact means, populations (32, 32, 8)", "s", large_s, SOLVE_TARGET_S, "promised at most", lower=True),
        _row("exact means, populations (10, 10, 5)", "s", small_s, _octave_s(), "octave-queueing", lower=True),
        _row("plan of 3 classes, not simulated", "s", plan_s, PLAN_TARGET_S, "promised at most", lower=True),
        _row("simulation, processor sharing", "events/s", events, EVENTS_TARGET_PER_S, "promised at least"),
        _row("simulation, bursts of the same network", "bursts/s", bursts, _ciw_bursts_per_s(), "ciw"),
    ]


def _row(name: str, unit: str, ours: float, peer: float | None, whose: str, *, lower: bool = False) -> dict[str, Any]:
    ratio = None if peer is None else peer / ours if lower else ours / peer
    return {"name": name, "unit": unit, "ours": ours, "peer": whose, "peer_value": peer, "ratio": ratio}


def _best_s(work: Callable[[], object], repeat: int = 5) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _octave_s() -> float | None:
    program = shutil.which("octave-cli")
    if program is None:
        return None
    rows = ";".join(",".join(map(repr, row)) for row in DEMANDS)
    script = (
        "pkg load queueing;\n"
        f"N = {list(SMALL)}; S = [{rows}]; Z = {list(THINK)};\n"
        "tic; [U, R, Q, X] = qncmmva(N, S, ones(3, 2), ones(1, 2), Z); t = toc;\n"
        "printf('%.17g %.17g %.17g %.17g\\n', t, X(1,1), X(2,1), X(3,1));\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.m"
        path.write_text(script)
        told = subprocess.run([program, "--quiet", "--no-gui", str(path)], capture_output=True, text=True, check=False)
    figures = [float(value) for value in told.stdout.split()]
    if len(figures) != 4:
        return None
    np.testing.assert_allclose(solve_closed(SMALL, DEMANDS, THINK).throughput_per_s, figures[1:], rtol=1e-6)
    return figures[0]


def _bursts_per_s() -> float:
    started = time.perf_counter()
    result = simulate((4, 6), DEMANDS[:2], THINK[:2], burst="exponential", events=300_000, seed=1)
    return sum(c.bursts for c in result.classes) / (time.perf_counter() - started)


def _ciw_bursts_per_s() -> float | None:
    if find_spec("ciw") is None:
        return None
    from tests.engine.capacity.model.capacity_peers import WARM_UP, ciw_network

    until_s = 20_000.0
    started = time.perf_counter()
    found = ciw_network([4, 6], DEMANDS[:2], list(THINK[:2]), until_s=until_s, seed=1)
    elapsed = time.perf_counter() - started
    exact = solve_closed((4, 6), DEMANDS[:2], THINK[:2])
    np.testing.assert_allclose([rate for rate, _ in found], exact.throughput_per_s, rtol=0.05)
    return sum(rate for rate, _ in found) * until_s * (1 - WARM_UP) / elapsed


if __name__ == "__main__":
    for entry in run():
        peer = "not installed" if entry["peer_value"] is None else f"{entry['peer_value']:.4g}"
        ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.1f} x"
        print(f"{entry['name']:<42} {entry['ours']:>10.4g} {entry['unit']:<9} {peer:>13} {ratio:>8}  {entry['peer']}")
