"""Bounded reading of files whose contents are not trusted: a budget of bytes and seconds, and no read past the end.

A reader of a format raises `Broken` where the file contradicts itself, and `Unjudged` where nothing can be said.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Any, BinaryIO

from prefect_cachewatch.common.text import for_terminal

# What one file may cost. The largest known headers, GGUF with a vocabulary of 256,000 words, have 10 MB.
_BUDGET_BYTES = 32 << 20
_BUDGET_S = 10.0
_TOO_LARGE = "has a header that is too large to be read here"
_WINDOW_BYTES = 1 << 16
_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 1 << 63


class Broken(Exception):
    """The file contradicts itself; the message is a sentence without its subject, the file."""


class Unjudged(Exception):
    """Nothing can be said about the file; the message is a sentence without its subject, the file."""


class Source:
    """An open file that is read by offset, within a budget: so many bytes of it, and no read that starts later.

    Args:
        file: open for reading in binary, seekable.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _BUDGET_BYTES
        self._until_s = time.monotonic() + _BUDGET_S
        self.size = file.seek(0, 2)

    def read(self, offset: int, count: int, what: str, most: int = _BUDGET_BYTES) -> bytes:
        """Read exactly so many bytes.

        Raises:
            Broken: the file ends before; `what` is named as what is cut.
            Unjudged: they are more than the most that a header may have, or the budget is used up.
        """
        if count > self.size - offset:
            raise Broken(f"is cut off: it ends at byte {self.size}, within {what}")
        if count > min(self._left, most):
            raise Unjudged(_TOO_LARGE)
        self.require_time()
        self._left -= count
        self._file.seek(offset)
        data = self._file.read(count)
        if len(data) != count:
            raise Broken(f"is cut off: it ends at byte {offset + len(data)}, within {what}")
        return data

    def require_time(self) -> None:
        """Raise `Unjudged` if the seconds of the budget are over."""
        if time.monotonic() > self._until_s:
            raise Unjudged(_TOO_LARGE)

    def require_end(self, end: int, what: str) -> None:
        """Require that something of which the file says the end lies in it; `what` is that with its verb."""
        if end > self.size:
            raise Broken(f"is cut off: {what} at byte {end}, and the file has {self.size}")

    def head(self, count: int) -> bytes:
        """Read the first bytes, fewer if the file is shorter."""
        return self.read(0, min(count, self.size), "its first bytes")


class Cursor:
    """Reads one value after another, through a window of 64 KiB."""

    def __init__(self, source: Source, offset: int, what: str) -> None:
        self.position = offset
        self._source, self._what = source, what
        self._window, self._start = b"", 0

    def take(self, count: int) -> bytes:
        """Read the next bytes."""
        begin = self.position - self._start
        if begin < 0 or begin + count > len(self._window):
            size = max(count, min(_WINDOW_BYTES, self._source.size - self.position))
            self._window, self._start, begin = self._source.read(self.position, size, self._what), self.position, 0
        self.position += count
        return self._window[begin : begin + count]

    def skip(self, count: int) -> None:
        """Pass over bytes, which the file must have."""
        if count > self.left:
            raise Broken(f"is cut off: it ends at byte {self._source.size}, within {self._what}")
        self.position += count

    def unpack(self, form: str) -> tuple[Any, ...]:
        """Read the next values, as `struct.unpack` does."""
        return struct.unpack(form, self.take(struct.calcsize(form)))

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self._source.size - self.position


def quote(name: str) -> str:
    """Quote a name from the file for a message; names may be as long as the header."""
    return f"'{for_terminal(name[:100], 80)}'"


def count_elements(shape: Iterable[int], what: str, name: str = "") -> int:
    """Multiply dimensions, refusing shapes that no file can hold.

    Args:
        shape: the dimensions.
        what: whose shape it is, for the message.
        name: of that, as the file has it.

    Raises:
        Broken: more than 64 dimensions, or a product that does not fit into 63 bits.

    Example:
        >>> count_elements((3, 4), "x")
        12
    """
    product = 1
    for number, dimension in enumerate(shape):
        product *= dimension
        if number >= _MAX_DIMENSIONS or not 0 <= dimension < _MAX_ELEMENTS or product >= _MAX_ELEMENTS:
            raise Broken(f"gives {_call(what, name)} an impossible shape")
    return product


def require_apart(ranges: list[tuple[int, int, str]], what: str, begin: int, end: int) -> int:
    """Require that ranges lie within bounds and do not overlap.

    Args:
        ranges: offset of the first byte, offset behind the last, and the name that the file has for it.
        what: they are, for messages.
        begin: the first offset that is allowed.
        end: the offset behind the last that is allowed.

    Returns:
        The offset behind the last byte of them all; `begin` if there are none.

    Raises:
        Broken: one is outside, or two overlap.
    """
    last, before = begin, ""
    for first, behind, name in sorted(ranges):
        if behind > end:
            raise Broken(
                f"is cut off: {_call(what, name)} should end at byte {behind}, and its data ends at byte {end}"
            )
        if behind > first:
            if first < last:
                raise Broken(
                    f"has {_call(what, name)} at byte {first}, within {_call(what, before) if before else 'another'}"
                )
            last, before = behind, name
    return last


def _call(what: str, name: str) -> str:
    return f"{what} {quote(name)}" if name else what
