"""Writes small files of tensor formats by their specifications, independently of the readers that the tests are about."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Sequence


def write_safetensors(tensors: dict[str, tuple[str, list[int], bytes]], **changed: dict[str, object]) -> bytes:
    """A file of tensors, each a type, a shape and bytes; entries of the header may be replaced by name."""
    header: dict[str, object] = {}
    data = b""
    for name, (kind, shape, payload) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header | changed).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def write_gguf(tensors: Sequence[tuple[str, tuple[int, ...], int, bytes]], words: Sequence[str] = ()) -> bytes:
    """A file of version 3 with alignment 64; each tensor is a name, dimensions, the number of its type, and bytes."""
    values = [_text("general.alignment") + struct.pack("<II", 4, 64), _text("name") + struct.pack("<I", 8) + _text("x")]
    values.append(_text("words") + struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(_text, words)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    data = b""
    for name, shape, kind, payload in tensors:
        head += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += payload + bytes(-len(payload) % 64)
    return head + bytes(-len(head) % 64) + data


class _Flatbuffer:
    """Tables from front to back: each before what it points to."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def point(self, slot: int, target: int) -> None:
        struct.pack_into("<I", self.data, slot, target - slot)

    def table(self, slot: int, *forms: str) -> list[int]:
        """Add a table whose fields have these forms, point to it, and return where the fields are."""
        self.data += bytes(-len(self.data) % 8)
        vtable, offsets, size = len(self.data), [], 4
        for form in forms:
            width = struct.calcsize(form)
            size += -size % width
            offsets.append(size)
            size += width
        self.data += struct.pack(f"<HH{len(forms)}H", 4 + 2 * len(forms), size, *offsets)
        self.data += bytes(-len(self.data) % 8)
        place = len(self.data)
        self.data += struct.pack("<i", place - vtable) + bytes(size - 4)
        self.point(slot, place)
        return [place + offset for offset in offsets]

    def vector(self, slot: int, values: Sequence[int]) -> list[int]:
        self.data += bytes(-len(self.data) % 4)
        self.point(slot, len(self.data))
        self.data += struct.pack(f"<I{len(values)}I", len(values), *values)
        return [len(self.data) - 4 * (len(values) - index) for index in range(len(values))]


def write_tensorbin(
    shape: Sequence[int], kind: int, shards: Sequence[tuple[int, int]], data: bytes, mesh: Sequence[int] = (1,)
) -> bytes:
    """A file of one tensor: the number of its type, each shard's offset and size, and the data of them all."""
    flat = _Flatbuffer()
    spec, mesh_at, shards_at = flat.table(0, "I", "I", "I")
    shape_at, layout = flat.table(spec, "I", "I")
    flat.vector(shape_at, shape)
    (kind_at,) = flat.table(layout, "B")
    flat.data[kind_at] = kind
    (dimensions,) = flat.table(mesh_at, "I")
    flat.vector(dimensions, mesh)
    for slot, (at, size) in zip(flat.vector(shards_at, [0] * len(shards)), shards, strict=True):
        tag, place, _ = flat.table(slot, "B", "I", "I")
        flat.data[tag] = 1
        flat.data += bytes(-len(flat.data) % 8)
        flat.point(place, len(flat.data))
        flat.data += struct.pack("<QQ", at, size)
    flat.data += bytes(-(len(flat.data) + 8) % 64)
    return struct.pack("<Q", len(flat.data)) + bytes(flat.data) + data


def write_torch(storages: Sequence[bytes]) -> bytes:
    """An archive as `torch.save` lays it out: nothing is compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}.")
        for number, storage in enumerate(storages):
            archive.writestr(f"model/data/{number}", storage)
        archive.writestr("model/version", b"3\n")
    return file.getvalue()


def write_zip64(name: bytes, data: bytes) -> bytes:
    """An archive of one member whose every size and offset is in the fields for archives beyond 4 GiB."""
    full = 0xFFFFFFFF
    checksum = struct.pack("<I", zlib.crc32(data))
    local = (
        b"PK\x03\x04"
        + struct.pack("<HHHHH", 45, 0, 0, 0, 0)
        + checksum
        + struct.pack("<IIHH", full, full, len(name), 20)
    )
    local += name + struct.pack("<HHQQ", 1, 16, len(data), len(data)) + data
    entry = b"PK\x01\x02" + struct.pack("<HHHHHH", 45, 45, 0, 0, 0, 0) + checksum
    entry += struct.pack("<IIHHHHHII", full, full, len(name), 28, 0, 0, 0, 0, full) + name
    entry += struct.pack("<HHQQQ", 1, 24, len(data), len(data), 0)
    at = len(local) + len(entry)
    end = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, len(entry), len(local))
    end += b"PK\x06\x07" + struct.pack("<IQI", 0, at, 1)
    return local + entry + end + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, full, full, 0)
