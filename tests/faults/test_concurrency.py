"""Many at once, and many in a row."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

from prefect_cachewatch.config import CacheJob, StallPolicy, StopPolicy
from prefect_cachewatch.watching.attempt import Watch, run_watch
from prefect_cachewatch.watching.site import CacheDirectories
from tests.faults.harness import Sandbox, living

RUNS = 60


def test_twenty_at_once_get_each_its_own_verdict(sandbox: Sandbox) -> None:
    processes = {}
    for number in range(20):
        sandbox.mkdir(f"cache{number}")
        sandbox.cache_name = f"cache{number}"
        report = sandbox.root / "out" / f"report{number}.json"
        stalls = number % 4 == 1
        tag, command = sandbox.tree("plain", writes=1 if stalls else -1, life_s=300 if stalls else 8)
        window = "2s" if stalls else "5m"
        processes[number] = (sandbox.guarded(command, "--report", str(report), window=window), tag, stalls, report)
    for number, (process, tag, stalls, path) in processes.items():
        assert process.wait(300) == (124 if stalls else 0), number
        assert living(tag) == []
        report = json.loads(path.read_text())
        assert report["outcome"] == ("stalled" if stalls else "completed")
        assert report["cache_dirs"] == [str(sandbox.root / f"cache{number}")]
        if stalls:
            assert report["growth"]["files_present"] == 1


def one_run(directory: Path, stall: bool) -> str:
    code = f"open({str(directory / 'f')!r},'ab').write(b'x'*9000)\n" + ("import time; time.sleep(600)" if stall else "")
    command = [sys.executable, "-I", "-S", "-c", code]
    with CacheDirectories([directory]) as site:
        job = CacheJob(name="run", command=command, cache_dirs=[directory])
        policy = StallPolicy(stall_after_s=0.5 if stall else 300, first_write_within_s=300, poll_s=0.1)
        return run_watch(Watch(site, job, policy, StopPolicy(grace_s=0.2))).name


@pytest.mark.timeout(600)
def test_sixty_runs_in_one_process_leak_nothing(own_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own_sandbox.root / "home" / "state"))
    cache = own_sandbox.cache
    me = psutil.Process()

    def counts() -> tuple[int, int, int]:
        return me.num_fds(), threading.active_count(), len(me.children(recursive=True))

    assert one_run(cache, False) == "completed"
    assert one_run(cache, True) == "stalled"
    before = counts()
    names = [one_run(cache, number % 10 == 0) for number in range(RUNS)]
    assert names == ["stalled" if number % 10 == 0 else "completed" for number in range(RUNS)]
    after = counts()
    assert after == before
    runs = own_sandbox.root / "home" / "state" / "cachewatch" / "runs"
    assert os.listdir(runs) == []
