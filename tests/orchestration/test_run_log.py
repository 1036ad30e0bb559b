"""What a run's log says of the generator's output and of a refusal; in process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import FailedRun
from tests.support import eventually

from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
from prefect_cachewatch.tasks.prefect_api.logs import OUTPUT_LOGGER

pytestmark = pytest.mark.usefixtures("prefect_harness")

STALL = StallPolicy(stall_after_s=300, poll_s=0.3)


def messages(caplog: pytest.LogCaptureFixture, logger: str = "prefect.") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith(logger)]


def job(cache: Path, code: str) -> CacheJob:
    return CacheJob(name="told", command=[sys.executable, "-c", code, str(cache)], cache_dirs=[cache])


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
