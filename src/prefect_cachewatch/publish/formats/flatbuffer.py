"""Follows tables of a flatbuffer without trusting an offset in it."""

from __future__ import annotations

import struct

from prefect_cachewatch.publish.formats.reading import Broken, Unjudged

# Shapes, meshes and shards have fewer by far; a hostile count would take memory.
_MAX_ENTRIES = 1 << 16
_INVALID = "has a header that is no valid flatbuffer"


class Table:
    """A table; its fields are numbered in the order of the schema, and a union counts as two."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position
        self._vtable = position - _unpack(data, "<i", position)
        self._vtable_bytes = _unpack(data, "<H", self._vtable)
        self._bytes = _unpack(data, "<H", self._vtable + 2)
        if self._vtable_bytes < 4 or self._bytes < 4 or position + self._bytes > len(data):
            raise Broken(_INVALID)

    def offset(self, number: int) -> int:
        """Offset of a field within the table; 0 if the field is absent."""
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_bytes:
            return 0
        offset = _unpack(self._data, "<H", self._vtable + slot)
        if offset >= self._bytes:
            raise Broken(_INVALID)
        return offset

    def number(self, number: int, form: str) -> int:
        """A field that is an integer; 0 if it is absent."""
        offset = self.offset(number)
        return _unpack(self._data, form, self._position + offset) if offset else 0

    def table(self, number: int) -> Table | None:
        """A field that is a table."""
        place = self._follow(number)
        return None if place is None else Table(self._data, place)

    def struct(self, number: int, form: str) -> tuple[int, ...] | None:
        """A field that leads to a structure, as a union of structures does."""
        place = self._follow(number)
        return None if place is None else _values(self._data, form, place)

    def numbers(self, number: int) -> tuple[int, ...] | None:
        """A field that is a vector of unsigned 32-bit integers."""
        place = self._follow(number)
        return None if place is None else _values(self._data, f"<{self._count(place)}I", place + 4)

    def tables(self, number: int) -> list[Table] | None:
        """A field that is a vector of tables."""
        place = self._follow(number)
        if place is None:
            return None
        begin = place + 4
        offsets = _values(self._data, f"<{self._count(place)}I", begin)
        return [Table(self._data, begin + 4 * index + offset) for index, offset in enumerate(offsets)]

    def _follow(self, number: int) -> int | None:
        offset = self.offset(number)
        if not offset:
            return None
        place = self._position + offset
        return place + _unpack(self._data, "<I", place)

    def _count(self, place: int) -> int:
        count = _unpack(self._data, "<I", place)
        if count * 4 > len(self._data):
            raise Broken(_INVALID)
        if count > _MAX_ENTRIES:
            raise Unjudged(f"has a list of {count} entries in its header, more than are read here")
        return count


def read_root(data: bytes) -> Table:
    """Return the table that a flatbuffer begins with.

    Raises:
        Broken: an offset in it leads out of it.
    """
    return Table(data, _unpack(data, "<I", 0))


def _unpack(data: bytes, form: str, place: int) -> int:
    return _values(data, form, place)[0]


def _values(data: bytes, form: str, place: int) -> tuple[int, ...]:
    if place < 0 or place + struct.calcsize(form) > len(data):
        raise Broken(_INVALID)
    return struct.unpack_from(form, data, place)
