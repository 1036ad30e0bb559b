"""The planner beside simpy, an independent simulator: 160 random plans (`make test-peers`)."""

from __future__ import annotations

import statistics

import pytest
from tests.engine.capacity.capacity_judge import compare


@pytest.mark.peers
@pytest.mark.timeout(1800)
def test_batches_take_as_long_as_an_independent_simulator_says() -> None:
    pytest.importorskip("simpy")
    errors = sorted(abs(compare(seed).error) for seed in range(160))
    assert statistics.median(errors) <= 0.05
    assert errors[int(0.9 * (len(errors) - 1))] <= 0.15
