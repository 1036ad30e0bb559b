"""Standard output and error of a command that supervises a run, written by separate threads so that it never blocks.

A write to a pipe without a reader, or to a terminal stopped with Ctrl-S, never returns. Here such a write blocks only
its own thread. Output that does not fit meanwhile is dropped, and at the end a reader that does not read is given up.
The generator's own output is not written here: blocking the writer of a full pipe is normal there. Standard library
only.
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

_HELD_MAX = 256 << 10
_PIECE = 32 << 10
_PATIENCE_S = 0.5
_CLOSE_S = 2.0


class ConsoleWriter:
    """Writes to one descriptor in the order of the calls.

    Args:
        fd: the descriptor, which may block indefinitely.

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
        # A fork copies the lock in its current state, and the thread that would release it does not exist there.
        os.register_at_fork(after_in_child=self._begin_anew)

    def put(self, data: bytes, wait_s: float = 0.0) -> bool:
        """Queue bytes for writing.

        Args:
            data: the bytes.
            wait_s: how long to wait for room before they are dropped; not at all if the last wait was in vain.

        Returns:
            Whether they will be written.
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
        """Wait until everything has been written; do not wait if the last wait was in vain and nothing was read since.

        Args:
            wait_s: the longest wait, in seconds.

        Returns:
            Whether everything has been written.
        """
        with self._changed:
            return self._wait(wait_s, _HELD_MAX)

    def close(self, wait_s: float) -> bool:
        """Wait until everything has been written, even if the last wait was in vain.

        Args:
            wait_s: the longest wait, in seconds.

        Returns:
            Whether everything has been written.
        """
        self._stuck = False
        return self.flush(wait_s)

    @property
    def busy(self) -> bool:
        """Whether something is still to be written."""
        return self._size > 0

    def drain(self) -> None:
        """Wait until everything has been written, however long the reader takes, or until it has gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or not self._size)

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
        self._changed = threading.Condition(threading.RLock())  # a signal handler may write a message too
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._gone = self._stuck = False
        self._thread = None

    def _write(self) -> None:
        # In the background of a terminal with `tostop`, a write stops the whole process unless its thread blocks
        # SIGTTOU.
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
                with self._changed:  # the reader has gone; that ends nothing and is no exit status
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
            except BlockingIOError:  # another process made it non-blocking
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll(1000)


class _Stream(io.RawIOBase):
    def __init__(self, writer: ConsoleWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    # While the interpreter ends, the writing thread is gone, perhaps with its lock: the console was closed before.

    def write(self, data: object) -> int:
        with memoryview(data) as view:  # type: ignore[arg-type]
            if not sys.is_finalizing():
                self._writer.put(bytes(view), _PATIENCE_S)
            return view.nbytes

    def flush(self) -> None:
        if not sys.is_finalizing():
            self._writer.flush()

    def fileno(self) -> int:
        return self._writer.fd

    def isatty(self) -> bool:
        return os.isatty(self._writer.fd)


_output, _error = ConsoleWriter(1), ConsoleWriter(2)


def standard_error() -> ConsoleWriter:
    """Return the writer for standard error."""
    return _error


def install_console() -> None:
    """Make Python's standard output and error go through separate threads."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        with contextlib.suppress(OSError, ValueError):
            old.flush()
        setattr(sys, name, unblocked(old))


def unblocked(stream: TextIO) -> TextIO:
    """Return a stream to write to in place of a given one, so that the caller never waits for its reader.

    Returns:
        For standard output and error, a stream that a separate thread writes; for any other stream, that stream itself.
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
    """Give children that are started in the block pipes as standard output and error, and copy these to ours."""
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
    """Give readers a last chance to take the output; call it when all output has been written."""
    end_s = time.monotonic() + _CLOSE_S
    for writer in (_output, _error):
        writer.close(max(0.0, end_s - time.monotonic()))
