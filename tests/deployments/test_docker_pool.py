"""The Docker pool for real: Prefect's Docker worker, the pool from its template, each run a container of podman's.

The image is a bare shell; Python, Prefect and this package are mounted from this machine, so that no image has to be
built (`make images` does that).
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.containers.engine import SHELL_IMAGE, Engine, an_engine
from tests.deployments.conftest import ROOT, done
from tests.prefect_server import BIN, Server
from tests.support import eventually

pytestmark = [pytest.mark.deployments, pytest.mark.timeout(600)]
USER = (10001, 10001)  # the template's
NIGHTLY = "generate-cache/nightly-cache-docker"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with an_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def docker_worker(deployed: Server, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Docker worker on the pool that was made from `pools/docker.json`; yields its log."""
    folder = tmp_path_factory.mktemp("docker-worker")
    with deployed.worker("caches-docker", folder, {"DOCKER_HOST": engine.main.url}):
        yield folder / "client.log"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """What is mounted at /mnt/caches, in place of the template's /srv/caches."""
    for name in ("caches", "state"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, *USER)
    return tmp_path / "caches"


def start(server: Server, storage: Path, script: str, stall_after_s: float = 60) -> tuple[str, str]:
    """Start a run of the template's deployment with a generator of one's own; returns its id and name."""
    name = f"job-{uuid.uuid4().hex[:8]}"
    machine = {str(ROOT), str(BIN.parent), os.path.realpath(sys.base_prefix), "/usr", "/lib", "/lib64"}
    volumes = [f"{path}:{path}:ro" for path in sorted(machine) if Path(path).exists()]
    path = f"{BIN}:/bin:/usr/bin"
    variables = {
        "image": SHELL_IMAGE,
        "image_pull_policy": "Never",
        "network_mode": "host",  # the server listens on this machine's loopback only
        "volumes": [*volumes, f"{storage}:/mnt/caches:rw", f"{storage.parent}/state:/var/lib/cachewatch:rw"],
        "shm_size": "64m",
        "pids_limit": 500,
        "env": {
            "PATH": path,
            "HOME": "/tmp",
            "LOGNAME": "cachewatch",
            "PREFECT_HOME": "/tmp/prefect",
            "CACHEWATCH_STATE": "/var/lib/cachewatch",
        },
    }
    parameters = {
        "job": {"name": name, "command": ["sh", "-c", script], "cache_dirs": ["/mnt/caches/one"]},
        "stall": {"stall_after_s": stall_after_s, "first_write_within_s": 60, "poll_s": 0.5},
        "retry": {"attempts": 1},
        "stop": {"grace_s": 0.5},
    }
    return server.start_run(NIGHTLY, parameters, job_variables=variables), name


def ended(server: Server, run_id: str, log: Path) -> dict[str, Any]:
    try:
        return server.wait_for_state(run_id, "COMPLETED", "FAILED", "CRASHED", "CANCELLED", timeout_s=150)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-3000:]}") from None


def ended_containers(engine: Engine) -> list[int]:
    """Exit codes of the containers, once they have ended; they are removed as docs/deploy.md says."""
    assert eventually(lambda: engine.podman("ps", "--quiet") == "", 30)
    codes = engine.podman(
        "ps", "--all", "--format", "{{.ExitCode}}", "--filter", "label=io.prefect.flow-run-id"
    ).split()
    engine.podman("container", "prune", "--force", "--filter", "label=io.prefect.flow-run-id")
    assert engine.containers() == []
    return [int(code) for code in codes]


def test_a_run_is_a_container_with_the_templates_bounds_and_its_cache_outlives_it(
    deployed: Server, engine: Engine, docker_worker: Path, storage: Path
) -> None:
    script = (
        "cd /mnt/caches/one; cat /proc/self/status > status; cat /proc/1/cmdline > first; sleep 1; echo x > layer.bin"
    )
    run_id, name = start(deployed, storage, script)
    run = ended(deployed, run_id, docker_worker)
    assert (run["state_name"], run["name"]) == ("Completed", name), run["state"]
    assert (storage / "one/layer.bin").read_text() == "x\n"
    status = dict(line.split(":\t", 1) for line in (storage / "one/status").read_text().splitlines() if ":\t" in line)
    assert (status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapBnd"], 16)) == ("1", 0, 0)
    assert status["Uid"].split() == ["10001"] * 4
    # The reaper of what a killed flow leaves.
    assert b"init" in (storage / "one/first").read_bytes().split(b"\0")[0]
    assert list((storage.parent / "state").rglob("generator-1.log")) != []
    assert ended_containers(engine) == [0]


def test_a_cancelled_run_stops_its_generator_first(
    deployed: Server, engine: Engine, docker_worker: Path, storage: Path
) -> None:
    script = "trap 'echo asked > /mnt/caches/one/asked; exit 3' TERM; echo x > /mnt/caches/one/a; while :; do sleep 0.1; done"
    run_id, _ = start(deployed, storage, script)
    assert eventually((storage / "one/a").exists, 120), docker_worker.read_text()[-3000:]
    deployed.set_state(run_id, "CANCELLING", "Cancelling")
    assert ended(deployed, run_id, docker_worker)["state_type"] == "CANCELLED"
    assert (storage / "one/asked").exists()
    assert len(ended_containers(engine)) == 1


def test_a_container_that_was_killed_is_a_crashed_run_and_nothing_of_it_is_left(
    deployed: Server, engine: Engine, docker_worker: Path, storage: Path
) -> None:
    script = "cd /mnt/caches/one; i=0; while :; do i=$((i+1)); echo x > layer-$i.bin; sleep 0.2; done"
    run_id, _ = start(deployed, storage, script)
    assert eventually((storage / "one/layer-3.bin").exists, 120), docker_worker.read_text()[-3000:]
    engine.podman("kill", "--all")
    assert ended(deployed, run_id, docker_worker)["state_type"] == "CRASHED"
    assert ended_containers(engine) == [137]
    before = len(list((storage / "one").iterdir()))
    time.sleep(1)
    assert len(list((storage / "one").iterdir())) == before


def test_the_pools_default_image_that_is_not_there_is_said_by_the_worker(
    deployed: Server, engine: Engine, docker_worker: Path
) -> None:
    run_id = done(deployed, "prefect", "deployment", "run", NIGHTLY, "--job-variable", "image_pull_policy=Never")
    found = re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", run_id)
    assert found is not None
    run = ended(deployed, found[0], docker_worker)
    assert run["state_type"] == "CRASHED"
    assert "cachewatch-job" in run["state"]["message"]
