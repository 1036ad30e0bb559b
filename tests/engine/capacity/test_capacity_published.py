"""The rate law against results that others published: MLPerf Storage v1.0, fitted to few accelerators, held against more."""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.capacity.inputs import ServiceCurve
from prefect_cachewatch.capacity.law import Side, curve_bytes_per_s

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "mlperf_storage_v1.0.csv"
PAGE = ROOT / "docs" / "capacity.md"


@dataclass(frozen=True)
class Prediction:
    """One result, predicted from those of the same system at fewer accelerators; errors as shares of the result."""

    fitted: int
    n: int
    line: float  # as much for each accelerator as before
    contention: float  # the lower edge of the law
    roofline: float  # its upper edge


def series() -> Iterator[tuple[float, list[tuple[int, float]]]]:
    """Seconds of computing a batch, and (accelerators, batches a second of all together)."""
    rows = csv.DictReader(line for line in DATA.read_text().splitlines() if not line.startswith("#"))
    for _, group in itertools.groupby(rows, lambda row: (row["system"], row["model"])):
        results = list(group)
        points = [(int(row["n"]), float(row["samples_per_s"]) / float(row["batch_samples"])) for row in results]
        yield float(results[0]["compute_s"]), points


def two_numbers(small: list[tuple[int, float]], compute_s: float) -> ServiceCurve:
    """What one accelerator gets and what all get, from results at small n: n / X(n) is a line in n - 1."""
    (m, first), (k, second) = small[0], small[-1]
    if len(small) > 1:
        slope = (k / second - m / first) / (k - m)
        one = 1 / (m / first - slope * (m - 1))
        share = slope * one
    else:  # alone, a batch takes its computing only
        one = 1 / compute_s if m > 1 else first
        share = (m / first * one - 1) / (m - 1) if m > 1 else 0.0
    scale = 1e6  # a curve has bytes: a batch is a million of them here
    return ServiceCurve(one_bytes_per_s=one * scale, all_bytes_per_s=one * scale / min(1, max(share, 1e-6)))


def predictions() -> list[Prediction]:
    found = []
    for compute_s, points in series():
        for i, (n, rate) in enumerate(points[1:], start=1):
            at, known = points[i - 1]
            curve = two_numbers(points[:i], compute_s)
            # From the last result on, as the law goes from there to n.
            low, high = (known * _ratio(curve, at, n, side) / rate - 1 for side in ("low", "high"))
            found.append(Prediction(at, n, known * n / at / rate - 1, low, high))
    return found


def _ratio(curve: ServiceCurve, at: int, n: int, side: Side) -> float:
    return curve_bytes_per_s(curve, n, side) / curve_bytes_per_s(curve, at, side)


def sizes(some: list[Prediction], way: str) -> tuple[float, float]:
    errors = [abs(float(getattr(each, way))) for each in some]
    return statistics.median(errors), max(errors)


def test_up_to_twice_the_n_fitted_the_law_is_at_least_as_good_as_a_straight_line() -> None:
    near = [each for each in predictions() if each.n <= 2 * each.fitted]
    assert len(near) == 9
    for measure in (0, 1):  # in the median, and at the worst
        assert sizes(near, "contention")[measure] <= sizes(near, "line")[measure]
    assert sizes(near, "contention")[1] <= 0.10


def test_what_the_page_says_of_it_is_so() -> None:
    page = " ".join(PAGE.read_text().split())
    for words, near in (("it was {} off at the worst", True), ("and not beyond ({})", False)):
        some = [each for each in predictions() if (each.n <= 2 * each.fitted) is near]
        assert words.format(f"{sizes(some, 'contention')[1]:.1%}") in page
