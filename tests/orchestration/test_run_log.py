"""What a run's log says: once, and without tracebacks of ends that the flow has chosen; in process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Literal

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import FailedRun
from prefect.states import Failed
from tests.support import eventually

from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.tasks.prefect_api.logs import say_end, tidy_run_logs
from prefect_cachewatch.tasks.prefect_api.output_log import OUTPUT_LOGGER

pytestmark = pytest.mark.usefixtures("prefect_harness")

STALL = StallPolicy(stall_after_s=1.5, first_write_within_s=3, poll_s=0.3)


def messages(caplog: pytest.LogCaptureFixture, logger: str = "prefect.") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith(logger)]


def job(cache: Path, code: str) -> CacheJob:
    return CacheJob(name="told", command=[sys.executable, "-c", code, str(cache)], cache_dirs=[cache])


def test_a_stall_is_told_once_and_each_task_ends_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grows = "import sys, time\nopen(sys.argv[1] + '/a.bin', 'wb').write(bytes(50_000))\ntime.sleep(600)\n"
    with caplog.at_level(logging.INFO):
        state: State[object] = generate_cache(
            job(tmp_path / "cache", grows), STALL, StopPolicy(grace_s=1), RetryPolicy(attempts=1), return_state=True
        )
    said = messages(caplog)
    assert sum("no disk write activity detected" in line for line in said) == 1
    assert [line for line in said if "task" not in line and line.startswith("Finished in state Stalled")] == [
        "Finished in state Stalled"
    ]
    assert len([line for line in said if "StallDetected" in line]) == 1
    assert len([line for line in said if "Terminated" in line]) == 1
    assert "no disk write activity detected" in str(state.message)


@pytest.mark.parametrize("stream", ["always", "never"])
def test_the_output_is_logged_while_it_runs_or_at_least_its_end_if_it_fails(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stream: Literal["always", "never"],
) -> None:
    monkeypatch.setattr("prefect_cachewatch.flows.attempts.LOG_EVERY_S", 0.3)
    prints = (
        "import sys, time\nopen(sys.argv[1] + '/a.bin', 'wb').write(bytes(50_000))\n"
        "for n in range(60): print('layer', n)\n"
        "for n in range(100): print(end=f'\\r {n}%')\n"
        "print('\\r100%', flush=True)\n"
        "time.sleep(1)\nsys.exit('token=abcdefgh12345678 refused')\n"
    )
    state: State[object] = generate_cache(
        job(tmp_path / "cache", prints), STALL, StopPolicy(), RetryPolicy(attempts=1),
        outputs=Outputs(stream_output=stream), return_state=True,
    )  # fmt: skip
    run_id = state.state_details.flow_run_id
    asked = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
    wanted = [*(f"layer {n}" for n in range(60)), "100%", "token=*** refused"]
    if stream == "never":
        wanted = ["[... 12 lines of the output left out ...]", *wanted[-50:]]

    def logged() -> list[str]:
        with get_client(sync_client=True) as client:
            lines = client.read_logs(log_filter=asked, limit=200, sort=LogSort.TIMESTAMP_ASC)
        return [line.message for line in lines if line.name == OUTPUT_LOGGER]

    assert eventually(lambda: logged() == wanted), logged()
    assert "abcdefgh12345678" not in caplog.text


def test_a_caller_in_python_gets_the_exception(tmp_path: Path) -> None:
    with pytest.raises(FailedRun, match="no such layer"):
        generate_cache(
            job(tmp_path / "cache", "raise SystemExit('no such layer')"), STALL, StopPolicy(), RetryPolicy(attempts=1)
        )


def test_a_refusal_is_one_error_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refused = CacheJob(name="told", command=["no-such-program-of-ours"], cache_dirs=[tmp_path / "cache"])
    with caplog.at_level(logging.INFO):
        generate_cache(refused, return_state=True)
    told = [record for record in caplog.records if "no-such-program-of-ours" in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR"]
    assert messages(caplog, "prefect.flow_runs")[-1] == "Finished in state Refused"


def test_an_exception_that_nobody_chose_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    @flow
    def breaks() -> None:
        tidy_run_logs()
        raise ValueError("a defect")

    with caplog.at_level(logging.INFO):
        breaks(return_state=True)
    (told,) = [record for record in caplog.records if "Encountered exception" in record.getMessage()]
    assert told.exc_info is not None and told.exc_info[0] is ValueError


def test_the_engines_traceback_of_another_run_stays(caplog: pytest.LogCaptureFixture) -> None:
    @flow
    def chooses() -> State[object]:
        return say_end(Failed(name="Refused", message="no such store"))

    logger = logging.getLogger("prefect.flow_runs")

    def exits(run_id: str) -> bool:
        caplog.clear()
        try:
            raise FailedRun("no such store")
        except FailedRun:
            text = "Engine execution exited with unexpected exception"
            logger.error(text, exc_info=True, extra={"flow_run_id": run_id})
        return bool(messages(caplog, "prefect.flow_runs"))

    state = chooses(return_state=True)
    run_id = str(state.state_details.flow_run_id)
    assert messages(caplog, "prefect.flow_runs").count("no such store") == 1
    assert (exits(run_id), exits("another")) == (False, True)


def test_what_another_message_says_stays_in_the_last_line(caplog: pytest.LogCaptureFixture) -> None:
    @flow
    def ends() -> State[object]:
        tidy_run_logs()
        return Failed(name="Refused", message="not said yet")

    with caplog.at_level(logging.INFO):
        ends(return_state=True)
    assert messages(caplog, "prefect.flow_runs")[-1] == "Finished in state Refused('not said yet', type=FAILED)"


def test_a_task_that_is_made_again_says_why(caplog: pytest.LogCaptureFixture) -> None:
    @task(retries=1)
    def fails() -> State[object]:
        return Failed(message="away")

    @flow
    def calls() -> str:
        tidy_run_logs()
        fails(return_state=True)
        return "done"

    with caplog.at_level(logging.INFO):
        calls()
    told = messages(caplog, "prefect.task_runs")
    assert any("Retry 1/1" in line for line in told) and any("Retries are exhausted" in line for line in told), told
