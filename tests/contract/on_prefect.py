"""Runs many flows in one process against a real Prefect server, and looks at all that they left there at once."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.harness import mounted
from tests.prefect_server import PATIENCE_S, Server
from tests.support import eventually

# Each chain is a list of runs, one after the other; the chains run side by side.
# Three at once: a server on SQLite that more of them write to answers the last ones after a minute.
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from prefect.blocks.system import Secret
from prefect_cachewatch import generate_cache

def chain(runs):
    return [one(**run) for run in runs]

def one(key, last=None, flow_retries=0, **given):
    state = generate_cache.with_options(retries=flow_retries)(**given, return_state=True)
    result = state.result().model_dump(mode="json") if state.is_completed() else None
    return {"key": key, "last": last, "id": str(state.state_details.flow_run_id), "result": result}

asked = json.load(sys.stdin)
for name, value in asked["secrets"].items():
    Secret(value=value).save(name, overwrite=True)
with ThreadPoolExecutor(3) as pool:
    print("answer", json.dumps([one for chain in pool.map(chain, asked["chains"]) for one in chain]))
"""
# A window that no busy machine fills, for generators that are well; a short one, for those that hang for good.
WELL = {"stall_after_s": 300, "first_write_within_s": 300, "poll_s": 0.3}
HANGS = {"stall_after_s": 1.5, "first_write_within_s": 60, "poll_s": 0.3}
WRITES = "import os, sys, time\nopen(os.path.join(sys.argv[1], 'layer.bin'), 'ab').write(bytes(50_000))\n"


def parameters(cache: Path | None, code: str, name: str, *words: object, **given: Any) -> dict[str, Any]:
    """Make the parameters of a run of one attempt whose generator is Python code; it gets the cache, the words, its name."""
    where = "{cache_dir}" if cache is None else str(cache)
    job = {"name": name, "command": [sys.executable, "-c", code, where, *map(str, words), name], **given.pop("job", {})}
    if cache is not None:
        job["cache_dirs"] = [str(cache)]
    return {"job": job, "stall": WELL, "stop": {"grace_s": 1}, "retry": {"attempts": 1}, **given}


class Runs:
    """Runs in a folder; each is kept under a key, and writes its report into a file of that name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.metrics = folder, folder / "metrics"

    def cache(self, key: str) -> Path:
        return self.folder / key / "cache"  # nothing of another run lies beside it

    def run(
        self, key: str, code: str, *words: object, last: str | None = None, name: str | None = None, **given: Any
    ) -> dict[str, Any]:
        """One run; `last` is the kind of its last event."""
        cache = None if "publish" in given else self.cache(key)
        given.setdefault("outputs", {"report": str(self.folder / f"{key}.json")})
        return parameters(cache, code, name or key, *words, **given) | {"key": key, "last": last}

    @contextmanager
    def started(
        self, server: Server, chains: list[list[dict[str, Any]]], script: str = "", **secrets: str
    ) -> Iterator[Callable[[], dict[str, Any]]]:
        """Start the chains in a process of their own; what is yielded waits for it, and looks at each of its runs.

        With a script of the shell the process is in a mount namespace of its own, after it.
        """
        before = mounted(script) if script else []
        process = subprocess.Popen(
            [*before, sys.executable, "-c", SCRIPT], env=server.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

        def finish() -> dict[str, Any]:
            said, errors = process.communicate(
                json.dumps({"chains": chains, "secrets": secrets}), timeout=2 * PATIENCE_S
            )
            answers = [line.removeprefix("answer ") for line in said.splitlines() if line.startswith("answer ")]
            assert answers, errors[-4000:]
            try:
                return {
                    run["key"]: self.look_at(server, run["id"], run["key"], run["last"]) | {"result": run["result"]}
                    for run in json.loads(answers[0])
                }
            except AssertionError as error:  # what was lost on the way is told there
                raise AssertionError(f"{error}; the runs' process said: {errors[-8000:]}") from error

        try:
            with ThreadPoolExecutor(1) as waiting:
                found = waiting.submit(finish)
                try:
                    yield lambda: found.result(2 * PATIENCE_S)
                finally:
                    process.kill()
        finally:
            process.wait()

    def look_at(
        self, server: Server, run_id: str, key: str, last: str | None = None, said: str = "Finished in state"
    ) -> dict[str, Any]:
        """What Prefect has of a run, and its report."""
        report = self.folder / f"{key}.json"
        seen = look_at(server, run_id, last, said)
        return seen | {"report": json.loads(report.read_text()) if report.exists() else None}


def look_at(server: Server, run_id: str, last: str | None, said: str) -> dict[str, Any]:
    """Read all that Prefect has of a run, once its tasks have ended and its last event and line have arrived."""
    run = server.wait_final(run_id)
    if last is not None:
        server.wait_for_event(run_id, last)
    states = server.request("GET", f"/flow_run_states/?flow_run_id={run_id}")
    return {
        "id": run_id,
        "name": run["name"],
        "state": [run["state_type"], run["state_name"]],
        "message": run["state"]["message"],
        "labels": run["labels"],
        "run_count": run["run_count"],
        "states": [state["name"] for state in sorted(states, key=lambda state: str(state["timestamp"]))],
        "tasks": tasks_of(server, run),
        "log": [(line["name"], line["level"], line["message"]) for line in server.log_lines(run_id, said)],
        "artifacts": server.request("POST", "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run_id]}}),
        "events": events_of(server, run_id),
    }


def tasks_of(server: Server, run: dict[str, Any]) -> dict[str, Any]:
    """Read the task runs of a flow run by name, once none of them runs any more; those of a killed one run for ever."""
    asked = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    found: list[dict[str, Any]] = []

    def ended() -> bool:
        found[:] = server.request("POST", "/task_runs/filter", **asked)
        over = all(one["state_type"] not in ("PENDING", "RUNNING") for one in found)
        return over or run["state_type"] == "CRASHED"

    assert eventually(ended, PATIENCE_S), "tasks that never end"
    wanted = ("state_type", "state_name", "start_time", "end_time")
    return {one["name"]: {key: one[key] for key in wanted} | {"message": one["state"]["message"]} for one in found}


def events_of(server: Server, run_id: str) -> list[dict[str, Any]]:
    """Read cachewatch's events that are related to a run, in their order."""
    asked = {"event": {"prefix": ["cachewatch."]}, "related": {"id": [f"prefect.flow-run.{run_id}"]}, "order": "ASC"}
    return list(server.request("POST", "/events/filter", filter=asked, limit=50)["events"])


def kinds(look: dict[str, Any]) -> list[str]:
    """The kinds of a run's events about its generation."""
    names = [event["event"] for event in look["events"]]
    prefix = "cachewatch.generation."
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix) and not name.endswith(".progress")]


def task_states(look: dict[str, Any]) -> dict[str, str]:
    return {name: task["state_name"] for name, task in look["tasks"].items()}


def artifact(look: dict[str, Any], what: str) -> dict[str, Any]:
    """The newest artifact of a run whose key ends so; a busy server is asked again, and then has two of one."""
    found = [one for one in look["artifacts"] if one["key"].endswith(f"-{what}")]
    return dict(max(found, key=lambda one: str(one["created"])))


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """Make something once for all processes of a session (pytest -n); it is what JSON can say."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if base.name.startswith("popen-") else base
    made = place / f"{name}.json"
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = place / name
            if folder.exists():
                pytest.fail("its runs failed in another process")
            folder.mkdir()
            made.write_text(json.dumps(make(folder)))
    return json.loads(made.read_text())


MASKS = (
    (r"report /\S+/bundles/[\w.-]+", "report BUNDLE"),
    (r"\d{8}T\w+-\w+", "BUILD"),
    (r"python3[\d.]*", "python"),
    (r"sleeps in [\w\\]+", "sleeps in CALL"),
    (r"[\d.]+ (B|[KM]iB)\b", "SIZE"),
    (r"([\d.]+ (min(utes?)?|s)\b ?)+", "TIME "),
    (r"\d+ files?\b", "N files"),
    (r"(pid|attempt|code|of) \d+", r"\1 N"),
)


def masked(text: str) -> str:
    """A text with what the machine and its load choose blotted out, to compare it with a golden one."""
    text = text.replace(sys.executable, "python")
    for pattern, put in MASKS:
        text = re.sub(pattern, put, text, flags=re.IGNORECASE)
    return "\n".join(line.rstrip() for line in text.splitlines())
