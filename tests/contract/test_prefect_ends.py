"""How runs end on a real Prefect server: states, tasks, artifacts, events and messages, of each outcome.

All runs are started once, side by side; each test reads what they have left.
"""

from __future__ import annotations

import json
import re
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import WELL as PATIENT
from tests.contract.harness import Place, assert_golden
from tests.contract.on_prefect import HANGS, WELL, WRITES, Runs, artifact, kinds, masked, once, parameters, task_states
from tests.prefect_server import PATIENCE_S, Server, flow_process_of
from tests.support import assert_none_left, eventually, tagged

HOSTILE = "<script>alert(1)<_script>.bin"
STALLS = (
    f"import os, sys, time\nopen(os.path.join(sys.argv[1], {HOSTILE!r}), 'wb').write(bytes(50_000))\ntime.sleep(600)\n"
)
GROWS_ON = WRITES + (
    "while True:\n    time.sleep(0.1)\n    open(os.path.join(sys.argv[1], 'more.bin'), 'ab').write(bytes(999))\n"
)
# What survives a plain kill of the flow: a daemon in a session of its own, deaf to SIGTERM.
DAEMON = (
    "import os, signal, time\nif os.fork() == 0:\n    os.setsid(); signal.signal(15, signal.SIG_IGN); time.sleep(600)\n"
)
TELLS = (
    "import os, sys\ntoken = os.environ['HF_TOKEN']\nprint('token is', token, flush=True)\n"
    "open(os.path.join(sys.argv[1], token), 'wb').write(bytes(9000))\nraise MemoryError('layer 7')\n"
)
UNTIL = WRITES + "while not os.path.exists(sys.argv[2]): time.sleep(0.1)\n"
SECRET = "s3cr3t-value-of-a-block"
# A job that cannot be started: what is wrong with it, and what the only sentence says.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-program": ({"job": {"command": ["no-such-generator"]}}, "not found in PATH"),
    "no-secret": ({"job": {"env_secrets": {"T": "no-such-block"}}}, "does not exist: create it under Blocks"),
    "no-limit": ({"storage": {"name": "nowhere"}}, "prefect gcl create nowhere --limit N"),
    "no-place": ({"metrics": {"to": "file:/no/such/directory"}}, "/no/such/directory does not exist: create it"),
    "no-profile": ({"profile": {"name": "hf-downlod"}}, "there is no profile 'hf-downlod': did you mean hf-download?"),
    "no-reset": ({"retry": {"before_retry": ["no-such-reset"]}}, "command 'no-such-reset' not found in PATH"),
    "in-use": ({}, "is in use by another job (pid "),
}


def chains_of(runs: Runs, taken_port: int = 9) -> list[list[dict[str, Any]]]:
    store = runs.folder / "store"
    store.mkdir()
    runs.metrics.mkdir()
    publish = {"store": str(store)}
    unfinished = WRITES + "open(os.path.join(sys.argv[1], 'w.partial'), 'w').write('x')"
    elsewhere = "import sys; open(sys.argv[2], 'wb').write(bytes(9999))"
    never = {**HANGS, "first_write_within_s": 4}
    wanted = {"env": {"DB_PWD": "hunter2-hunter2"}, "expected_bytes": 50_000}
    secret = {"env_secrets": {"HF_TOKEN": "cachewatch-test-token"}}

    def run(key: str, code: str, *words: object, **given: Any) -> dict[str, Any]:
        return runs.run(key, code, *words, **{"metrics": {"to": f"file:{runs.metrics}"}, **given})

    return [
        [run("reported", UNTIL, runs.folder / "go", last="completed", job={"on_stall": "report"}, stall=HANGS)],
        [run("stalled", STALLS, last="stalled", name="Llama 3/70B", stall=HANGS)],
        [run("never-started", "import time; time.sleep(600)", last="stalled", stall=never)],
        [run("timed-out", GROWS_ON, last="deadline_exceeded", stall={**WELL, "max_duration_s": 4})],
        [run("failed", TELLS, last="failed", job=secret), run("crashed", WRITES + "os.kill(os.getpid(), 11)", last="failed")],
        [run(key, WRITES, last=last, name="published", publish=publish) for key, last in (("published", "completed"), ("cached", None))],
        [run("unverified", unfinished, last="completed", publish=publish)],
        [run("completed", WRITES, last="completed", job=wanted)],
        [
            run("empty", elsewhere, runs.folder / "empty/a.bin", last="nothing_written", retry={"attempts": 3}),
            run("empty-allowed", "pass", last="completed", job={"allow_empty": True}, metrics={"to": f"127.0.0.1:{taken_port}"}),
        ],
        [run(key, WRITES, **given) for key, (given, _) in REFUSED.items()],
    ]  # fmt: skip


def look_at_workers_runs(server: Server, runs: Runs) -> dict[str, Any]:
    """Cancel a run on a worker and one in the pause between two attempts, and kill the process of another."""
    pool = f"ends-{uuid.uuid4().hex[:6]}"
    deployment = {"name": pool, "entrypoint": "prefect_cachewatch.flows.generate_cache", "work_pool": {"name": pool}}
    pull = [{"prefect.deployments.steps.set_working_directory": {"directory": "."}}]
    (runs.folder / "prefect.yaml").write_text(json.dumps({"pull": pull, "deployments": [deployment]}))
    server.prefect("work-pool", "create", pool, "--type", "process", cwd=runs.folder)
    server.prefect("deploy", "--prefect-file", "prefect.yaml", "--all", cwd=runs.folder)
    fails = parameters(runs.cache("between"), "raise SystemExit('no such layer')", "between", retry={"backoff_s": 300})
    ids = {"between": server.start_run(f"generate-cache/{pool}", fails)}
    with server.worker(pool, runs.folder):
        for key in ("cancelled", "killed"):
            asked = runs.run(key, DAEMON + GROWS_ON, metrics={"to": f"file:{runs.metrics}"})
            ids[key] = server.start_run(f"generate-cache/{pool}", {name: asked[name] for name in asked.keys() - {"key", "last"}})  # fmt: skip
        for key in ("cancelled", "killed"):
            assert eventually((runs.cache(key) / "more.bin").exists, PATIENCE_S)
        server.log_lines(ids["between"], "attempt 1 of 3 ended failed")
        for key in ("cancelled", "between"):
            server.cancel(ids[key])
        flow_process_of(tagged(str(runs.cache("killed")))).kill()
        for key in ("cancelled", "killed"):
            assert_none_left(str(runs.cache(key)), 60)
        server.wait_for_crash(ids["killed"])
        ended = {"cancelled": "cancelled", "between": "cancelled", "killed": None}
        return {
            key: runs.look_at(server, ids[key], key, last, "was cancelled" if last else "")
            for key, last in ended.items()
        }


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Prefect has of each run, and its report, by its key."""

    def make(folder: Path) -> dict[str, Any]:
        server: Server = request.getfixturevalue("server")
        runs, told = (
            Runs(folder),
            {
                "event": {"name": ["cachewatch.generation.stall_reported"]},
                "resource": {"id": ["cachewatch.cache.reported"]},
            },
        )
        holder = Place(folder / "holder")
        holder.root.mkdir()
        holds = [*PATIENT, "--cache-dir", runs.cache("in-use"), "--", *holder.program(UNTIL)]
        with holder.start("exec", *holds, runs.cache("in-use"), folder / "go", stdout=None, stderr=None) as holding:
            assert eventually((runs.cache("in-use") / "layer.bin").exists, PATIENCE_S)
            with runs.started(server, chains_of(runs, server.port), **{"cachewatch-test-token": SECRET}) as finish:
                looks = look_at_workers_runs(server, runs)
                assert eventually(lambda: server.request("POST", "/events/filter", filter=told)["events"], PATIENCE_S)
                refused = {"name": {"any_": ["in-use"]}, "state": {"type": {"any_": ["FAILED"]}}}
                assert eventually(lambda: server.request("POST", "/flow_runs/filter", flow_runs=refused), PATIENCE_S)
                (folder / "go").touch()
                looks |= finish()
            assert holding.wait(60) == 0
        assert_none_left(str(folder), 60)
        return {"folder": str(folder), **looks}

    found: dict[str, Any] = once(tmp_path_factory, "prefect-ends", make)
    return found


BOTH = {"listing", "report"}
GOOD = {"generate-1": "Completed", "monitor-1": "Completed"}
STOPPED = {"generate-1": "Terminated", "monitor-1": "StallDetected"}
# By run: type and name of its state; its tasks; its artifacts, progress aside; its events.
TABLE: dict[str, tuple[str, str, dict[str, str] | None, set[str], list[str]]] = {
    "completed": ("COMPLETED", "Completed", GOOD, {"report"}, ["started", "completed"]),
    "published": ("COMPLETED", "Completed", GOOD | {"verify-build": "Completed", "publish-cache": "Completed"}, {"report"}, ["started", "completed"]),
    "cached": ("COMPLETED", "Cached", {}, set(), []),
    "unverified": ("FAILED", "VerificationFailed", GOOD | {"verify-build": "VerificationFailed"}, {"report"}, ["started", "completed"]),
    "stalled": ("FAILED", "Stalled", STOPPED, BOTH, ["started", "suspected", "stalled"]),
    "never-started": ("FAILED", "Stalled", STOPPED, BOTH, ["started", "suspected", "stalled"]),
    "failed": ("FAILED", "GeneratorFailed", GOOD | {"generate-1": "GeneratorFailed"}, BOTH, ["started", "failed"]),
    "crashed": ("FAILED", "GeneratorFailed", GOOD | {"generate-1": "GeneratorFailed"}, BOTH, ["started", "failed"]),
    "empty": ("FAILED", "NothingWritten", GOOD, BOTH, ["started", "nothing_written"]),
    "empty-allowed": ("COMPLETED", "Completed", GOOD, {"report"}, ["started", "completed"]),
    "timed-out": ("FAILED", "DeadlineExceeded", STOPPED | {"monitor-1": "DeadlineExceeded"}, BOTH, ["started", "deadline_exceeded"]),
    "reported": ("COMPLETED", "Completed", GOOD | {"monitor-1": "StallReported"}, BOTH, ["started", "suspected", "stall_reported", "completed"]),
    "cancelled": ("CANCELLED", "Cancelled", None, BOTH, ["started", "cancelled"]),
    "between": ("CANCELLED", "Cancelled", None, BOTH, ["started", "failed", "cancelled"]),
    "killed": ("CRASHED", "Crashed", None, set(), ["started"]),
    **{name: ("FAILED", "Refused", {}, set(), []) for name in REFUSED},
}  # fmt: skip


@pytest.mark.parametrize("key", TABLE)
def test_a_run_ends_in_its_state_with_its_tasks_artifacts_and_events(ends: dict[str, Any], key: str) -> None:
    kind, state, tasks, artifacts, events = TABLE[key]
    look = ends[key]
    assert (look["state"], kinds(look)) == ([kind, state], events), look["message"]
    assert tasks is None or task_states(look) == tasks
    slug = "llama-3-70b" if key == "stalled" else look["name"]
    found = {one["key"] for one in look["artifacts"]} - {f"cachewatch-{slug}-progress"}
    assert found == {f"cachewatch-{slug}-{what}" for what in artifacts}
    for event in look["events"]:
        assert event["resource"]["prefect.resource.id"] == f"cachewatch.cache.{slug}" or ".run." in event["event"]


@pytest.mark.parametrize("key", [key for key, row in TABLE.items() if row[1] not in ("Cached", "Crashed", "Refused")])
def test_message_and_page_are_those_of_the_golden_text(ends: dict[str, Any], key: str) -> None:
    look = ends[key]
    page = artifact(look, "report")
    lines = [line for line in page["data"].splitlines() if line and not line.startswith("![")]
    texts = [look["message"], page["description"], *lines[:4]]
    assert_golden(f"prefect-{key}", Place(Path(ends["folder"])), masked("\n".join(texts)))


@pytest.mark.parametrize("key", [key for key, row in TABLE.items() if row[0] == "FAILED"])
def test_the_log_says_once_why_a_run_failed_and_has_no_traceback(ends: dict[str, Any], key: str) -> None:
    look = ends[key]
    ours = [(name, level, message) for name, level, message in look["log"] if name != "cachewatch.output"]
    assert not any("Traceback" in message or "unexpected exception" in message for _, _, message in ours)
    told = [level for name, level, message in ours if name == "prefect.flow_runs" and message == look["message"]]
    assert told == [40], ours


@pytest.mark.parametrize("key", REFUSED)
def test_bad_input_is_refused_in_one_sentence_and_nothing_is_started(ends: dict[str, Any], key: str) -> None:
    look = ends[key]
    assert REFUSED[key][1] in look["message"] and "\n" not in look["message"]
    assert look["report"] is None
    cache = Path(ends["folder"], key, "cache")
    assert sorted(path.name for path in cache.glob("*")) == (["layer.bin"] if key == "in-use" else [])


def test_the_two_tasks_of_an_attempt_run_side_by_side(ends: dict[str, Any]) -> None:
    for key, (_, _, tasks, _, _) in TABLE.items():
        if tasks:
            generate, monitor = (ends[key]["tasks"][f"{name}-1"] for name in ("generate", "monitor"))
            assert generate["start_time"] < monitor["end_time"] and monitor["start_time"] < generate["end_time"]


def test_a_healthy_run_has_a_summary_and_warns_of_a_secret_without_telling_it(ends: dict[str, Any]) -> None:
    look, summary = ends["completed"], ends["completed"]["result"]
    assert (summary["attempts"], summary["bytes_written"], summary["files_present"]) == (1, 50_000, 1)
    assert summary["cache_dirs"] == [f"{ends['folder']}/completed/cache"]
    assert json.loads((Path(summary["run_dir"]) / "report-1.json").read_text())["outcome"] == "completed"
    assert len([message for _, _, message in look["log"] if "looks like a secret" in message]) == 1
    assert "hunter2" not in json.dumps(look["log"] + look["artifacts"])


def test_a_published_cache_is_current_and_its_second_run_is_done_already(ends: dict[str, Any]) -> None:
    first, second = ends["published"], ends["cached"]
    assert [event["event"] for event in first["events"] if ".cache." in event["event"]] == [
        "cachewatch.cache.published",
        "cachewatch.cache.activated",
    ]
    assert (first["result"]["publication"]["status"], second["result"]["attempts"]) == ("published", 0)
    assert (Path(ends["folder"]) / "store/published/current/layer.bin").stat().st_size == 50_000
    assert not (Path(ends["folder"]) / "store/unverified/current").exists()
    assert "cachewatch.cache.quarantined" in [event["event"] for event in ends["unverified"]["events"]]


def test_the_listing_is_a_table_and_nothing_from_outside_is_markup(ends: dict[str, Any]) -> None:
    listing, page = artifact(ends["stalled"], "listing"), artifact(ends["stalled"], "report")
    assert (listing["type"], page["type"]) == ("table", "markdown")
    rows = json.loads(listing["data"])
    assert list(rows[0]) == ["file", "flags", "age", "size", "on disk"]
    assert [row["file"] for row in rows] == ["total: 1 file in 1 directory", HOSTILE.replace("<", "\\<")]
    outside_code = re.sub(r"`[^`]*`", "", page["data"].partition("```")[0])
    assert "&lt;script&gt;" in outside_code and "<script>" not in outside_code


def test_a_secret_that_a_generator_prints_and_names_a_file_by_is_told_nowhere(ends: dict[str, Any]) -> None:
    look = ends["failed"]
    assert "token is ***" in artifact(look, "report")["data"] and '"***"' in artifact(look, "listing")["data"]
    assert "last growth ***" in look["tasks"]["monitor-1"]["message"]
    assert any(name == "cachewatch.output" and message == "token is ***" for name, _, message in look["log"])
    assert SECRET not in json.dumps(look)
    state = Path(ends["completed"]["result"]["run_dir"]).parents[1]
    found = [*state.glob(f"generations/*{look['id']}/report-*.json"), *Path(look["report"]["bundle"]).rglob("*")]
    texts = [path.read_bytes() for path in found if path.is_file()]
    assert len(texts) > 2 and not any(SECRET.encode() in text for text in texts)


def test_metrics_count_a_run_by_its_outcome(ends: dict[str, Any]) -> None:
    pages = "".join(path.read_text() for path in Path(ends["folder"], "metrics").glob("cachewatch-*.prom"))
    counted: dict[str, set[str]] = {}
    for cache, outcome in re.findall(
        r'^cachewatch_runs_total\{cache="([^"]+)",outcome="(\w+)"\} 1(?:\.0)?$', pages, re.M
    ):
        counted.setdefault(cache, set()).add(outcome)
    assert counted == {
        "published": {"completed", "cached"}, "unverified": {"verification_failed"}, "Llama 3/70B": {"stalled"},
        "empty": {"nothing_written"}, "timed-out": {"deadline_exceeded"}, "cancelled": {"cancelled"},
        # Of a flow process that was killed the engine is left, for as long as it takes to stop the tree and to say so.
        "killed": {"cancelled"}, **{key: {"completed"} for key in ("completed", "reported")},
        **{key: {"stalled"} for key in ("never-started",)}, **{key: {"failed"} for key in ("failed", "crashed")},
        **{key: {"refused"} for key in REFUSED if key != "no-place"},
    }  # fmt: skip
    lost = "no metrics of this run: metrics cannot be served on 127.0.0.1:"
    told = [message for _, _, message in ends["empty-allowed"]["log"] if message.startswith(lost)]
    assert len(told) == 1 and "the port is taken by another process" in told[0]
    assert re.search(r'^cachewatch_last_verdict\{cache="Llama 3/70B",cause="unknown",kind="no_growth"\} 1', pages, re.M)


def test_the_last_event_has_the_numbers_the_cause_and_the_storage(ends: dict[str, Any]) -> None:
    causes = {"completed": None, "stalled": "unknown", "never-started": "never_started", "failed": "host_out_of_memory"}
    for key, category in causes.items():
        last = [event for event in ends[key]["events"] if event["event"].startswith("cachewatch.generation.")][-1]
        payload, report = last["payload"], ends[key]["report"]
        assert (payload["category"], payload["attempt"], payload["message"]) == (category, 1, report["message"])
        growth = report["growth"]
        assert (payload["bytes_written"], payload["files_present"]) == (growth["bytes_written"], growth["files_present"])  # fmt: skip
        storages = [one for one in last["related"] if one["prefect.resource.role"] == "storage"]
        assert [one["prefect.resource.id"].startswith("cachewatch.storage.") for one in storages] == [True]
        assert ends[key]["labels"].get("cachewatch.cause") == category


def test_a_stall_that_is_only_reported_leaves_the_generator_alone(ends: dict[str, Any]) -> None:
    look = ends["reported"]
    told = next(event["payload"] for event in look["events"] if event["event"].endswith(".stall_reported"))
    assert (told["outcome"], told["kind"], told["attempt"]) == ("stalled", "no_growth", 1)
    (stall,) = look["report"]["would_be_stops"]
    assert (stall["kind"], stall["in_vain"], Path(stall["bundle"]).is_dir()) == ("no_growth", True, True)
    pages = [one["data"] for one in look["artifacts"] if one["key"].endswith("-report")]
    assert any("and was left alone" in page for page in pages)


def test_a_run_that_is_cancelled_tells_where_it_ran_and_what_it_left(ends: dict[str, Any]) -> None:
    look, report = ends["cancelled"], ends["cancelled"]["report"]
    assert report["outcome"] == "cancelled"
    assert report["listing"]["total_files"] == report["growth"]["files_present"] == 2
    payload, where = look["events"][-1]["payload"], report["where"]
    assert (payload["outcome"], payload["where"]) == ("cancelled", where)
    assert (where["host"], where["attempts"], where["windows"]["stall_after_s"]) == (socket.gethostname(), 1, 300)
    assert where["worker"].startswith("ProcessWorker ") and where["flow_run"].endswith(f"/flow-run/{look['id']}")
    assert Path(where["log"]).is_file() and Path(report["bundle"], "report.json").is_file()
    page = artifact(look, "report")["data"]
    assert where["worker"] in page and where["log"] in page
    told = "was cancelled (the flow run was cancelled)"
    assert sum(told in message for _, _, message in look["log"]) == 1
    between = ends["between"]["events"][-1]["payload"]["message"]
    assert between.startswith("The run was cancelled in the pause before attempt 2 of 3. ")
