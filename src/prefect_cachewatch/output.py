"""The generator's output: always drained, the log file capped, the tail kept.

A generator whose pipe nobody reads hangs, and would look like a stall of its own. One thread reads
both pipes into one buffer, with no work per line, so that a gigabyte of output costs next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from prefect_cachewatch.errors import InputError

__all__ = ["OutputPump"]

_CHUNK = 1 << 20
_LINE_MAX = 2000


class OutputPump:
    """Reads the generator's standard output and error until both end.

    Args:
        log_path: file that gets both streams; None for none.
        log_max_bytes: its cap: the beginning is kept, a note, and the end.
        tail_bytes: how much of the end is kept in memory.
        pass_through: whether to copy the streams to this process's own standard output and error.
        before_write: called before each such copy, to take a live line off the screen.

    Raises:
        InputError: the log file cannot be opened.
    """

    def __init__(
        self,
        log_path: Path | None = None,
        *,
        log_max_bytes: int = 64 << 20,
        tail_bytes: int = 64 << 10,
        pass_through: bool = False,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self.log_path = log_path
        self.log_error: str | None = None
        self.total_bytes = 0
        self.listener: Callable[[memoryview], None] | None = None
        """Called with all that is read, in the reading thread: what it does not bound, holds the generator up."""
        self._tail_bytes = tail_bytes
        self._tail = bytearray()
        self._head_left = max(0, log_max_bytes - tail_bytes)
        self._cut_bytes = 0
        self._pass = {1: pass_through, 2: pass_through}
        self._before_write = before_write
        self._lock = threading.Lock()
        self._reads: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._stop_read, self._stop_write = -1, -1
        self._log = -1
        if log_path is not None:
            try:
                self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise InputError(f"log file {log_path} cannot be written: {error.strerror}") from error

    def open_pipes(self) -> tuple[int, int]:
        """Make the pipes; returns the write ends for the generator's standard output and error."""
        ends = []
        for stream in (1, 2):
            read, write = os.pipe2(os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # beyond the user's pipe quota the default size serves as well
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _CHUNK)
            os.set_blocking(read, False)
            self._reads[read] = stream
            ends.append(write)
        return ends[0], ends[1]

    def start(self) -> None:
        """Start draining; call after the write ends were handed over and closed here."""
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="cachewatch-output", daemon=True)
        self._thread.start()

    def detach(self, timeout_s: float = 2.0) -> tuple[int, ...]:
        """Stop reading, so that somebody else can go on where this pump stopped; `finish` closes its own ends.

        Args:
            timeout_s: the longest wait for a copy of the output that its reader does not take.

        Returns:
            The read ends.
        """
        if self._thread is not None:
            os.write(self._stop_write, b"x")
            self._thread.join(timeout_s)
        return tuple(self._reads)

    def finish(self, timeout_s: float = 2.0) -> None:
        """Read what is left and close; a stranger that still holds the pipe is waited for no longer than this.

        Args:
            timeout_s: the longest wait for the end of the streams.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                os.write(self._stop_write, b"x")
                self._thread.join(1.0)
            if self._thread.is_alive():
                return  # blocked in writing to whoever reads our own output; it is a daemon thread
            self._thread = None
            os.close(self._stop_read)
            os.close(self._stop_write)
        for fd in self._reads:
            os.close(fd)
        self._reads = {}
        if self._log >= 0:
            if self._cut_bytes:
                kept = self.tail()
                cut = self._cut_bytes - len(kept)
                if cut > 0:
                    self._write_log(f"\n[... {cut} bytes cut here by the log's cap ...]\n".encode())
                self._write_log(kept[-self._cut_bytes :])
            os.close(self._log)
            self._log = -1

    def tail(self) -> bytes:
        """The last bytes of the output so far, both streams as they came."""
        with self._lock:
            return bytes(self._tail[-self._tail_bytes :])

    def tail_lines(self, count: int, within_bytes: int | None = None) -> list[str]:
        """The last lines of the output, undecodable bytes as surrogate escapes, each at most 2,000 characters.

        Args:
            count: the most lines.
            within_bytes: look at no more than this much of the end; default all that is kept.

        Returns:
            The lines, without empty ones.
        """
        tail = self.tail()
        if within_bytes is not None:
            tail = tail[-within_bytes:]
        text = tail.decode("utf-8", "surrogateescape")
        return [line[:_LINE_MAX] for line in text.replace("\r", "\n").split("\n") if line.strip()][-count:]

    def _drain(self) -> None:
        # Of an anonymous mapping only what was ever filled is in memory; most generators print little.
        buffer = mmap.mmap(-1, _CHUNK)
        view = memoryview(buffer)
        poll = select.poll()
        for fd in self._reads:
            poll.register(fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        open_streams = set(self._reads)
        while open_streams:
            for fd, _ in poll.poll():
                if fd == self._stop_read:
                    return
                try:
                    count = os.readv(fd, [buffer])
                except BlockingIOError:
                    continue
                if count == 0:
                    open_streams.discard(fd)
                    poll.unregister(fd)
                    continue
                self._take(view[:count], self._reads[fd])

    def _take(self, data: memoryview, stream: int) -> None:
        self.total_bytes += len(data)
        if self.listener is not None:
            self.listener(data)
        with self._lock:
            self._tail += data[-self._tail_bytes :]
            if len(self._tail) > 4 * self._tail_bytes:
                del self._tail[: -self._tail_bytes]
        if self._log >= 0:
            head = data[: self._head_left]
            if head:
                self._head_left -= len(head)
                self._write_log(head)
            self._cut_bytes += len(data) - len(head)
        if self._pass[stream] and self._before_write is not None:
            self._before_write()
        if self._pass[stream] and not _write_all(stream, data):
            self._pass[stream] = False  # our reader left; the generator goes on, and is drained on

    def _write_log(self, data: bytes | memoryview) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._log, view) :]
        except OSError as error:
            # A full disk must not stop the draining, nor the watch: the report says that the log is cut.
            self.log_error = self.log_error or f"{self.log_path}: {error.strerror}"


def _write_all(fd: int, data: memoryview) -> bool:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody made our own output non-blocking
            time.sleep(0.005)
        except OSError:
            return False
    return True
