"""Trace files: CSV with a header, one row per measurement; errors name the line, and a kill leaves a whole file.

Columns are found by name, so that traces of other samplers with `t_s,total_bytes,file_count` are read too.
What the columns mean is in `rows`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from prefect_cachewatch.common.files import PUBLIC, create_file, open_input
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.trace.rows import Event, Trace, TraceRow

_KINDS = {field.name: str(field.type).removesuffix(" | None") for field in fields(TraceRow)}
TRACE_COLUMNS = tuple(_KINDS)
_REQUIRED = TRACE_COLUMNS[:3]
# Names of other samplers: cum_growth is what was written; the others count changes without growth.
_ALIASES = {"cum_growth": "written_bytes"}
_CHANGES = ("new", "renamed", "rewritten_same_or_smaller")
_EVENTS: tuple[Event, ...] = ("", "unreadable", "missing", "exited", "ready", "stopped")
_ROWS_MAX = 2_000_000
# How a number is read, its name in messages, and its maximum.
_NUMBERS: dict[str, tuple[Callable[[str], float], str, float]] = {
    "int": (int, "a whole number of bytes or files", 2**80),
    "float": (float, "a number of seconds", 1e9),
}


def read_trace(path: Path) -> Trace:
    """Read a trace file.

    Args:
        path: path of the file.

    Returns:
        The trace, with at least one row. A last line that was cut off is left out, and `torn` is set.

    Raises:
        InputError: it cannot be read, or is no trace; the message has the line number.
    """
    shown = for_terminal(str(path))
    try:
        with open_input(path) as file:
            return _parse(file, path.name, shown)
    except OSError as error:
        raise InputError(f"trace {shown} cannot be read: {error.strerror or error}") from error


def check_trace_path(path: Path) -> None:
    """Check before the start that a trace can be recorded to a path.

    Args:
        path: of the file to come.

    Raises:
        InputError: it exists already, or its directory is missing or not writable.
    """
    shown, parent = for_terminal(str(path)), path.absolute().parent
    if os.path.lexists(path):
        raise InputError(
            f"trace {shown} exists already: name another file, or a directory, where each run gets its own"
        )
    if not parent.is_dir():
        raise InputError(
            f"trace {shown} cannot be written: directory {for_terminal(str(parent))} does not exist; create it first"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"trace {shown} cannot be written: no write permission in {for_terminal(str(parent))}")


class TraceWriter:
    """Writes a new trace file; takes rows as bytes in pieces of any size, and writes whole lines.

    Args:
        path: of the file, which must not exist.

    Raises:
        InputError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        check_trace_path(path)
        self._path, self._rest = path, b""
        self._rows = self._whole_bytes = 0
        try:
            self._fd = create_file(path, mode=PUBLIC, append=True)
            try:
                self._append(",".join(TRACE_COLUMNS).encode())
            except OSError:
                os.close(self._fd)
                raise
        except OSError as error:
            raise InputError(f"trace {for_terminal(str(path))} cannot be written: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Take bytes; raises OSError, after which the file still ends with a whole line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._append(line)
            self._rows += 1

    def close(self) -> None:
        """Close the file; one without a row is removed."""
        os.close(self._fd)
        if not self._rows:
            self._path.unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        data = line + b"\n"
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                os.write(self._fd, data[written:])  # raises the reason, or continues
        except OSError:
            os.ftruncate(self._fd, self._whole_bytes)
            raise
        self._whole_bytes += len(data)


def format_row(row: TraceRow) -> bytes:
    """Write a row as a line."""
    return ",".join(_format(getattr(row, name)) for name in TRACE_COLUMNS).encode() + b"\n"


def _format(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Reader:
    """Reads the fields of one line; every error names the line."""

    where: str
    fields: dict[str, str]

    def fail(self, what: str) -> InputError:
        return InputError(f"{self.where}: {what}")

    def number(self, name: str, kind: str) -> Any:
        parse, what, most = _NUMBERS[kind]
        text = self.fields.get(name, "").strip()
        if not text:
            if name in _REQUIRED:
                raise self.fail(f"{name} is empty: it must be {what}")
            return None
        try:
            value = parse(text)
        except ValueError:
            raise self.fail(f"{name} is {for_terminal(text, 40)!r}, which is not {what}") from None
        if not 0 <= value <= most:  # nor is not-a-number
            raise self.fail(f"{name} is {for_terminal(text, 40)}, which is out of range: {what}, not negative")
        return value

    def event(self) -> Event:
        text = self.fields.get("event", "").strip()
        for event in _EVENTS:
            if text == event:
                return event
        raise self.fail(f"event is {for_terminal(text, 40)!r}: it must be empty or one of {', '.join(_EVENTS[1:])}")


def _parse(file: BinaryIO, name: str, shown: str) -> Trace:
    lines = _Lines(file, shown)
    table = csv.reader(lines)
    header = _header(lines, next(_records(table, lines), None))
    recorded = "event" in header
    rows: list[TraceRow] = []
    torn = False
    for record in _records(table, lines):
        if not record or record == [""]:
            continue
        if not lines.whole and (recorded or len(record) != len(header)):
            torn = True  # the machine went down while it was written; a number may be cut, so the line is not used
            break
        if len(record) != len(header):
            raise InputError(f"{lines.where}: {len(record)} fields, and the header names {len(header)}")
        if len(rows) >= _ROWS_MAX:
            raise InputError(f"{lines.where}: more than {_ROWS_MAX:,} rows: cut the trace")
        reader = _Reader(lines.where, dict(zip(header, record, strict=True)))
        rows.append(_row(reader, rows[-1] if rows else None))
    if not rows:
        raise InputError(f"trace {shown} has no rows below its header: nothing was measured")
    return Trace(name, tuple(rows), recorded, torn)


class _Lines:
    """The lines of a file as text; counts their numbers."""

    def __init__(self, file: BinaryIO, shown: str) -> None:
        self._file, self.shown = file, shown
        self.number = 0
        self.whole = True

    @property
    def where(self) -> str:
        return f"trace {self.shown}, line {self.number}"

    def __iter__(self) -> Iterator[str]:
        while data := self._file.readline(65536):
            self.number += 1
            self.whole = data.endswith(b"\n")
            if not self.whole and len(data) == 65536:
                raise InputError(f"{self.where}: longer than any line of a trace; it must be CSV with a header")
            try:
                yield data.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise InputError(f"{self.where}: not text in UTF-8; a trace is CSV with a header") from None


def _records(table: Iterator[list[str]], lines: _Lines) -> Iterator[list[str]]:
    try:
        yield from table
    except csv.Error as error:
        raise InputError(f"{lines.where}: not CSV: {error}") from None


def _header(lines: _Lines, record: list[str] | None) -> list[str]:
    if record is None:
        raise InputError(f"trace {lines.shown} is empty: a trace begins with the line {','.join(_REQUIRED)}")
    names = [_ALIASES.get(name.strip(), name.strip()) for name in record]
    for name in _REQUIRED:
        if name not in names:
            raise InputError(f"{lines.where}: no column {name}: a trace begins with the line {','.join(_REQUIRED)}")
    for name in names:
        if name and names.count(name) > 1:
            raise InputError(f"{lines.where}: column {for_terminal(name, 40)} is there twice: leave one of them")
    return names


def _row(reader: _Reader, before: TraceRow | None) -> TraceRow:
    found = {name: reader.number(name, kind) for name, kind in _KINDS.items() if kind in _NUMBERS}
    if found["touched_at_s"] is None and any(reader.number(name, "int") for name in _CHANGES):
        found["touched_at_s"] = found["t_s"]
    row = TraceRow(**{name: value for name, value in found.items() if value is not None}, event=reader.event())
    if before is not None:
        if row.t_s < before.t_s:
            raise reader.fail(f"t_s goes back from {before.t_s:g} to {row.t_s:g}: rows must be in the order of time")
        if before.event in ("exited", "ready", "stopped"):
            raise reader.fail(f"a row after the run's end ({before.event}): a trace holds one run")
        for name in ("written_bytes", "written_alloc_bytes"):
            old, new = getattr(before, name), getattr(row, name)
            if old is not None and new is not None and new < old:
                raise reader.fail(f"{name} falls from {old} to {new}: what was written can only grow")
    return row
