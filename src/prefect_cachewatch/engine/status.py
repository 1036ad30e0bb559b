"""The status of a fleet's running job on its own host: a small file, for the fleet's live table.

It is written at each measurement. If it is lost, the table lacks one line.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect_cachewatch.common.files import write_file
from prefect_cachewatch.engine.events import AttemptWanted, Cleared, Event, Progress, Suspected


@dataclass(frozen=True)
class JobStatus:
    """A measurement of a running job."""

    at_s: float  # wall time
    bytes_present: int
    rate_bytes_per_s: float | None  # mean, since the first byte
    pause_s: float
    suspicion: str | None = None


class StatusFile:
    """Writes an attempt's progress to a file for the fleet's table.

    Args:
        path: path of the file, which is replaced as a whole each time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latest: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._suspicion: str | None = None
        self._wrote_first_s: float | None = None

    def take(self, event: Event, at: float) -> None:
        """Take in an event."""
        match event:
            case AttemptWanted():
                self._suspicion = self._wrote_first_s = None
            case Suspected(message=message):
                self._suspicion = message
            case Cleared():
                self._suspicion = None
            case Progress():
                self._put(event, at)

    def _put(self, progress: Progress, at: float) -> None:
        if self._wrote_first_s is None and progress.phase != "before_first_byte":
            self._wrote_first_s = progress.at_s if progress.grew_at_s is None else progress.grew_at_s
        writing_s = 0.0 if self._wrote_first_s is None else progress.at_s - self._wrote_first_s
        status = JobStatus(
            at_s=at,
            bytes_present=progress.bytes_present,
            rate_bytes_per_s=progress.bytes_written / writing_s if writing_s > 0 else None,
            pause_s=progress.pause_s,
            suspicion=self._suspicion,
        )
        self._latest.put(json.dumps(asdict(status)).encode("ascii"))
        if self._thread is None:  # the measuring thread does not wait for the file
            self._thread = threading.Thread(target=self._write, name="cachewatch-status", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        while True:
            self._write_latest()

    def _write_latest(self) -> None:
        data = self._latest.get()
        while not self._latest.empty():
            data = self._latest.get()
        with contextlib.suppress(OSError):
            write_file(self._path, data)


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
