"""Measured curves: the Universal Scalability Law fitted to one, and the rates a plan computes with.

A fit describes a curve; it does not describe a workload, and it sees no cliffs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped,unused-ignore]

from prefect_cachewatch.capacity.model.profile import ServiceCurve, UslFit
from prefect_cachewatch.errors import InputError

GATE_RMSE_OVER_MEAN = 0.10
_PEAK_ERRORS = 2.0  # beta must stand this many standard errors above 0 before a peak is spoken of
_BETA_MAX = 1.0
_GAMMA_MIN = 1e-12  # of the largest throughput

Floats = NDArray[np.float64]
Side = Literal["low", "high"]


def fit_usl(n: Sequence[float], throughput: Sequence[float]) -> UslFit:
    """Fit the Universal Scalability Law X(n) = g n / (1 + a (n-1) + b n (n-1)) to a measured curve.

    The gate is the error over the mean and the standard errors, never R2: a flat, saturated
    curve fits rightly with an R2 near 0.

    Args:
        n: concurrency of each measurement, at least three different values.
        throughput: throughput at each, in any unit per second.

    Returns:
        alpha, beta and gamma_per_s with standard errors (None where three points leave no
        freedom, or the value lies on its bound), rmse over mean, and `peak_n`: the concurrency
        of highest throughput, or None with a `note` that says why it is not identified.

    Raises:
        InputError: if there are fewer than three different n, or a value is not positive.

    Source: Gunther, Guerrilla Capacity Planning, 2007; peak at sqrt((1-a)/b).

    Example:
        >>> fit = fit_usl([1, 18, 36, 72, 108, 144, 216], [64.9, 995.9, 1652.4, 1853.2, 1828.9, 1775, 1702.2])
        >>> round(fit.alpha, 5), round(fit.beta, 6), round(fit.gamma_per_s, 2), round(fit.peak_n, 2)
        (0.02773, 0.000104, 90.0, 96.52)
    """
    jobs, rates = _checked_curve(n, throughput)
    scale = float(rates.max())
    scaled = rates / scale

    def jacobian(values: Floats) -> Floats:
        below = _below(values[0], values[1], jobs)
        slope = -values[2] * jobs / below**2
        return np.stack([slope * (jobs - 1), slope * jobs * (jobs - 1), jobs / below], axis=1)

    fits = [
        least_squares(
            lambda values: values[2] * jobs / _below(values[0], values[1], jobs) - scaled,
            start,
            jac=jacobian,  # pyright: ignore[reportArgumentType] - scipy takes a function here; its annotation says str
            bounds=([0.0, 0.0, _GAMMA_MIN], [1.0, _BETA_MAX, np.inf]),
            x_scale=[0.1, max(1e-6, 1 / float(jobs.max()) ** 2), max(start[2], 1e-9)],
            xtol=1e-15,
            ftol=1e-15,
            gtol=1e-15,
            max_nfev=5000,
        )
        for start in _starts(jobs, scaled)
    ]
    found = min(fits, key=lambda fit: float(fit.cost))
    alpha, beta, gamma = (float(value) for value in found.x)
    errors = _standard_errors(found.jac, 2 * float(found.cost), jobs.size)
    rmse = math.sqrt(2 * float(found.cost) / jobs.size) / float(scaled.mean())
    rising = bool(rates[jobs == jobs.max()].mean() >= rates.max())
    peak, note = _peak(alpha, beta, errors[1], rmse, float(jobs.max()), rising)
    return UslFit(
        alpha=alpha,
        beta=beta,
        gamma_per_s=gamma * scale,
        alpha_error=errors[0],
        beta_error=errors[1],
        gamma_error_per_s=None if errors[2] is None else errors[2] * scale,
        rmse_over_mean=rmse,
        peak_n=peak,
        measured_n=int(jobs.max()),
        note=note,
    )


@dataclass(frozen=True, eq=False)
class ServiceRates:
    """A curve as a plan uses it: what one stream gets, and how much more n streams get together."""

    per_stream_bytes_per_s: float
    alpha: Floats  # alpha(1), alpha(2), ..., alpha(1) = 1
    measured_n: int | None
    peak_n: float | None


def service_rates(curve: ServiceCurve, n_max: int, side: Side = "low") -> ServiceRates:
    """The rate of one stream and alpha(n) of a curve.

    Inside the measured range the medians are joined by straight lines; beyond it the fit
    continues them where it passes the gate, else the last value holds. A decline counts only where
    the peak lies within the data: what still rose when it was measured is not taken to fall. A vendor's two numbers
    give a band: `low` is the Universal Scalability Law with alpha = one / all, `high` is
    min(n, all / one).

    Args:
        curve: measured points or two numbers.
        n_max: how far alpha is wanted.
        side: which edge of the band where the curve is two numbers.

    Returns:
        The rates, alpha over 1 .. n_max.

    Example:
        >>> curve = ServiceCurve(per_stream_bytes_per_s=100, aggregate_bytes_per_s=400)
        >>> service_rates(curve, 8, "high").alpha[[0, 3, 7]]
        array([1., 4., 4.])
    """
    n = np.arange(1, n_max + 1, dtype=np.float64)
    if not curve.points:
        one, every = curve.two_numbers
        ratio = every / one
        alpha = np.minimum(n, ratio) if side == "high" else n / (1 + (n - 1) / ratio)
        return ServiceRates(one, alpha, None, None)
    at = np.array([0.0, *(point.n for point in curve.points)])
    rate = np.array([0.0, *(point.throughput_bytes_per_s for point in curve.points)])
    values = np.interp(n, at, rate)
    last = curve.points[-1].n
    fit = curve.usl or _fit_or_none(tuple((point.n, point.throughput_bytes_per_s) for point in curve.points))
    peak = None
    if fit is not None and fit.rmse_over_mean <= GATE_RMSE_OVER_MEAN:
        peak = fit.peak_n if fit.peak_n is not None and fit.peak_n <= last else None
        beyond = n > last
        at_last, after = (m / _below(fit.alpha, fit.beta, m) for m in (np.array([float(last)]), n[beyond]))
        values[beyond] = rate[-1] * after / at_last
        if peak is None:
            values[beyond] = np.maximum.accumulate(np.maximum(values[beyond], rate[-1]))
    return ServiceRates(float(values[0]), values / values[0], last, peak)


def _below(alpha: float, beta: float, n: Floats) -> Floats:
    below: Floats = 1 + alpha * (n - 1) + beta * n * (n - 1)
    return below


@functools.lru_cache(maxsize=64)  # one plan asks for the same fit dozens of times
def _fit_or_none(points: tuple[tuple[int, float], ...]) -> UslFit | None:
    return None if len(points) < 4 else fit_usl(*zip(*points, strict=True))


def _checked_curve(n: Sequence[float], throughput: Sequence[float]) -> tuple[Floats, Floats]:
    jobs = np.asarray(n, dtype=np.float64)
    rates = np.asarray(throughput, dtype=np.float64)
    if jobs.ndim != 1 or jobs.shape != rates.shape:
        raise InputError(f"n has {jobs.size} values and throughput {rates.size}: give one throughput for each n")
    if not np.isfinite(jobs).all() or not np.isfinite(rates).all() or (jobs < 1).any() or (rates <= 0).any():
        raise InputError("a curve needs n of 1 or more and throughput above 0 at every point")
    distinct = np.unique(jobs).size
    if distinct < 3:
        raise InputError(
            f"the curve has {distinct} different n, and a fit has three unknowns: measure at three or more, "
            "better at 1, 2, 4, 8, 16"
        )
    return jobs, rates


def _starts(jobs: Floats, rates: Floats) -> list[list[float]]:
    # n / X is linear in (1, n-1, n(n-1)) / g: a good first guess; the others guard against a bad one.
    table = np.stack([np.ones_like(jobs), jobs - 1, jobs * (jobs - 1)], axis=1)
    first, second, third = (float(value) for value in np.linalg.lstsq(table, jobs / rates, rcond=None)[0])
    slope = float((rates / jobs).max())
    slope = max(slope, _GAMMA_MIN)
    starts = [[0.05, 1e-4, slope], [0.5, 1e-3, slope], [1e-3, 1e-6, slope]]
    if first > 0:
        first = min(first, 1 / _GAMMA_MIN)
        starts.insert(0, [min(max(second / first, 1e-6), 0.999), min(max(third / first, 1e-9), 0.9), 1 / first])
    return starts


def _standard_errors(jacobian: Floats, square_sum: float, points: int) -> list[float | None]:
    freedom = points - 3
    # Columns differ by orders of magnitude; scaled first, so that the inverse is of a sane matrix.
    sizes = np.linalg.norm(jacobian, axis=0)
    if freedom <= 0 or (sizes == 0).any():
        return [None, None, None]
    scaled = jacobian / sizes
    try:
        spread = np.diag(np.linalg.inv(scaled.T @ scaled)) * square_sum / freedom
    except np.linalg.LinAlgError:
        return [None, None, None]
    errors = np.sqrt(np.where(spread >= 0, spread, np.nan)) / sizes
    return [None if math.isnan(error) else float(error) for error in errors]


def _peak(
    alpha: float, beta: float, error: float | None, rmse: float, last: float, rising: bool
) -> tuple[float | None, str]:
    if rmse > GATE_RMSE_OVER_MEAN:
        gate = f"{GATE_RMSE_OVER_MEAN:.0%} is the gate"
        return None, f"not identified: the fit is {rmse:.0%} off on average, and {gate}"
    if error is None:
        return None, "not identified: too few points for standard errors; measure at four or more"
    if beta <= _PEAK_ERRORS * error or beta <= 1e-12 or alpha >= 1:
        return None, "no peak identified: beta is not above 0 by two standard errors"
    peak = math.sqrt((1 - alpha) / beta)
    if peak < 1 or peak > 2 * last:
        return (
            None,
            f"not identified: it would be at n = {peak:.0f}, beyond twice the largest measured n",
        )
    if rising and peak < last:
        return None, f"not identified: throughput still rises at the largest measured n ({last:.0f})"
    return peak, f"throughput peaks at n = {peak:.1f}"
