"""What a look for the proof costs, and how soon trees that stand still for good are stopped by it."""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from tests.benchmarks.measuring import exec_report, interleaved, median, row, scratch, spread
from tests.standing_trees import DEAD, source_of, standing

from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.postmortem.standstill_look import look_for_standstill

PROCESSES, PROVE_AFTER_S = 200, 20.0
# All wait for a pipe that all of them have: each end of each is looked up.
MANY = """
r, w = os.pipe()
for _ in range({count} - 1):
    if os.fork() == 0: os.read(r, 1)
ready(); os.read(r, 1)"""
# The top of its tree is there for the scene alone.
APART = ("a shell's pipe",)


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure a look at 200 processes, and the time to the verdict of the trees of `standing_trees`.

    Args:
        quick: fewer processes and trees.

    Returns:
        Two rows.
    """
    return [_look(PROCESSES // 10 if quick else PROCESSES, 5), _verdicts(4 if quick else len(DEAD))]


def _look(count: int, runs: int) -> dict[str, Any]:
    with standing({"many": MANY.format(count=count)}) as roots:
        top = psutil.Process(roots["many"])
        while len(top.children()) < count - 1:
            time.sleep(0.1)
        ours, peer = interleaved(runs, lambda: _cpu_s(lambda: _prove(top.pid)), lambda: _cpu_s(lambda: _read(top)))
    return row(f"one look at a dead tree of {count} processes, processor time", 1000 * median(ours), "ms",
               "psutil: state, threads, switches and descriptors of the same tree", 1000 * median(peer),
               target="at most 300 ms: a pair of looks a minute is 1 % of a core", ok=median(ours) <= 0.3, note=spread(ours))  # fmt: skip


def _cpu_s(action: Any) -> float:
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


def _prove(pid: int) -> None:
    seen = look_for_standstill([pid], True, b"")
    assert seen.seen, seen.why


def _read(top: psutil.Process) -> None:
    for process in [top, *top.children(recursive=True)]:
        with process.oneshot():
            (
                process.status(),
                process.threads(),
                process.num_ctx_switches(),
                process.open_files(),
                process.net_connections(),
            )


def _verdicts(count: int) -> dict[str, Any]:
    codes = [code for name, code in DEAD.items() if name not in APART][:count]
    with scratch() as root, ThreadPoolExecutor(6) as pool:
        pauses = list(pool.map(lambda each: _verdict_s(root / str(each[0]), each[1]), enumerate(codes)))
    window_s = StallPolicy().stall_after_s
    return row(f"{len(codes)} kinds of dead trees, from the last byte to the verdict, proof after {PROVE_AFTER_S:.0f} s",
               median(pauses), "s", "the window alone", window_s,
               target="at most 30 s", ok=median(pauses) <= 30, note=spread(pauses))  # fmt: skip


def _verdict_s(directory: Path, code: str) -> float:
    """Return how long it was silent when its verdict came: a first byte, then the dead tree."""
    with tempfile.TemporaryDirectory() as here:
        first = f"open({str(directory / 'cache')!r} + '/a', 'wb').write(bytes(99999))\n"
        command = [sys.executable, "-I", "-S", "-c", first + source_of(code), here]
        stall = exec_report(
            directory, command, "--prove-after", f"{PROVE_AFTER_S:.0f}s", "--no-bundle", "--grace", "0s"
        )["stall"]
    assert stall["kind"] == "deadlocked", stall
    return float(stall["pause_s"])
