"""When a run counts as slower than those before."""

from __future__ import annotations

import pytest

from prefect_cachewatch.run.regression import Regression, find_regression

STEADY = [600.0, 598, 602, 600, 601, 599, 600, 600, 597, 603]


@pytest.mark.parametrize(
    ("durations", "found"),
    [
        ([*STEADY, 840], Regression(840, 600, 10)),
        ([*[1.0] * 20, *STEADY, 840], Regression(840, 600, 10)),
        ([*STEADY[:5], 840], Regression(840, 600, 5)),
        ([*STEADY[:4], 840], None),
        ([*STEADY, 749], None),
        ([*STEADY, 750], Regression(750, 600, 10)),
        ([*STEADY, 300], None),
        ([0.1] * 5 + [0.9], None),
        ([0.1] * 5 + [1.2], Regression(1.2, 0.1, 5)),
        ([400.0, 500, 600, 700, 800, 950], None),
        ([400.0, 500, 600, 700, 800, 1001], Regression(1001, 600, 5)),
        ([0.0] * 6 + [9], None),
        ([], None),
    ],
)
def test_a_run_is_a_regression_if_it_is_beyond_a_quarter_and_the_usual_spread(durations, found):
    assert find_regression(durations) == found


def test_it_is_one_sentence():
    assert Regression(840, 600, 10).slower == pytest.approx(0.4)
    assert Regression(75, 60, 5).sentence() == (
        "The last run took 75 s, 25 % slower than the median of the 5 before (1 minute)."
    )
