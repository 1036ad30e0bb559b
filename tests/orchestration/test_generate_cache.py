"""The flow in process, on a temporary server: final states, tasks, artifacts, attempts."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
)
from prefect.states import State
from tests.support import eventually

from prefect_cachewatch.capacity.history import read_run_record
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.flows.generation import GenerationSummary, generate_cache
from prefect_cachewatch.run.trace.files import read_trace
from prefect_cachewatch.tasks import monitor_cache

pytestmark = pytest.mark.usefixtures("prefect_harness")

QUICK = StallPolicy(stall_after_s=1.5, first_write_within_s=3, poll_s=0.3)
STOP = StopPolicy(grace_s=1)
ONCE = RetryPolicy(attempts=1)
AGAIN = RetryPolicy(attempts=3, backoff_s=0.05)


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-c", code, *args]


def job(cache: Path, code: str, **more: Any) -> CacheJob:
    return CacheJob(
        name=more.pop("name", f"job {uuid.uuid4().hex[:6]}"),
        command=python(code, str(cache)),
        cache_dirs=[cache],
        **more,
    )


def run(job: CacheJob, **policies: Any) -> State[Any]:
    given = {"stall": QUICK, "stop": STOP, "retry": ONCE} | policies
    state: State[Any] = generate_cache(job, **given, return_state=True)
    return state


def task_states(state: State[Any]) -> dict[str, str]:
    run_id = state.state_details.flow_run_id
    deadline = time.monotonic() + 20
    while True:
        with get_client(sync_client=True) as client:
            runs = client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])), task_run_filter=TaskRunFilter()
            )
        states = {run.name: str(run.state.name) for run in runs if run.state}
        if (states and "Running" not in states.values()) or time.monotonic() > deadline:
            return states
        time.sleep(0.1)


def artifacts(state: State[Any]) -> dict[str, Any]:
    run_id = state.state_details.flow_run_id
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        )
    return {str(artifact.key): artifact for artifact in found}


WRITES = """
import os, sys, time
for n in range(3):
    with open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb") as file:
        file.write(os.urandom(50_000))
    time.sleep(0.2)
"""
HANGS = WRITES + "time.sleep(600)\n"


def test_a_healthy_generation_is_completed_with_a_summary(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = run(job(tmp_path / "cache", WRITES, env={"DB_PWD": "hunter2-hunter2"}))
    assert state.type == "COMPLETED", state
    summary = state.result()
    assert isinstance(summary, GenerationSummary)
    assert (summary.attempts, summary.bytes_written, summary.files_present) == (1, 150_000, 3)
    assert summary.cache_dirs == [str(tmp_path / "cache")]
    assert task_states(state) == {"generate-1": "Completed", "monitor-1": "Completed"}
    assert json.loads((Path(summary.run_dir) / "report-1.json").read_text())["outcome"] == "completed"
    # A secret in the parameters is warned of, and not told.
    assert caplog.text.count("looks like a secret") == 1
    assert "hunter2" not in caplog.text


def test_a_cache_that_stays_empty_ends_failed_and_named_nothing_written_and_is_not_retried(tmp_path: Path) -> None:
    right = tmp_path / "right"
    code = "import os, sys; os.makedirs(sys.argv[2]); open(os.path.join(sys.argv[2], 'a.bin'), 'wb').write(bytes(9999))"
    wrong = CacheJob(name="typo", command=python(code, "x", str(right)), cache_dirs=[tmp_path / "cahce"])
    state = run(wrong, retry=AGAIN)
    assert (state.type, state.name) == ("FAILED", "NothingWritten"), state
    assert f"{right}/a.bin" in str(state.message)
    assert task_states(state) == {"generate-1": "Completed", "monitor-1": "Completed"}
    allowed = CacheJob(name="typo", command=python("pass"), cache_dirs=[tmp_path / "cahce"], allow_empty=True)
    assert run(allowed).type == "COMPLETED"


def test_a_stall_ends_failed_and_named_stalled_with_listing_and_report(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>.bin"
    code = HANGS.replace(
        "time.sleep(600)",
        f"open(os.path.join(sys.argv[1], {hostile!r}.replace('/', '_')), 'wb').write(b'x' * 9000); time.sleep(600)",
    )
    state = run(job(tmp_path / "cache", code, name="Llama 3/70B"))
    assert (state.type, state.name) == ("FAILED", "Stalled")
    assert state.message is not None
    assert re.match(r"Llama 3/70B stalled: pid \d+ \(python\S*\) sleeps .*\. No growth for [\d.]+ s\. ", state.message)
    fact = f"Tensor cache generation stalled: no disk write activity detected for 1.5 s in {tmp_path}"
    assert fact in state.message
    assert task_states(state) == {"generate-1": "Terminated", "monitor-1": "StallDetected"}
    found = artifacts(state)
    assert sorted(found) == [f"cachewatch-llama-3-70b-{what}" for what in ("listing", "report")]
    rows = json.loads(found["cachewatch-llama-3-70b-listing"].data)
    assert list(rows[0]) == ["file", "flags", "age", "size", "on disk"]
    assert rows[0]["file"] == "total: 4 files in 1 directory"
    assert rows[1]["file"] == hostile.replace("/", "_").replace("<", "\\<")
    markdown = found["cachewatch-llama-3-70b-report"].data
    assert markdown.startswith("## Llama 3/70B: Stalled\n\n**Cause")
    assert "no disk write activity detected for 1.5 s" in markdown
    assert str(found["cachewatch-llama-3-70b-report"].description).startswith("Llama 3/70B stalled: pid ")
    outside_code = re.sub(r"`[^`]*`", "", markdown.partition("```")[0])
    assert "&lt;script&gt;" in outside_code
    assert "<script>" not in outside_code


@pytest.mark.campaign
def test_each_attempt_of_a_run_is_recorded_as_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    retry = RetryPolicy(attempts=2, backoff_s=0, retry_exit_codes=[3])
    state = run(job(tmp_path / "cache", WRITES + "raise SystemExit(3)\n"), retry=retry, outputs=Outputs(record=trace))
    assert state.name == "GeneratorFailed"
    first, second = read_trace(trace), read_trace(tmp_path / "t-2.csv")
    assert (first.ending, first.rows[-1].written_bytes) == ("exited", 150_000)
    assert (second.ending, second.rows[0].total_bytes) == ("exited", 150_000)
    again = run(job(tmp_path / "cache", WRITES), outputs=Outputs(record=trace))
    assert again.name == "Refused"
    assert (
        again.message == f"trace {trace} exists already: name another file, or a directory, where each run gets its own"
    )


@pytest.mark.campaign
def test_an_attempt_that_outlives_its_limit_ends_deadline_exceeded(tmp_path: Path) -> None:
    code = WRITES.replace("range(3)", "range(1000)")
    state = run(job(tmp_path / "cache", code), stall=QUICK.model_copy(update={"max_duration_s": 1.5}))
    assert (state.type, state.name) == ("FAILED", "DeadlineExceeded")


def test_a_failed_attempt_is_made_again_and_resumes(tmp_path: Path) -> None:
    code = """
import os, sys
have = len(os.listdir(sys.argv[1]))
open(os.path.join(sys.argv[1], f"layer{have}.bin"), "wb").write(os.urandom(20_000))
sys.exit(0 if have == 2 else 1)
"""
    state = run(job(tmp_path / "cache", code), retry=AGAIN)
    assert state.type == "COMPLETED"
    assert state.result().attempts == 3
    assert sorted(task_states(state)) == [
        "generate-1",
        "generate-2",
        "generate-3",
        "monitor-1",
        "monitor-2",
        "monitor-3",
    ]


def test_clean_removes_what_the_attempts_wrote_and_nothing_else(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "old").mkdir(parents=True)
    (cache / "old" / "kept.bin").write_bytes(b"k" * 9000)
    code = """
import os, sys
new = os.path.join(sys.argv[1], "new")
print(sorted(os.listdir(sys.argv[1])))
os.makedirs(new)  # fails unless the attempt before was cleaned up
open(os.path.join(new, "layer.bin"), "wb").write(os.urandom(20_000))
sys.exit(1)
"""
    state = run(job(cache, code), retry=AGAIN.model_copy(update={"on_retry": "clean"}))
    assert state.name == "GeneratorFailed"
    assert len(task_states(state)) == 6
    assert "exit code 1" in str(state.message)
    assert (cache / "old" / "kept.bin").read_bytes() == b"k" * 9000
    assert (cache / "new" / "layer.bin").exists()


@pytest.mark.campaign
def test_attempts_that_bring_nothing_new_are_given_up_early(tmp_path: Path) -> None:
    state = run(job(tmp_path / "cache", "raise SystemExit(1)"), retry=AGAIN.model_copy(update={"attempts": 9}))
    assert state.name == "GeneratorFailed"
    assert sorted(task_states(state)) == ["generate-1", "generate-2", "monitor-1", "monitor-2"]


@pytest.mark.campaign
def test_prefects_own_flow_retries_run_again_and_end_in_the_named_state(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = "import os, sys\nif os.path.exists(sys.argv[2]): sys.exit(4)\nopen(sys.argv[2], 'w').close()\nsys.exit(3)"
    given = CacheJob(name="twice", command=[*python(code), str(tmp_path / "c"), str(flag)], cache_dirs=[tmp_path / "c"])
    state = generate_cache.with_options(retries=1)(given, stall=QUICK, stop=STOP, retry=ONCE, return_state=True)
    assert (state.type, state.name) == ("FAILED", "GeneratorFailed")
    assert "exit code 4" in str(state.message)


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        ({"command": ["no-such-generator"]}, {}, "not found in PATH"),
        ({"env_secrets": {"HF_TOKEN": "no-such-block"}}, {}, "does not exist: create it under Blocks"),
        ({}, {"storage": {"name": "nowhere"}}, "prefect gcl create nowhere --limit N"),
        ({}, {"metrics": {"to": "file:/no/such/directory"}}, "/no/such/directory does not exist: create it"),
        ({}, {"profile": {"name": "hf-downlod"}}, "there is no profile 'hf-downlod': did you mean hf-download?"),
        ({}, {"retry": RetryPolicy(before_retry=["no-such-reset"])}, "command 'no-such-reset' not found in PATH"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_with_nothing_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    state = run(job(tmp_path / "cache", WRITES).model_copy(update=change), **given)
    assert (state.type, state.name) == ("FAILED", "Refused")
    assert says in str(state.message)
    assert "\n" not in str(state.message)
    assert not list(tmp_path.glob("cache/*"))
    told = [record.levelname for record in caplog.records if says in record.getMessage()]
    assert told[:1] == ["ERROR"]


def test_a_directory_in_use_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    started, results = threading.Event(), list[State[Any]]()
    # It grows until the second has been refused, however long that takes; then it hangs.
    grows = f"while not os.path.exists({str(tmp_path / 'refused')!r}): file.write(b'x'); file.flush(); time.sleep(0.1)"
    first = job(
        tmp_path / "cache",
        f"{WRITES}file = open(os.path.join(sys.argv[1], 'more.bin'), 'wb')\n{grows}\ntime.sleep(600)",
    )
    thread = threading.Thread(target=lambda: (started.set(), results.append(run(first))))
    thread.start()
    started.wait()
    while not list(tmp_path.glob("cache/*.bin")):
        time.sleep(0.05)
    second = run(job(tmp_path / "cache", WRITES))
    (tmp_path / "refused").touch()
    thread.join()
    assert (second.type, second.name) == ("FAILED", "Refused")
    assert "is in use by another job (pid " in str(second.message)
    assert results[0].name == "Stalled"


def test_a_generator_that_fails_is_told_with_its_cause_and_without_its_secrets(
    tmp_path: Path, state_directory: Path
) -> None:
    value = "s3cr3t-" + uuid.uuid4().hex
    Secret(value=value).save("cachewatch-test-token", overwrite=True)
    code = """
import os, sys
print("token is", os.environ["HF_TOKEN"], flush=True)
open(os.path.join(sys.argv[1], os.environ["HF_TOKEN"]), "wb").write(b"x" * 9000)
raise MemoryError("layer 7")
"""
    state = run(job(tmp_path / "cache", code, name="llama", env_secrets={"HF_TOKEN": "cachewatch-test-token"}))
    assert (state.type, state.name) == ("FAILED", "GeneratorFailed")
    cause = "llama failed: memory ran out: MemoryError: layer 7 [<module> (<string>:5)]. Exit code 1. "
    assert str(state.message).startswith(cause)
    assert task_states(state) == {"generate-1": "GeneratorFailed", "monitor-1": "Completed"}
    found = artifacts(state)
    assert sorted(found) == ["cachewatch-llama-listing", "cachewatch-llama-report"]
    page, listing = found["cachewatch-llama-report"].data, found["cachewatch-llama-listing"].data
    assert "host_out_of_memory, confidence high" in page.replace("\\\\", "")
    assert "token is ***" in page
    assert '"***"' in listing
    with get_client(sync_client=True) as client:
        by_run = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
        tasks = [str(one.state.message) for one in client.read_task_runs(flow_run_filter=by_run) if one.state]
    assert any("last growth ***" in message for message in tasks)
    reports = [text for path in state_directory.rglob("report-*.json") if "token is" in (text := path.read_text())]
    assert reports
    assert value not in "".join([page, listing, str(state.message), *tasks, *reports])


@pytest.mark.campaign
def test_progress_is_shown_when_the_size_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_cachewatch.flows.attempts.LOG_EVERY_S", 0.3)
    code = WRITES.replace("range(3)", "range(8)")
    state = run(job(tmp_path / "cache", code, name="known", expected_bytes=400_000))
    assert state.type == "COMPLETED"
    progress = artifacts(state)["cachewatch-known-progress"]
    assert progress.type == "progress"
    assert 0 < progress.data <= 100


@pytest.mark.campaign
def test_the_monitor_watches_work_that_another_task_does(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()

    @task
    def convert(stopped: threading.Event) -> str:
        (cache / "a.bin").write_bytes(b"x" * 10_000)
        return "stopped" if stopped.wait(30) else "never stopped"

    @flow
    def somebody_elses_flow() -> Any:
        finished, stopped = threading.Event(), threading.Event()
        watch = monitor_cache.submit([cache], finished, QUICK, on_stall=lambda message: stopped.set())
        time.sleep(1)  # the first scan is the start: what stands there then is no growth
        work = convert.submit(stopped)
        try:
            result = work.result()
        finally:
            finished.set()
        watch.wait()
        return (result, watch.state.name, watch.state.message)

    result, name, message = somebody_elses_flow()
    assert (result, name) == ("stopped", "StallDetected")
    assert "no disk write activity detected for 1.5 s" in message


@pytest.mark.parametrize(
    ("before", "during", "name"),
    [
        (None, "run.log", "NothingWritten"),
        ("warm.bin", None, "Completed"),
    ],
)
def test_a_watched_cache_that_was_and_is_empty_is_no_success(
    tmp_path: Path, before: str | None, during: str | None, name: str
) -> None:
    if before is not None:
        (tmp_path / before).write_bytes(b"x")

    @flow
    def somebody_elses_flow() -> Any:
        finished = threading.Event()
        watch = monitor_cache.submit([tmp_path], finished, QUICK)
        time.sleep(1)  # the first scan is the start
        if during is not None:
            (tmp_path / during).write_bytes(b"x")
        finished.set()
        watch.wait()
        return watch.state.name, watch.state.message

    found, message = somebody_elses_flow()
    assert found == name, message
    assert ("wrote nothing" in message and "--cache-dir" in message) == (name == "NothingWritten")


@pytest.mark.campaign
def test_generations_on_one_storage_wait_for_its_slots_and_leave_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = f"nfs-{uuid.uuid4().hex[:6]}"
    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(storage, 1)
    go = tmp_path / "go"
    held = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    patient = StallPolicy(stall_after_s=600, poll_s=1)
    with ThreadPoolExecutor(2) as pool:
        try:
            running = pool.submit(
                run, job(tmp_path / "one", WRITES + held, name="one"), storage=Storage(name=storage), stall=patient
            )  # fmt: skip
            assert eventually(lambda: list(tmp_path.glob("one/*.bin")) or running.done())
            waiting = pool.submit(
                run, job(tmp_path / "two", WRITES, name="two"), storage=Storage(name=storage), stall=patient
            )
            assert eventually(lambda: "in use by other runs" in caplog.text or waiting.done())
        finally:
            go.touch()
        first, second = running.result(), waiting.result()
    records = []
    for state, name in ((first, "one"), (second, "two")):
        assert state.type == "COMPLETED", state
        record = read_run_record(artifacts(state)[f"cachewatch-run-{name}"].data)
        assert record is not None
        records.append(record)
    assert [(r.storage, r.job, r.bytes_written, r.slots, r.state) for r in records] == [
        (storage, "one", 150_000, 1, "Completed"),
        (storage, "two", 150_000, 1, "Completed"),
    ]
    early, late = sorted(records, key=lambda record: record.entered_s)
    assert late.slot_wait_s > 0
    # They were never on the storage together.
    stamps = [[path.stat().st_mtime for path in (tmp_path / r.job).iterdir()] for r in (early, late)]
    assert max(stamps[0]) < min(stamps[1])


@pytest.mark.campaign
def test_a_generator_that_tells_its_progress_is_no_stall_and_the_artifact_says_what_it_told(tmp_path):
    cache = tmp_path / "cache"
    silent = """
import sys, time
open(sys.argv[1] + "/a", "wb").write(bytes(9000))
for n in range(9):
    print(f"layer {n if len(sys.argv) == 2 else 1} of 9", flush=True); time.sleep(0.4)
"""
    pattern = [r"layer (?P<done>\d+) of (?P<total>\d+)"]
    state = run(job(cache, silent, progress_log=pattern))
    assert state.is_completed(), state.message
    told = job(cache, silent, progress_log=pattern)
    state = run(told.model_copy(update={"command": [*told.command, "repeats"]}))
    assert (state.name, "Its output last told of progress" in str(state.message)) == ("Stalled", True)
    assert "- Progress told: `1 of 9 (11 %)" in str(artifacts(state))
