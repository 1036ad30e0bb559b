"""Records the events of a running run as a file, which `cachewatch replay` reads.

A thread of its own writes the lines: a slow or full disk delays no verdict, and a recording that fails does not end
the generation.
"""

from __future__ import annotations

import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.common.files import PUBLIC, create_file
from prefect_cachewatch.common.text import file_stem, for_terminal
from prefect_cachewatch.engine.events import Event, Started, to_line
from prefect_cachewatch.errors import InputError

_OPEN_S = 10.0
_CLOSE_S = 11.0  # the last line and the end of the file may each take that long
_WAITING_MAX = 10_000


def recording_path(path: Path, name: str) -> Path:
    """Return the file that a run is recorded to, after checking that it can be.

    Args:
        path: a file that does not exist, or a directory; in a directory the file is named by job and time.
        name: of the job.

    Returns:
        The file, absolute.

    Raises:
        InputError: it exists, or cannot be written.
    """
    if path.is_dir():
        path = path / f"{file_stem(name)}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    shown, parent = for_terminal(str(path)), path.absolute().parent
    if os.path.lexists(path):
        raise InputError(
            f"recording {shown} exists already: name another file, or a directory, where each run gets its own"
        )
    if not parent.is_dir():
        raise InputError(
            f"recording {shown} cannot be written: directory {for_terminal(str(parent))} does not exist; create it first"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"recording {shown} cannot be written: no write permission in {for_terminal(str(parent))}")
    return Path(os.path.realpath(path.parent), path.name)


class Recorder:
    """Writes one line an event; `take` never blocks. A run that starts nothing leaves no file.

    Args:
        path: of the file, which must not exist.
        files: the helper process that writes it.

    Raises:
        InputError: it cannot be made.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._shown = for_terminal(str(path))
        try:
            self._writer = files.open(_Lines, path, timeout_s=_OPEN_S)
        except OSError as error:
            raise InputError(f"recording {self._shown} cannot be written: {error.strerror}") from error
        self._lines: queue.Queue[bytes | None] = queue.Queue(_WAITING_MAX)
        self._early: list[bytes] | None = []
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._write, name="cachewatch-recorder", daemon=True)
        self._thread.start()

    def take(self, event: Event, at: float) -> None:
        """Take in an event that was told at a wall time."""
        line = to_line(event, at).encode() + b"\n"
        if self._early is not None:
            self._early.append(line)
            if isinstance(event, Started):
                early, self._early = self._early, None
                self._put(b"".join(early))
        else:
            self._put(line)

    def finish(self) -> str | None:
        """Close the file.

        Returns:
            What went wrong with the recording, in one sentence; None without a fault.
        """
        self._put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            return f"the recording {self._shown} is incomplete: its file system does not answer"
        return self._problem

    def _put(self, lines: bytes | None) -> None:
        try:
            self._lines.put_nowait(lines)
        except queue.Full:  # the thread hangs in a write; the file is whole up to there
            return

    def _write(self) -> None:
        while (lines := self._lines.get()) is not None:
            if self._problem is None:
                try:
                    self._writer.write(lines)
                except OSError as error:
                    self._problem = f"the recording {self._shown} is incomplete: {error.strerror}"
        try:
            self._writer.close()
        except OSError as error:
            self._problem = self._problem or f"the recording {self._shown} is incomplete: {error.strerror}"


class _Lines:
    """The file itself, in the process that writes it: takes bytes in pieces of any size, and writes whole lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._rest, self._whole_bytes = path, b"", 0
        self._fd = create_file(path, mode=PUBLIC, append=True)

    def write(self, data: bytes) -> None:
        """Take bytes; raises OSError, after which the file still ends with a whole line."""
        lines, end, self._rest = (self._rest + data).rpartition(b"\n")
        left = memoryview(lines + end)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._whole_bytes + (lines + end)[: len(lines + end) - len(left)].rfind(b"\n") + 1)
            raise
        self._whole_bytes += len(lines + end)

    def close(self) -> None:
        """Close the file; one without a line is removed."""
        os.close(self._fd)
        if not self._whole_bytes:
            self._path.unlink(missing_ok=True)
