"""A handful of watches side by side, as in the benchmark of a hundred: bounded, and each with its own verdict in time."""

from __future__ import annotations

import pytest
from tests.benchmarks.many import watch_many


@pytest.mark.campaign
@pytest.mark.footprint
def test_some_watches_side_by_side_are_bounded_and_decide_each_for_itself():
    rows = {row["name"].partition(": ")[2]: row["ours"] for row in watch_many(4, poll_s=1.0, stall_s=3.0, steady_s=3.0)}
    assert rows["descriptors of each, the most"] <= 80
    assert rows["threads of each, the most"] <= 12
    # All processes of a watch, front and engine among them. What they share with others (PSS has its part of that) depends on what
    # else runs.
    assert rows["private memory of each (USS)"] < 65
    # Loosely, on a machine that may be busy: the window has passed, and no further poll was waited for.
    assert 0 <= rows["decision late by, 95th percentile"] < 10
