"""Retries by the cause, in the flow: real generators that fail for one, and what is changed before they run again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import AwaitingRetry, Cancelling, Pending, Running, State
from tests.orchestration.test_generate_cache import job, run, task_states
from tests.support import leave_behind

from prefect_cachewatch.config import RetryPolicy
from prefect_cachewatch.run.handover import Earlier
from prefect_cachewatch.supervise.proc import read_stat
from prefect_cachewatch.tasks.prefect_api import handover

pytestmark = pytest.mark.usefixtures("prefect_harness")

AGAIN: dict[str, Any] = {"attempts": 3, "backoff_s": 0.05, "jitter": 0}
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
        "change": [],
    }


FULL = 'mkdir -p "$2/small"; mount -t tmpfs -o size=64k none "$2/small"; exec "$0" -c "$1" "$2"'
FILLS = WRITES + "open(os.path.join(sys.argv[1], 'small', 'b.bin'), 'wb').write(bytes(1 << 20))"
IN_ITS_OWN_NAMESPACE = ["unshare", "-m", "--propagation", "private", "sh", "-ec", FULL]


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_a_real_file_system_that_is_full_is_not_tried_again(tmp_path: Path) -> None:
    command = [*IN_ITS_OWN_NAMESPACE, sys.executable, FILLS, str(tmp_path / "cache")]
    full = job(tmp_path / "cache", "").model_copy(update={"command": command})
    state = run(full, retry=RetryPolicy(**AGAIN))
    assert sorted(task_states(state)) == ["generate-1", "monitor-1"], state.message
    (report,) = reports(state)
    assert "No space left on device" in str(report["log_tail"])
    assert report["retry"]["sentence"] == "no further attempt: the disk is as full as before"


def test_a_module_that_is_really_missing_is_not_tried_again(tmp_path: Path) -> None:
    state = run(job(tmp_path / "cache", WRITES + "import ttnn_of_no_machine"), retry=RetryPolicy(**AGAIN))
    assert sorted(task_states(state)) == ["generate-1", "monitor-1"], state.message
    (report,) = reports(state)
    assert report["diagnosis"]["category"] == "missing_module"
    assert report["retry"]["sentence"] == "no further attempt: a module that is missing is not installed meanwhile"


def test_by_cause_has_the_last_word(tmp_path: Path) -> None:
    code = (
        WRITES
        + "if not os.path.exists('MARK'): open('MARK', 'w'); raise OSError(28, 'No space left on device', sys.argv[1])"
    )
    retry = RetryPolicy(**AGAIN, by_cause={"disk_full": {"again": True}})
    state = run(job(tmp_path / "cache", code.replace("MARK", str(tmp_path / "mark"))), retry=retry)
    assert state.type == "COMPLETED"
    assert state.result().attempts == 2


def test_a_cause_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    state = run(job(tmp_path / "cache", WRITES), retry=RetryPolicy(by_cause={"disk_ful": {}}))
    assert (state.name, state.message) == ("Refused", "retry.by_cause: disk_ful is no cause: did you mean disk_full?")


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


def test_a_stale_lock_is_removed_before_the_next_attempt(tmp_path: Path) -> None:
    lock = leave_behind(tmp_path / "cache" / ".locks" / "model.lock")
    state = run(job(tmp_path / "cache", SOFT_LOCK), retry=RetryPolicy(**{**AGAIN, "backoff_s": 600}))
    assert state.type == "COMPLETED", state.message
    assert state.result().attempts == 2
    assert not lock.exists()
    first = reports(state)[0]
    assert (first["diagnosis"]["category"], first["stall"]["kind"]) == ("stale_lock", "never_started")
    assert first["retry"]["sentence"] == (
        f"again at once, without the stale lock {lock}, because the lock that it waited for has no living holder"
    )
    page = (Path(first["bundle"]) / "report.html").read_text()
    assert "again at once, without the stale lock" in page


@pytest.mark.campaign
def test_a_lock_that_is_held_stays_and_so_does_the_stall(tmp_path: Path) -> None:
    lock = leave_behind(tmp_path / "cache" / ".locks" / "model.lock")
    with open(lock, "rb"):
        state = run(job(tmp_path / "cache", SOFT_LOCK), retry=RetryPolicy(**{**AGAIN, "attempts": 2}))
    assert state.name == "Stalled"
    assert lock.exists()
    assert [report["diagnosis"]["category"] for report in reports(state)] == ["never_started", "never_started"]


TELLS_ITS_ENVIRONMENT = (
    WRITES
    + """
import json
names = ("HF_HUB_DISABLE_XET", "TT_METAL_CACHE", "TRITON_CACHE_DIR")
with open("TOLD", "a") as file:
    file.write(json.dumps({name: os.environ.get(name) for name in names}) + "\\n")
if len(open("TOLD").readlines()) == 1:
    sys.exit(os.write(2, b"xet: the download failed\\n"))
assert os.listdir(os.environ["TT_METAL_CACHE"]) == []
"""
)


def test_the_next_attempt_gets_new_kernel_caches_and_no_xet(tmp_path: Path) -> None:
    told, old = tmp_path / "told", tmp_path / "kernels"
    old.mkdir()
    (old / "compiled").touch()
    changes = RetryPolicy(**AGAIN, by_cause={"generator_failed": {"change": ["kernel_cache", "no_xet"]}})
    code = TELLS_ITS_ENVIRONMENT.replace("TOLD", str(told))
    cache = tmp_path / "cache"
    env = {"TT_METAL_CACHE": str(old), "TRITON_CACHE_DIR": str(cache / "triton")}
    state = run(job(cache, code, env=env), retry=changes)
    assert state.type == "COMPLETED", state.message
    first, second = map(json.loads, told.read_text().splitlines())
    assert first == {"HF_HUB_DISABLE_XET": None, **env}
    run_dir = state.result().run_dir
    assert second == {
        "HF_HUB_DISABLE_XET": "1",
        "TT_METAL_CACHE": f"{run_dir}/kernels-2/TT_METAL_CACHE",
        "TRITON_CACHE_DIR": str(cache / "triton"),  # in the watched directory: it stays
    }
    assert (old / "compiled").exists()
    assert reports(state)[0]["retry"]["change"] == ["kernel_cache", "no_xet"]


RESET = {"by_cause": {"generator_failed": {"change": ["reset"]}}}
FAILS_ONCE = WRITES + "if not os.path.exists('MARK'): open('MARK', 'w'); sys.exit(3)"


def test_the_command_before_a_retry_runs_and_its_output_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reset = ["sh", "-c", "echo resetting for $CACHEWATCH_CAUSE before attempt $CACHEWATCH_ATTEMPT"]
    code = FAILS_ONCE.replace("MARK", str(tmp_path / "mark"))
    state = run(job(tmp_path / "cache", code), retry=RetryPolicy(**AGAIN, **RESET, before_retry=reset))
    assert state.type == "COMPLETED", state.message
    assert "sh: resetting for generator_failed before attempt 2" in caplog.text
    assert "attempt 1 of 3 ended failed: again at once, after sh -c" in caplog.text


def test_a_command_before_a_retry_that_fails_ends_the_attempts(tmp_path: Path) -> None:
    reset = ["sh", "-c", "echo no device; exit 7"]
    state = run(
        job(tmp_path / "cache", WRITES + "sys.exit(3)"), retry=RetryPolicy(**AGAIN, **RESET, before_retry=reset)
    )
    assert (state.name, sorted(task_states(state))) == ("GeneratorFailed", ["generate-1", "monitor-1"])
    said = "No further attempt: the command before it, sh -c echo no device; exit 7, ended with exit code 7: no device."
    assert str(state.message).endswith(said)
    assert reports(state)[0]["message"] == state.message


@pytest.mark.campaign
def test_a_command_before_a_retry_that_hangs_is_stopped_whole_at_its_deadline(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    hangs = f"trap '' TERM; echo $$ >> {pids}; (trap '' TERM; setsid sh -c 'echo $$ >> {pids}; exec sleep 600') & wait; sleep 600"
    retry = RetryPolicy(**AGAIN, **RESET, before_retry=["sh", "-c", hangs], before_retry_within_s=1.5)
    state = run(job(tmp_path / "cache", WRITES + "sys.exit(3)"), retry=retry)
    assert state.name == "GeneratorFailed"
    assert str(state.message).endswith("did not end within 1.5 s and was stopped.")
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert [pid for pid in started if read_stat(pid) is not None] == []


def test_a_command_before_a_retry_that_is_not_there_is_refused_before_the_start(tmp_path: Path) -> None:
    started = tmp_path / "started"
    retry = RetryPolicy(**AGAIN, before_retry=["tt-smi-of-no-machine", "-r"])
    state = run(job(tmp_path / "cache", f"open({str(started)!r}, 'w')"), retry=retry)
    assert (state.name, state.message) == (
        "Refused",
        "command 'tt-smi-of-no-machine' not found in PATH: check its name, or give its full path",
    )
    assert not started.exists()


def test_partial_files_are_removed_where_the_cause_asks_for_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "old.bin").write_bytes(bytes(9000))
    retry = RetryPolicy(**AGAIN, by_cause={"generator_failed": {"change": ["clean"]}})
    state = run(job(cache, FAILS_ONCE.replace("MARK", str(tmp_path / "mark"))), retry=retry)
    assert state.type == "COMPLETED", state.message
    assert (cache / "a.bin").stat().st_size == 50_000  # without it the second attempt would have appended
    assert (cache / "old.bin").exists()
    assert reports(state)[0]["retry"]["change"] == ["clean"]


def test_without_a_worker_the_next_attempt_is_made_here_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        WRITES + "if not os.path.exists('MARK'): open('MARK', 'w'); raise OSError(5, 'Input/output error', sys.argv[1])"
    )
    retry = RetryPolicy(**AGAIN, another_worker=True)
    state = run(job(tmp_path / "cache", code.replace("MARK", str(tmp_path / "mark"))), retry=retry)
    assert (state.type, state.result().attempts) == ("COMPLETED", 2), state.message
    assert "the next attempt is made here, and not by another worker: it is no run of a deployment" in caplog.text
    assert reports(state)[0]["retry"]["sentence"] == "again at once, because the storage may answer"


def test_a_run_that_prefect_does_not_take_back_goes_on_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise ConnectionError("no server")

    monkeypatch.setattr("prefect_cachewatch.flows.retrying.why_not_elsewhere", lambda: "")
    monkeypatch.setattr("prefect_cachewatch.tasks.prefect_api.handover._ask", unreachable)
    monkeypatch.setattr("prefect_cachewatch.tasks.prefect_api.handover._PATIENCE_S", 0.1)
    monkeypatch.setattr("prefect_cachewatch.run.retry.LEAST_PAUSE_S", 0.1)
    code = FAILS_ONCE.replace("MARK", str(tmp_path / "mark"))
    changes: dict[str, Any] = {"generator_failed": {"change": ["another_worker", "no_xet"]}}
    state = run(job(tmp_path / "cache", code), retry=RetryPolicy(**AGAIN, by_cause=changes))
    assert (state.type, state.result().attempts) == ("COMPLETED", 2), state.message
    assert "the run could not be handed to another worker, and goes on here: ConnectionError" in caplog.text
    assert "by any free worker of the pool, with HF_HUB_DISABLE_XET=1" in reports(state)[0]["retry"]["sentence"]


def test_a_device_that_cannot_be_reset_is_left_to_another_worker_or_ends_the_attempts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_cachewatch.flows.retrying.why_not_elsewhere", lambda: "")
    monkeypatch.setattr("prefect_cachewatch.flows.retrying.hand_over", lambda *_: None)  # refused
    changes: dict[str, Any] = {"generator_failed": {"change": ["another_worker", "reset"]}}
    retry = RetryPolicy(**AGAIN, by_cause=changes, before_retry=["sh", "-c", "exit 7"])
    state = run(job(tmp_path / "cache", WRITES + "sys.exit(3)"), retry=retry)
    assert (state.name, sorted(task_states(state))) == ("GeneratorFailed", ["generate-1", "monitor-1"])
    assert "ended with exit code 7: another worker may do better" in caplog.text


class Api:
    """A Prefect API of one run; `then` is its state after it was asked to be handed over, whatever the answer says."""

    def __init__(self, now: State[Any], then: State[Any] | None = None, retry_type: str | None = None) -> None:
        self.states, self.labels, self.asked = [now, then or now], list[str](), 0
        self.retry_type = retry_type

    def read_flow_run(self, _: UUID) -> SimpleNamespace:
        state = self.states[min(self.asked, 1)]
        taken = state.is_running() and state is not self.states[0]
        policy = SimpleNamespace(retry_type=self.retry_type)
        return SimpleNamespace(state=state, state_name=state.name, run_count=1 + taken, empirical_policy=policy)

    def update_flow_run_labels(self, _: UUID, labels: dict[str, str]) -> None:
        self.labels += labels.values()

    def set_flow_run_state(self, *_: object) -> SimpleNamespace:
        self.asked += 1
        return SimpleNamespace(status=SetStateStatus.REJECT)


@pytest.fixture
def hand_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[Api], State[Any] | None]:
    def hand(api: Api) -> State[Any] | None:
        monkeypatch.setattr(handover, "this_run", lambda: SimpleNamespace(id=uuid4(), run_count=1))
        monkeypatch.setattr(handover, "get_client", lambda **_: contextlib.nullcontext(api))
        return handover.hand_over(Earlier(made=1), 20.0, "again", logging.getLogger("test"))

    return hand


@pytest.mark.parametrize("then", [AwaitingRetry(), Pending(), Running()], ids=lambda state: state.name)
def test_a_run_that_a_worker_has_taken_meanwhile_is_left_to_it(
    hand_to: Callable[[Api], State[Any] | None], then: State[Any]
) -> None:
    # The server took the run back and its answer was lost. Asked again, it refuses what it has done already.
    api = Api(Running(), then)
    assert hand_to(api) is then
    assert handover.taken_meanwhile() is then
    before = Api(then if not then.is_running() else Pending())
    assert hand_to(before) is before.states[0] and not before.asked


@pytest.mark.parametrize(
    ("api", "why"),
    [
        (Api(Running()), "Prefect refuses it (reject)"),
        (Api(Cancelling()), "it is Cancelling already"),
        (Api(Running(), retry_type="in_process"), "one of Prefect's own retries of it is under way"),
    ],
    ids=["refused", "cancelled", "retried"],
)
def test_a_run_that_is_not_taken_back_leaves_no_count_of_attempts(
    hand_to: Callable[[Api], State[Any] | None], caplog: pytest.LogCaptureFixture, api: Api, why: str
) -> None:
    assert hand_to(api) is None and handover.taken_meanwhile() is None
    assert why in caplog.text
    assert api.labels[-1] == ""


def test_the_count_of_attempts_stays_as_long_as_the_answer_may_only_be_lost(
    hand_to: Callable[[Api], State[Any] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(Running(), AwaitingRetry())
    reads = iter([api.read_flow_run])  # the first one is answered, and nothing after the state was asked for

    def read(run_id: UUID) -> SimpleNamespace:
        try:
            return next(reads)(run_id)
        except StopIteration:
            raise ConnectionError("away") from None

    monkeypatch.setattr(handover, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(api, "read_flow_run", read)
    assert hand_to(api) is None and handover.taken_meanwhile() is None
    assert json.loads(api.labels[-1])["made"] == 1
