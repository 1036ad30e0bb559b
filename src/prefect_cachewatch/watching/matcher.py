"""Searches texts from outside for regular expressions, in a process of its own; and cuts a stream into lines for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass

from prefect_cachewatch.common.secrets import redact
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.supervise.helper_client import spawn_helper
from prefect_cachewatch.watching.servers.match_process import (
    ADD,
    FIELD_END,
    FIND,
    FOUND,
    LATE,
    RECORD_END,
    SEARCH,
)

WINDOW = 64 << 10
"""The longest text of one search, in bytes."""
_LINE_MAX = 4096
_SHOWN_MAX = 200
_LENGTH = struct.Struct("<I")
# The process limits its own processor time; this is for a machine on which it gets none.
_ANSWER_S = 10.0
_LATE_MAX = 8
_SLOW_S = 1.0


@dataclass(frozen=True)
class Match:
    """One match of a pattern: its groups `done` and `total` as text, empty without; the other named ones in `label`."""

    pattern: int
    done: str
    total: str
    label: str
    text: str


class PatternMatcher:
    """Searches texts for regular expressions, in a process of its own; threads may share it.

    Args:
        patterns: checked already; ^ and $ are a line's begin and end.

    Example:
        >>> matcher = PatternMatcher(r"ready$", r"shard (?P<done>\\d+)")
        >>> matcher.search(b"ready"), matcher.search(b"ready or not"), matcher.problem
        (True, False, None)
        >>> [(found.pattern, found.done, found.text) for found in matcher.find(b"shard 1; shard 2")]
        [(1, '1', 'shard 1'), (1, '2', 'shard 2')]
        >>> matcher.close()
    """

    def __init__(self, *patterns: str) -> None:
        self.problem: str | None = None
        """Why a text was not searched to its end, in one sentence; None if all were."""
        self._patterns = patterns
        self._late = 0
        self._closed = False
        self._lock = threading.Lock()
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it runs: call it before a search is needed.

        Raises:
            OSError: it cannot be started.
        """
        with self._lock:
            if self._link is None:
                self._start()

    def search(self, text: bytes) -> bool:
        """Search one text.

        Args:
            text: of any encoding; bytes that are not UTF-8 match no letter.

        Returns:
            Whether a pattern matches; false within seconds if the search takes too long.
        """
        return self._ask(SEARCH, text)[0] == FOUND

    def find(self, text: bytes) -> list[Match]:
        """Find the different matches in a text, at most the last 200; fewer if the search takes too long."""
        matches = []
        for record in self._ask(FIND, text)[1].split(RECORD_END):
            if record:
                number, *parts = record.split(FIELD_END)
                matches.append(Match(int(number), *parts))
        return matches

    def close(self) -> None:
        """End the process; a search that is under way is cut short."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._late = _LATE_MAX
            self._end()

    def _ask(self, kind: bytes, text: bytes) -> tuple[bytes, str]:
        with self._lock:
            if self._late >= _LATE_MAX:
                return LATE, ""
            found, began_s = b"", time.monotonic()
            try:
                if self._link is None:
                    self._start()
                end_s = time.monotonic() + _ANSWER_S
                self._send(kind + text)
                answer = self._receive(1, end_s)
                if kind == FIND:
                    (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, end_s))
                    found = self._receive(length, end_s)
            except OSError:  # past the deadline, killed, or not startable
                self._end()
                answer = LATE
            # The end cuts a short search too; that says nothing of the pattern.
            if answer == LATE and not (self._closed and time.monotonic() - began_s < _SLOW_S):
                self._late += 1
                self._tell()
            return answer, found.decode("utf-8", "replace")

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
        for pattern in self._patterns:
            self._send(ADD + pattern.encode("utf-8", "surrogatepass"))

    def _receive(self, count: int, end_s: float) -> bytes:
        assert self._link is not None
        data = b""
        while len(data) < count:
            self._link.settimeout(max(0.01, end_s - time.monotonic()))
            if not (part := self._link.recv(count - len(data))):
                raise ConnectionResetError
            data += part
        return data

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
        shown = " or ".join(repr(for_terminal(redact(pattern), _SHOWN_MAX)) for pattern in self._patterns[:3])
        then = (
            "it is not searched for any more" if self._late >= _LATE_MAX else "what took so long counts as not matched"
        )
        self.problem = (
            f"the pattern {shown} takes too long to search for, and {then}: write it with the words that are printed and "
            "fewer .*"
        )


class OutputLines:
    """Cuts a stream of output, in chunks of any size, into lines for a search; of each line its first 4,096 bytes.

    Example:
        >>> lines = OutputLines()
        >>> lines.add(b"12 %\\r13 %\\r1"), lines.rest
        (b'12 %\\n13 %', b'1')
    """

    def __init__(self) -> None:
        self.rest = b""
        """The line that has not ended yet."""

    def add(self, data: bytes) -> bytes:
        """Take in output, at most a window of it; returns the lines that have ended."""
        # A progress bar that is redrawn ends its lines with this alone.
        whole, _, last = (self.rest + data.replace(b"\r", b"\n")).rpartition(b"\n")
        self.rest = last[:_LINE_MAX]
        if len(whole) > _LINE_MAX:
            lines = whole.split(b"\n")
            if max(map(len, lines)) > _LINE_MAX:
                # Some patterns take quadratic time: a megabyte without a line end is not searched.
                whole = b"\n".join(line[:_LINE_MAX] for line in lines)
        return whole
