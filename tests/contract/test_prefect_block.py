"""The block `CacheGeneration` on a real server: registered, saved, loaded by name, run; its ends, sync and async."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.orchestration.test_signals_own_flow import to_another_thread
from tests.prefect_server import BIN, PATIENCE_S, Server
from tests.support import assert_none_left

GENERATOR = """
import os, sys, time
cache, layers = sys.argv[1], int(sys.argv[2])
for layer in range(3):
    open(f"{cache}/layers.{layer}.tensorbin", "wb").write(os.urandom(100_000))
    time.sleep(0.1)
time.sleep(600 if layers > 3 else 0)
"""
COMMON = """
import asyncio, json, sys, time
from pathlib import Path
from prefect import flow
from prefect_cachewatch import CacheGeneration, CacheGenerationError, CacheJob, RetryPolicy, StallPolicy, StopPolicy

ROOT, TAG = Path(sys.argv[1]), sys.argv[2]


def block(name, layers, window_s):
    cache = ROOT / name
    return CacheGeneration(
        job=CacheJob(name=name, command=[sys.executable, f"{ROOT}/generate.py", str(cache), str(layers), TAG], cache_dirs=[cache]),
        stall=StallPolicy(stall_after_s=window_s, first_write_within_s=60, poll_s=0.3),
        stop=StopPolicy(grace_s=1),
        retry=RetryPolicy(attempts=1),
    )
"""
SAVED = """
block("good", 3, 300).save("good")
block("stuck", 9, 2).save("stuck")
good = CacheGeneration.load("good").run()
try:
    CacheGeneration.load("stuck").run()
    failure = None
except CacheGenerationError as error:
    failure = [error.message, error.data["state"]]
print(json.dumps({"good": good.model_dump(mode="json"), "failure": failure}))
"""
IN_FLOWS = """
@flow(name=f"around-{TAG}")
def around():
    return block("around", 3, 300).run().bytes_written

@flow(name=f"awaiting-{TAG}")
async def awaiting():
    return block("awaiting", 3, 300).run().bytes_written

print(json.dumps([around(), asyncio.run(awaiting())]))
"""
INTERRUPTED = """
@flow(name=f"interrupted-{TAG}")
def around():
    block(TAG, 9, 300).run()

@flow(name=f"interrupted-{TAG}")
async def awaiting():
    block(TAG, 9, 300).run()

if sys.argv[3] == "async":
    asyncio.run(awaiting())
else:
    around()
"""


def start(program: str, root: Path, server: Server, *more: str) -> tuple[subprocess.Popen[str], str]:
    """Run a user's script; returns it with the word that its generator has on its command line."""
    tag = f"block-{root.name}"
    (root / "generate.py").write_text(GENERATOR)
    script = root / "script.py"
    script.write_text(COMMON + program)
    argv = [sys.executable, script, root, tag, *more]
    return subprocess.Popen(argv, env=server.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), tag


def answer(program: str, root: Path, server: Server) -> Any:
    started, _ = start(program, root, server)
    out, errors = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


def test_it_is_registered_saved_loaded_and_run_and_a_stall_is_a_failure(server: Server, tmp_path: Path) -> None:
    register = [BIN / "prefect", "block", "register", "-m", "prefect_cachewatch"]
    done = subprocess.run(register, env=server.env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Cache Generation" in done.stdout and "1 block" in done.stdout
    kind = server.request("GET", "/block_types/slug/cache-generation")
    assert kind["description"].startswith("Generates a tensor cache under guard")
    assert 'CacheGeneration.load("' in kind["code_example"]
    found = answer(SAVED, tmp_path, server)
    assert (found["good"]["name"], found["good"]["files_present"]) == ("good", 3)
    message, state = found["failure"]
    assert message.startswith("Stalled: ") and " Tensor cache generation stalled: " in message
    assert state == "Stalled"
    schemas = server.request("POST", "/block_schemas/filter", block_schemas={"block_type_id": {"any_": [kind["id"]]}})
    fields = schemas[0]["fields"]
    assert {"job", "stall", "stop", "retry", "publish", "outputs", "storage", "metrics"} == set(fields["properties"])
    assert fields["required"] == ["job"]
    assert_none_left(f"block-{tmp_path.name}")


def test_in_a_flow_it_is_a_subflow_of_sync_and_of_async_code(server: Server, tmp_path: Path) -> None:
    assert answer(IN_FLOWS, tmp_path, server) == [300_000, 300_000]
    tag = f"block-{tmp_path.name}"
    for name in ("around", "awaiting"):
        flows = {"name": {"any_": [f"{name}-{tag}"]}}
        (outer,) = server.request("POST", "/flow_runs/filter", flows=flows)
        (inner,) = server.request(
            "POST", "/flow_runs/filter", flow_runs={"parent_flow_run_id": {"any_": [outer["id"]]}}
        )
        assert (inner["name"], inner["state_name"]) == (name, "Completed")


@pytest.mark.parametrize(("kind", "to"), [("sync", "another thread"), ("async", "process")])
def test_a_flow_that_is_ended_while_it_waits_takes_the_generator_with_it(
    kind: str, to: str, server: Server, tmp_path: Path
) -> None:
    started, tag = start(INTERRUPTED, tmp_path, server, kind)
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / tag / "layers.2.tensorbin").exists():
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    if to == "process":
        started.send_signal(signal.SIGTERM)
    else:
        to_another_thread(started.pid)
    try:
        started.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as late:
        started.kill()
        pytest.fail(f"the flow goes on: {(late.stderr or b'').decode()}")
    assert_none_left(tag)
    runs = server.request("POST", "/flow_runs/filter", flow_runs={"name": {"any_": [tag]}})
    assert [run["state_name"] for run in runs] == ["Crashed"]
