"""Drains a container's output from the engine's attach stream into the pipes that every generator writes to."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import Any

from prefect_cachewatch.common.files import write_all

__all__ = ["LogStream"]

_CHUNK = 1 << 18
_HEADER_BYTES = 8


class LogStream:
    """One thread that copies standard output and error until the stream ends, or `finish`; begins at once.

    Args:
        attached: the SDK's attach socket.
        stdout_fd: where standard output goes; duplicated, the caller keeps its own.
        stderr_fd: where standard error goes.
    """

    def __init__(self, attached: Any, stdout_fd: int, stderr_fd: int) -> None:
        self._attached = attached
        self._targets = {1: os.dup(stdout_fd), 2: os.dup(stderr_fd)}
        self._end_read, self._end_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="cachewatch-container-log", daemon=True)
        self.ended = threading.Event()
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait for the stream's end, then let go of it; whether it came in time.

        Args:
            timeout_s: the longest wait.
        """
        complete = self.ended.wait(timeout_s)
        os.write(self._end_write, b"x")
        self._thread.join(1.0)
        if not self._thread.is_alive():  # else it is blocked in a pipe that nobody reads; it is a daemon thread
            os.close(self._end_read)
            os.close(self._end_write)
            with contextlib.suppress(OSError):
                raw = getattr(self._attached, "_sock", None)  # the SDK gives a file on a socket, and keeps the socket
                self._attached.close()
                if raw is not None:
                    raw.close()
        return complete

    def _drain(self) -> None:
        fd, buffer = self._attached.fileno(), bytearray()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self._end_read, select.POLLIN)
        try:
            while True:
                ready = dict(poll.poll())
                if fd not in ready:
                    return  # told to end, and nothing is left to read
                try:
                    chunk = os.read(fd, _CHUNK)
                except BlockingIOError:
                    continue
                if not chunk:
                    return
                buffer += chunk
                self._pass_on(buffer)
        except OSError:
            return  # the engine went away, or the reader of our pipes did
        finally:
            for target in self._targets.values():  # whoever reads the pipes sees their end now
                os.close(target)
            self.ended.set()

    def _pass_on(self, buffer: bytearray) -> None:
        """Write all whole frames (stream number, three zeros, length, payload) and take them out of the buffer."""
        at = 0
        while len(buffer) - at >= _HEADER_BYTES:
            size = int.from_bytes(buffer[at + 4 : at + _HEADER_BYTES])
            end = at + _HEADER_BYTES + size
            if len(buffer) < end:
                break
            write_all(self._targets[2 if buffer[at] == 2 else 1], bytes(buffer[at + _HEADER_BYTES : end]))
            at = end
        del buffer[:at]
