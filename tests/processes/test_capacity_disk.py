"""The plan against a real disk: think/burst jobs at N = 1 to 16, each under a guard of its own.

Slow, and only as steady as the machine: other work on the disk or the processors moves it.
"""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

import pytest
from tests.processes.capacity_experiment import experiment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NEEDED_BYTES = 40e9


def test_guarded_jobs_on_a_real_disk_stay_inside_the_printed_band(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES / 1e9:.0f} GB free under {tmp_path}: bursts are written, not overwritten")
    curve, _, found = experiment(tmp_path)
    spread = statistics.median(point.spread or 0.0 for point in curve.points)
    told = "; ".join(
        f"N {row.n}: X {row.rate_ratio:.2f}, R {row.burst_ratio:.2f} of the plan{'' if row.inside else ', outside'}"
        for row in found
    )
    if spread > 0.35:
        pytest.skip(
            f"the disk's own curve varies by {spread:.0%} from round to round: no plan can be held to it: {told}"
        )
    outside = [row for row in found if not row.inside]
    assert len(outside) <= 1, told
    assert all(0.75 <= row.rate_ratio <= 1.25 for row in found), told
