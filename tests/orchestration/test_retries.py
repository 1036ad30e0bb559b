"""Retries by the cause, in the flow: real generators that fail for one, and what is changed before they run again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prefect.states import State
from tests.orchestration.test_generate_cache import job, run, task_states
from tests.support import leave_behind

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.supervise.proc import read_stat

pytestmark = pytest.mark.usefixtures("prefect_harness")

AGAIN: dict[str, Any] = {"attempts": 3, "backoff_s": 0}
WRITES = "import os, sys; open(os.path.join(sys.argv[1], 'a.bin'), 'ab').write(bytes(50_000))\n"


def reports(state: State[Any]) -> list[dict[str, Any]]:
    """The reports of a run's attempts, from its run directory."""
    run_id = str(state.state_details.flow_run_id)
    (found,) = Path(os.environ["CACHEWATCH_STATE"]).glob(f"generations/*{run_id}")
    return [json.loads(path.read_text()) for path in sorted(found.glob("report-*.json"))]


def test_a_disk_that_is_full_is_not_tried_again(tmp_path: Path) -> None:
    code = WRITES + "raise OSError(28, 'No space left on device', os.path.join(sys.argv[1], 'b.bin'))"
    state = run(job(tmp_path / "cache", code), retry=RetryPolicy(**AGAIN))
    assert sorted(task_states(state)) == ["generate-1", "monitor-1"]
    (report,) = reports(state)
    assert report["retry"] == {
        "again": False,
        "category": "disk_full",
        "sentence": "no further attempt: the disk is as full as before",
        "pause_s": None,
    }


SOFT_LOCK = """
import os, sys, time
path = os.path.join(sys.argv[1], ".locks", "model.lock")
waited_s = 0
while True:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        break
    except FileExistsError:
        time.sleep(0.2)
        waited_s += 0.2
        print(f"Still waiting to acquire lock on {path} (elapsed: {waited_s:.1f} seconds)", flush=True)
open(os.path.join(sys.argv[1], "a.bin"), "wb").write(bytes(50_000))
os.unlink(path)
"""


def test_a_stale_lock_is_left_to_a_person(tmp_path: Path) -> None:
    lock = leave_behind(tmp_path / "cache" / ".locks" / "model.lock")
    state = run(job(tmp_path / "cache", SOFT_LOCK), retry=RetryPolicy(**AGAIN))
    assert (state.name, lock.exists()) == ("Stalled", True), state.message
    (only,) = reports(state)
    assert (only["diagnosis"]["category"], only["stall"]["kind"]) == ("stale_lock", "never_started")
    assert only["retry"]["sentence"] == (
        "no further attempt: the lock that it waited for has no living holder, and stays until a person removes it"
    )


FAILS_ONCE = WRITES + "if not os.path.exists('MARK'): open('MARK', 'w'); sys.exit(3)"


def test_the_command_before_a_retry_runs_and_its_output_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reset = ["sh", "-c", "echo resetting for $CACHEWATCH_CAUSE before attempt $CACHEWATCH_ATTEMPT"]
    code = FAILS_ONCE.replace("MARK", str(tmp_path / "mark"))
    state = run(job(tmp_path / "cache", code), retry=RetryPolicy(**AGAIN, before_retry=reset))
    assert state.type == "COMPLETED", state.message
    assert "sh: resetting for generator_failed before attempt 2" in caplog.text
    assert "attempt 1 of 3 ended failed: again at once, after sh -c" in caplog.text


def test_a_command_before_a_retry_that_fails_ends_the_attempts(tmp_path: Path) -> None:
    reset = ["sh", "-c", "echo no device; exit 7"]
    state = run(job(tmp_path / "cache", WRITES + "sys.exit(3)"), retry=RetryPolicy(**AGAIN, before_retry=reset))
    assert (state.name, sorted(task_states(state))) == ("GeneratorFailed", ["generate-1", "monitor-1"])
    said = "No further attempt: the command before it, sh -c echo no device; exit 7, ended with exit code 7: no device."
    assert str(state.message).endswith(said)
    assert reports(state)[0]["message"] == state.message


@pytest.mark.campaign
def test_a_command_before_a_retry_that_hangs_is_stopped_whole_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_cachewatch.run.before_retry.WITHIN_S", 1.5)
    pids = tmp_path / "pids"
    hangs = f"trap '' TERM; echo $$ >> {pids}; (trap '' TERM; setsid sh -c 'echo $$ >> {pids}; exec sleep 600') & wait; sleep 600"
    retry = RetryPolicy(**AGAIN, before_retry=["sh", "-c", hangs])
    state = run(job(tmp_path / "cache", WRITES + "sys.exit(3)"), retry=retry)
    assert state.name == "GeneratorFailed"
    assert str(state.message).endswith("did not end within 1.5 s and was stopped.")
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert [pid for pid in started if read_stat(pid) is not None] == []
