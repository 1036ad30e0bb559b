"""The status of a fleet's running job on its own host: a small file, for the fleet's live table.

It is written at each measurement. If it is lost, the table lacks one line.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.files import write_file
from prefect_cachewatch.run.runner import View
from prefect_cachewatch.watching.attempt import Watch

_WRITE_S = 10.0


@dataclass(frozen=True)
class JobStatus:
    """A measurement of a running job."""

    at_s: float  # wall time
    bytes_present: int
    rate_bytes_per_s: float | None  # mean, since the first byte
    pause_s: float
    suspicion: str | None = None


class StatusFile(View):
    """Writes an attempt's progress to a file for the fleet's table; it replaces the view in a terminal.

    Args:
        path: path of the file, which is replaced as a whole each time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latest: queue.SimpleQueue[tuple[Files, bytes]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        state, rule = watch.state, watch.state.rule
        last = rule.suspicions[-1] if rule.suspicions else None
        writing_s = 0.0 if rule.first_write_s is None else time.monotonic() - watch.started_s - rule.first_write_s
        status = JobStatus(
            at_s=time.time(),
            bytes_present=state.growth.bytes_present,
            rate_bytes_per_s=state.growth.bytes_written / writing_s if writing_s > 0 else None,
            pause_s=rule.pause_s,
            suspicion=last.message if last is not None and last.cleared_at_s is None else None,
        )
        self._latest.put((watch.files, json.dumps(asdict(status)).encode("ascii")))
        if self._thread is None:  # the measuring thread does not wait for the file
            self._thread = threading.Thread(target=self._write, name="cachewatch-status", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while True:
            self._write_latest()

    def _write_latest(self) -> None:
        files, data = self._latest.get()
        while not self._latest.empty():
            files, data = self._latest.get()
        with contextlib.suppress(OSError):
            files.run(write_file, self._path, data, timeout_s=_WRITE_S)


def make_room(status: Path, log: Path) -> None:
    """Check that the directory of the fleet's run answers, and remove what an earlier process of a job wrote."""
    status.unlink(missing_ok=True)
    log.touch()


def read_status(path: Path) -> JobStatus | None:
    """Read the last status that a job wrote.

    Args:
        path: path of its file.

    Returns:
        The measurement; None before the first.

    Example:
        >>> read_status(Path("/nowhere")) is None
        True
    """
    try:
        return JobStatus(**json.loads(path.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return None
