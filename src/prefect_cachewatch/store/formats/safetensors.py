"""Reads safetensors: the length of a JSON header, the header, and the tensors without a gap."""

from __future__ import annotations

import json
from typing import Any

from prefect_cachewatch.store.formats.reading import (
    Broken,
    Source,
    Unjudged,
    count_elements,
    quote,
    require_apart,
)

_LIBRARY_MAX_BYTES = 100_000_000
_MAX_BYTES = 16 << 20
# Each tensor has about seven values: parsing a hostile header of as many takes below 200 MB and a second.
_MAX_VALUES = 1_000_000
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def read_safetensors(source: Source) -> list[str]:
    """Compare the header with the file's size, and the tensors with their types, shapes and neighbours.

    Returns:
        Nothing: what is unusual in this format is broken.

    Raises:
        Broken: they contradict each other.
        Unjudged: the header is larger than 16 MiB.
    """
    length = int.from_bytes(source.read(0, 8, "the length of its header"), "little")
    begin = 8 + length
    if begin > source.size or length > _LIBRARY_MAX_BYTES:
        raise Broken(
            f"is cut off or no safetensors: its header should have {length} bytes, and the file has {source.size}"
        )
    ranges: list[tuple[int, int, str]] = []
    for name, entry in _decode(source.read(8, length, "its header", most=_MAX_BYTES)).items():
        if name != "__metadata__":
            first, behind = _place(name, entry)
            ranges.append((begin + first, begin + behind, name))
    last = require_apart(ranges, "the tensor", begin, source.size)
    covered = sum(behind - first for first, behind, _ in ranges)
    if last != source.size:
        raise Broken(f"has {source.size - last} bytes behind its last tensor, which ends at byte {last}")
    if covered != last - begin:
        raise Broken(f"has {last - begin - covered} bytes between its tensors that belong to none")
    return []


def _decode(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise Broken("is no safetensors: its header does not begin with '{'")
    if header.count(b",") + header.count(b"[") + header.count(b"{") > _MAX_VALUES:
        raise Unjudged("has more tensors than are read here")
    try:
        found = json.loads(header.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Broken("has a header that is no valid JSON") from None
    if not isinstance(found, dict):
        raise Broken("has a header that is no JSON object")
    return found


def _place(name: str, entry: Any) -> tuple[int, int]:
    entry = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise Broken(f"has no valid type, shape and offsets for the tensor {quote(name)}")
    first, behind = offsets
    if behind < first:
        raise Broken(f"says that the tensor {quote(name)} ends before it begins")
    bits = count_elements(shape, "the tensor", name) * _BITS.get(kind, 0)
    if kind in _BITS and bits != 8 * (behind - first):
        raise Broken(
            f"has {behind - first} bytes for the tensor {quote(name)}, and its shape and type {kind} need {bits // 8}"
        )
    return first, behind


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
