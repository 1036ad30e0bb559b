"""Reads which files an ONNX model keeps its tensors in: `external_data` of onnx.proto3, by a small reader of protobuf.

It reads what leads to tensors and steps over all else, in bounded time and memory; standard library only.
"""

from __future__ import annotations

import os
from typing import BinaryIO

# What leads to a tensor: message -> field -> message (onnx.proto3). Any other field is stepped over.
_LEADS = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "Sparse"},
    "Function": {7: "Node"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "Sparse", 23: "Sparse"},
    "Sparse": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {1: "key", 2: "value"},
}
_FIELDS_MAX = 2_000_000
_TEXT_MAX = 4096
_DEPTH_MAX = 60
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class NotRead(Exception):
    """It is no ONNX model, or is larger or deeper than is read here."""


class CutOff(Exception):
    """The file ends before what it says that it has."""


def external_files(file: BinaryIO) -> dict[str, int]:
    """Read which files a model keeps tensors in.

    Args:
        file: the model, open for reading in binary.

    Returns:
        Each location as the model names it, and how many bytes of that file it needs at least.

    Raises:
        CutOff: the model ends before its graph does.
        NotRead: it cannot be judged.

    Example:
        >>> import io
        >>> entry = b"\\x0a\\x08location\\x12\\x01w"
        >>> tensor = bytes([0x6A, len(entry)]) + entry
        >>> graph = bytes([0x2A, len(tensor)]) + tensor
        >>> external_files(io.BytesIO(b"\\x08\\x09" + bytes([0x3A, len(graph)]) + graph))
        {'w': 0}
    """
    return _Reader(file).read()


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        self._fields = 0
        self._found: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        if self._file.read(1) != b"\x08":  # the version of the format comes first, and is never left out
            raise NotRead("does not begin like an ONNX model")
        self._file.seek(0)
        self._message("Model", self._size, 0)
        return self._found

    def _message(self, kind: str, end: int, depth: int) -> dict[str, str]:
        """Read a message up to its end; returns the texts in it."""
        if depth > _DEPTH_MAX:
            raise NotRead("is nested deeper than is read here")
        leads, texts, entries = _LEADS[kind], dict[str, str](), dict[str, str]()
        while (at := self._file.tell()) < end:
            self._fields += 1
            if self._fields > _FIELDS_MAX:
                raise NotRead("has more fields than are read here")
            tag = self._varint(end)
            field, wire = tag >> 3, tag & 7
            if not field:
                raise NotRead(f"is no ONNX model at byte {at}")
            if wire == _VARINT:
                self._varint(end)
                continue
            if wire not in (_LENGTH, _FIXED32, _FIXED64):
                raise NotRead(f"is no ONNX model at byte {at}")
            length = {_FIXED64: 8, _FIXED32: 4}.get(wire) or (self._varint(end) if wire == _LENGTH else 0)
            behind = self._file.tell() + length
            if behind > end:
                if end == self._size and kind == "Model" and field == 7 and at:
                    raise CutOff(f"is cut off: its graph ends at byte {behind:,}, and the file at byte {self._size:,}")
                raise NotRead(f"is no ONNX model at byte {at}")
            below = leads.get(field) if wire == _LENGTH else None
            if below in ("key", "value"):
                texts[below] = self._file.read(min(length, _TEXT_MAX)).decode("utf-8", "replace")
            elif below is not None:
                inner = self._message(below, behind, depth + 1)
                if below == "Entry":
                    entries[inner.get("key", "")] = inner.get("value", "")
            self._file.seek(behind)
        if location := entries.get("location"):
            needed = _number(entries.get("offset", "")) + _number(entries.get("length", ""))
            self._found[location] = max(self._found.get(location, 0), needed)
        return texts

    def _varint(self, end: int) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte or self._file.tell() > end:
                raise NotRead("ends within a number")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise NotRead("has a number that is too long")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
