"""`generate_cache` with a profile in its parameters, and marker files at the start and the end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from prefect_cachewatch.config import CacheJob, MarkerFiles, RetryPolicy, StallPolicy
from prefect_cachewatch.flows.generation import generate_cache

pytestmark = pytest.mark.usefixtures("prefect_harness")

WRITES = "import os; open(os.environ['HF_HUB_CACHE'] + '/a.bin', 'wb').write(bytes(50_000))"


def generate(job: CacheJob, profile: dict[str, Any] | None) -> Any:
    stall = StallPolicy(poll_s=0.3)
    return generate_cache(job, stall=stall, retry=RetryPolicy(attempts=1), profile=profile, return_state=True)


def test_a_profile_completes_the_job_of_a_deployment(tmp_path: Path) -> None:
    markers = MarkerFiles(started=Path("STARTED"), completed=Path("DONE"))
    job = CacheJob(name="profiled", command=[sys.executable, "-c", WRITES], markers=markers)
    state = generate(job, {"name": "hf-download", "home": str(tmp_path / "hf")})
    assert state.type == "COMPLETED", state
    summary = state.result()
    assert summary.cache_dirs == [str(tmp_path / "hf" / "hub"), str(tmp_path / "hf" / "xet")]
    # The markers are small files that were written beside the generator.
    assert sorted(path.name for path in (tmp_path / "hf" / "hub").iterdir()) == ["DONE", "STARTED", "a.bin"]
    report = json.loads((Path(summary.run_dir) / "report-1.json").read_text())
    assert report["outcome"] == "completed"
