"""The command before a retry in the flow, if it hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prefect_cachewatch.config import CacheJob, RetryPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.supervise.proc import read_stat


@pytest.mark.campaign
@pytest.mark.usefixtures("prefect_harness")
def test_a_command_before_a_retry_that_hangs_is_stopped_whole_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_cachewatch.run.before_retry.WITHIN_S", 1.5)
    pids = tmp_path / "pids"
    hangs = f"trap '' TERM; echo $$ >> {pids}; (trap '' TERM; setsid sh -c 'echo $$ >> {pids}; exec sleep 600') & wait; sleep 600"
    job = CacheJob(name="hangs", command=[sys.executable, "-c", "raise SystemExit(3)"], cache_dirs=[tmp_path / "cache"])
    retry = RetryPolicy(attempts=3, backoff_s=0, before_retry=["sh", "-c", hangs])
    state = generate_cache(job, retry=retry, return_state=True)
    assert state.name == "GeneratorFailed"
    assert str(state.message).endswith("did not end within 1.5 s and was stopped.")
    started = [int(line) for line in pids.read_text().split()]
    assert started and [pid for pid in started if read_stat(pid) is not None] == []
