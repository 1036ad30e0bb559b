"""A real Prefect server with the project's templates on it: pools, deployments, a process worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.prefect_server import BIN, Server

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = ROOT / "deployments"
HEARTBEAT_S = 30  # the least that Prefect takes


def run(server: Server, *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment against the server."""
    return subprocess.run(
        [BIN / argv[0], *argv[1:]], env=server.env, cwd=cwd, capture_output=True, text=True, timeout=170
    )


def done(server: Server, *argv: str, cwd: Path | None = None) -> str:
    """Run a command that must succeed; returns its output."""
    result = run(server, *argv, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def templates(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The templates as `cachewatch templates` hands them out."""
    folder = tmp_path_factory.mktemp("templates") / "mine"
    done(server, "cachewatch", "templates", str(folder))
    return folder


@pytest.fixture(scope="session")
def deployed(server: Server, templates: Path) -> Server:
    """The pools from their templates, and every entry of prefect.yaml deployed to them."""
    for pool, kind, template in (
        ("caches", "process", "process"),
        ("caches-docker", "docker", "docker"),
        ("caches-kubernetes", "kubernetes", "kubernetes"),
    ):
        template_file = templates / "pools" / f"{template}.json"
        done(server, "prefect", "work-pool", "create", pool, "--type", kind, "--base-job-template", str(template_file))
    server.env["HOME"] = str(templates.parent)  # where the example writes
    # From a directory that is gone when the runs begin, as it is for a worker on another machine or in a container.
    away = templates.parent / "away"
    shutil.copytree(templates, away)
    done(server, "prefect", "deploy", "--all", "--prefect-file", "prefect.yaml", cwd=away)
    shutil.rmtree(away)
    return server


@pytest.fixture(scope="session")
def start_worker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:  # fmt: skip
    """Starts process workers; they end with the session."""
    folder = tmp_path_factory.mktemp("workers")
    more = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
    with contextlib.ExitStack() as stack:
        yield lambda pool: stack.enter_context(server.worker(pool, folder, more))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def worker(deployed: Server, start_worker: Callable[[str], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    return start_worker("caches")


def flow_process(run_id: str) -> int:
    """Pid of the process that runs a flow run; the generator's own processes left out."""
    wanted = f"PREFECT__FLOW_RUN_ID={run_id}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            argv = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ and any(b"prefect" in word for word in argv) and b"cachewatch" not in b" ".join(argv):
            found.append(int(name))
    assert found, f"no process of {run_id}"
    return min(found)
