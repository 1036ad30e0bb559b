"""The planner against results that others published: fitted to few accelerators, compared with more of them."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scipy.optimize import brentq  # type: ignore[import-untyped,unused-ignore]

from prefect_cachewatch.capacity import ServiceCurve, solve_closed
from prefect_cachewatch.capacity.model.usl import service_rates

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data" / "mlperf_storage_v1.0.csv"
PAGE = ROOT / "docs" / "capacity.md"
Result = tuple[int, float]  # accelerators, batches per second of all together


@dataclass(frozen=True)
class Prediction:
    """One result, predicted from those of the same system at fewer accelerators; errors as shares of the result."""

    system: str
    model: str
    fitted: int
    n: int
    line: float
    contention: float
    network: float

    @property
    def row(self) -> str:
        errors = " | ".join(f"{error:+.1%}" for error in (self.line, self.contention, self.network))
        return f"| {self.system} | {self.model} | {self.fitted} | {self.n} | {errors} |"


def series() -> Iterator[tuple[str, str, float, list[Result]]]:
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    rows = csv.DictReader(lines)
    for (system, model), group in itertools.groupby(rows, lambda row: (row["system"], row["model"])):
        results = list(group)
        points = [(int(row["n"]), float(row["samples_per_s"]) / float(row["batch_samples"])) for row in results]
        clients = int(results[0]["clients"])
        short = f"{system.partition('_')[0].partition('-')[0]}, {clients} client{'s' if clients > 1 else ''}"
        yield short, model, float(results[0]["compute_s"]), points


def by_network(small: list[Result], think_s: float, n: int) -> float:
    """A closed network: a batch is computed, and all the rest of its time is service of one station that all share."""
    at, rate = small[-1]

    def solved(jobs: int, demand_s: float) -> float:
        return float(solve_closed(jobs, [demand_s], think_s).throughput_per_s[0])

    demand_s = brentq(lambda d: solved(at, d) - rate, 1e-9, 10.0)
    return solved(n, demand_s)


def by_contention(small: list[Result], think_s: float, n: int) -> float:
    """The law by which a plan reads two numbers of a storage: x n / (1 + a (n - 1))."""
    (m, first), (k, second) = small[0], small[-1]
    if len(small) > 1:  # n / X is a line in n - 1
        slope = (k / second - m / first) / (k - m)
        one = 1 / (m / first - slope * (m - 1))
        share = max(0.0, slope * one)
    elif m > 1:  # alone, a batch would take its computing only
        one = 1 / think_s
        share = max(0.0, (m / first / think_s - 1) / (m - 1))
    else:
        one, share = first, 0.0
    share = max(share, 1e-9)
    curve = ServiceCurve(per_stream_bytes_per_s=one, aggregate_bytes_per_s=one / share)
    return float(one * service_rates(curve, n).alpha[n - 1])


def predictions() -> list[Prediction]:
    found = []
    for system, model, think_s, points in series():
        for i, (n, rate) in enumerate(points[1:], start=1):
            at, known = points[i - 1]
            guesses = (known * n / at, by_contention(points[:i], think_s, n), by_network(points[:i], think_s, n))
            found.append(Prediction(system, model, at, n, *(guess / rate - 1 for guess in guesses)))
    return sorted(found, key=lambda p: (p.n / p.fitted, p.system, p.model))


def test_the_page_has_the_errors_as_they_are() -> None:
    page = PAGE.read_text()
    missing = [each.row for each in predictions() if each.row not in page]
    assert not missing, "\n".join(missing)


def test_the_page_counts_them_as_they_are() -> None:
    page = " ".join(PAGE.read_text().split())
    for near, told in ((True, "up to twice"), (False, "beyond twice")):
        some = [each for each in predictions() if (each.n <= 2 * each.fitted) is near]
        good = [sum(abs(getattr(each, way)) <= 0.25 for each in some) for way in ("line", "contention", "network")]
        assert f"| {told} the n fitted | {' | '.join(f'{count} of {len(some)}' for count in good)} |" in page


def test_the_network_errs_to_the_careful_side() -> None:
    """A fixed cost of a step, taken for work on the storage, makes the plan promise too little, not too much."""
    assert max(each.network for each in predictions()) < 0.11
