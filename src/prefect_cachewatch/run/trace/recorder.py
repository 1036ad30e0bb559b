"""Records the measurements of a running watch as a trace file, which `cachewatch replay` reads.

A thread of its own writes the rows: a slow or full disk delays no verdict, and a recording that fails does not end
the generation. `rows` explains the columns.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.text import file_stem, for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.files import TraceWriter, check_trace_path, format_row
from prefect_cachewatch.run.trace.rows import Event, TraceRow
from prefect_cachewatch.watching.attempt import Watch

_OPEN_S = 10.0
_CLOSE_S = 11.0  # the last row and the end of the file may each take that long
_WAITING_MAX = 10_000


def trace_path(path: Path, name: str) -> Path:
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
        path = path / f"{file_stem(name)}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.csv"
    check_trace_path(path)
    return Path(os.path.realpath(path.parent), path.name)


def attempt_path(path: Path, attempt: int) -> Path:
    """Name the trace of an attempt: the first has the name that was asked for, the others add a number.

    Example:
        >>> attempt_path(Path("/tmp/llama.csv"), 2).name
        'llama-2.csv'
    """
    return path if attempt == 1 else path.with_name(f"{path.stem}-{attempt}{path.suffix}")


class TraceRecorder:
    """Writes one row per measurement; `sampled` never blocks.

    Args:
        path: of the file, which must not exist.
        files: the helper process that writes it; default this process.

    Raises:
        InputError: it cannot be made.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        try:
            self._writer = (files or InPlace()).open(TraceWriter, path, timeout_s=_OPEN_S)
        except OSError as error:
            raise InputError(f"trace {for_terminal(str(path))} cannot be written: {error.strerror}") from error
        self._rows: queue.Queue[TraceRow | None] = queue.Queue(_WAITING_MAX)
        self._last: TraceRow | None = None
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._write, name="cachewatch-recorder", daemon=True)
        self._thread.start()

    def sampled(self, watch: Watch) -> None:
        """Take in that the monitor has measured."""
        state, reading = watch.state, watch.state.rule.reading
        if reading is None:
            return
        if self._last is None:
            start = state.samples[0]
            self._put(TraceRow(0.0, start.bytes_present, start.files_present, None, 0, 0, 0, 0))
        growth, started_s = state.growth, watch.started_s
        ended_s, seen = reading.ended_s, reading.seen
        event: Event = "" if seen is not None else "missing" if reading.missing else "unreadable"

        def moment(age_s: float | None) -> float | None:
            return None if age_s is None else max(0.0, ended_s - age_s - started_s)

        self._put(
            TraceRow(
                t_s=ended_s - started_s,
                total_bytes=growth.bytes_present,
                file_count=growth.files_present,
                alloc_bytes=growth.allocated_present,
                written_bytes=growth.bytes_written,
                kept_bytes=growth.bytes_kept,
                written_alloc_bytes=growth.allocated_written,
                kept_alloc_bytes=growth.allocated_kept,
                grew_at_s=moment(seen.newest_age_s if seen else None),
                touched_at_s=moment(seen.touched_age_s if seen else None),
                scan_s=max(0.0, ended_s - state.began_s),
                late_s=max(0.0, reading.late_s),
                told_at_s=moment(seen.told_age_s if seen else None),
                event=event,
            )
        )

    def finish(self, watch: Watch) -> str | None:
        """Record how the run ended, and close the file; a file without a measurement is removed.

        Args:
            watch: the watch, ended.

        Returns:
            What went wrong with the recording, in one sentence; None without a fault.
        """
        last, report = self._last, watch.supervisor.report if watch.supervisor is not None else None
        if last is not None and report is not None:
            ready = watch.serving is not None and watch.serving.ends_well(report)
            event: Event = "ready" if ready else "exited" if report.why == "exited" else "stopped"
            self._put(
                replace(last, grew_at_s=None, touched_at_s=None, told_at_s=None, scan_s=0.0, late_s=0.0, event=event)
            )
        self._put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            return f"the trace {for_terminal(str(self.path))} is incomplete: its file system does not answer"
        return self._problem

    def _put(self, row: TraceRow | None) -> None:
        if row is not None:
            self._last = row
        try:
            self._rows.put_nowait(row)
        except queue.Full:  # the thread hangs in a write; the file is a whole trace up to there
            return

    def _write(self) -> None:
        while (row := self._rows.get()) is not None:
            if self._problem is None:
                try:
                    self._writer.write(format_row(row))
                except OSError as error:
                    self._problem = f"the trace {for_terminal(str(self.path))} is incomplete: {error.strerror}"
        try:
            self._writer.close()
        except OSError as error:
            self._problem = self._problem or f"the trace {for_terminal(str(self.path))} is incomplete: {error.strerror}"
