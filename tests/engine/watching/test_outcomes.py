"""The table of endings: every outcome has one, and a state's name leads back to it."""

from __future__ import annotations

from typing import get_args

import pytest

from prefect_cachewatch.watching.outcomes import ENDINGS, OutcomeName, ending_named, ending_of, exit_status
from prefect_cachewatch.watching.stall import Kind


@pytest.mark.parametrize("outcome", get_args(OutcomeName))
def test_every_outcome_has_an_ending_whose_state_leads_back_to_it(outcome):
    ending = ending_of(outcome)
    assert ending in ENDINGS
    assert ending_named(ending.state) == ending


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_stall_has_advice_of_its_own(kind):
    assert ending_of("stalled", kind).advice
    assert ending_of("stalled", kind).advice


def test_an_end_that_nobody_planned_counts_as_a_failure():
    assert ending_of("").failure
    assert exit_status("") == 125
