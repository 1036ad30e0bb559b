"""Regular expressions of people against text of strangers, where a search can be abandoned: in a process of its own.

`.*a.*a.*a.*a.*b` takes hours on a line of four kilobytes, and holds the interpreter's lock meanwhile. A text that
takes too long counts as not matched, and `problem` says so; what follows from that is the caller's.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
import time

from prefect_cachewatch.common.text import for_terminal, redact
from prefect_cachewatch.supervise.helper_client import spawn_helper
from prefect_cachewatch.watching.servers.match_process import FOUND, LATE

__all__ = ["PatternMatcher"]

_LENGTH = struct.Struct("<I")
# The process itself keeps to a budget of processor time; this is for a machine on which it gets none.
_ANSWER_S = 10.0
_LATE_MAX = 8
_SHOWN_MAX = 200


class PatternMatcher:
    """Searches texts for one regular expression, in a process that it starts and ends; may be shared by threads.

    Args:
        pattern: checked already; ^ and $ are a line's begin and end.

    Example:
        >>> matcher = PatternMatcher("ready$")
        >>> matcher.search(b"ready"), matcher.search(b"ready or not"), matcher.problem
        (True, False, None)
        >>> matcher.close()
    """

    def __init__(self, pattern: str) -> None:
        self.problem: str | None = None
        """Why a text was not looked at to its end, in one sentence; None while none was."""
        self._pattern = pattern
        self._late = 0
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it is not there yet: before a search is wanted.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            if self._link is None:
                self._start()

    def search(self, text: bytes) -> bool:
        """Search one text.

        Args:
            text: of any encoding; what is no UTF-8 matches no letter.

        Returns:
            Whether it matches; false within seconds if that takes too long to find out.
        """
        with self._lock:
            if self._late >= _LATE_MAX:
                return False
            try:
                if self._link is None:
                    self._start()
                answer = self._ask(text)
            except OSError:  # late beyond the deadline, killed, or not to be started
                self._end()
                answer = LATE
            if answer == LATE:
                self._late += 1
                self._tell()
            return answer == FOUND

    def close(self) -> None:
        """End the process; a search that is under way is cut short."""
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._late = _LATE_MAX
            self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = spawn_helper(
                "prefect_cachewatch.watching.servers.match_process",
                theirs.fileno(),
                [theirs.fileno()],
                "cachewatch-matcher",
            )
        self._link = ours
        ours.settimeout(_ANSWER_S)
        self._send(self._pattern.encode("utf-8", "surrogatepass"))

    def _ask(self, text: bytes) -> bytes:
        assert self._link is not None
        end_s = time.monotonic() + _ANSWER_S
        self._send(text)
        self._link.settimeout(max(0.01, end_s - time.monotonic()))
        answer = self._link.recv(1)
        if not answer:
            raise ConnectionResetError
        return answer

    def _send(self, data: bytes) -> None:
        assert self._link is not None
        self._link.sendall(_LENGTH.pack(len(data)) + data)

    def _end(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
            self._process = None

    def _tell(self) -> None:
        shown = repr(for_terminal(redact(self._pattern), _SHOWN_MAX))
        then = (
            "it is not searched for any more" if self._late >= _LATE_MAX else "what took so long counts as not matched"
        )
        self.problem = (
            f"the pattern {shown} takes too long to search for, and {then}: write it with the words that are printed and "
            "fewer .*"
        )
