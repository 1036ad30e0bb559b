"""The planner beside simpy, an independent simulator: 160 random plans, and 60 mixes with small bursts (`make test-peers`)."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
from tests.engine.capacity.capacity_judge import Scenario, compare, mix, scenario


@pytest.mark.peers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("make", "plans"), [(scenario, 160), (mix, 60)])
def test_batches_take_as_long_as_an_independent_simulator_says(make: Callable[[int], Scenario], plans: int) -> None:
    pytest.importorskip("simpy")
    errors = sorted(abs(compare(seed, make).error) for seed in range(plans))
    assert statistics.median(errors) <= 0.05
    assert errors[int(0.9 * (len(errors) - 1))] <= 0.15
