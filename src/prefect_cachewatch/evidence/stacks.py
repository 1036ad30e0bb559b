"""Python stacks of other processes through py-spy, if it is installed (extra `stacks`).

Always `--nonblocking`: the blocking form fails on a stopped target. Never `--locals`: local variables hold secrets. Only
function, file and line are taken from its answer, no argv.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from prefect_cachewatch.evidence.model import PythonThread

_MAX_FRAMES = 60


def find_py_spy() -> str | None:
    """Find py-spy beside this Python or on PATH; None where the extra `stacks` is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def parse_py_spy(text: str) -> tuple[PythonThread, ...]:
    """Read the JSON of `py-spy dump --json`.

    Args:
        text: its standard output.

    Returns:
        The threads, innermost frame first; none if the text is not what py-spy writes.

    Example:
        >>> parse_py_spy('[{"os_thread_id": 7, "thread_name": "MainThread", "frames": '
        ...              '[{"name": "f", "short_filename": "a.py", "line": 3}]}]')
        (PythonThread(tid=7, name='MainThread', frames=('f (a.py:3)',)),)
    """

    def read(thread: dict[str, Any]) -> PythonThread:
        frames = tuple(
            f"{frame['name']} ({frame.get('short_filename') or frame.get('filename')}:{frame['line']})"
            for frame in thread["frames"][:_MAX_FRAMES]
        )
        return PythonThread(thread.get("os_thread_id"), str(thread.get("thread_name") or ""), frames)

    try:
        return tuple(map(read, json.loads(text)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def read_stacks(
    executable: str, pids: Sequence[int], deadline_s: float
) -> tuple[dict[int, tuple[PythonThread, ...]], dict[int, str]]:
    """Run py-spy on several processes at once, until a deadline.

    Args:
        executable: py-spy, as `find_py_spy` gives it.
        pids: processes that run Python.
        deadline_s: on the monotonic clock.

    Returns:
        The threads of each process, and why there are none of the others.
    """
    found, failed = dict[int, tuple[PythonThread, ...]](), dict[int, str]()
    running: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
    for pid in pids:
        # A file, not a pipe: a dump that does not fit a pipe must not wait for us.
        out: IO[bytes] = tempfile.TemporaryFile()
        command = [executable, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        running[pid] = subprocess.Popen(command, stdout=out, stderr=out), out
    for pid, (child, out) in running.items():
        with out:
            try:
                child.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                failed[pid] = "py-spy did not answer in time"
                continue
            out.seek(0)
            text = out.read(1 << 22).decode(errors="replace")
        found[pid] = parse_py_spy(text) if child.returncode == 0 else ()
        if not found[pid]:
            failed[pid] = f"py-spy, exit code {child.returncode}: {text.strip().rpartition(chr(10))[2][:200]}"
    return found, failed
