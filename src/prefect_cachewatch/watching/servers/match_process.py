"""The process that searches texts from outside for one regular expression; it may be killed at any time.

Standard library only and small: it is started before a generator. A search holds the interpreter for as long as it
takes, so it has a process of its own. Each has a budget of processor time, since elapsed time also grows on a busy
machine.
"""

import re
import signal
import socket
import struct

__all__ = ["FOUND", "LATE", "NOT_FOUND", "main"]

NOT_FOUND, FOUND, LATE = b"n", b"y", b"l"
_LENGTH = struct.Struct("<I")
_WINDOW_CPU_S = 0.5
_LINE_CPU_S = 0.1
_LINES_CPU_S = 1.0


class _Late(Exception):
    pass


def _late(number: int, frame: object) -> None:
    raise _Late


def _search(pattern: "re.Pattern[str]", text: str, budget_s: float) -> bool:
    # The engine checks for signals as it runs: an alarm ends a search that would take hours.
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, budget_s)
        return pattern.search(text) is not None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _look(pattern: "re.Pattern[str]", text: str) -> bytes:
    try:
        return FOUND if _search(pattern, text, _WINDOW_CPU_S) else NOT_FOUND
    except _Late:
        pass
    # One line may be expensive, and another may match: each is searched by itself, as far as the budget goes.
    lines = text.split("\n")
    for line in lines if len(lines) > 1 else ():
        try:
            if _search(pattern, line, _LINE_CPU_S):
                return FOUND
        except _Late:
            if sum(signal.getitimer(signal.ITIMER_PROF)) <= 0:
                break
    return LATE


def _read(link: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main(fd: int) -> None:
    """Answer searches until the other side hangs up: one byte for each text; the first text is the pattern.

    Args:
        fd: descriptor of the socket.
    """
    link = socket.socket(fileno=fd)
    signal.signal(signal.SIGVTALRM, _late)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    pattern = None
    try:
        while True:
            data = _read(link, *_LENGTH.unpack(_read(link, _LENGTH.size)))
            text = data.decode("utf-8", "replace")
            if pattern is None:
                pattern = re.compile(text, re.MULTILINE)
                continue
            signal.setitimer(signal.ITIMER_PROF, _WINDOW_CPU_S + _LINES_CPU_S)
            link.sendall(_look(pattern, text))
    except (EOFError, OSError):
        return
