"""Reads GGUF of llama.cpp: counts, keys with values, the list of tensors, and the tensors, each aligned."""

from __future__ import annotations

import struct

from prefect_cachewatch.store.formats.reading import (
    Broken,
    Cursor,
    Source,
    Unjudged,
    count_elements,
    quote,
    require_apart,
)

_VERSIONS = (2, 3)
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_MAX_NESTED = 4
_MAX_NAME_BYTES = 1 << 16
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 8  # ggml has four
_DEFAULT_ALIGNMENT = 32
# The least bytes that an entry can have: a name without characters, and a value of one byte.
_MIN_VALUE_BYTES = 13
_MIN_TENSOR_BYTES = 24
# Elements and bytes of a block, by the number of the type in ggml.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17),
}  # fmt: skip


def read_gguf(source: Source) -> list[str]:
    """Compare the tensors that the header lists with the file's size, with their types and their neighbours.

    Returns:
        What is unusual and allowed.

    Raises:
        Broken: they contradict each other.
        Unjudged: another version, another byte order, or a header beyond the budget.
    """
    cursor = Cursor(source, 4, "its header")
    (version,) = cursor.unpack("<I")
    if version not in _VERSIONS:
        raise Unjudged(f"is GGUF of a version or byte order that is not read here ({version:#x})")
    tensors, values = cursor.unpack("<QQ")
    _require_room(cursor, values, _MIN_VALUE_BYTES, "keys")
    alignment = _read_values(cursor, values)
    _require_room(cursor, tensors, _MIN_TENSOR_BYTES, "tensors")
    if tensors > _MAX_TENSORS:
        raise Unjudged(f"has {tensors} tensors, more than are read here")
    listed = [_read_tensor(cursor, alignment) for _ in range(tensors)]
    begin = _align(cursor.position, alignment)
    ranges = [(begin + at, begin + at + size, name) for at, size, name in listed]
    last = require_apart(ranges, "the tensor", begin, max(begin, source.size))
    end = _align(last, alignment)
    doubts: list[str] = []
    if source.size < end:
        doubts.append(f"lacks the last {end - source.size} bytes of padding")
    elif source.size > end and all(size for _, size, _ in listed):
        doubts.append(f"has {source.size - end} bytes behind its last tensor, which ends at byte {last}")
    return doubts


def _require_room(cursor: Cursor, count: int, least: int, what: str) -> None:
    if count * least > cursor.left:
        raise Broken(f"is cut off or damaged: it announces {count} {what}, and {cursor.left} bytes are left for them")


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _read_values(cursor: Cursor, count: int) -> int:
    alignment = _DEFAULT_ALIGNMENT
    for _ in range(count):
        key = _read_name(cursor)
        (kind,) = cursor.unpack("<I")
        if key == b"general.alignment" and kind == _UINT32:
            (alignment,) = cursor.unpack("<I")
            if not alignment or alignment & (alignment - 1):
                raise Broken(f"has an alignment of {alignment}, which is no power of two")
        else:
            _skip_value(cursor, kind, 0)
    return alignment


def _read_name(cursor: Cursor) -> bytes:
    (length,) = cursor.unpack("<Q")
    if length > _MAX_NAME_BYTES:
        raise Broken(f"has a name of {length} bytes in its header")
    return cursor.take(length)


def _skip_value(cursor: Cursor, kind: int, nested: int) -> None:
    if kind in _SCALAR_BYTES:
        cursor.skip(_SCALAR_BYTES[kind])
    elif kind == _STRING:
        cursor.skip(cursor.unpack("<Q")[0])
    elif kind == _ARRAY and nested < _MAX_NESTED:
        inner, count = cursor.unpack("<IQ")
        _require_room(cursor, count, _SCALAR_BYTES.get(inner, 8), "values")
        if inner in _SCALAR_BYTES:
            cursor.skip(count * _SCALAR_BYTES[inner])
        else:
            for _ in range(count):
                _skip_value(cursor, inner, nested + 1)
    else:
        raise Broken(f"has a value of an unknown kind in its header ({kind})")


def _read_tensor(cursor: Cursor, alignment: int) -> tuple[int, int, str]:
    name = _read_name(cursor).decode("utf-8", "backslashreplace")
    (dimensions,) = cursor.unpack("<I")
    if dimensions > _MAX_DIMENSIONS:
        raise Broken(f"has a tensor of {dimensions} dimensions: {quote(name)}")
    shape = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions))
    kind, offset = cursor.unpack("<IQ")
    elements = count_elements(shape, "the tensor", name)
    if offset % alignment:
        raise Broken(f"has the tensor {quote(name)} at offset {offset}, which is not aligned to {alignment}")
    if kind not in _BLOCKS:
        return offset, 0, name
    block, block_bytes = _BLOCKS[kind]
    if (shape[0] if shape else 1) % block:
        raise Broken(f"has rows in the tensor {quote(name)} that are no multiple of {block} elements")
    return offset, elements // block * block_bytes, name
