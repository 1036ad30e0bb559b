"""Every block of README and first run runs as it stands in a checkout: Python, and commands with what they print.

Only three things are put in: a temporary directory for /tmp, the address of the tests' Prefect server, and an end for
what would run for ever. `pip install` builds and installs the checkout, without the dependencies that are here already.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.prefect_server import BIN, Server

ROOT = Path(__file__).resolve().parents[2]
README, FIRST_RUN, DEPLOY = (
    re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    for page in ("README.md", "docs/index.md", "docs/deploy.md")
)
PYTHON = [text for language, text in [*README, *FIRST_RUN] if language == "python"]
PYTHON += [text for language, text in DEPLOY if "monitor_cache" in text]
CONSOLE = [text for language, text in [*README, *FIRST_RUN] if language == "console" and "pip install" not in text]
CONSOLE += [text for language, text in README if "pip install" in text]
PATIENCE_S = 300  # servers, workers and a build of the wheel, beside other tests
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
NUMBER_OR_PLACE = re.compile(r"pid \d+|bundles/\S+|[\d.]+ [KM]iB|\d+ B/s")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a checkout has; its builds and environments leave nothing in this one."""
    place = tmp_path / "checkout"
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "flows", "tasks", "deployments", "examples"):
        shutil.copytree(ROOT / name, place / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    return place


@pytest.fixture
def without_pool(server: Server) -> Iterator[None]:
    """The tests of workers make a pool of the same name on the same server."""

    def remove() -> None:
        with contextlib.suppress(httpx.HTTPStatusError):
            server.request("DELETE", "/work_pools/caches")

    remove()
    yield
    remove()


def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    setuptools = tmp_path / "setuptools"
    setuptools.mkdir()
    for pattern in ("setuptools*", "_distutils_hack"):
        for path in Path(sysconfig.get_path("purelib")).glob(pattern):
            (setuptools / path.name).symlink_to(path)
    return server.env | {
        "PATH": f"{BIN}:{server.env['PATH']}",
        "PYTHONPATH": str(setuptools),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as build_isolation = 0
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TERM": "dumb",
    }


def fitted(text: str, server: Server, tmp_path: Path) -> str:
    address = server.url.removeprefix("http://").removesuffix("/api")
    return text.replace("/tmp/", f"{tmp_path}/").replace("127.0.0.1:4200", address)


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_the_python_of_a_page_runs(number: int, checkout: Path, tmp_path: Path, server: Server) -> None:
    script = checkout / "example.py"
    script.write_text(fitted(PYTHON[number], server, tmp_path))
    env = environment(server, tmp_path)
    if "serve(" in PYTHON[number]:
        serve(script, server, env)
        return
    done = subprocess.run(
        [sys.executable, script], cwd=checkout, env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "Completed" in done.stderr or done.stdout.startswith("completed ")
    assert "Traceback" not in done.stderr, done.stderr
    assert len(list((tmp_path / "caches").rglob("layers.*"))) >= 3


def serve(script: Path, server: Server, env: dict[str, str]) -> None:
    """Serve until the deployment is there with its schedule, and a run of it has completed."""
    log = script.with_suffix(".log")
    with log.open("wb") as file:
        serving = subprocess.Popen([sys.executable, script], cwd=script.parent, env=env, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "--watch" not in log.read_text() and "deployment run" not in log.read_text():
            assert serving.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        deployment = server.request("GET", "/deployments/name/generate-cache/nightly")
        assert [schedule["schedule"]["cron"] for schedule in deployment["schedules"]] == ["30 2 * * *"]
        run = server.request("POST", f"/deployments/{deployment['id']}/create_flow_run", name="by-hand")
        ended = server.wait_for_state(run["id"], "COMPLETED", "FAILED", "CRASHED", "CANCELLED", timeout_s=PATIENCE_S)
        assert ended["state"]["name"] == "Completed", log.read_text()
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(60)


@pytest.mark.parametrize("number", range(len(CONSOLE)))
@pytest.mark.usefixtures("without_pool")
def test_the_commands_of_a_page_run(number: int, checkout: Path, tmp_path: Path, server: Server) -> None:
    script = []
    for line in CONSOLE[number].splitlines():
        command = line.removeprefix("$ ")
        if not line.startswith("$ ") or command.startswith("prefect server start "):  # the tests' server runs
            continue
        if command.startswith("prefect worker start "):
            command += " --run-once"
        script += [command, '{ status=$?; printf "\\n<%s>\\n" $status; (exit $status); }']
    done = subprocess.run(
        ["bash", "-c", fitted("\n".join(script), server, tmp_path)],
        cwd=checkout, env=environment(server, tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    statuses = [int(status) for status in re.findall(r"^<(\d+)>$", done.stdout, re.M)]
    asked = re.findall(r"^\$ echo \$\?\n(\d+)$", CONSOLE[number], re.M)
    expected = [int(status) for status in asked] or [0]
    assert set(statuses) == {0, *expected}, done.stdout
    printed = {NUMBER_OR_PLACE.sub("#", line) for line in done.stdout.splitlines()}
    shown = [line for line in CONSOLE[number].splitlines() if not line.startswith("$ ")]
    missing = [line for line in shown if NUMBER_OR_PLACE.sub("#", fitted(line, server, tmp_path)) not in printed]
    assert missing in ([], [line for line in shown if line.startswith("cachewatch: post-mortem")]), done.stdout


def test_the_readme_has_the_blocks_it_should() -> None:
    assert len(PYTHON) == 4
    assert len(CONSOLE) == 6
    assert {language for language, _ in [*README, *FIRST_RUN]} == {"python", "console"}
