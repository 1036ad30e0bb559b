"""The command before a retry, if it hangs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run import before_retry
from prefect_cachewatch.supervise.proc import read_stat


def test_a_command_before_a_retry_that_hangs_is_stopped_whole_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_retry, "WITHIN_S", 1.5)  # five minutes in real life
    pids = tmp_path / "pids"
    hangs = f"trap '' TERM; echo $$ >> {pids}; (trap '' TERM; setsid sh -c 'echo $$ >> {pids}; exec sleep 600') & wait; sleep 600"
    said: list[str] = []
    with pytest.raises(InputError, match=r"did not end within 1.5 s and was stopped$"):
        before_retry.run_before_retry(["sh", "-c", hangs], env=os.environ, cwd=None, secrets=(), say=said.append)
    assert said[0].startswith("before the next attempt, for at most 1.5 s: sh -c")
    started = [int(line) for line in pids.read_text().split()]
    assert started and [pid for pid in started if read_stat(pid) is not None] == []
