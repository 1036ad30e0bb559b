"""Reads `.npy` of NumPy: type, order and shape as text, and then the elements."""

from __future__ import annotations

import re

from prefect_cachewatch.store.formats.reading import Broken, Source, Unjudged, count_elements

_MAGIC = b"\x93NUMPY"
# NumPy itself refuses longer ones, unless they are trusted.
_MAX_BYTES = 10_000
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_PLAIN = re.compile(
    r"\{'descr': '[<>|=]?(?P<kind>[a-zA-Z])(?P<bytes>\d{0,10})(?:\[\w+\])?', "
    r"'fortran_order': (?:True|False), 'shape': \((?P<shape>[\dL, ]*)\), ?\}\s*"
)


def read_npy(source: Source) -> list[str]:
    """Compare the size that type and shape need with the file's size.

    Returns:
        What is unusual and allowed.

    Raises:
        Broken: they contradict each other.
        Unjudged: an array of objects or records, a newer version, or more than one array.
    """
    major = source.read(6, 2, "its header")[0]
    if major not in _LENGTH_BYTES:
        raise Unjudged(f"is of version {major} of the format, which is not read here")
    length_bytes = _LENGTH_BYTES[major]
    length = int.from_bytes(source.read(8, length_bytes, "its header"), "little")
    begin = 8 + length_bytes + length
    source.require_end(begin, "its header should end")
    size = _parse(source.read(8 + length_bytes, length, "its header", most=_MAX_BYTES).decode("utf-8", "replace"))
    end = begin + size
    source.require_end(end, "its elements end")
    if end == source.size:
        return []
    if source.read(end, min(6, source.size - end), "its end") == _MAGIC:
        raise Unjudged("holds more than one array")
    return [f"has {source.size - end} bytes behind its elements, which end at byte {end}"]


def _parse(header: str) -> int:
    if not header.startswith("{"):
        raise Broken("has a header that is no dictionary")
    found = _PLAIN.fullmatch(header)
    if not found:
        if re.fullmatch(r"\{.*\}\s*", header, re.S):
            raise Unjudged("is an array of records, or of another writer than NumPy, whose size is not computed here")
        raise Broken("has a header without valid type, order and shape")
    if found["kind"] == "O":
        raise Unjudged("is an array of Python objects, whose size is not computed here")
    item = int(found["bytes"] or 1) * (4 if found["kind"] == "U" else 1)
    # Python 2 wrote a long integer with an L behind it.
    words = [word.strip().removesuffix("L") for word in found["shape"].split(",")]
    if not all(word.isdecimal() for word in words[:-1]) or any(len(word) > 20 for word in words):
        raise Broken("has a header with an impossible shape")
    shape = [int(word) for word in words if word.isdecimal()]
    return count_elements(shape, "its array") * item
