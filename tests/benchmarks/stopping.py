"""From the decision to stop to the last process gone, for trees of three kinds, against what people use today."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.measuring import exec_report, interleaved, median, row, scratch, spread

GRACE_S = 1.0
SESSIONS = 200

PLAIN = "import subprocess, time; [subprocess.Popen(['sleep', '600']) for _ in range(3)]; time.sleep(600)"
MANY = f"""
import os, time
for _ in range({SESSIONS}):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure `stop.gone_after_s` of reports, and the same trees stopped by a peer.

    Args:
        quick: fewer runs.

    Returns:
        Rows for a plain tree, for 200 processes in sessions of their own, and for one that ignores SIGTERM.
    """
    runs = 3 if quick else 5
    with scratch() as root:
        plain, plain_psutil = interleaved(
            runs, lambda: _gone_after_s(root / "plain", PLAIN), lambda: _psutil_stop_s(PLAIN, 4)
        )
        many, many_psutil = interleaved(
            runs, lambda: _gone_after_s(root / "many", MANY), lambda: _psutil_stop_s(MANY, SESSIONS + 1)
        )
        deaf, deaf_timeout = interleaved(runs, lambda: _gone_after_s(root / "deaf", DEAF), _timeout_stop_s)
    return [
        row("stop a plain tree of 4", median(plain), "s", "psutil: terminate children", median(plain_psutil),
            target="at most 0.05 s", ok=median(plain) <= 0.05, note=spread(plain)),
        row(f"stop {SESSIONS} sessions", median(many), "s", "psutil: terminate children", median(many_psutil),
            target="at most 0.5 s", ok=median(many) <= 0.5, note=spread(many)),
        row("stop a TERM-ignorer, grace 1 s", median(deaf), "s", "timeout -k 1", median(deaf_timeout),
            target="grace + 0.1 s", ok=median(deaf) <= GRACE_S + 0.1, note=spread(deaf)),
    ]  # fmt: skip


def _gone_after_s(directory: Path, code: str) -> float:
    # The time limit is what stops it: a tree that stands still, at a moment that is known beforehand.
    options = ("--quiet", "--max-duration", "3s", "--grace", f"{GRACE_S}s")
    report = exec_report(directory, [sys.executable, "-S", "-c", code], *options, expect=124)
    assert not report["stop"]["survivors"]
    return float(report["stop"]["gone_after_s"])


def _psutil_stop_s(code: str, processes: int) -> float:
    """The recipe of psutil's documentation: terminate all that are children now, kill what is left after the grace."""
    leader = psutil.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    while len(leader.children(recursive=True)) < processes - 1:
        time.sleep(0.05)
    time.sleep(0.3)
    began_s = time.perf_counter()
    tree = [leader, *leader.children(recursive=True)]
    for process in tree:
        process.terminate()
    # Not psutil.wait_procs: it waits for somebody else's init to reap the orphans, which is not the recipe's fault.
    while any(map(_alive, tree)) and time.perf_counter() < began_s + GRACE_S:
        time.sleep(0.002)
    for process in filter(_alive, tree):
        process.kill()
    while any(map(_alive, tree)):
        time.sleep(0.002)
    seconds = time.perf_counter() - began_s
    leader.wait()
    return seconds


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _timeout_stop_s() -> float:
    began_s = time.perf_counter()
    subprocess.run(["timeout", "-k", str(GRACE_S), "1", sys.executable, "-S", "-c", DEAF], check=False)
    return time.perf_counter() - began_s - 1.0
