"""The events of a run, protocol 1: frozen dataclasses, written as one JSON object a line. docs/events.md describes them.

A reader skips an event that it does not know, and ignores fields that it does not know: within a protocol both may be
added, and nothing is renamed or taken away. Times that end in `at_s` are seconds since the attempt's start. Standard
library only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, ClassVar

PROTOCOL = 1


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    event: ClassVar[str] = ""


@dataclass(frozen=True)
class Ready(Event):
    """The inputs are checked, the directories held: attempts may begin."""

    event = "ready"
    name: str
    paths: tuple[str, ...] = ()
    expected_bytes: int | None = None
    run_dir: str | None = None
    """Where reports and logs of its attempts lie; null for `exec`, which has none."""
    current: str | None = None
    """What consumers of a published cache open; null without a store."""


@dataclass(frozen=True)
class Refused(Event):
    """The run cannot be made; nothing was started."""

    event = "refused"
    message: str
    status: int = 125
    """The exit status of a command after it."""
    kind: str = "GuardError"
    """Name of the error in `prefect_cachewatch.errors`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The error's own."""


@dataclass(frozen=True)
class AttemptWanted(Event):
    """An attempt is due."""

    event = "attempt_wanted"
    n: int
    most: int | None = None
    """How many attempts there may be at most, if that is known."""


@dataclass(frozen=True)
class Started(Event):
    """The generator runs. The windows are the configured ones, in seconds."""

    event = "started"
    n: int
    pid: int | None
    bytes_present: int = 0
    files_present: int = 0
    windows: Mapping[str, float | None] = field(default_factory=dict)
    expected_bytes: int | None = None
    expected_from: str = ""
    """Where the expected size comes from, as the rest of a sentence; empty for the job's own figure."""
    token: str = ""
    """What the environment of each process of the attempt holds as CACHEWATCH_ID."""


@dataclass(frozen=True)
class Progress(Event):
    """A measurement: all bytes since the start, but those that are present."""

    event = "progress"
    at_s: float
    bytes_written: int = 0
    allocated_written: int = 0
    bytes_kept: int = 0
    """The part of what was written that lies in files which still exist."""
    allocated_kept: int = 0
    bytes_present: int = 0
    files_present: int = 0
    rate_bytes_per_s: float = 0.0
    """Over the last minute."""
    left_s: float | None = None
    """How long the rest takes at that rate; null if it is not known."""
    pause_s: float = 0.0
    window_s: float = 0.0
    phase: str = "before_first_byte"
    grew_at_s: float | None = None
    """When the file that grew last since the measurement before did so; null if none grew."""
    overwritten_at_s: float | None = None
    touched_at_s: float | None = None
    told_at_s: float | None = None
    """When the output last told of progress since the measurement before; null if it did not."""
    scan_s: float = 0.0
    late_s: float = 0.0
    """By how much it began late: more than a timer's error means that the machine was suspended."""
    blind: str = ""
    """`unreadable` or `missing` if the directories could not be measured; the figures are the last ones then."""
    last_file: str | None = None
    told: str | None = None
    """What the output told of last."""
    waiting_for: str | None = None
    """In a server's warm-up, what is waited for."""


@dataclass(frozen=True)
class Phase(Event):
    """A server's start goes on from one phase to the next: `writing` or `warm_up`."""

    event = "phase"
    at_s: float
    phase: str
    why: str


@dataclass(frozen=True)
class Suspected(Event):
    """A pause is longer than this generator's pauses so far."""

    event = "suspected"
    at_s: float
    pause_s: float
    message: str


@dataclass(frozen=True)
class Cleared(Event):
    """Growth has refuted the suspicion."""

    event = "cleared"
    at_s: float


@dataclass(frozen=True)
class Verdict(Event):
    """The rule's decision. `stops` is false where stalls are only reported."""

    event = "verdict"
    at_s: float
    status: str
    kind: str | None
    pause_s: float
    window_s: float
    stops: bool = True
    unready: str = ""
    """What a server that was never ready last answered, as the rest of a sentence."""


@dataclass(frozen=True)
class Stopping(Event):
    """The tree is told to end."""

    event = "stopping"
    why: str


@dataclass(frozen=True)
class Gone(Event):
    """No process of the attempt is left, but for the survivors."""

    event = "gone"
    at_s: float
    why: str
    exit_code: int | None = None
    signal: int | None = None
    ready: bool = False
    """Whether it was a server that had become ready."""
    survivors: tuple[int, ...] = ()
    gone_after_s: float = 0.0
    """From the decision to stop it until the last process was gone."""
    terminated: int = 0
    """How many processes ended after SIGTERM."""
    killed: int = 0
    left_running: str | None = None
    """Who runs on, if it was a server that is left running."""


@dataclass(frozen=True)
class Output(Event):
    """Lines of the generator's output, for a log; only who asks for them is told."""

    event = "output"
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Reported(Event):
    """The report of an attempt, or of a stall that stopped nothing; docs/reference.md has its fields."""

    event = "report"
    report: Mapping[str, Any]
    final: bool = True
    """False for a stall that stopped nothing: the attempt goes on."""
    past_pauses_s: tuple[float, ...] = ()
    """Of an attempt that completed: the longest pauses of the runs before it that completed, the newest first."""


@dataclass(frozen=True)
class Retry(Event):
    """Another attempt follows."""

    event = "retry"
    after_s: float
    why: str


@dataclass(frozen=True)
class Checked(Event):
    """The generated build was checked; docs/reference.md has the fields of `publication`, and of each of its `findings`."""

    event = "checked"
    is_good: bool
    message: str
    publication: Mapping[str, Any] | None = None
    """Null for a good one, of which more is told; and for one that has gone."""


@dataclass(frozen=True)
class Published(Event):
    """The build is whole, in the store; docs/reference.md has the fields of `publication`."""

    event = "published"
    publication: Mapping[str, Any]
    message: str = ""
    is_switched: bool = True
    """Whether consumers open it from now on, and did not before."""


@dataclass(frozen=True)
class Unpublished(Event):
    """A build that was good could not be published."""

    event = "unpublished"
    message: str
    publication: Mapping[str, Any] | None = None
    """Null unless it was refused."""


@dataclass(frozen=True)
class Note(Event):
    """What a person should know at once."""

    event = "note"
    text: str
    fault: bool = False
    """Whether something went wrong: said also where nothing else is."""


@dataclass(frozen=True)
class Step(Event):
    """What the guard does, for who asks."""

    event = "step"
    text: str


@dataclass(frozen=True)
class Bye(Event):
    """The run is over; nothing follows."""

    event = "bye"
    outcome: str
    status: int = 0
    """The exit status of a command after it."""
    message: str = ""
    """How it ended, in a sentence or two."""
    headline: str = ""
    """The part of the message that says it in short, where no report does."""
    lasting: str = ""
    """Why a later run would end in the same way; empty if it may end otherwise."""


EVENTS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (
        Ready, Refused, AttemptWanted, Started, Progress, Phase, Suspected, Cleared, Verdict, Stopping, Gone, Output, Reported, Retry, Checked, Published,
        Unpublished, Note, Step, Bye,
    )
}  # fmt: skip


class MalformedEvent(ValueError):
    """A line that is no event; its text says why."""


Tell = Callable[[Event, float], None]
"""Takes an event and the wall time in seconds at which it was told; must not block."""


class Stream:
    """Tells each event to every reader, in one order for all; any thread may tell.

    Example:
        >>> stream = Stream([lambda event, at: print(event)])
        >>> stream.tell(Note("look at the disk"))
        Note(text='look at the disk', fault=False)
    """

    def __init__(self, readers: Sequence[Tell] = ()) -> None:
        self._readers = tuple(readers)
        self._lock = threading.RLock()

    def tell(self, event: Event) -> None:
        """Tell an event, as of now."""
        with self._lock:
            at = time.time()
            for reader in self._readers:
                reader(event, at)


def to_line(event: Event, at: float) -> str:
    """Write an event as a line, without its end.

    Args:
        event: the event.
        at: wall time in seconds.

    Example:
        >>> to_line(Cleared(12.3456), 1.5)
        '{"event": "cleared", "protocol": 1, "at": 1.5, "at_s": 12.346}'
    """
    head = {"event": event.event, "protocol": PROTOCOL, "at": at}
    return json.dumps({name: _rounded(value) for name, value in (head | asdict(event)).items()}, ensure_ascii=True)


def from_line(line: str | bytes) -> Event | None:
    """Read an event from a line.

    Args:
        line: with or without its end.

    Returns:
        The event; None for one that this version does not know.

    Raises:
        MalformedEvent: it is no event of this protocol.

    Example:
        >>> from_line('{"event": "cleared", "protocol": 1, "at": 1.5, "at_s": 12.346, "colour": "blue"}')
        Cleared(at_s=12.346)
        >>> from_line('{"event": "sneezed", "protocol": 1, "at": 1.5}') is None
        True
    """
    return told_in(line)[0]


def told_in(line: str | bytes) -> tuple[Event | None, float]:
    """As `from_line`; with the wall time at which it was told, 0 if the line does not say it."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedEvent("it is no JSON") from None
    if not isinstance(data, dict) or not isinstance(name := data.get("event"), str):
        raise MalformedEvent("it is no JSON object with a field event")
    if data.get("protocol") != PROTOCOL:
        raise MalformedEvent(f"its protocol is {str(data.get('protocol'))[:20]!r}, and this version reads {PROTOCOL}")
    at = data.get("at")
    told_at = float(at) if isinstance(at, int | float) and 0 <= at <= _MOST else 0.0
    if (kind := EVENTS.get(name)) is None:
        return None, told_at
    given = {one.name: _read(one, data) for one in fields(kind) if one.name in data or _is_needed(one)}
    return kind(**given), told_at


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _is_needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"), "float": ((int, float), "a number"), "str": ((str,), "a text"), "bool": ((bool,), "true or false"),
    "tuple": ((list,), "a list"), "Mapping": ((dict,), "an object"),
}  # fmt: skip
_MOST = 1 << 80  # no figure of a run is as large


def _read(one: Field[Any], data: Mapping[str, Any]) -> Any:
    written = str(one.type)
    types, what = _KINDS[written.partition("[")[0].partition(" ")[0]]
    if one.name not in data:
        raise MalformedEvent(f"it has no field {one.name}")
    value = data[one.name]
    if value is None and written.endswith("| None"):
        return None
    fits = isinstance(value, types) and isinstance(value, bool) == (bool in types)
    if not fits or (isinstance(value, int | float) and not -_MOST <= value <= _MOST):  # nor is not-a-number
        raise MalformedEvent(f"its field {one.name} is not {what} that a run can have")
    return tuple(value) if isinstance(value, list) else value
