"""The Universal Scalability Law's fit and its gate, and the curves a plan computes with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_cachewatch.capacity import ServiceCurve, fit_usl
from prefect_cachewatch.capacity.model.usl import service_rates
from prefect_cachewatch.errors import InputError

SDM_N = [1, 18, 36, 72, 108, 144, 216]
SDM_X = [64.9, 995.9, 1652.4, 1853.2, 1828.9, 1775, 1702.2]


def test_the_published_fit_comes_out_to_its_last_digit() -> None:
    fit = fit_usl(SDM_N, SDM_X)
    assert fit.alpha == pytest.approx(0.0277285, abs=5e-8)
    assert fit.beta == pytest.approx(0.00010437, abs=5e-9)
    assert fit.gamma_per_s == pytest.approx(89.9952, abs=5e-5)
    assert fit.peak_n == pytest.approx(96.5196, abs=5e-5)
    assert fit.measured_n == 216
    assert fit.rmse_over_mean < 0.05
    assert 0 < fit.beta_error < fit.beta


def test_a_flat_saturated_curve_passes_the_gate_and_has_no_peak() -> None:
    fit = fit_usl([1, 2, 4, 8, 16], [100, 101, 99, 100, 100.5])
    assert fit.rmse_over_mean < 0.01
    assert fit.alpha == pytest.approx(1, abs=0.03)
    assert fit.peak_n is None
    assert "no peak identified" in fit.note


def test_a_curve_that_still_rises_has_no_peak_inside_what_was_measured() -> None:
    fit = fit_usl([1, 2, 4, 8, 16], [180, 330, 560, 760, 800])
    assert fit.peak_n is None
    assert "still rises" in fit.note


def test_noise_does_not_pass_the_gate() -> None:
    fit = fit_usl([1, 2, 4, 8, 16, 32], [100, 900, 150, 800, 90, 1200])
    assert fit.peak_n is None
    assert "gate" in fit.note


def test_three_points_leave_no_freedom_for_standard_errors() -> None:
    fit = fit_usl([1, 2, 4], [100, 190, 300])
    assert (fit.alpha_error, fit.beta_error, fit.gamma_error_per_s, fit.peak_n) == (None, None, None, None)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.6), st.floats(1e-4, 5e-3), st.floats(0.1, 1e9))
def test_a_curve_made_by_the_law_is_found_again(alpha: float, beta: float, gamma: float) -> None:
    n = np.array([1, 2, 4, 8, 16, 32, 64])
    fit = fit_usl(n, gamma * n / (1 + alpha * (n - 1) + beta * n * (n - 1)))
    assert (fit.alpha, fit.beta, fit.gamma_per_s) == pytest.approx((alpha, beta, gamma), rel=1e-4)


@pytest.mark.parametrize(
    ("n", "x", "told"),
    [
        ([1], [5], "1 different n"),
        ([1, 1, 2], [5, 5, 6], "2 different n"),
        ([1, 2, 3], [5, 6], "one throughput for each"),
        ([1, 2, 4], [5, 0, 6], "above 0"),
        ([0, 2, 4], [5, 5, 6], "1 or more"),
        ([1, 2, float("nan")], [5, 5, 6], "1 or more"),
    ],
)
def test_curves_that_cannot_be_fitted_are_refused(n: list[float], x: list[float], told: str) -> None:
    with pytest.raises(InputError, match=told):
        fit_usl(n, x)


def test_two_numbers_give_a_band_of_curves() -> None:
    curve = ServiceCurve(per_stream_bytes_per_s=100, aggregate_bytes_per_s=400)
    low, high = service_rates(curve, 64), service_rates(curve, 64, "high")
    assert low.per_stream_bytes_per_s == high.per_stream_bytes_per_s == 100
    assert (low.alpha <= high.alpha).all()
    assert low.alpha[3] == 4 / 1.75
    assert high.alpha[-1] == 4


def test_measured_points_are_kept_and_joined_by_straight_lines() -> None:
    points = [{"n": n, "throughput_bytes_per_s": x} for n, x in [(1, 100), (2, 180), (4, 300), (8, 400), (16, 420)]]
    rates = service_rates(ServiceCurve(points=points), 40)
    assert rates.alpha[[0, 1, 2, 3, 15]] == pytest.approx([1, 1.8, 2.4, 3, 4.2])
    assert rates.measured_n == 16


def test_beyond_a_curve_without_a_good_fit_its_last_value_holds() -> None:
    curve = ServiceCurve(points=[{"n": 1, "throughput_bytes_per_s": 100}, {"n": 4, "throughput_bytes_per_s": 250}])
    assert service_rates(curve, 10).alpha[3:] == pytest.approx([2.5] * 7)


def test_beyond_a_curve_with_a_good_fit_the_fit_continues_it_without_a_step() -> None:
    n = np.array([1, 2, 4, 8, 16, 32])
    x = 1e8 * n / (1 + 0.05 * (n - 1) + 0.004 * n * (n - 1))
    rates = service_rates(
        ServiceCurve(points=[{"n": int(a), "throughput_bytes_per_s": float(b)} for a, b in zip(n, x, strict=True)]), 64
    )
    assert rates.alpha[32] == pytest.approx(rates.alpha[31], rel=0.02)
    assert rates.alpha[63] < rates.alpha[31]
    assert rates.peak_n == pytest.approx(np.sqrt(0.95 / 0.004), rel=1e-3)
