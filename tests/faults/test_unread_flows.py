"""Output that nobody reads, of what runs on Prefect: it delays no decision, no stop, no report and no end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.contract.terminal import fill, full_pipe, stopped_terminal
from tests.faults.conftest import Front
from tests.faults.harness import Sandbox, living, until

pytestmark = pytest.mark.timeout(400)
Where = Callable[[], AbstractContextManager[int]]
WINDOW_S = 3
# For a server's start on a busy machine; far less than for ever.
SOON_S = 240


def ended(box: Sandbox, where: Where, argv: list[str], **env: str) -> int:
    env = box.env(PREFECT_HOME=str(box.root / "home" / "prefect"), TERM="xterm", **env)
    with where() as unread:
        return box.popen(argv, env=env, stdout=unread, stderr=unread).wait(SOON_S)


def stalling(box: Sandbox) -> tuple[str, list[str]]:
    tag, command = box.tree("plain", writes=1, life_s=200)
    argv = box.cachewatch(
        "generate", "--attempts", "1", "--cache-dir", str(box.cache), "--report", str(box.report_path)
    )
    argv += ["--stall-after", f"{WINDOW_S}s", "--poll", "1s", "--grace", "300ms", "--", *command]
    return tag, argv


@pytest.mark.parametrize("where", [full_pipe, stopped_terminal])
def test_generate_ends_as_promised_though_nobody_reads(front: Front, own_sandbox: Sandbox, where: Where) -> None:
    tag, argv = stalling(own_sandbox)
    assert ended(own_sandbox, where, argv, PREFECT_API_URL=front.proxy.url) == 124
    report = own_sandbox.report()
    assert report["outcome"] == "stalled"
    assert report["stop"]["decided_after_last_growth_s"] < WINDOW_S + 60
    assert living(tag) == []


@pytest.mark.campaign
def test_a_temporary_server_that_says_much_to_nobody_answers_all_the_same(own_sandbox: Sandbox) -> None:
    tag, argv = stalling(own_sandbox)
    assert ended(own_sandbox, stopped_terminal, argv, PREFECT_SERVER_LOGGING_LEVEL="DEBUG") == 124
    assert own_sandbox.report()["outcome"] == "stalled"
    assert living(tag) == []


def test_a_fleet_ends_as_promised_though_nobody_reads(front: Front, own_sandbox: Sandbox) -> None:
    jobs = own_sandbox.root / "jobs.yaml"
    listed = [
        {"name": name, "command": ["sh", "-c", f"head -c 9000 /dev/zero > {own_sandbox.cache}/{name}/a; exit {code}"],
         "cache_dirs": [f"{own_sandbox.cache}/{name}"]}
        for name, code in (("good", 0), ("bad", 3))
    ]  # fmt: skip
    jobs.write_text(json.dumps({"version": 1, "jobs": listed, "defaults": {"retry": {"attempts": 1}}}))
    argv = own_sandbox.cachewatch("fleet", str(jobs))
    assert ended(own_sandbox, full_pipe, argv, PREFECT_API_URL=front.proxy.url) == 1
    assert (own_sandbox.cache / "good" / "a").exists()


FLOW = """
import sys
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.flows.generation import generate_cache
report, cache, *command = sys.argv[1:]
generate_cache(
    CacheJob(name="unread", command=command, cache_dirs=[cache]), StallPolicy(stall_after_s=3, poll_s=1),
    StopPolicy(grace_s=0.3), RetryPolicy(attempts=1), outputs=Outputs(report=report), return_state=True,
)
"""


@pytest.mark.parametrize("pipe", ["full", "closed"])
def test_a_flow_run_whose_worker_stands_still_or_is_gone_is_decided_and_ends(
    front: Front, own_sandbox: Sandbox, pipe: str
) -> None:
    tag, command = own_sandbox.tree("plain", writes=1, life_s=200)
    argv = [sys.executable, "-c", FLOW, str(own_sandbox.report_path), str(own_sandbox.cache), *command]
    env = own_sandbox.env(PREFECT_HOME=str(own_sandbox.root / "home" / "prefect"), PREFECT_API_URL=front.proxy.url)
    read, write = os.pipe()
    process = own_sandbox.popen(argv, env=env, stdout=write, stderr=write)
    until(lambda: living(tag), 90, "the generator runs")
    if pipe == "full":
        fill(write)
    else:
        os.close(read)
    assert process.wait(SOON_S) == 0
    for fd in (write, *([read] if pipe == "full" else [])):
        os.close(fd)
    report = own_sandbox.report()
    assert report["outcome"] == "stalled"
    assert report["stop"]["decided_after_last_growth_s"] < WINDOW_S + 60
    assert living(tag) == []
