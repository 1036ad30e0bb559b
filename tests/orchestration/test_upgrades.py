"""Workers and servers that are replaced while runs are in flight, as docs/deploy.md has it of each."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.prefect_server import Server, end, running_server, started_server
from tests.support import assert_none_left, eventually, tagged

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]
GROWS = """
import os, sys, time
for n in range(int(sys.argv[2])):
    open(os.path.join(sys.argv[1], f"layer{n}.bin"), "wb").write(os.urandom(50_000))
    time.sleep(0.2)
"""


def deploy(server: Server, folder: Path) -> str:
    """Make a work pool of its own, and deploy the generation to it."""
    pool = f"upgrades-{uuid.uuid4().hex[:6]}"
    (folder / "prefect.yaml").write_text(
        f"pull: null\ndeployments:\n  - {{name: {pool}, entrypoint: prefect_cachewatch.flows.generate_cache, "
        f"work_pool: {{name: {pool}}}}}\n"
    )
    server.prefect("work-pool", "create", pool, "--type", "process", cwd=folder)
    server.prefect("deploy", "--prefect-file", "prefect.yaml", "--all", cwd=folder)
    return pool


def start_growing(server: Server, folder: Path, pool: str, layers: int) -> tuple[str, str]:
    """Start a run and wait until its generator writes; returns the run's id and the generator's tag."""
    tag, cache = f"{pool}-{uuid.uuid4().hex[:6]}", folder / "cache"
    parameters: dict[str, Any] = {
        "job": {
            "name": tag,
            "command": [sys.executable, "-c", GROWS, str(cache), str(layers), tag],
            "cache_dirs": [str(cache)],
        },
        "stop": {"grace_s": 1},
        "retry": {"attempts": 1},
    }
    run_id = server.start_run(f"generate-cache/{pool}", parameters)
    assert eventually((cache / "layer3.bin").exists, 120)
    return run_id, tag


def test_the_runs_of_a_worker_that_is_told_to_stop_end_with_it_and_stay_running(server: Server, tmp_path: Path) -> None:
    pool = deploy(server, tmp_path)
    with server.worker(pool, tmp_path) as process:
        run_id, tag = start_growing(server, tmp_path, pool, 3000)
        assert tagged(tag)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert_none_left(tag, 1)
    assert server.flow_run(run_id)["state_type"] == "RUNNING"


def test_the_run_of_a_worker_that_is_killed_goes_on_and_reports_its_own_end(server: Server, tmp_path: Path) -> None:
    pool = deploy(server, tmp_path)
    with server.worker(pool, tmp_path) as process:
        run_id, tag = start_growing(server, tmp_path, pool, 40)
        process.kill()
        process.wait(10)
        run = server.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED")
    assert run["state_name"] == "Completed", run["state"]
    assert_none_left(tag, 1)


def test_a_run_that_ends_while_the_server_is_replaced_is_reported_when_it_answers_again(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        pool = deploy(server, tmp_path)
        with server.worker(pool, tmp_path):
            run_id, tag = start_growing(server, tmp_path, pool, 25)
            end(server.process)
            assert eventually(lambda: not tagged(tag), 60)  # the generator has ended, and nobody can be told
            with started_server(server.env, tmp_path / "again.log"):
                run = server.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED")
                assert run["state_name"] == "Completed", run["state"]
    assert len(os.listdir(tmp_path / "cache")) == 25
