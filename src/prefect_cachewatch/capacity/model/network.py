"""The description of a closed network, checked and brought into one form; nothing is solved here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefect_cachewatch.errors import InputError

Floats = NDArray[np.float64]


def check_network(
    populations: int | Sequence[int],
    demands_s: ArrayLike,
    think_s: float | Sequence[float],
    capacity: Sequence[float] | None,
    load_dependent_station: int,
) -> tuple[tuple[int, ...], Floats, Floats, Floats, int | None]:
    """Check the description of a network and bring it into one form.

    Args:
        populations: as in `solve_closed`.
        demands_s: as in `solve_closed`.
        think_s: as in `solve_closed`.
        capacity: as in `solve_closed`.
        load_dependent_station: as in `solve_closed`.

    Returns:
        Populations, demands by class and station, think times by class, alpha up to the number of
        all jobs, and the index of the load-dependent station or None.

    Raises:
        InputError: if one of them is out of range; the message names it.
    """
    counts = check_populations(populations if isinstance(populations, Sequence | np.ndarray) else [populations])
    demands = _checked_demands(demands_s, len(counts))
    think = _checked_think(think_s, len(counts))
    stations = demands.shape[1]
    if not -stations <= load_dependent_station < stations:
        raise InputError(f"load_dependent_station {load_dependent_station} is not one of {stations} stations")
    variable = load_dependent_station % stations if capacity is not None else None
    return counts, demands, think, _checked_capacity(capacity, sum(counts)), variable


def check_populations(populations: Sequence[Any]) -> tuple[int, ...]:
    """Check the numbers of jobs.

    Args:
        populations: jobs of each class.

    Returns:
        The same as a tuple of int.

    Raises:
        InputError: if one is not a number of jobs, or there is none.
    """
    counts: list[int] = []
    for value in populations:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise InputError(f"population {value!r} is not a number of jobs: give integers from 0 on")
        counts.append(int(value))
    if not counts:
        raise InputError("populations is empty: give the jobs of at least one class")
    return tuple(counts)


def _checked_demands(demands_s: ArrayLike, classes: int) -> Floats:
    try:
        demands = np.asarray(demands_s, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("demands_s is not a table of seconds: give demands_s[class][station]") from None
    if demands.ndim == 1 and classes == 1:
        demands = demands[None, :]
    if demands.ndim != 2 or demands.shape[0] != classes or demands.shape[1] == 0:
        raise InputError(
            f"demands_s has the shape {demands.shape}: give one row of stations for each of {classes} classes"
        )
    if not np.isfinite(demands).all() or (demands < 0).any():
        raise InputError("demands_s has a negative or infinite value: seconds of service are 0 or more")
    for c in range(classes):
        if not demands[c].any():
            raise InputError(f"demands_s[{c}] is all zero: a class needs seconds of service at one station at least")
    return demands


def _checked_think(think_s: float | Sequence[float], classes: int) -> Floats:
    think = np.asarray(think_s, dtype=np.float64)
    if think.ndim == 0:
        think = np.full(classes, float(think))
    if think.shape != (classes,):
        raise InputError(f"think_s has {think.size} values for {classes} classes: give one for each, or one number")
    if not np.isfinite(think).all() or (think < 0).any():
        raise InputError("think_s has a negative or infinite value: seconds between bursts are 0 or more")
    return think


def _checked_capacity(capacity: Sequence[float] | None, most: int) -> Floats:
    if capacity is None:
        return np.ones(most)
    alpha = np.asarray(capacity, dtype=np.float64)
    if alpha.ndim != 1 or alpha.size == 0 or not np.isfinite(alpha).all() or (alpha <= 0).any():
        raise InputError("capacity must be alpha(1), alpha(2), ..., finite and all above 0")
    if alpha.size < most:
        alpha = np.concatenate((alpha, np.full(most - alpha.size, alpha[-1])))
    return alpha[:most]
