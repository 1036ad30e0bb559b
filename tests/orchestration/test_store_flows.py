"""Publishing and deploying through the flows, on a temporary server: states, store, events, assets, report."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import State
from prefect.events.clients import AssertingEventsClient
from prefect.events.worker import EventsWorker

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.deployment import deploy_cache
from prefect_cachewatch.flows.generation import GenerationSummary, generate_cache
from prefect_cachewatch.run.health import HealthCheck
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore

pytestmark = pytest.mark.usefixtures("prefect_harness")

WELL = StallPolicy(stall_after_s=300, first_write_within_s=300, poll_s=0.3)
HANGS = StallPolicy(stall_after_s=8, first_write_within_s=300, poll_s=0.3)  # ten of the pauses before
STOP = StopPolicy(grace_s=1)
ONCE = RetryPolicy(attempts=1)
AGAIN = RetryPolicy(attempts=2, backoff_s=0.05)

WRITES = """
import os, sys
for n in range(4):
    path = os.path.join(sys.argv[1], f"layer{n}.bin")
    if not os.path.exists(path):
        open(path, "wb").write(bytes([n]) * 50_000)
"""


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    (tmp_path / "store").mkdir()
    return CacheStore(tmp_path / "store")


def job(code: str = WRITES, *args: str, name: str = "llama", **more: Any) -> CacheJob:
    return CacheJob(name=name, command=[sys.executable, "-c", code, "{cache_dir}", *args], **more)


def policy(store: CacheStore, **fields: Any) -> PublishPolicy:
    return PublishPolicy(store=store.root, **fields)


def run(job: CacheJob, publish: PublishPolicy, **more: Any) -> State[Any]:
    given: dict[str, Any] = {"stall": WELL, "stop": STOP, "retry": ONCE} | more
    state: State[Any] = generate_cache(job, publish=publish, **given, return_state=True)
    return state


def builds(store: CacheStore, name: str = "llama") -> list[str]:
    return [build.state for build in store.list_builds(name)]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Every event that is emitted, as it leaves."""
    found: list[dict[str, Any]] = []
    worker = EventsWorker.instance(AssertingEventsClient)
    monkeypatch.setattr("prefect.events.worker.EventsWorker.instance", lambda *_args, **_kwargs: worker)
    send = worker.send

    def note(event: Any) -> None:
        found.append({"event": event.event, "resource": dict(event.resource), "payload": event.payload})
        send(event)

    monkeypatch.setattr(worker, "send", note)
    yield found
    worker.drain()


def named(events: list[dict[str, Any]], prefix: str) -> list[str]:
    return [event["event"] for event in events if event["event"].startswith(prefix)]


def test_generate_verify_publish_and_activate_in_one_go(store: CacheStore, tmp_path: Path, events: list[Any]) -> None:
    report = tmp_path / "report.json"
    whole = "import os, sys; sys.exit(sorted(os.listdir(sys.argv[1])) != [f'layer{n}.bin' for n in range(4)])"
    checked = policy(store, cache_key={"dtype": "bf16"}, check_command=[sys.executable, "-c", whole, "{cache_dir}"])
    state = run(job(), checked, outputs={"report": report})
    assert (state.type, state.name) == ("COMPLETED", "Completed")
    summary = state.result()
    assert isinstance(summary, GenerationSummary) and summary.publication is not None
    done = summary.publication
    assert (done.status, done.total_bytes, done.total_files) == ("published", 200_000, 4)
    current = Path(store.current_path("llama"))
    assert current.resolve() == Path(done.path)
    assert (current / "layer3.bin").read_bytes() == b"\3" * 50_000
    manifest = json.loads(Path(f"{done.path}.json").read_text())
    assert manifest["cache_key"] == {"dtype": "bf16"}
    assert manifest["growth"]["bytes_written"] == 200_000
    assert manifest["argv"][-1] == "{cache_dir}"
    written = json.loads(report.read_text())
    assert written["outcome"] == "completed"
    assert written["publication"]["manifest"] == f"{done.path}.json"
    assert named(events, "cachewatch.cache") == ["cachewatch.cache.published", "cachewatch.cache.activated"]
    published = next(event for event in events if event["event"] == "cachewatch.cache.published")
    assert published["resource"]["prefect.resource.id"] == "cachewatch.cache.llama"
    assert published["payload"]["bytes"] == 200_000
    asset = next(event for event in events if event["event"] == "prefect.asset.materialization.succeeded")
    assert asset["resource"]["prefect.resource.id"] == f"file://{store.root}/llama/current"
    assert asset["payload"]["build_id"] == done.build_id and asset["payload"]["files"] == 4


def test_a_whole_cache_of_the_same_key_is_not_generated_again(store: CacheStore, tmp_path: Path) -> None:
    run(job(), policy(store))
    report = tmp_path / "report.json"
    again = run(job(), policy(store), outputs={"report": report})
    assert (again.type, again.name) == ("COMPLETED", "Cached")
    assert again.result().attempts == 0
    assert builds(store) == ["active"]
    written = json.loads(report.read_text())
    assert (written["outcome"], written["publication"]["status"], written["attempt"]) == ("cached", "cached", 0)
    assert run(job(), policy(store, cache_key={"dtype": "bf8"})).name == "Completed"
    assert run(job(), policy(store, cache_key={"dtype": "bf8"}, force=True)).name == "Completed"
    assert builds(store) == ["active", "published", "published"]
    # One that is whole no longer is.
    (Path(store.current_path("llama")) / "layer1.bin").write_bytes(b"cut")
    assert run(job(), policy(store, cache_key={"dtype": "bf8"})).name == "Completed"
    store.verify("llama")


def test_a_check_command_that_does_not_exist_is_refused_before_the_generation(store: CacheStore) -> None:
    state = run(job(), policy(store, check_command=["/no/such/check"]))
    assert state.name == "Refused" and "/no/such/check" in str(state.message)
    assert list(store.root.iterdir()) == []


def test_a_variable_tells_the_generator_where_to_write(store: CacheStore) -> None:
    code = WRITES.replace("sys.argv[1]", "os.environ['TT_CACHE_PATH']")
    plain = CacheJob(name="llama", command=[sys.executable, "-c", code])
    told = plain.model_copy(update={"env": {"TT_CACHE_PATH": "{cache_dir}"}})
    assert run(told, policy(store)).name == "Completed"
    refused = run(plain, policy(store))
    assert refused.name == "Refused" and "is not told where to write" in str(refused.message)


# As a container does: some files are another user's, one whole for longer than the window and one cut when the generator hangs.
STRANGERS = """
import os, subprocess, sys, time
cache, mark, fixed = sys.argv[1:]
def theirs(name, size):
    path = os.path.join(cache, name)
    if not os.path.exists(path):
        open(path, "wb").write(bytes(size))
        os.chown(path, 65534, 65534)
first = not os.path.exists(mark)
theirs("early.bin", 50_000)
for n in range(14):
    open(os.path.join(cache, f"layer{n}.bin"), "wb").write(bytes([n]) * 50_000)
    time.sleep(0.8)
theirs("late.bin", 20_000 if first else 50_000)
if first:
    if fixed == "fixed":
        subprocess.run(["chattr", "+i", os.path.join(cache, "late.bin")], check=True)
    open(mark, "w").close()
    time.sleep(600)
"""


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_a_clean_retry_keeps_another_users_files_but_those_that_may_be_cut(
    store: CacheStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clean = AGAIN.model_copy(update={"on_retry": "clean"})
    state = run(job(STRANGERS, str(tmp_path / "mark"), "free"), policy(store), retry=clean, stall=HANGS)
    assert state.name == "Completed", state.message
    current = Path(store.current_path("llama"))
    assert {file.name: file.stat().st_size for file in current.glob("*.bin")} == dict.fromkeys(
        ("early.bin", "late.bin", *(f"layer{n}.bin" for n in range(14))), 50_000
    )
    said = caplog.text
    assert (
        "2 files that came during the attempt are not known to be its own, and stay: " in said and "early.bin" in said
    )
    assert "removed what may be cut, before resuming: late.bin" in said


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
@pytest.mark.parametrize("on_retry", ["clean", "resume"])
def test_a_file_of_another_user_that_may_be_cut_and_cannot_be_removed_ends_the_retries(
    store: CacheStore, tmp_path: Path, on_retry: str
) -> None:
    probe, report = tmp_path / "probe", tmp_path / "report.json"
    probe.touch()
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", probe], check=False).returncode:
        pytest.skip("no immutable files here")
    subprocess.run(["chattr", "-i", probe], check=True)
    again = AGAIN.model_copy(update={"on_retry": on_retry})
    given: dict[str, Any] = {"retry": again, "outputs": {"report": report}, "stall": HANGS}
    try:
        state = run(job(STRANGERS, str(tmp_path / "mark"), "fixed"), policy(store), **given)
        (cut,) = Path(store.root).glob("llama/builds/*/late.bin")
        assert (state.type, state.name) == ("FAILED", "Stalled")
        assert "No further attempt: cannot remove late.bin before the retry" in str(state.message)
        assert json.loads(report.read_text())["message"] == state.message
        assert cut.stat().st_size == 20_000 and not Path(store.current_path("llama")).exists()
    finally:
        for cut in Path(store.root).glob("llama/builds/*/late.bin"):
            subprocess.run(["chattr", "-i", cut], check=True)


# -- deploy_cache


def deploy(job: CacheJob, publish: PublishPolicy, health: HealthCheck | None, **more: Any) -> State[Any]:
    given: dict[str, Any] = {"stall": WELL, "stop": STOP, "retry": ONCE} | more
    state: State[Any] = deploy_cache(job, publish=publish, health=health, **given, return_state=True)
    return state


def command(code: str, deadline_s: float = 30) -> HealthCheck:
    return HealthCheck(command=[sys.executable, "-c", code, "{cache_dir}"], deadline_s=deadline_s)


GOOD = command("import os, sys; sys.exit(not os.path.exists(sys.argv[1] + '/layer0.bin'))")
BAD = command("print('model does not load'); raise SystemExit(7)")


def test_a_healthy_deployment_is_current_and_what_is_unhealthy_or_fails_after_it_is_not(
    store: CacheStore, events: list[Any]
) -> None:
    state = deploy(job(), policy(store), GOOD)
    assert state.name == "Completed", state.message
    assert builds(store) == ["active"]
    assert named(events, "cachewatch.cache") == ["cachewatch.cache.published", "cachewatch.cache.activated"]
    assert deploy(job(), policy(store), GOOD).name == "Cached"
    before = os.readlink(store.current_path("llama"))
    events.clear()
    state = deploy(job(), policy(store, cache_key={"v": 2}), BAD)
    assert (state.type, state.name) == ("FAILED", "Unhealthy")
    assert "ended with exit code 7 (model does not load)" in str(state.message)
    assert f"to {before.removeprefix('builds/')}" in str(state.message)
    assert os.readlink(store.current_path("llama")) == before
    assert named(events, "cachewatch.cache")[-1] == "cachewatch.cache.rolled-back"
    state = deploy(job("import sys; sys.exit(3)"), policy(store), GOOD)
    assert (state.type, state.name) == ("FAILED", "GeneratorFailed")
    assert os.readlink(store.current_path("llama")) == before


def test_the_first_deployment_has_nowhere_to_go_back_to_and_says_both(store: CacheStore) -> None:
    state = deploy(job(), policy(store), BAD)
    assert "The health check failed: " in str(state.message)
    assert "The roll-back failed too: 'llama' cannot be rolled back" in str(state.message)


def test_a_health_check_that_cannot_be_made_is_refused_before_the_generation(store: CacheStore) -> None:
    state = deploy(job(), policy(store), HealthCheck(command=["/no/such/check"]))
    assert state.name == "Refused" and "/no/such/check" in str(state.message)
    assert list(store.root.iterdir()) == []


@pytest.fixture
def slow_server() -> Iterator[str]:
    """Answers 503 three times, then 200, as a server that warms up."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            well = self.path == "/health" and len(asked) > 3
            self.send_response(200 if well else 503)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_that_warms_up_is_asked_until_it_is_well(store: CacheStore, slow_server: str) -> None:
    health = HealthCheck(url=f"{slow_server}/health", deadline_s=30, interval_s=0.1)
    assert deploy(job(), policy(store), health).name == "Completed"


def test_the_store_tasks_work_in_a_flow_of_ones_own(store: CacheStore) -> None:
    from prefect import flow

    from prefect_cachewatch.tasks.store import activate_cache, roll_back_cache

    first = run(job(), policy(store)).result().publication
    second = run(job(), policy(store, force=True)).result().publication
    root = str(store.root)

    @flow(name=f"operator {uuid.uuid4().hex[:6]}")
    def operate() -> list[str | None]:
        back = roll_back_cache(root, "llama")
        return [back.build_id, activate_cache(root, "llama", second.build_id).previous]

    assert operate() == [first.build_id, first.build_id]
    digest = hashlib.sha256(Path(second.path, "layer0.bin").read_bytes()).hexdigest()
    assert json.loads(Path(second.manifest).read_text())["files"][0]["digest"] == digest
