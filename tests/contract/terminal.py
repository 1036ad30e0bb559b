"""A pseudo-terminal with a program on it: what is typed there, what stands on its screen; and streams that nobody reads."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import termios
import threading
from collections.abc import Iterator, Sequence

import pyte

from tests.contract.harness import Place, eventually


class Terminal:
    """A terminal of 24 lines whose session leader is a program; what it shows is read all the time."""

    def __init__(self, place: Place, argv: Sequence[object], columns: int = 80, **environ: str) -> None:
        words, env = [str(word) for word in argv], place.env | {"TERM": "xterm"} | environ
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            termios.tcsetwinsize(0, (24, columns))
            os.chdir(place.root)
            os.execvpe(words[0], words, env)
        self.shown, self.status = b"", -1
        self._screen = pyte.HistoryScreen(columns, 24, history=5000)
        self._stream, self._lock = pyte.ByteStream(self._screen), threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self.fd, 65536):
                with self._lock:
                    self.shown += chunk
                    self._stream.feed(chunk)

    def lines(self) -> list[str]:
        """What has left the screen at its top, and what is on it."""
        with self._lock:
            above = ["".join(row[x].data for x in range(self._screen.columns)) for row in self._screen.history.top]
            return [line.rstrip() for line in [*above, *self._screen.display] if line.strip()]

    def shows(self, word: str) -> bool:
        """Whether a line on the screen, not above it, begins with a word."""
        with self._lock:
            return any(line.startswith(word) for line in self._screen.display)

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ended(self) -> bool:
        """Whether the program has ended; then `status` is set, and all that it showed has been read."""
        if self.status < 0 and (done := os.waitpid(self.pid, os.WNOHANG)) != (0, 0):
            self.status = os.waitstatus_to_exitcode(done[1]) % 256
        return self.status >= 0

    def close(self) -> None:
        """Close it, as its window is closed."""
        if not self.ended():
            os.kill(self.pid, signal.SIGHUP)
            if not eventually(self.ended):
                os.kill(self.pid, signal.SIGKILL)
                eventually(self.ended)
        os.close(self.fd)


@contextlib.contextmanager
def terminal(place: Place, *argv: object, columns: int = 80, **environ: str) -> Iterator[Terminal]:
    """Run a program on a terminal; closed at the end, and nobody of the place is left."""
    one = Terminal(place, argv, columns, **environ)
    try:
        yield one
    finally:
        one.close()
        place.assert_nobody()


def fill(pipe: int) -> None:
    """Write into a pipe all that it can hold; its own descriptor may be another process's, and stays blocking."""
    filler = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(filler, b"."):
            continue
    os.close(filler)


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The write end of a pipe that nobody reads and that holds all it can."""
    read, write = os.pipe()
    fill(write)
    try:
        yield write
    finally:
        os.close(write)
        os.close(read)


@contextlib.contextmanager
def stopped_terminal() -> Iterator[int]:
    """A terminal whose output was stopped, as by Ctrl-S."""
    main, side = pty.openpty()
    termios.tcflow(side, termios.TCOOFF)
    try:
        yield side
    finally:
        os.close(main)
        os.close(side)
