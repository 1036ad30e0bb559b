"""Places of our own and of Prefect's that hang: the flow starts with one sentence or not at all, and ends in time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Front
from tests.faults.harness import Sandbox, living, until
from tests.faults.test_api import generate
from tests.faults.test_watch import HangingMount

pytestmark = pytest.mark.timeout(300)
# Far more than the 10 s after which a place is given up, and far less than for ever.
SOON_S = 90


@pytest.fixture
def mount(own_sandbox: Sandbox) -> Iterator[Path]:
    """A mount that hangs as soon as the words of `own_sandbox.prelude` are executed in it; `home` is a directory there."""
    found = HangingMount(own_sandbox)
    own_sandbox.cache_name = "cache"
    home = own_sandbox.root / "mount" / "home"
    hang = f'mkdir -p {home}/x; cd "${{CD:-/}}"; [ -n "$LATER" ] || kill -USR1 $(cat {found.pid_file}); exec "$@"'
    own_sandbox.prelude = ["sh", "-c", hang, "sh"]
    yield home
    found.end()


PLACES = {
    "state": ("CACHEWATCH_STATE", "state directory {}/x"),
    "Prefect's home": ("PREFECT_HOME", "Prefect's home {}/x"),
    "home": ("HOME", "Prefect's home {}/x/.prefect"),
    "working directory": ("CD", "working directory {}/x"),
}


@pytest.mark.parametrize(("place", "command"), [*((place, "generate") for place in PLACES), ("state", "fleet")])
def test_a_place_of_prefects_or_ours_that_hangs_is_one_sentence(
    place: str, command: str, own_sandbox: Sandbox, mount: Path
) -> None:
    variable, named = PLACES[place]
    jobs = own_sandbox.root / "jobs.yaml"
    jobs.write_text(
        f"jobs:\n  - name: a\n    command: [touch, {own_sandbox.root}/ran]\n    cache_dirs: [{own_sandbox.cache}]\n"
    )
    ran = own_sandbox.root / "ran"
    words = {
        "generate": ["--cache-dir", str(own_sandbox.cache), "--", "touch", str(ran)],
        "fleet": [str(jobs)],
    }[command]
    with open(own_sandbox.root / "out" / "stderr.txt", "wb") as stderr:
        env = own_sandbox.env(PYTHONSAFEPATH="1", **{variable: f"{mount}/x"})  # as in the script
        argv = [*own_sandbox.prelude, *own_sandbox.cachewatch(command, *words)]
        process = own_sandbox.popen(argv, env=env, stderr=stderr)
    assert process.wait(SOON_S) == 125, own_sandbox.stderr()
    assert own_sandbox.stderr().count("\n") == 1, own_sandbox.stderr()
    assert f"{named.format(mount)} cannot be used: its file system does not answer" in own_sandbox.stderr()
    assert not ran.exists()


def test_a_temporary_directory_that_hangs_is_done_without(front: Front, own_sandbox: Sandbox, mount: Path) -> None:
    own_sandbox.more_env = {"TMPDIR": f"{mount}/x"}
    process = generate(
        own_sandbox, front.proxy.url, "tmp", ["sh", "-c", f"head -c 9000 /dev/zero > {own_sandbox.cache}/a; exit 3"]
    )
    assert process.wait(SOON_S) == 3, own_sandbox.stderr()
    assert own_sandbox.report()["exit_code"] == 3


def test_a_state_directory_that_hangs_in_mid_run_ends_nothing_late(
    front: Front, own_sandbox: Sandbox, mount: Path
) -> None:
    own_sandbox.more_env = {"CACHEWATCH_STATE": f"{mount}/x", "LATER": "1"}
    tag, command = own_sandbox.tree("plain", writes=30, interval_s=0.1, life_s=6)
    process = generate(own_sandbox, front.proxy.url, "state-later", command)
    until(lambda: living(tag), 90, "the generator runs")
    os.kill(int((own_sandbox.root / "fuse.pid").read_text()), signal.SIGUSR1)
    assert process.wait(2 * SOON_S) == 0, own_sandbox.stderr()
    assert own_sandbox.report()["outcome"] == "completed"


FLOW = """
import sys
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.flows.generation import generate_cache
state = generate_cache(
    CacheJob(name="hung-state", command=["touch", sys.argv[1]], cache_dirs=[sys.argv[2]]), return_state=True
)
print(state.name, state.message)
"""


def test_a_flow_run_whose_state_directory_hangs_is_refused(front: Front, own_sandbox: Sandbox, mount: Path) -> None:
    env = own_sandbox.env(
        PREFECT_API_URL=front.proxy.url, PREFECT_HOME=str(own_sandbox.root / "home"), CACHEWATCH_STATE=f"{mount}/x"
    )
    said = own_sandbox.root / "out" / "said"
    argv = [*own_sandbox.prelude, sys.executable, "-c", FLOW, str(own_sandbox.root / "ran"), str(own_sandbox.cache)]
    with open(said, "wb") as stdout:
        process = own_sandbox.popen(argv, env=env, stdout=stdout)
    assert process.wait(SOON_S) == 0
    assert said.read_text().startswith(f"Refused run directory {mount}/x/generations/hung-state-")
    assert "its file system does not answer; set CACHEWATCH_STATE" in said.read_text()
    assert not (own_sandbox.root / "ran").exists()
