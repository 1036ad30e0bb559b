"""The process that searches texts from outside for regular expressions; it may be killed at any time.

Standard library only and small: it is started before a generator. A search holds the interpreter for as long as it
takes, so it has a process of its own. Each has a budget of processor time, since elapsed time also grows on a busy
machine.
"""

import re
import signal
import socket
import struct
from collections.abc import Callable

# What is asked: take a pattern; does any match; which different matches are there.
ADD, SEARCH, FIND = b"+", b"?", b"*"
NOT_FOUND, FOUND, LATE = b"n", b"y", b"l"
FIELD_END, RECORD_END = "\x1f", "\x1e"
_LENGTH = struct.Struct("<I")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TEXT_MAX = 200
_MATCHES_MAX = 200
_WINDOW_CPU_S = 0.5
_LINE_CPU_S = 0.1
_LINES_CPU_S = 1.0

Work = Callable[[str], "list[str]"]


class _Late(Exception):
    pass


def _late(number: int, frame: object) -> None:
    raise _Late


def _within(budget_s: float, work: Work, text: str) -> list[str]:
    # The engine checks for signals as it runs: an alarm ends a search that would take hours.
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, budget_s)
        return work(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _look(work: Work, text: str, only_one: bool) -> "tuple[list[str], bool]":
    """What was found, and whether the search took too long."""
    try:
        return _within(_WINDOW_CPU_S, work, text), False
    except _Late:
        pass
    # One line may be expensive, and another may match: each is searched by itself, as far as the budget goes.
    found: list[str] = []
    lines = text.split("\n")
    for line in lines if len(lines) > 1 else ():
        try:
            found += _within(_LINE_CPU_S, work, line)
            if found and only_one:
                return found, False
        except _Late:
            if sum(signal.getitimer(signal.ITIMER_PROF)) <= 0:
                break
    return found, True


def _find_all(patterns: "list[re.Pattern[str]]", text: str) -> list[str]:
    """The different matches, the last ones: number of the pattern, `done`, `total`, other named groups, text."""
    found: dict[tuple[str, ...], str] = {}
    for number, pattern in enumerate(patterns):
        for match in pattern.finditer(text):
            groups = match.groupdict("")
            done, total = groups.pop("done", ""), groups.pop("total", "")
            record = [str(number), done, total, " ".join(groups.values()), match[0]]
            shown = [_CONTROL.sub(" ", part)[:_TEXT_MAX] for part in record]
            key = tuple(shown[:4] if done else shown)
            found.pop(key, None)
            found[key] = FIELD_END.join(shown)
            if len(found) > _MATCHES_MAX:
                del found[next(iter(found))]
    return list(found.values())


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
    """Answer searches until the other side hangs up: one byte for each, and after FIND the matches with their length.

    Args:
        fd: descriptor of the socket.
    """
    link = socket.socket(fileno=fd)
    signal.signal(signal.SIGVTALRM, _late)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    patterns: list[re.Pattern[str]] = []

    def is_in(text: str) -> list[str]:
        return [""] if any(pattern.search(text) for pattern in patterns) else []

    try:
        while True:
            data = _read(link, *_LENGTH.unpack(_read(link, _LENGTH.size)))
            kind, text = data[:1], data[1:].decode("utf-8", "replace")
            if kind == ADD:
                patterns.append(re.compile(text, re.MULTILINE))
                continue
            signal.setitimer(signal.ITIMER_PROF, _WINDOW_CPU_S + _LINES_CPU_S)
            if kind == SEARCH:
                found, late = _look(is_in, text, only_one=True)
                link.sendall(LATE if late else FOUND if found else NOT_FOUND)
                continue
            found, late = _look(lambda text: _find_all(patterns, text), text, only_one=False)
            answer = RECORD_END.join(found).encode()
            link.sendall((LATE if late else FOUND if found else NOT_FOUND) + _LENGTH.pack(len(answer)) + answer)
    except (EOFError, OSError):
        return
