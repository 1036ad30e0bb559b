"""The flow `watch_cache`: states, artifacts and events of a watch over a process that runs already, and its cancel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.orchestration.conftest import Server, end
from tests.orchestration.test_generate_cache import artifacts, task_states

from prefect_cachewatch.config import AttachJob, StallPolicy, StopPolicy, WatchOutputs
from prefect_cachewatch.flows.watching import WatchSummary, watch_cache

QUICK = StallPolicy(stall_after_s=1.5, first_write_within_s=3, poll_s=0.3)
STOP = StopPolicy(grace_s=1)
# Writes a while, waits for a file, and ends with the code that it was told.
GENERATOR = """
import os, sys, time
where, go, code, lives = sys.argv[1], sys.argv[2], int(sys.argv[3]), time.monotonic() + 120
for n in range(5):
    open(f"{where}/{n}.bin", "wb").write(os.urandom(20_000))
    time.sleep(0.1)
while not os.path.exists(go) and time.monotonic() < lives:
    time.sleep(0.05)
open(f"{where}/last.bin", "wb").write(os.urandom(20_000))
raise SystemExit(code)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    return path


@pytest.fixture
def started(cache: Path, tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    found: list[subprocess.Popen[bytes]] = []

    def start(code: int = 0) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", GENERATOR, str(cache), str(tmp_path / "go"), str(code)]
        found.append(subprocess.Popen(argv, start_new_session=True))
        return found[-1]

    yield start
    for process in found:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def watched(process: subprocess.Popen[bytes], cache: Path, **more: Any) -> Any:
    attach = AttachJob(pid=process.pid, cache_dirs=[cache], name=f"w {uuid.uuid4().hex[:6]}", **more)
    return watch_cache(
        attach, stall=QUICK, stop=STOP, outputs=WatchOutputs(bundle_dir=cache.parent / "bundles"), return_state=True
    )


@pytest.mark.usefixtures("prefect_harness")
def test_a_process_that_ends_well_is_completed_with_a_summary(cache: Path, tmp_path: Path, started: Any) -> None:
    process = started()

    def go_on_when_watched() -> None:
        while not any(thread.name == "cachewatch-adopted" for thread in threading.enumerate()):
            time.sleep(0.05)
        time.sleep(0.5)
        (tmp_path / "go").touch()

    helper = threading.Thread(target=go_on_when_watched, daemon=True)
    helper.start()
    attach = AttachJob(pid=process.pid, cache_dirs=[cache], name="well")
    state = watch_cache(attach, stall=StallPolicy(poll_s=0.3), return_state=True)
    assert state.type == "COMPLETED", state
    summary = state.result()
    assert isinstance(summary, WatchSummary)
    assert (summary.pid, summary.exit_code, summary.files_present) == (process.pid, 0, 6)
    assert json.loads((Path(summary.run_dir) / "report.json").read_text())["outcome"] == "completed"
    assert task_states(state) == {f"watch-{process.pid}": "Completed"}


@pytest.mark.usefixtures("prefect_harness")
def test_a_stall_is_stopped_and_the_run_is_named_stalled(cache: Path, started: Any) -> None:
    process = started()
    state = watched(process, cache, on_stall="stop")
    assert (state.type, state.name) == ("FAILED", "Stalled")
    assert process.wait(10) == -15
    assert "no disk write activity detected for 1.5 s" in state.message
    assert task_states(state) == {f"watch-{process.pid}": "StallDetected"}
    found = artifacts(state)
    assert len(found) == 2
    assert any("no disk write activity" in str(artifact.data) for artifact in found.values())


@pytest.mark.usefixtures("prefect_harness")
def test_a_reported_stall_leaves_the_process_alone_and_the_run_says_both(
    cache: Path, tmp_path: Path, started: Any
) -> None:
    process, report = started(5), tmp_path / "r.json"
    attach = AttachJob(pid=process.pid, cache_dirs=[cache], name="reported")
    # The process goes on as soon as the stall is on disk: a thread plays whoever reads the report.
    helper = subprocess.Popen(
        [sys.executable, "-c", "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
         "open(sys.argv[2], 'w')", str(report), str(tmp_path / "go")]
    )  # fmt: skip
    state = watch_cache(
        attach, stall=QUICK, stop=STOP, outputs=WatchOutputs(report=report, bundle=False), return_state=True
    )
    helper.wait(30)
    assert (state.type, state.name) == ("FAILED", "StallReported")
    assert state.message.startswith("A stall was reported, and it was left alone. ")
    assert "the generator ended with exit code 5" in state.message
    assert process.wait(10) == 5
    final = json.loads(report.read_text())
    assert (final["outcome"], len(final["attached"]["stalls"])) == ("failed", 1)
    assert sorted(artifacts(state)) == ["cachewatch-reported-listing", "cachewatch-reported-report"]


@pytest.mark.usefixtures("prefect_harness")
def test_bad_input_is_refused_with_one_sentence(cache: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    state = watched(gone, cache)
    assert (state.type, state.name) == ("FAILED", "Refused")
    assert state.message == f"there is no process {gone.pid}: see ps -e for the generator's"


def test_cancelling_a_served_watch_leaves_the_process_alone(
    server: Server, cache: Path, tmp_path: Path, started: Any
) -> None:
    process = started()
    script = tmp_path / "serve.py"
    script.write_text(
        "from prefect_cachewatch.flows.watching import watch_cache\n"
        "if __name__ == '__main__':\n"
        "    watch_cache.serve(name='attached', pause_on_shutdown=False)\n"
    )
    log = (tmp_path / "serve.log").open("wb")
    serving = subprocess.Popen([sys.executable, script], env=server.env, cwd=tmp_path, stdout=log, stderr=log)
    report = tmp_path / "r.json"
    parameters = {
        "attach": {"pid": process.pid, "cache_dirs": [str(cache)], "name": "attached", "on_stall": "report"},
        "stall": {"stall_after_s": 2, "first_write_within_s": 4, "poll_s": 0.5},
        "outputs": {"report": str(report), "bundle": False},
    }
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                run_id = server.start_run("watch-cache/attached", parameters)
                break
            except Exception:
                assert time.monotonic() < deadline, (tmp_path / "serve.log").read_text()
                time.sleep(0.3)
        while not report.exists():
            assert time.monotonic() < deadline + 60, server.flow_run(run_id)["state"]
            time.sleep(0.1)
        server.set_state(run_id, "CANCELLING", "Cancelling")
        run = server.wait_for_state(run_id, "CANCELLED", "CRASHED", "COMPLETED", "FAILED")
        assert run["state_type"] == "CANCELLED", run["state"]
        assert process.poll() is None
        assert os.path.exists(f"/proc/{process.pid}")
        while (found := json.loads(report.read_text()))["outcome"] != "detached":
            assert time.monotonic() < deadline + 90, found["message"]
            time.sleep(0.1)
        assert "the flow run was cancelled" in found["message"]
        assert len(found["attached"]["stalls"]) == 1
        assert server.wait_for_event(run_id, "detached")["payload"]["outcome"] == "detached"
    finally:
        end(serving)
        log.close()
