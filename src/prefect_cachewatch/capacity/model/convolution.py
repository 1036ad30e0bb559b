"""Exact means of a closed network of queues: several classes, one station that may depend on its load.

The convolution algorithm on the product form (Baskett, Chandy, Muntz and Palacios 1975; Buzen 1973;
Reiser and Kobayashi 1975), in logarithms with positive terms only, so that nothing cancels.
No simulation here, and no approximation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefect_cachewatch.capacity.model.network import check_network, check_populations
from prefect_cachewatch.errors import InputError

# States of the population grid, the product of (N + 1) over the classes; 2 million take about 2 s.
MAX_STATES = 2_000_000

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClosedSolution:
    """Means of a closed network in equilibrium."""

    populations: tuple[int, ...]
    throughput_per_s: Floats  # class: bursts per second of all its jobs
    residence_s: Floats  # class x station: seconds a burst spends there, waiting and served; nan without jobs
    queue_length: Floats  # class x station: jobs there on average
    utilisation: Floats  # station: share of the station's largest capacity in use

    @property
    def response_s(self) -> Floats:
        """Seconds of one burst over all stations, by class."""
        total: Floats = self.residence_s.sum(axis=1)
        return total


def solve_closed(
    populations: int | Sequence[int],
    demands_s: ArrayLike,
    think_s: float | Sequence[float],
    capacity: Sequence[float] | None = None,
    *,
    load_dependent_station: int = -1,
) -> ClosedSolution:
    """The exact means of a closed network under processor sharing.

    Args:
        populations: jobs of each class, or one number for one class.
        demands_s: `demands_s[class][station]`, seconds of service a burst needs there alone; for
            one class also a plain list over the stations.
        think_s: seconds between bursts, by class or one number for all.
        capacity: `capacity[n-1]` = alpha(n), how much faster the load-dependent station serves n
            jobs than one; its last value holds beyond its end. None: no station depends on its load.
        load_dependent_station: which station `capacity` belongs to; the last one unless told.

    Returns:
        Throughput, residence, queue length and utilisation as arrays.

    Raises:
        InputError: if an argument is out of range, or the populations are beyond what is solved
            exactly (product of N + 1 over the classes above 2,000,000).

    Source: G(N) = sum of prod Z^n/n! x stations' factors; X_c = G(N - 1_c) / G(N);
        residence by Little's Law from the mean queue lengths.

    Example:
        >>> answer = solve_closed((1, 1), [[1, 3], [2, 4]], (0, 0))  # Lazowska et al. 1984
        >>> answer.throughput_per_s * 19, answer.residence_s[1]
        (array([3., 2.]), array([2.5, 7. ]))
    """
    network = ClosedNetwork(populations, demands_s, think_s, capacity, load_dependent_station=load_dependent_station)
    return network.at(network.populations)


class ClosedNetwork:
    """A network prepared for all populations up to the largest ones; `at` answers for each.

    Args:
        populations: the largest number of jobs of each class that will be asked for.
        demands_s: as in `solve_closed`.
        think_s: as in `solve_closed`.
        capacity: as in `solve_closed`.
        load_dependent_station: as in `solve_closed`.

    Raises:
        InputError: as in `solve_closed`.
    """

    def __init__(
        self,
        populations: int | Sequence[int],
        demands_s: ArrayLike,
        think_s: float | Sequence[float],
        capacity: Sequence[float] | None = None,
        *,
        load_dependent_station: int = -1,
    ) -> None:
        self.populations, self._demands, self._think, self._alpha, self._variable = check_network(
            populations, demands_s, think_s, capacity, load_dependent_station
        )
        _refuse_too_many(self.populations)
        stations = self._demands.shape[1]
        self._shape = tuple(count + 1 for count in self.populations)
        self._levels = _Levels(self._shape)
        with np.errstate(divide="ignore"):  # log 0 = -inf is what an impossible state weighs
            self._log_demands: Floats = np.log(self._demands)
            log_think: Floats = np.log(self._think)
        grids = np.meshgrid(*(np.arange(size) for size in self._shape), indexing="ij")
        factorials = np.zeros(self._shape)
        constant = np.zeros(self._shape)
        for size, grid, log in zip(self._shape, grids, log_think, strict=True):
            factorials += _log_factorial(size)[grid]
            constant += _times(grid, log)
        constant -= factorials
        self._fixed = [k for k in range(stations) if k != self._variable]
        for station in self._fixed:
            constant = self._levels.add_station(constant, self._log_demands[:, station])
        self._constant = constant
        # With a station counted twice, the constant gives its mean queue length without a subtraction.
        # Stations that are alike, such as the links of many hosts, share it.
        alike = {k: self._log_demands[:, k].tobytes() for k in self._fixed}
        doubled = {
            alike[k]: self._levels.add_station(constant, self._log_demands[:, k])
            for k in {alike[k]: k for k in self._fixed}.values()
        }
        self._twice = {k: doubled[alike[k]] for k in self._fixed}
        self._factor: Floats | None = None
        if self._variable is not None:
            total = np.indices(self._shape).sum(axis=0)
            rates = np.concatenate(([0.0], np.cumsum(np.log(self._alpha))))
            factor = _log_factorial(int(total.max()) + 1)[total] - factorials - rates[total]
            for grid, log in zip(grids, self._log_demands[:, self._variable], strict=True):
                factor += _times(grid, log)
            self._factor = factor
        self._grids = grids

    def at(self, populations: Sequence[int]) -> ClosedSolution:
        """The means at these populations.

        Args:
            populations: jobs of each class, none above what the network was prepared for.

        Returns:
            The solution.

        Raises:
            InputError: if there are more jobs than were prepared for.
        """
        counts = check_populations(populations)
        if len(counts) != len(self.populations) or any(
            n > most for n, most in zip(counts, self.populations, strict=True)
        ):
            raise InputError(f"populations {counts} exceed {self.populations}, for which the network was prepared")
        classes, stations = self._demands.shape
        whole = self._log_total(self._constant, counts)
        throughput = np.zeros(classes)
        queue = np.zeros((classes, stations))
        for c, n in enumerate(counts):
            if n == 0:
                continue
            less = tuple(m - int(d == c) for d, m in enumerate(counts))
            throughput[c] = math.exp(self._log_total(self._constant, less) - whole)
            for k in self._fixed:
                if self._demands[c, k] > 0:
                    doubled = self._log_total(self._twice[k], less) - whole
                    queue[c, k] = math.exp(self._log_demands[c, k] + doubled)
        if self._variable is not None and self._factor is not None:
            queue[:, self._variable] = self._variable_queue(self._factor, counts, whole)
        with np.errstate(divide="ignore", invalid="ignore"):
            residence = np.where(throughput[:, None] > 0, queue / throughput[:, None], np.nan)
        utilisation = throughput @ self._demands
        if self._variable is not None:
            jobs = max(1, sum(counts))
            utilisation[self._variable] /= self._alpha[:jobs].max(initial=1e-300)
        return ClosedSolution(counts, throughput, residence, queue, utilisation)

    def _log_total(self, constant: Floats, counts: tuple[int, ...]) -> float:
        if self._factor is None:
            return float(constant[counts])
        return _log_sum(self._terms(self._factor, constant, counts))

    def _terms(self, factor: Floats, constant: Floats, counts: tuple[int, ...]) -> Floats:
        inside = tuple(slice(0, n + 1) for n in counts)
        rest = constant[inside][tuple(slice(None, None, -1) for _ in counts)]
        terms: Floats = factor[inside] + rest
        return terms

    def _variable_queue(self, factor: Floats, counts: tuple[int, ...], whole: float) -> Floats:
        inside = tuple(slice(0, n + 1) for n in counts)
        shares = np.exp(self._terms(factor, self._constant, counts) - whole)
        return np.array([float((shares * grid[inside]).sum()) for grid in self._grids])


class _Levels:
    """The population grid sorted by total population: each level needs only the one before it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        size = math.prod(shape)
        index = np.indices(shape).reshape(len(shape), size)
        total = index.sum(axis=0)
        self._order = np.argsort(total, kind="stable")
        rank = np.empty(size, dtype=np.intp)
        rank[self._order] = np.arange(size)
        strides = [math.prod(shape[c + 1 :]) for c in range(len(shape))]
        # Position `size` holds log 0, for states with no job of the class to take away.
        self._before = np.full((len(shape), size), size, dtype=np.intp)
        for c, stride in enumerate(strides):
            has = np.flatnonzero(index[c, self._order] > 0)
            self._before[c, has] = rank[self._order[has] - stride]
        self._edges = np.searchsorted(total[self._order], np.arange(total.max() + 2))

    def add_station(self, constant: Floats, log_demands: Floats) -> Floats:
        """Convolve with one load-independent station: G(n) += sum_c D_c G(n - 1_c)."""
        size = constant.size
        values = np.full(size + 1, -np.inf)
        values[:size] = constant.reshape(size)[self._order]
        used = np.flatnonzero(log_demands > -np.inf)
        for start, stop in zip(self._edges[1:-1], self._edges[2:], strict=True):
            for c in used:
                # Each class's share comes from the level before, which is finished.
                share = values[self._before[c, start:stop]] + log_demands[c]
                values[start:stop] = np.logaddexp(values[start:stop], share)
        result = np.empty(size)
        result[self._order] = values[:size]
        return result.reshape(self._shape)


def _log_sum(terms: Floats) -> float:
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum())) if top > -math.inf else -math.inf


def _log_factorial(size: int) -> Floats:
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, size))))) if size > 1 else np.zeros(1)


def _times(count: NDArray[np.intp], log: float) -> Floats:
    # 0 x log 0 is 0 here: no job, no weight.
    if log > -math.inf:
        return count.astype(np.float64) * log
    return np.where(count > 0, -np.inf, 0.0)


def _refuse_too_many(counts: tuple[int, ...]) -> None:
    states = math.prod(count + 1 for count in counts)
    if states > MAX_STATES:
        raise InputError(
            f"populations {counts} make {states:,} states, and {MAX_STATES:,} are solved exactly "
            "(the product of N + 1 over the classes): simulate them, or merge classes"
        )
