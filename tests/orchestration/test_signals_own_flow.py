"""SIGTERM to the process of a user's own flow that calls `generate_cache`: Prefect's rule for a signal nobody announced."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.orchestration.test_signals_generate import flow_run
from tests.prefect_server import Server
from tests.support import PATIENCE_S, assert_none_left, eventually, new_tag, program, running, tagged

FLOW = """
import sys
from prefect import flow
from prefect_cachewatch import generate_cache

@flow(flow_run_name="own-" + sys.argv[1])
def own():
    generate_cache({"name": sys.argv[1], "command": sys.argv[3:], "cache_dirs": [sys.argv[2]]},
                   stop={"grace_s": 0.5}, retry={"attempts": 1})

own()
"""


_TGKILL = 234 if os.uname().machine == "x86_64" else 131


def to_another_thread(pid: int) -> None:
    """Send SIGTERM as the kernel may deliver it when the main thread is busy with another signal: to any thread."""
    others = [int(name) for name in os.listdir(f"/proc/{pid}/task") if int(name) != pid and takes_sigterm(pid, name)]
    call = ctypes.CDLL(None, use_errno=True).syscall
    assert any(call(_TGKILL, pid, one, signal.SIGTERM) == 0 for one in sorted(others, reverse=True))  # one may just end


def takes_sigterm(pid: int, thread: str) -> bool:
    """Whether a thread does not block SIGTERM: to one that does the kernel delivers none."""
    status = Path(f"/proc/{pid}/task/{thread}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return not blocked >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize("to", ["process", "another thread"])
@pytest.mark.timeout(600)
def test_sigterm_to_a_flow_of_ones_own_is_a_crash_to_prefect_and_the_tree_is_gone(
    tmp_path: Path, server: Server, to: str
):
    tag = new_tag()
    command = program("import time; time.sleep(300)", tag)
    words = [sys.executable, "-c", FLOW, f"job-{tag[-8:]}", str(tmp_path / "cache"), *command]
    env = server.env | {"CACHEWATCH_STATE": str(tmp_path / "state")}
    with running(words, env=env, stderr=None, stdout=None) as process:
        assert eventually(lambda: [pid for pid in tagged(tag) if pid != process.pid], 4 * PATIENCE_S)
        if to == "process":
            process.send_signal(signal.SIGTERM)
        else:
            # The main thread waits for its tasks by then.
            job = flow_run(server, f"job-{tag[-8:]}")["id"]
            assert eventually(
                lambda: server.request("POST", "/task_runs/filter", flow_runs={"id": {"any_": [job]}}), 60
            )
            to_another_thread(process.pid)
        assert process.wait(2 * PATIENCE_S) == -signal.SIGTERM
    assert_none_left(tag)
    for name in (f"job-{tag[-8:]}", f"own-job-{tag[-8:]}"):
        run = flow_run(server, name)
        assert run["state_type"] == "CRASHED", run["state"]
