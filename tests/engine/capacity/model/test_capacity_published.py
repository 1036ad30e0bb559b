"""The planner against results that others published: fitted to few accelerators, compared with more of them."""

from __future__ import annotations

import csv
import itertools
import re
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


def test_the_page_has_the_errors_as_they_are_and_no_others() -> None:
    table = PAGE.read_text().partition("| storage | benchmark | N fitted, the largest |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == [each.row for each in predictions()]


def test_the_page_counts_them_as_they_are() -> None:
    page = " ".join(PAGE.read_text().split())
    for near, told in ((True, "up to twice"), (False, "beyond twice")):
        some = [each for each in predictions() if (each.n <= 2 * each.fitted) is near]
        good = [sum(abs(getattr(each, way)) <= 0.25 for each in some) for way in ("line", "contention", "network")]
        assert f"| {told} the n fitted | {' | '.join(f'{count} of {len(some)}' for count in good)} |" in page


def test_the_page_says_of_them_what_they_are() -> None:
    page = " ".join(PAGE.read_text().split())
    every = predictions()
    near, far = ([each for each in every if (each.n <= 2 * each.fitted) is side] for side in (True, False))
    rows = [line for line in DATA.read_text().splitlines() if not line.startswith("#")][1:]
    columns = list(zip(*(row.split(",") for row in rows), strict=True))
    submitters, systems, clients = columns[0], columns[1], columns[4]
    storages = {re.split("[_-]", system)[0] for system in systems}
    sets = set(zip(systems, clients, strict=True))
    numbers = {2: "Two", 3: "three", 5: "five"}
    for told in (
        f"{numbers[len(set(submitters))]} submitters ({numbers[len(storages)]} storages, {numbers[len(sets)]} sets of clients)",
        f"published more than one N for a system: {len(rows)} results",
        f"far too careful here (down to {min(each.network for each in every):.0%}".replace("%", " %"),
        f"It promised at most {max(each.network for each in every):.1%} too much".replace("%", " %"),
        f"contention is within {max(abs(each.contention) for each in near):.0%} up to it".replace("%", " %"),
        f"and off by up to {max(abs(each.contention) for each in far):.0%} beyond".replace("%", " %"),
    ):
        assert told in page, told
