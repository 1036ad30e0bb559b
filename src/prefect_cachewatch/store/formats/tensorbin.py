"""Reads `.tensorbin` of tt-metal: the length of a flatbuffer, the flatbuffer, and the shards of one tensor."""

from __future__ import annotations

import struct

from prefect_cachewatch.store.formats.reading import Broken, Source, Unjudged, count_elements, require_apart

_ALIGNMENT = 8  # which the loader demands; newer writers align to 64
_MAX_GAP = 64
_MAX_BYTES = 16 << 20
_INLINE = 1
# Bits of an element, by the number of the type in the schema. Block floats have shared exponents on top.
_BITS = {0: 16, 1: 32, 2: 32, 3: 8, 4: 4, 5: 8, 6: 16, 7: 32}
_NAMES = ("bfloat16", "float32", "uint32", "bfloat8_b", "bfloat4_b", "uint8", "uint16", "int32")
# Versions before the flatbuffer began their files so.
_SENTINEL = 0xFFFFFFFFFFFFFFFF
# Shapes, meshes and shards have fewer by far; a hostile count would take memory.
_MAX_ENTRIES = 1 << 16
_INVALID = "has a header that is no valid flatbuffer"


def read_tensorbin(source: Source) -> list[str]:
    """Compare the shards that the header lists with the file's size, and with type and shape of the tensor.

    Returns:
        What is unusual and allowed.

    Raises:
        Broken: they contradict each other.
        Unjudged: the file has an older layout.
    """
    length = int.from_bytes(source.read(0, 8, "the length of its header"), "little")
    if length == _SENTINEL:
        raise Unjudged("was written by an older tt-metal, in a layout that is not read here")
    if length > _MAX_BYTES:
        raise Unjudged("does not begin like a tensorbin, as its name suggests")
    begin = 8 + length
    if not length or begin > source.size:
        raise Broken(
            f"is cut off or no tensorbin: its header should have {length} bytes, and the file has {source.size}"
        )
    if begin % _ALIGNMENT:
        raise Broken(f"has data from byte {begin} on, and tt-metal refuses data that is not aligned to {_ALIGNMENT}")
    header = source.read(8, length, "its header", most=_MAX_BYTES)
    tensor = _Table(header, _unpack(header, "<I", 0))
    if tensor.offset(1) % 4:
        raise Unjudged("was written by an older tt-metal, in a layout that is not read here")
    places = _list_shards(tensor)
    ranges = [(begin + at, begin + at + size, "") for at, size in sorted(places)]
    last = require_apart(ranges, "a shard", begin, source.size)
    if len(places) == 1:
        _check_size(tensor, next(iter(places))[1])
    return _find_gaps(ranges, begin, last, source.size)


def _list_shards(tensor: _Table) -> set[tuple[int, int]]:
    mesh, shards = tensor.table(1), tensor.tables(2)
    if mesh is None or shards is None:
        raise Broken("has a header without a mesh or without shards")
    if not shards:
        raise Unjudged("lists no shards")
    if len(shards) > count_elements(mesh.numbers(0) or (), "the mesh"):
        raise Broken(f"lists {len(shards)} shards, more than the mesh has devices")
    # Replicated data is listed once for each device, with the same place.
    places: set[tuple[int, int]] = set()
    for shard in shards:
        if shard.number(0, "<B") != _INLINE:
            raise Unjudged("keeps data in a way that is not read here")
        place = shard.struct(1, "<QQ")
        if place is None:
            raise Broken("lists a shard without a place")
        at, size = place
        if not size:
            raise Broken("lists a shard of no bytes")
        places.add((at, size))
    return places


def _check_size(tensor: _Table, size: int) -> None:
    spec = tensor.table(0)
    layout = spec.table(1) if spec else None
    if spec is None or layout is None:
        raise Broken("has a header without type and shape")
    kind = layout.number(0, "<B")
    if kind not in _BITS:
        return
    bits, shape = _BITS[kind], spec.numbers(0) or ()
    needed = (count_elements(shape, "its tensor") * bits + 7) // 8
    # Padding to tiles may make it larger.
    if size < needed or size % (bits // 8 or 1):
        raise Broken(f"has {size} bytes for a tensor of shape {shape} and type {_NAMES[kind]}, which needs {needed}")


def _find_gaps(ranges: list[tuple[int, int, str]], begin: int, last: int, size: int) -> list[str]:
    doubts: list[str] = []
    position = begin
    for first, behind, _ in ranges:
        if first - position >= _MAX_GAP:
            doubts.append(f"has {first - position} bytes before byte {first} that belong to no shard")
        position = behind
    if last != size:
        doubts.append(f"has {size - last} bytes behind its last shard, which ends at byte {last}")
    return doubts


class _Table:
    """A table of a flatbuffer, no offset of which is trusted; its fields are numbered in the order of the schema, and a union counts as two."""

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

    def table(self, number: int) -> _Table | None:
        """A field that is a table."""
        place = self._follow(number)
        return None if place is None else _Table(self._data, place)

    def struct(self, number: int, form: str) -> tuple[int, ...] | None:
        """A field that leads to a structure, as a union of structures does."""
        place = self._follow(number)
        return None if place is None else _values(self._data, form, place)

    def numbers(self, number: int) -> tuple[int, ...] | None:
        """A field that is a vector of unsigned 32-bit integers."""
        place = self._follow(number)
        return None if place is None else _values(self._data, f"<{self._count(place)}I", place + 4)

    def tables(self, number: int) -> list[_Table] | None:
        """A field that is a vector of tables."""
        place = self._follow(number)
        if place is None:
            return None
        begin = place + 4
        offsets = _values(self._data, f"<{self._count(place)}I", begin)
        return [_Table(self._data, begin + 4 * index + offset) for index, offset in enumerate(offsets)]

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


def _unpack(data: bytes, form: str, place: int) -> int:
    return _values(data, form, place)[0]


def _values(data: bytes, form: str, place: int) -> tuple[int, ...]:
    if place < 0 or place + struct.calcsize(form) > len(data):
        raise Broken(_INVALID)
    return struct.unpack_from(form, data, place)
