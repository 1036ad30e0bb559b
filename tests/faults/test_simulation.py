"""Thousands of simulated hours of pauses up to 95 % of the window, with the real monitor, ledger and rule."""

from __future__ import annotations

import os

import pytest

from tests.faults.simulation import History, run_history

HOURS = float(os.environ.get("SIMULATED_HOURS", "700"))


def simulate(first_seed: int, troubled: bool) -> list[History]:
    histories, hours, seed = [], 0.0, first_seed
    while hours < HOURS:
        histories.append(run_history(seed, 40.0, troubled))
        hours, seed = hours + histories[-1].hours, seed + 1
    return histories


@pytest.mark.timeout(600)
@pytest.mark.parametrize("troubled", [False, True])
def test_no_pause_within_the_window_is_a_stall(troubled: bool) -> None:
    histories = simulate(1_000_000 if troubled else 1, troubled)
    assert [(h.seed, h.false_stall) for h in histories if h.false_stall is not None] == []
    if not troubled:
        # Window + one scan, and the one or two per cent by which waits may end late without being late.
        slow = [h for h in histories if h.found_after > h.window_s + 3 * h.scan_s + 0.02 * h.window_s]
        assert slow == []
