"""The generator's output: always drained, the log file capped, the tail kept.

A generator hangs if its pipe is not read, which would look like a stall. One thread reads both pipes into one buffer,
without any work per line, so that a gigabyte of output costs next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from prefect_cachewatch.common.aside import AsideFile, Files, InPlace
from prefect_cachewatch.common.files import is_special, open_for_writing, write_within
from prefect_cachewatch.common.secrets import whole_lines
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.supervise.helper_client import spawn_helper

_CHUNK = 1 << 20
#: How much of the end is searched for the reason of a bad end; of that only the last part is shown.
KEPT_BYTES = 512 << 10
_LINE_MAX = 2000
_WORD_MAX = 600
_LOG_OPEN_S = 10.0
_LOG_READER_S = 1.0  # the longest that a pipe's reader may delay the draining; then it gets what it takes at once


class NewLines(NamedTuple):
    """Lines of the output since a position."""

    lines: list[str]
    #: The position for the next call.
    position: int
    #: How many bytes came and went since then without being kept.
    lost_bytes: int


class Screen(Protocol):
    """What shows something on the terminal to which the output is copied."""

    def lend(self, stream: int) -> None:
        """Leave the terminal to a copy of this stream, 1 or 2."""

    def wrote(self, stream: int, data: memoryview) -> None:
        """Take in that the copy has been written."""


class OutputPump:
    """Reads the generator's standard output and error until both end.

    Args:
        log_path: file for both streams; None for no file.
        log_max_bytes: its size limit; the beginning and the end are kept, with a note between them.
        tail_bytes: how much of the end is kept in memory.
        pass_to: descriptors that standard output and error are copied to; None for no copy.
        screen: shares the terminal with these copies; it is asked before each, and told after it.
        files: writes the log file; default this process.

    Raises:
        InputError: the log file cannot be opened.
    """

    def __init__(
        self,
        log_path: Path | None = None,
        *,
        log_max_bytes: int = 64 << 20,
        tail_bytes: int = 64 << 10,
        pass_to: tuple[int, int] | None = None,
        screen: Screen | None = None,
        files: Files | None = None,
    ) -> None:
        self.log_path = log_path
        self.log_error: str | None = None
        self._log_hangs = False
        self.total_bytes = 0
        self.listeners: list[Callable[[memoryview], None]] = []
        """Called in the reading thread with all data that is read. A slow listener delays the generator."""
        self._tail_bytes, self._kept_bytes = tail_bytes, max(tail_bytes, KEPT_BYTES)
        self._tail = bytearray()
        self._head_left = max(0, log_max_bytes - tail_bytes)
        self._cut_bytes = 0
        self._pass: dict[int, int | None] = {1: None, 2: None} if pass_to is None else {1: pass_to[0], 2: pass_to[1]}
        self._screen = screen
        self._lock = threading.Lock()
        self._reads: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._stop_read, self._stop_write = -1, -1
        self._follow = -1
        self._follower: subprocess.Popen[bytes] | None = None
        self._log: AsideFile | _Log | None = None
        if log_path is not None:
            files = files or InPlace()
            try:
                # A special file may mean a terminal or descriptor of the process that opens it, so it is opened here;
                # it does not block.
                special = files.run(is_special, log_path, timeout_s=_LOG_OPEN_S)
                writer: Files = InPlace() if special else files
                self._log = writer.open(_Log, log_path, timeout_s=_LOG_OPEN_S)
            except OSError as error:
                raise InputError(f"log file {log_path} cannot be written: {error.strerror}") from error

    def open_pipes(self) -> tuple[int, int]:
        """Make the pipes; return the write ends for the generator's standard output and error."""
        ends = []
        for stream in (1, 2):
            read, write = os.pipe2(os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # beyond the user's pipe quota the default size will do
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _CHUNK)
            os.set_blocking(read, False)
            self._reads[read] = stream
            ends.append(write)
        return ends[0], ends[1]

    def start(self) -> None:
        """Start draining; call it after the write ends were handed over and closed here."""
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._drain, name="cachewatch-output", daemon=True)
        self._thread.start()

    def open_file(self, path: Path) -> int:
        """Make a file that the generator writes both streams into, in place of the pipes, and follow it.

        Args:
            path: there must be no such file yet.

        Returns:
            The descriptor for the generator's standard output and error, which appends.

        Raises:
            OSError: the file cannot be made.
        """
        with contextlib.ExitStack() as stack:

            def to_close(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            writing = os.open(path, flags, 0o600)
            file = to_close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            read, write = os.pipe2(os.O_CLOEXEC)
            control, self._follow = os.pipe2(os.O_CLOEXEC)
            inherited = [to_close(control), file, to_close(write)]
            os.set_blocking(read, False)
            self._reads[read] = 1
            os.write(self._follow, f"{file} {write}".encode())
            self._follower = spawn_helper(
                "prefect_cachewatch.supervise.follow", control, inherited, "cachewatch-follow"
            )
        return writing

    def finish(self, timeout_s: float = 2.0) -> None:
        """Read the rest and close; a foreign process that still holds the pipe is waited for no longer than this.

        Args:
            timeout_s: the longest wait for the end of the streams.
        """
        if self._follow >= 0:  # to the end of the file, and no further
            os.close(self._follow)
            self._follow = -1
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                os.write(self._stop_write, b"x")
                self._thread.join(1.0)
            if self._thread.is_alive():
                return  # blocked in writing to the reader of our own output; it is a daemon thread
            self._thread = None
            os.close(self._stop_read)
            os.close(self._stop_write)
        for fd in self._reads:
            os.close(fd)
        self._reads = {}
        if self._follower is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._follower.wait(1.0)
            self._follower.returncode = self._follower.returncode or 0  # left behind, if its file system hangs
            self._follower = None
        if self._log is not None:
            if self._cut_bytes:
                kept = self.tail()
                cut = self._cut_bytes - len(kept)
                if cut > 0:
                    self._write_log(f"\n[... {cut} bytes cut here by the log's cap ...]\n".encode())
                self._write_log(kept[-self._cut_bytes :])
            log, self._log = self._log, None
            try:
                log.close()
            except OSError as error:
                self.log_error = self.log_error or f"{self.log_path}: {error.strerror}"

    def tail(self) -> bytes:
        """Return the last bytes of the output so far, both streams in order of arrival."""
        with self._lock:
            return bytes(self._tail[-self._tail_bytes :])

    def kept(self) -> bytes:
        """Return all of the output's end that is in memory."""
        with self._lock:
            return bytes(self._tail[-self._kept_bytes :])

    def tail_lines(self, count: int, within_bytes: int | None = None) -> list[str]:
        """Return the last lines of the output, undecodable bytes as surrogate escapes, each at most 2,000 characters.

        Args:
            count: the most lines.
            within_bytes: look only at this many bytes of the end; default all that is kept.

        Returns:
            The lines without the empty ones.
        """
        tail = self.tail()
        wanted = len(tail) if within_bytes is None else within_bytes
        if min(wanted, len(tail)) < self.total_bytes:
            # The rest of a cut line may be the rest of a secret, which is no longer recognizable.
            tail = whole_lines(tail, wanted)
        text = tail.decode("utf-8", "surrogateescape")
        return [_shortened(line) for line in text.replace("\r", "\n").split("\n") if line.strip()][-count:]

    def lines_since(self, seen: int, *, ended: bool = False) -> NewLines:
        """Return the lines finished since a byte position, as `tail_lines`; an unfinished one waits for the next call.

        A line that was painted again and again, as a progress bar is, counts once, as it stood at its end.

        Args:
            seen: bytes of the output handled so far; 0 at first.
            ended: whether the output has ended, so that its last line is finished without a newline.
        """
        with self._lock:
            total, tail = self.total_bytes, bytes(self._tail[-self._tail_bytes :])
        new = total - seen
        piece = tail if new >= total and len(tail) == total else whole_lines(tail, new)
        rest = piece[piece.rfind(b"\n") + 1 :]
        bar = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]  # as it stands now; what it was before is done with
        if rest and len(bar) <= _LINE_MAX and not ended:
            piece, total = piece[: -len(rest)], total - len(bar)
        painted = (
            line.rstrip("\r").rpartition("\r")[2] for line in piece.decode("utf-8", "surrogateescape").split("\n")
        )
        return NewLines([_shortened(line) for line in painted if line.strip()], total, max(0, new - len(tail)))

    def _drain(self) -> None:
        # Copying to a terminal in which another job is in the foreground must not stop the supervising process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        # Only the pages of an anonymous mapping that were written are in memory; most generators print little.
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
        for listen in self.listeners:
            listen(data)
        with self._lock:
            self.total_bytes += len(data)
            self._tail += data[-self._kept_bytes :]
            if len(self._tail) > 2 * self._kept_bytes:
                del self._tail[: -self._kept_bytes]
        if self._log is not None:
            head = data[: self._head_left]
            if head:
                self._head_left -= len(head)
                self._write_log(head)
            self._cut_bytes += len(data) - len(head)
        if (target := self._pass[stream]) is not None:
            if self._screen is not None:
                self._screen.lend(stream)
            if not _write_all(target, data):  # its reader has gone; the generator goes on, and draining continues
                self._pass[stream] = None
            if self._screen is not None:
                self._screen.wrote(stream, data)

    def _write_log(self, data: bytes | memoryview) -> None:
        if self._log is None or self._log_hangs:
            return
        try:
            self._log.write(data)
        except OSError as error:
            # A full disk must stop neither the draining nor the watch: the report says that the log is cut.
            self._log_hangs = isinstance(error, TimeoutError) and isinstance(self._log, AsideFile)
            self.log_error = self.log_error or f"{self.log_path}: {error.strerror}"


def _shortened(line: str) -> str:
    """Shorten a line between two words: half a secret is no longer recognizable."""
    if len(line) <= _LINE_MAX:
        return line
    kept = line[:_LINE_MAX]
    end = max(kept.rfind(mark) for mark in " \t\"',;&")
    return f"{kept[:end]}…" if end > _LINE_MAX - _WORD_MAX else kept


class _Log:
    """The log file itself, in the process that writes it."""

    def __init__(self, path: Path) -> None:
        self._fd = open_for_writing(path)
        self._failed = False

    def write(self, data: bytes | memoryview) -> None:
        try:
            write_within(self._fd, data, 0.0 if self._failed else _LOG_READER_S)
        except OSError:
            self._failed = True
            raise

    def close(self) -> None:
        os.close(self._fd)


def _write_all(fd: int, data: memoryview) -> bool:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process made our own output non-blocking
            time.sleep(0.005)
        except OSError:
            return False
    return True
