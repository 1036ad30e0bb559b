"""A stalled and a healthy run on a real server and worker, looked at in a real browser, in both UIs."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from tests.prefect_database import fresh_home

pytestmark = [pytest.mark.ui, pytest.mark.timeout(400)]

SECRETS = ("sesame-argv-1", "sesame-env-22222", "sesame-url-3", "sesame-log-4444", "sesame-raw-55555")
HOSTILE = "a<img src=x onerror=\"document.title='owned'\">`|[x](javascript:1).bin"
GENERATOR = """
import os, sys, threading, time
cache, stall = sys.argv[1], sys.argv[2] == "stall"
print("Authorization: Bearer sesame-log-4444", flush=True)
print("token in the environment:", os.environ["HF_TOKEN"], os.environ["DB_PASSWORD"], flush=True)
open(f"{cache}/" + HOSTILE, "w").write("x" * 100)
for layer in range(8):
    with open(f"{cache}/layers.{layer}.tensorbin", "wb") as file:
        file.write(os.urandom(1 << 20))
    print("layer", layer, flush=True)
    time.sleep(0.4)
def wait_for_the_other(lock):
    lock.acquire()
if stall:
    lock = threading.Lock(); lock.acquire()
    threading.Thread(target=wait_for_the_other, args=(lock,)).start()
    wait_for_the_other(lock)
""".replace("+ HOSTILE", f"+ {HOSTILE!r}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def site():
    """A server and a process worker with two deployments' worth of runs: one stalled, one completed."""
    root = Path(tempfile.mkdtemp(prefix="cachewatch-"))
    port = _free_port()
    binaries = Path(sys.executable).parent
    env = {
        **os.environ,
        "PREFECT_HOME": str(fresh_home(root / "home")),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "CACHEWATCH_STATE": str(root / "state"),
        "HF_TOKEN": "sesame-env-22222",
        "DB_PASSWORD": "sesame-raw-55555",
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *command: str) -> None:
        with (root / f"{name}.log").open("wb") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))

    def run(*command: str) -> str:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        start("server", str(binaries / "prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(port))
        _wait(lambda: _get(port, "/api/health") is not None, 120)
        run(str(binaries / "prefect"), "work-pool", "create", "--type", "process", "ui-test")
        start("worker", str(binaries / "prefect"), "worker", "start", "--pool", "ui-test")
        script = root / "generator.py"
        script.write_text(GENERATOR)
        answer = run(sys.executable, "-c", DEPLOY_AND_RUN, str(root), str(script))
        runs = json.loads(answer.splitlines()[-1])
        yield {"port": port, "root": root, **runs}
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(root, ignore_errors=True)


DEPLOY_AND_RUN = """
import json, sys, time
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.deployments import run_deployment
from prefect_cachewatch.flows.generation import generate_cache
root, script = sys.argv[1:]
with get_client(sync_client=True) as client:
    flow_id = client.create_flow(generate_cache)
    identity = client.create_deployment(
        flow_id=flow_id, name="ui", work_pool_name="ui-test", path=root,
        entrypoint="prefect_cachewatch.flows.generation.generate_cache",
        parameter_openapi_schema={"type": "object", "properties": {}}, enforce_parameter_schema=False, pull_steps=[],
    )
found = {}
for kind, name in (("stall", "llama-3-70b-n300"), ("healthy", "<b>llama</b> [x](javascript:1)")):
    cache = f"{root}/{kind}"
    command = ["python3", script, cache, kind, "--api-key", "sesame-argv-1", "https://me:sesame-url-3@host/x"]
    run = run_deployment(
        identity, timeout=150, poll_interval=1, as_subflow=False,
        parameters=dict(
            job=dict(name=name, command=command, cache_dirs=[cache]),
            stall=dict(stall_after_s=4, first_write_within_s=60, poll_s=1),
            stop=dict(grace_s=1), retry=dict(attempts=1),
        ),
    )
    with get_client(sync_client=True) as client:
        by_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
        artifacts = client.read_artifacts(artifact_filter=by_run)
        time.sleep(3)
        logs = client.read_logs(log_filter=LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
    found[kind] = dict(
        id=str(run.id), state=run.state.name, type=run.state.type.value, message=run.state.message,
        artifacts={a.key: dict(id=str(a.id), type=a.type, data=a.data, description=a.description) for a in artifacts},
        logs=[log.message for log in logs],
    )
print(json.dumps(found))
"""


def _get(port: int, path: str) -> Any:
    import httpx

    try:
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.status_code == 200 else None


def _wait(true: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def _artifact(run: dict[str, Any], ending: str) -> dict[str, Any]:
    (key,) = [key for key in run["artifacts"] if key.endswith(ending)]
    found: dict[str, Any] = run["artifacts"][key]
    return found


def test_the_stalled_run_ends_stalled_with_the_cause_in_one_line(site):
    run = site["stall"]
    assert (run["state"], run["type"]) == ("Stalled", "FAILED")
    assert (
        run["message"].startswith("llama-3-70b-n300 stalled: all 2 threads of pid ") and "a deadlock." in run["message"]
    )
    assert "\n" not in run["message"]


def test_the_report_has_cause_next_step_chart_and_bundle(site):
    text = _artifact(site["stall"], "-report")["data"]
    for part in ("**Cause:**", "deadlocked", "**Next:**", "data:image/svg+xml;base64,", "cachewatch report "):
        assert part in text
    (bundle,) = (site["root"] / "state" / "bundles").iterdir()
    assert str(bundle) in text


def test_the_completed_run_leaves_a_short_artifact(site):
    run = site["healthy"]
    assert run["state"] == "Completed"
    text = _artifact(run, "-report")["data"]
    for part in ("Longest pause", "of a window of 4 s", "Window that would have been enough", "data:image/svg+xml"):
        assert part in text


def test_the_events_of_both_runs_are_on_the_server(site):
    import httpx

    wanted = {"started", "suspected", "stalled", "completed"}
    deadline = time.monotonic() + 30
    while True:
        body = {"filter": {"event": {"prefix": ["cachewatch.generation."]}}, "limit": 50}
        events = httpx.post(f"http://127.0.0.1:{site['port']}/api/events/filter", json=body, timeout=10).json()[
            "events"
        ]
        kinds = {event["event"].removeprefix("cachewatch.generation.") for event in events}
        if wanted <= kinds:
            break
        assert time.monotonic() < deadline, kinds
        time.sleep(1)
    (stalled,) = [event for event in events if event["event"].endswith(".stalled")]
    assert stalled["resource"]["prefect.resource.id"] == "cachewatch.cache.llama-3-70b-n300"
    assert stalled["payload"]["category"] == "deadlocked"
    assert any(related["prefect.resource.role"] == "flow-run" for related in stalled["related"])


def test_no_secret_is_in_the_bundle_the_artifacts_the_events_or_the_logs(site):
    import httpx

    body = {"limit": 200, "filter": {"event": {"prefix": ["cachewatch."]}}}
    events = httpx.post(f"http://127.0.0.1:{site['port']}/api/events/filter", json=body, timeout=10).text
    seen = {"artifacts, messages and logs": json.dumps([site["stall"], site["healthy"]]), "events": events}
    for path in (site["root"] / "state" / "bundles").rglob("*"):
        if path.is_file():
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            seen[path.name] = raw.decode("utf-8", "replace")
    assert len(seen) == 7
    assert [(name, secret) for name, text in seen.items() for secret in SECRETS if secret in text] == []
    assert "layer 7" in seen["generator.log.gz"]


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("ui", ["v1", "v2"])
@pytest.mark.parametrize("kind", ["stall", "healthy"])
def test_the_run_page_shows_the_state(site, browser, pictures, ui, kind, width):
    base = f"http://127.0.0.1:{site['port']}{'/v2' if ui == 'v2' else ''}"
    # The log of this UI shows the lines that are in view; the state's sentence is the last one.
    browser.open(f"{base}/runs/flow-run/{site[kind]['id']}", width=width, height=2600)
    state, said = ("Stalled", "a deadlock.") if kind == "stall" else ("Completed", "generation completed in")
    said = "" if (ui, width) == ("v2", 400) else said  # there its log shows the first lines only
    browser.wait_for(f"document.body.innerText.includes('{state}') && document.body.innerText.includes('{said}')", 60)
    browser.evaluate("new Promise((done) => setTimeout(done, 2000))")
    _assert_harmless(browser, site)
    browser.screenshot(pictures / f"run-{kind}-{ui}-{width}.png")
    if width < 1000:  # a phone has a list in place of the tabs
        return
    # The tasks stand in a tab of their own.
    browser.click("Task Runs")
    browser.wait_for("['generate-1', 'monitor-1'].every((name) => document.body.innerText.includes(name))", 60)


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("ui", ["v1", "v2"])
@pytest.mark.parametrize(
    ("kind", "ending", "words"),
    [
        ("stall", "-report", ["Cause", "deadlock", "Next", "confidence high"]),
        ("stall", "-listing", ["total: 9 files in 1 directory", "layers.7.tensorbin", "suspect_partial"]),
        ("healthy", "-report", ["Longest pause", "Window that would have been enough"]),
    ],
)
def test_the_artifact_page_shows_it_harmlessly(site, browser, pictures, ui, kind, ending, words, width):
    base = f"http://127.0.0.1:{site['port']}{'/v2' if ui == 'v2' else ''}"
    artifact = _artifact(site[kind], ending)
    browser.open(f"{base}/artifacts/artifact/{artifact['id']}", width=width, height=1500)
    for word in words:
        browser.wait_for(f"document.body.innerText.toLowerCase().includes({word.lower()!r})", 60)
    browser.evaluate("new Promise((done) => setTimeout(done, 1000))")
    if ending == "-report":
        charts = "[...document.images].filter((i) => i.src.startsWith('data:image/svg')).map((i) => i.naturalWidth)"
        assert browser.evaluate(charts) == [720]
    _assert_harmless(browser, site)
    if ending == "-report":  # the UI at / cuts off what does not fit in a table, and never breaks it
        facts = "[...document.querySelectorAll('li code')].map((e) => e.getBoundingClientRect().right)"
        assert browser.evaluate(f"{facts}.length >= 9 && Math.max(...{facts}) <= {width}")
    browser.screenshot(pictures / f"artifact-{kind}{ending}-{ui}-{width}.png")


def test_the_page_of_the_bundle_shows_the_same_cause(site, browser, pictures):
    (bundle,) = (site["root"] / "state" / "bundles").iterdir()
    page = (bundle / "report.html").as_uri()
    browser.open(page, width=1200, height=1160)
    shown = browser.text()
    assert "deadlocked" in shown and "layers.7.tensorbin" in shown
    if Path(sys.executable).with_name("py-spy").exists():
        assert "wait_for_the_other (generator.py:" in shown
    assert browser.requests == [page]
    browser.screenshot(pictures / "report-page.png")


def _assert_harmless(browser, site) -> None:
    assert browser.evaluate("document.title") != "owned"
    assert browser.dialogs == []
    own = f"http://127.0.0.1:{site['port']}/"
    strangers = [a for a in browser.requests if not a.startswith((own, "data:", "blob:", "ws://127.0.0.1"))]
    # Prefect's own UI asks its makers' hosts for fonts and announcements; nothing may ask for a name of ours.
    assert [address for address in strangers if "onerror" in address or address.endswith("/x")] == []
    assert not any(secret in browser.text() for secret in SECRETS)


@pytest.mark.parametrize("ui", ["v1", "v2"])
def test_the_block_has_a_form_whose_fields_explain_themselves(site, browser, pictures, ui):
    base = f"http://127.0.0.1:{site['port']}{'/v2' if ui == 'v2' else ''}"
    env = {**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{site['port']}/api"}
    prefect = str(Path(sys.executable).with_name("prefect"))
    subprocess.run([prefect, "block", "register", "-m", "prefect_cachewatch"], env=env, check=True, timeout=120)
    browser.open(f"{base}/blocks/catalog/cache-generation/create", width=1400, height=4400)
    for words in ("Cache Generation", "Name of the cache, for example", "Prometheus metrics of the run"):
        browser.wait_for(f"document.body.innerText.includes({words!r})", 60)
    browser.screenshot(pictures / f"block-{ui}.png")
    assert 'type "None"' not in browser.text()


FORM = """
from prefect import get_client
from prefect.utilities.callables import parameter_schema
from prefect_cachewatch.flows.generation import generate_cache
with get_client(sync_client=True) as client:
    print(client.create_deployment(
        flow_id=client.create_flow(generate_cache), name="form", path="/",
        entrypoint="prefect_cachewatch.flows.generation.generate_cache", pull_steps=[],
        parameter_openapi_schema=parameter_schema(generate_cache.fn).model_dump(), enforce_parameter_schema=True,
    ))
"""


@pytest.mark.parametrize("ui", ["v1", "v2"])
def test_the_run_form_opens_without_a_null_and_is_taken_as_it_opens(site, browser, pictures, ui):
    import httpx

    from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy

    address = f"http://127.0.0.1:{site['port']}"
    env = {**os.environ, "PREFECT_API_URL": f"{address}/api"}
    made = subprocess.run(
        [sys.executable, "-c", FORM], env=env, check=True, timeout=120, capture_output=True, text=True
    )
    deployment = made.stdout.split()[-1]
    browser.open(f"{address}{'/v2' if ui == 'v2' else ''}/deployments/deployment/{deployment}/run", 1400, 4400)
    for words in ("Stall after (seconds, or 5m)", "Advanced: unresponsive after", "Container"):
        browser.wait_for(f"document.body.innerText.includes({words!r})", 60)
    browser.wait_for("document.querySelector('textarea')")
    browser.screenshot(pictures / f"form-{ui}.png")
    assert 'type "None"' not in browser.text()
    browser.write("textarea", name := f"formed-{ui}")

    def parameters() -> list[dict[str, Any]]:
        body = {"deployments": {"id": {"any_": [deployment]}}, "limit": 50}
        runs = httpx.post(f"{address}/api/flow_runs/filter", json=body, timeout=10).json()
        return [run["parameters"] for run in runs if run["parameters"]["job"]["name"] == name]

    def submitted() -> bool:
        # The page takes in what was written in its own time: until then its button does nothing.
        if not (found := bool(parameters())) and "Submit" in browser.text():
            browser.click("Submit")
        return found

    _wait(submitted, 60)
    sent = parameters()[0]
    assert CacheJob(**{**sent["job"], "command": ["true"]}) == CacheJob(name=name, command=["true"])
    assert StallPolicy(**sent["stall"]) == StallPolicy() and RetryPolicy(**sent["retry"]) == RetryPolicy()
    assert [sent[name] for name in ("publish", "storage", "metrics", "profile")] == [None] * 4
