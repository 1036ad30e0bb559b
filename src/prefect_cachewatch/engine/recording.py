"""Reads a recorded run back: the last attempt's measurements, and how it ended. Errors name the line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from prefect_cachewatch.common.files import open_input
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.engine.events import AttemptWanted, Event, Gone, MalformedEvent, Progress, Started, from_line
from prefect_cachewatch.errors import InputError

Ending = Literal["exited", "ready", "stopped", "cut_off"]

_LINE_BYTES = 16 << 20  # a report with its listing
_MOST = 2_000_000


@dataclass(frozen=True)
class Recording:
    """One attempt, as it was recorded; the first of its samples is what was there at the start.

    `torn` if the last line was cut off: the machine went down, or is full.
    """

    name: str
    samples: tuple[Progress, ...]
    ending: Ending = "cut_off"
    end_s: float = 0.0
    torn: bool = False


def read_recording(path: Path) -> Recording:
    """Read the last attempt that was recorded in a file.

    Args:
        path: path of the file.

    Returns:
        The attempt. A last line that was cut off is left out, and `torn` is set.

    Raises:
        InputError: it cannot be read, or is no recording; the message has the line number.
    """
    shown = for_terminal(str(path))
    try:
        with open_input(path) as file:
            return _parse(file, path.name, shown)
    except OSError as error:
        raise InputError(f"recording {shown} cannot be read: {error.strerror or error}") from error


def _parse(file: BinaryIO, name: str, shown: str) -> Recording:
    samples: list[Progress] = []
    gone: Gone | None = None
    torn = False
    for where, event in _events(file, f"recording {shown}"):
        match event:
            case None:
                torn = True
            case AttemptWanted():
                gone = None
            case Started(bytes_present=size, files_present=count):
                samples, gone = [Progress(0.0, bytes_present=size, files_present=count)], None
            case Progress():
                _check(where, event, samples, gone)
                samples.append(event)
            case Gone():
                gone = event
    if not samples:
        raise InputError(f"recording {shown} has no attempt that was started: nothing was measured")
    if gone is None:
        return Recording(name, tuple(samples), end_s=samples[-1].at_s, torn=torn)
    ending: Ending = "ready" if gone.ready else "exited" if gone.why == "exited" else "stopped"
    return Recording(name, tuple(samples), ending, max(gone.at_s, samples[-1].at_s), torn)


def _events(file: BinaryIO, shown: str) -> Iterator[tuple[str, Event | None]]:
    """The events with their places; None for a last line that was cut off."""
    number = 0
    while data := file.readline(_LINE_BYTES):
        number += 1
        where = f"{shown}, line {number}"
        if not data.endswith(b"\n"):
            if len(data) == _LINE_BYTES:
                raise InputError(f"{where}: longer than any event")
            yield where, None
            return
        if number > _MOST:
            raise InputError(f"{where}: more than {_MOST:,} events: cut the recording")
        try:
            event = from_line(data)
        except MalformedEvent as error:
            raise InputError(f"{where}: no event that `cachewatch exec --record` writes: {error}") from None
        if event is not None:
            yield where, event


def _check(where: str, event: Progress, samples: list[Progress], gone: Gone | None) -> None:
    if not samples or gone is not None:
        raise InputError(f"{where}: a measurement of no attempt that runs")
    before = samples[-1]
    if event.at_s < before.at_s:
        raise InputError(f"{where}: at_s goes back from {before.at_s:g} to {event.at_s:g}")
    for field in ("bytes_written", "allocated_written"):
        if getattr(event, field) < getattr(before, field):
            raise InputError(f"{where}: {field} falls, and what was written can only grow")
