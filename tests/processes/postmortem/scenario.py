"""Runs a real generator that hangs in a real way and hands back what the post-mortem says.

As a script (argv: a JSON object of `run_scenario`'s arguments) it does the same in a mount
namespace of its own: `unshare -m` and a set-up shell command come first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.postmortem.diagnosis import diagnose
from prefect_cachewatch.postmortem.evidence import collect_evidence
from prefect_cachewatch.postmortem.model import GrowthFacts
from prefect_cachewatch.postmortem.proctree import find_descendants, sample_processes


def run_scenario(
    command: Sequence[str],
    cache: str,
    *,
    window_s: float = 0.4,
    setup: str = "",
    growth: dict[str, Any] | None = None,
    stdin: str = "null",
    then: str = "",
    budget_s: float = 2.0,
    wait_exit: bool = False,
    env: dict[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> dict[str, Any]:
    """Start the command, wait for its line `ready`, let it hang for a window, collect and diagnose."""
    if setup:
        subprocess.run(["sh", "-ec", setup], check=True)
    source: int = subprocess.DEVNULL
    keep: list[int] = []
    if stdin == "pipe":
        source, end = os.pipe()
        keep = [source, end]
    elif stdin == "pty":
        import pty

        master, source = pty.openpty()
        keep = [source, master]
    child = subprocess.Popen(
        command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert child.stdout is not None
    log = b""
    try:
        deadline = time.monotonic() + 20
        while b"ready" not in log:
            assert time.monotonic() < deadline, f"never ready: {log!r}"
            if select.select([child.stdout], [], [], 0.2)[0]:
                chunk = os.read(child.stdout.fileno(), 65536)
                assert chunk, f"ended before it was ready: {log!r}"
                log += chunk
        time.sleep(0.15)
        before = sample_processes(child.pid)
        if then:
            subprocess.run(["sh", "-ec", then.replace("PID", str(child.pid))], check=True)
        if wait_exit:
            child.wait(30)
        time.sleep(window_s)
        while select.select([child.stdout], [], [], 0)[0] and (chunk := os.read(child.stdout.fileno(), 65536)):
            log += chunk
        status = child.poll()
        assert wait_exit or status is None, f"it was to hang, and ended with {status}: {log!r}"
        evidence = collect_evidence(
            [child.pid],
            [Path(cache)],
            budget_s=budget_s,
            before=before,
            growth=GrowthFacts(**{"window_s": window_s, "bytes_written": 1, "first_write_s": 1.0, **(growth or {})}),
            log_tail=log,
            exit_code=status if status is not None and status >= 0 else None,
            exit_signal=-status if status is not None and status < 0 else None,
            freeze=lambda: _signal_all(child.pid, signal.SIGSTOP),
            secrets=secrets,
        )
    finally:
        _signal_all(child.pid, signal.SIGKILL)
        if not wait_exit:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
        child.stdout.close()
        for fd in keep:
            os.close(fd)
    found = dataclasses.asdict(diagnose(evidence))
    return {
        **found,
        "took_s": evidence.took_s,
        "missing": [dataclasses.asdict(m) for m in evidence.missing],
        "everything": json.dumps(dataclasses.asdict(evidence)),
    }


def run_in_mount_namespace(**arguments: Any) -> dict[str, Any]:
    """Do the same in a mount namespace of its own, so that a mount ends with the test."""
    here = [sys.executable, __file__, json.dumps(arguments)]
    ended = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", shlex.join(here)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def _signal_all(root: int, number: int) -> None:
    for pid in find_descendants([root]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    os.environ["SCENARIO_PID"] = str(os.getpid())
    print(json.dumps(run_scenario(**json.loads(sys.argv[1]))))
    # A FUSE daemon that never answers is ended with this process; nothing is waited for.
    sys.stdout.flush()
    os._exit(0)
