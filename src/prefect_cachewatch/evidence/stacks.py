"""Python stacks of other processes through py-spy, if it is installed (extra `stacks`).

Always `--nonblocking`: the blocking form fails on a stopped target. Never `--locals`: local
variables hold secrets. Only function, file and line are taken from its answer, no argv.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from prefect_cachewatch.evidence.model import PythonThread

_MAX_FRAMES = 60
_AT_ONCE = 4


def find_py_spy() -> str | None:
    """Find py-spy beside this Python or on PATH; None where the extra `stacks` is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def runs_python(pid: int) -> bool:
    """Say whether a process's executable is a Python interpreter.

    Example:
        >>> import os
        >>> runs_python(os.getpid())
        True
    """
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith(("python", "pypy"))
    except OSError:
        return False


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
    try:
        threads: list[dict[str, Any]] = json.loads(text)
        return tuple(
            PythonThread(
                thread.get("os_thread_id"),
                str(thread.get("thread_name") or ""),
                tuple(
                    f"{frame['name']} ({frame.get('short_filename') or frame.get('filename')}:{frame['line']})"
                    for frame in thread["frames"][:_MAX_FRAMES]
                ),
            )
            for thread in threads
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


@dataclass
class StackCollector:
    """Runs py-spy on several processes, a few at once, until a deadline.

    Args:
        executable: py-spy, as `find_py_spy` gives it.
        clock: monotonic seconds.
    """

    executable: str
    clock: Callable[[], float] = time.monotonic
    failures: dict[int, str] = field(default_factory=dict)

    def collect(self, pids: Iterable[int], deadline: float) -> dict[int, tuple[PythonThread, ...]]:
        """Dump the stacks of as many of the processes as the time allows, in the order given.

        Args:
            pids: processes that run Python.
            deadline: on `clock`.

        Returns:
            pid -> threads; what failed is in `failures` with its reason.
        """
        waiting = list(pids)
        running: dict[int, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        found: dict[int, tuple[PythonThread, ...]] = {}
        while (waiting or running) and self.clock() < deadline:
            while waiting and len(running) < _AT_ONCE:
                pid = waiting.pop(0)
                # A file, not a pipe: a dump that does not fit a pipe must not wait for us.
                out: IO[bytes] = tempfile.TemporaryFile()
                try:
                    running[pid] = subprocess.Popen(self._command(pid), stdout=out, stderr=out), out
                except OSError as error:
                    out.close()
                    self.failures[pid] = f"py-spy: {error.strerror}"
            for pid in [pid for pid, (child, _) in running.items() if child.poll() is not None]:
                child, answer = running.pop(pid)
                text = _rewound(answer)
                if child.returncode == 0 and (threads := parse_py_spy(text)):
                    found[pid] = threads
                else:
                    self.failures[pid] = _last_line(text) or f"py-spy exit code {child.returncode}"
            time.sleep(0.002)
        for pid, (child, answer) in running.items():
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
            answer.close()
            self.failures[pid] = "py-spy did not answer in time"
        self.failures.update(dict.fromkeys(waiting, "no time left for py-spy"))
        return found

    def _command(self, pid: int) -> Sequence[str]:
        return [self.executable, "dump", "--nonblocking", "--json", "--pid", str(pid)]


def _rewound(out: IO[bytes]) -> str:
    with out:
        out.seek(0)
        return out.read(1 << 22).decode(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"py-spy: {lines[-1][:200]}" if lines else ""
