"""Reads the end of a generator's output: the line that explains its end, and where in the program it was raised. Pure.

It expects anything: megabytes without a line's end, binary, terminal codes, progress bars, several ranks at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefect_cachewatch.evidence.crash_table import CRASH_RULES, CrashRule

_LINES_MAX = 1500
_SHAPE_MAX = 1000
_HALF_MAX = 1000  # of a long line both ends are read
_APART = 25  # that many ordinary lines between two errors: the earlier one was survived
_RECENT = 60
_CONTEXT = 8
_SURE_WEIGHT, _EXCEPTION_WEIGHT, _CONSEQUENCE_WEIGHT = 24, 20, 10

_CODES = re.compile(r"(?:\x1b|#033|\\x1b|\\u001b)\[[0-9;?]{0,24}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}\x07|\x1b[()][A-Z0-9]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_NO_LETTERS = re.compile(r"[\W\d_]+")
# What launchers and loggers write before a line: ranks, pids, times, levels, columns.
_PREFIX = re.compile(
    r"(?:\s*(?:\[[^\[\]]{0,100}\](?:<\w{1,8}>)?:?|\([A-Z][^()]{0,100}\)|<std\w{1,4}>:|\d[\d:.,/TZ-]{0,40}(?=\s)|\||[\w.-]{1,60}\s{1,20}\|\s"
    r"|(?:ERROR|CRITICAL|FATAL|critical|error)\b:?|Always\b|\w{1,40}\.(?:cc|cpp|h|hpp|py):\d{1,6}\]))*"
)
_QUIET = re.compile(
    r"(?<![=/\w])(?:WARN(?:ING)?|INFO|DEBUG|NOTICE)\b|[|\[]\s{0,4}(?:info|warn|warning|debug)\s{0,12}[|\]]|\b(?:[Ww]arning|info|debug):\s|"
    r"\w{1,60}Warning:|\[W(?:\s|\d)|^W\d{4}\b|\[(?:TRT|TensorRT-LLM)\] \[[IWV]\]"
)
_LEVEL_WITHIN = 100
_RANK = re.compile(r"\d{2}:\d{2}[\d:.,]{0,20}|\[?\w{1,40}\.\w{1,3}:\d{1,6}\]?")
_BELOW_MAX = 12
_FRAME = re.compile(r'\s*File "([^"]{1,500})", line (\d{1,7})(?:, in (.{1,100}))?')
# Also where a terminal's width stood for a line's end.
_BREAK = re.compile(r"[\r\n\x0b\x0c\u0085\u2028\u2029]+|(?<=\S) {24,}(?=\S)")
_NATIVE_FRAME = re.compile(r"\s*(?:--- |frame #\d|#\d{1,3}\s|\[0x|at \S{1,300}:\d|[│╭╰┃❱|+^~]{1,}(?:\s|$|[─=~-]))")
_RAISED = re.compile(r"(?:[A-Za-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?::(?:\s|$)|$)")
_FORMAL = re.compile(r"what\(\):|\b(?:fatal|FATAL|critical)\b|\b(?i:error):|uncaught exception")
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<frozen|/importlib/|\.egg/")
_PLACE = re.compile(r"@ (\S{1,400}:\d{1,6})|\((\w{1,80}\.\w{1,4}:\d{1,6})\)")
_DEVICE = re.compile(r"\b(?:[Dd]evice(?:_id| id| ID)?|[Cc]hip|GPU|cuda:)[ =:]{0,2}(\d{1,3})\b")
_LIBRARY = re.compile(r"([\w.+-]{1,100}\.so[\w.]{0,20})")


@dataclass(frozen=True)
class LastWords:
    """The line that explains an end; `where` is the innermost own frame, the device or the library, if one is named.

    `sure`: it has the form of an end, and little was written after it.
    """

    rule: CrashRule
    line: str
    where: str = ""
    context: tuple[str, ...] = ()
    sure: bool = True


@dataclass(frozen=True)
class _Line:
    text: str  # without what launchers and loggers wrote before it
    rank: str  # that, without times: who wrote it
    quiet: bool
    trace: bool = False  # a frame or its source text


@dataclass(frozen=True)
class _Found:
    rule: CrashRule
    index: int
    strength: float


def find_last_words(log_tail: str) -> LastWords | None:
    """Find the line of a log that explains why the program ended.

    Errors that more than 25 ordinary lines separate from the last ones were survived. Of the last ones the one that names a cause
    goes before those that name a consequence, then the first one, which the others follow.

    Args:
        log_tail: the end of its output.

    Returns:
        The line and its rule; None where no line explains an end.

    Example:
        >>> words = find_last_words("loading\\npython: can't open file '/x/gen.py': [Errno 2] No such file or directory\\n")
        >>> words.rule.category, words.sure
        ('missing_file', True)
    """
    lines = _read(log_tail)
    groups: list[list[_Found]] = []
    for index in range(len(lines)):
        if (one := _judge(lines, index)) is not None:
            if not groups or index - groups[-1][-1].index > _APART:
                groups.append([])
            groups[-1].append(one)
    strongest = [_strongest(group) for group in groups]
    causes = [best for best in strongest if best.rule.weight > _CONSEQUENCE_WEIGHT]
    return _told(lines, (causes or strongest)[-1]) if strongest else None


def readable_lines(log_tail: str) -> list[str]:
    """Return the lines of an output that a person can read; of a line that is drawn anew (a progress bar) its last state.

    Args:
        log_tail: the end of the output.

    Example:
        >>> readable_lines("\\x1b[1mloading\\x1b[0m\\n\\r 9%|#  | 1/9\\r10%|## | 2/9\\n\\x07\\x01")
        ['loading', '10%|## | 2/9']
    """
    text = _CONTROLS.sub("", _CODES.sub("", log_tail))  # UTF-16 is ASCII with NUL bytes between
    lines: list[str] = []
    for line in text.split("\n"):
        states = [state for state in line.split("\r") if state.strip()]
        shapes = [sorted(_NO_LETTERS.sub("", state[:_SHAPE_MAX])) for state in states]
        lines += [state for at, state in enumerate(states) if at + 1 == len(states) or shapes[at] != shapes[at + 1]]
    return lines


def _read(log_tail: str) -> list[_Line]:
    raw = [part for line in readable_lines(log_tail) for part in _BREAK.split(line) if part.strip()]
    lines: list[_Line] = []
    traced: dict[str, int] = {}  # by rank: lines since the last frame
    for line in raw[-_LINES_MAX:]:
        short = line.rstrip() if len(line) <= 2 * _HALF_MAX else f"{line[:_HALF_MAX]} … {line[-_HALF_MAX:].rstrip()}"
        start = match.end() if (match := _PREFIX.match(short)) is not None else 0
        rank, rest = _RANK.sub("", short[:start]).strip(), short[start:]
        frame = _FRAME.match(rest) is not None
        # The source text below a frame is no message, whatever it has in quotes.
        below = traced.get(rank, 99) < _BELOW_MAX and rest.startswith(("   ", "\t")) and not _RAISED.match(rest.strip())
        traced[rank] = 0 if frame else traced.get(rank, 99) + 1 if below else 99
        quiet = _QUIET.search(short[:_LEVEL_WITHIN]) is not None
        lines.append(_Line(rest.strip(), rank, quiet, frame or below or _NATIVE_FRAME.match(rest) is not None))
    return lines


def _judge(lines: list[_Line], index: int) -> _Found | None:
    line = lines[index]
    if line.trace or line.quiet or not line.text:
        return None
    ends_traceback = index > 0 and lines[index - 1].trace
    rule = next((rule for rule in CRASH_RULES if re.search(rule.pattern, line.text)), None)
    if rule is None and ends_traceback and _RAISED.match(line.text):
        rule = CRASH_RULES[-1]
    if rule is None:
        return None
    formal = ends_traceback or _FORMAL.search(line.text) or _RAISED.match(line.text)
    return _Found(rule, index, rule.weight + (0.5 if formal else 0.0))


def _strongest(group: list[_Found]) -> _Found:
    best = max(one.strength for one in group)
    equal = [one for one in group if one.strength == best]
    # Of exceptions that nothing is known of the last one ended it; of causes the first one brought the others about.
    return equal[-1] if equal[0].rule.weight <= _EXCEPTION_WEIGHT else equal[0]


def _told(lines: list[_Line], found: _Found) -> LastWords:
    index, rule = found.index, found.rule
    line = lines[index].text
    if index + 2 < len(lines) and lines[index + 1].text == "info:":
        line = f"{line} {lines[index + 2].text}"
    context = tuple(one.text for one in lines[max(0, index - _CONTEXT // 2) : index + _CONTEXT // 2])
    is_end = rule.weight >= _SURE_WEIGHT or (found.strength > rule.weight == _EXCEPTION_WEIGHT)
    return LastWords(rule, line, _where(lines, index, rule), context, is_end and len(lines) - index <= _RECENT)


def _where(lines: list[_Line], index: int, rule: CrashRule) -> str:
    near = "\n".join(line.text for line in lines[max(0, index - 3) : index + 12])
    if rule.category == "segmentation_fault":
        library = _LIBRARY.search(near)
        return f"in {library[1]}" if library else ""
    parts = [_own_frame(lines, index)]
    if rule.category in ("device_fault", "gpu_out_of_memory"):
        if place := _PLACE.search(near):
            parts.append(f"at {(place[1] or place[2]).rpartition('/')[2]}")
        if device := _DEVICE.search(near):
            parts.append(f"device {device[1]}")
    return ", ".join(filter(None, parts))


def _own_frame(lines: list[_Line], index: int) -> str:
    """Find the innermost frame of the traceback above a line that is not of an installed package."""
    rank = lines[index].rank
    for line in reversed(lines[max(0, index - 200) : index]):
        if line.rank != rank:
            continue
        frame = _FRAME.match(line.text)
        if frame is None and not line.trace:
            break
        if frame is not None and not _FOREIGN.search(frame[1]):
            return f"{frame[3] or 'module'} ({frame[1].rsplit('/', 1)[-1]}:{frame[2]})"
    return ""
