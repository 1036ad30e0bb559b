"""Standard output and error of a command that watches: written by threads of their own, so that nobody who decides waits.

A pipe that nobody reads, a terminal stopped with Ctrl-S: a write to it never returns. Here it holds up its own thread
alone; what does not fit meanwhile is dropped, and at the end whoever does not read is given up. Standard library only.
The generator's own output is not written here: that a reader who stops reading holds it up is what a pipe is for.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TextIO

__all__ = ["ConsoleWriter", "close_console", "install_console", "lent_streams", "standard_error", "unblocked"]

_HELD_MAX = 256 << 10
_PIECE = 32 << 10
_PATIENCE_S = 0.5
_CLOSE_S = 2.0


class ConsoleWriter:
    """Writes to one descriptor in the order in which it was told to.

    Args:
        fd: the descriptor, which may block for ever.

    Example:
        >>> reading, writing = os.pipe()
        >>> writer = ConsoleWriter(writing)
        >>> writer.put(b"said"), writer.flush(10.0), os.read(reading, 4)
        (True, True, b'said')
        >>> os.close(reading), os.close(writing)
        (None, None)
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._gone = self._stuck = False
        self._thread: threading.Thread | None = None
        self._begin_anew()
        # A fork has the lock as it was, and nobody who would give it back.
        os.register_at_fork(after_in_child=self._begin_anew)

    def put(self, data: bytes, wait_s: float = 0.0) -> bool:
        """Have something written.

        Args:
            data: what.
            wait_s: how long to wait for room, before it is dropped; no time at all where the last wait was in vain.

        Returns:
            Whether it will be written.
        """
        with self._changed:
            if self._size and self._size + len(data) > _HELD_MAX and not self._wait(wait_s, len(data)):
                return False
            if self._gone:
                return False
            self._waiting.append(data)
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name=f"cachewatch-stream-{self.fd}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def flush(self, wait_s: float = _PATIENCE_S) -> bool:
        """Wait until all has been written; not again where the last wait was in vain and nothing has been read since.

        Args:
            wait_s: the longest wait.

        Returns:
            Whether it has.
        """
        with self._changed:
            return self._wait(wait_s, _HELD_MAX)

    def _wait(self, wait_s: float, room: int) -> bool:
        def enough() -> bool:
            return self._gone or not self._size or self._size + room <= _HELD_MAX

        if not enough() and not self._stuck:
            end_s = time.monotonic() + wait_s
            while not enough() and (left_s := end_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self._stuck = not enough()
        return enough()

    def _begin_anew(self) -> None:
        self._changed = threading.Condition(threading.RLock())  # a signal handler may say something too
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._gone = self._stuck = False
        self._thread = None

    def _write(self) -> None:
        # In the background of a terminal with `tostop` a write stops the whole process, unless its thread blocks that.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                data = self._waiting[0]
            left = memoryview(data)
            try:
                while left:
                    left = left[self._write_some(left[:_PIECE]) :]
                    self._stuck = False
            except OSError:
                with self._changed:  # nobody reads any more; that ends nothing and is no exit status
                    self._gone, self._size = True, 0
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._waiting.popleft()
                self._size -= len(data)
                self._changed.notify_all()

    def _write_some(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self.fd, data)
            except BlockingIOError:  # somebody made it non-blocking
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll(1000)


class _Stream(io.RawIOBase):
    def __init__(self, writer: ConsoleWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        with memoryview(data) as view:  # type: ignore[arg-type]
            self._writer.put(bytes(view), _PATIENCE_S)
            return view.nbytes

    def flush(self) -> None:
        self._writer.flush()

    def fileno(self) -> int:
        return self._writer.fd

    def isatty(self) -> bool:
        return os.isatty(self._writer.fd)


_output, _error = ConsoleWriter(1), ConsoleWriter(2)


def standard_error() -> ConsoleWriter:
    """Say who writes to standard error."""
    return _error


def install_console() -> None:
    """Have all that Python writes to standard output and error written by threads of their own."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        with contextlib.suppress(OSError, ValueError):
            old.flush()
        setattr(sys, name, unblocked(old))


def unblocked(stream: TextIO) -> TextIO:
    """Say what to write to instead of a stream, so that nobody waits for its reader.

    Args:
        stream: any.

    Returns:
        For standard output and error a stream that a thread of its own writes on; for any other the same.
    """
    try:
        writer = {1: _output, 2: _error}[stream.fileno()]
    except (KeyError, OSError, ValueError, AttributeError):
        return stream
    if isinstance(getattr(stream, "buffer", None), _Stream):
        return stream
    encoding, errors = (
        getattr(stream, "encoding", None) or "utf-8",
        getattr(stream, "errors", None) or "backslashreplace",
    )
    raw: io.RawIOBase = _Stream(writer)
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=True, write_through=True)  # type: ignore[type-var]


@contextlib.contextmanager
def lent_streams() -> Iterator[None]:
    """Give children that are started meanwhile pipes as standard output and error, which are read on into ours."""
    kept = []
    for writer in (_output, _error):
        read, write = os.pipe2(os.O_CLOEXEC)
        kept.append((writer.fd, os.dup(writer.fd)))
        os.dup2(write, writer.fd)
        os.close(write)
        threading.Thread(target=_pass_on, args=(read, writer), name="cachewatch-lent-stream", daemon=True).start()
    try:
        yield
    finally:
        for fd, old in kept:
            os.dup2(old, fd)
            os.close(old)


def _pass_on(read: int, writer: ConsoleWriter) -> None:
    while data := os.read(read, _PIECE):
        writer.put(data)
    os.close(read)


def close_console() -> None:
    """Give those who read what was written a last while to take it; to be called when all has been said."""
    end_s = time.monotonic() + _CLOSE_S
    for writer in (_output, _error):
        writer.flush(max(0.0, end_s - time.monotonic()))
