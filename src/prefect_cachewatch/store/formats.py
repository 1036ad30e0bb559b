"""Says of one file whether its content can be what its format demands: its header, and the length that follows from it.

Values are not judged. Standard library only; a file costs bounded memory and a bounded number of steps.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple

from prefect_cachewatch.common.temporary import MARKERS
from prefect_cachewatch.common.text import for_terminal

# The largest known header, GGUF with a vocabulary of 256,000 words, has 10 MB and a million values.
_READ_MAX, _STEPS_MAX = 16 << 20, 4_000_000
# Each tensor of safetensors has about seven values.
_VALUES_MAX = 1_000_000
_NAME_MAX, _SHARDS_MAX, _DIMENSIONS_MAX, _NESTED_MAX = 1 << 16, 100_000, 64, 4
_LFS = b"version https://git-lfs"


class _Broken(Exception):
    """The file contradicts itself; the message is a sentence without its subject, the file."""


class _Unjudged(Exception):
    """Nothing can be said about the file."""


@dataclass(frozen=True)
class Content:
    """What one file's content shows; the message is a sentence without its subject, the file."""

    verdict: Literal["whole", "broken", "suspicious", "unknown"]
    message: str
    format: str | None = None


class _Source:
    """A file that is read from its front on, or by offset; what lies behind its end is cut off."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._steps = file, 0
        self.size = file.seek(0, 2)
        file.seek(0)

    def take(self, count: int, at: int | None = None) -> bytes:
        """Read exactly so many bytes, from an offset or from where the last read ended."""
        if at is not None:
            self._file.seek(at)
        begin = self.skip(count) - count
        if count > _READ_MAX:
            raise _Unjudged("has a header that is too large to be read here")
        self._file.seek(begin)
        return self._file.read(count)

    def skip(self, count: int) -> int:
        """Pass over bytes, which the file must have; returns where it is then."""
        self._steps += 1
        if count > self.size - self._file.tell():
            raise _Broken(f"is cut off: it ends at byte {self.size}, within its header")
        if self._steps > _STEPS_MAX:
            raise _Unjudged("has a header that is too large to be read here")
        return self._file.seek(count, 1)

    def unpack(self, form: str, at: int | None = None) -> tuple[Any, ...]:
        """Read values, as `struct.unpack` does."""
        return struct.unpack(form, self.take(struct.calcsize(form), at))

    def header(self, name: str) -> bytes:
        """Read a header whose length stands before it."""
        (length,) = self.unpack("<Q", 0)
        if not 0 < length <= self.size - 8:
            told = f"is cut off or no {name}: its header should have {length} bytes, and the file has {self.size}"
            raise _Broken(told)
        return self.take(length)

    def ends(self, end: int, what: str) -> str:
        """Compare where the data should end with where the file does; returns what is unusual of it."""
        if end > self.size:
            raise _Broken(f"is cut off: its {what} should end at byte {end}, and the file has {self.size}")
        behind = f"has {self.size - end} bytes behind its {what}, which should end at byte {end}"
        return behind if end < self.size else ""


def _safetensors(source: _Source) -> str:
    text = source.header("safetensors")
    if text.count(b",") > _VALUES_MAX:
        raise _Unjudged("has more tensors than are read here")
    tensors = [entry for name, entry in json.loads(text).items() if name != "__metadata__"]
    end = max((entry["data_offsets"][1] for entry in tensors), default=0)
    if behind := source.ends(8 + len(text) + end, "tensors"):
        raise _Broken(behind)  # the library refuses it too
    return ""


def _tensorbin(source: _Source) -> str:
    if source.unpack("<Q", 0)[0] > _READ_MAX:
        raise _Unjudged("was written by an older tt-metal, or is no tensorbin")
    header = source.header("tensorbin")

    # The tables of a flatbuffer, by their offsets; a wrong one is an error of `struct`.
    def unpack(form: str, at: int) -> int:
        if at < 0:  # which struct would count from the end
            raise struct.error
        return int(struct.unpack_from(form, header, at)[0])

    def follow(at: int) -> int:
        return at + unpack("<I", at)

    def field(table: int, number: int) -> int:
        vtable = table - unpack("<i", table)
        offset = unpack("<H", vtable + 4 + 2 * number)
        if not offset or 4 + 2 * number >= unpack("<H", vtable):
            raise _Broken("has a header that lacks what its loader reads")
        return table + offset

    root = follow(0)
    if field(root, 1) % 4:
        raise _Unjudged("was written by an older tt-metal, in a layout that is not read here")
    shards = follow(field(root, 2))
    count, end = unpack("<I", shards), 0
    if not 0 < count <= _SHARDS_MAX:
        raise _Unjudged(f"lists {count} shards")
    for slot in range(shards + 4, shards + 4 + 4 * count, 4):
        shard = follow(slot)
        if unpack("<B", field(shard, 0)) != 1:
            raise _Unjudged("keeps data in a way that is not read here")
        buffer = follow(field(shard, 1))
        end = max(end, unpack("<Q", buffer) + unpack("<Q", buffer + 8))
    return source.ends(8 + len(header) + end, "shards")


# Bytes of a value in a header of GGUF, by the number of its kind.
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
# Elements and bytes of a block, by the number of the type in ggml.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17),
}  # fmt: skip


def _gguf(source: _Source) -> str:
    version, tensors, values = source.unpack("<IQQ", 4)
    if version not in (2, 3):
        raise _Unjudged(f"is GGUF of a version or byte order that is not read here ({version:#x})")
    alignment, end = 32, 0
    for _ in range(values):
        key, (kind,) = _gguf_name(source), source.unpack("<I")
        if key == b"general.alignment" and kind == _UINT32:
            (alignment,) = source.unpack("<I")
        else:
            _skip_value(source, kind)
    for _ in range(tensors):
        _gguf_name(source)
        (dimensions,) = source.unpack("<I")
        if dimensions > _DIMENSIONS_MAX:
            raise _Broken(f"has a tensor of {dimensions} dimensions")
        *sizes, kind, offset = source.unpack(f"<{dimensions}QIQ")
        block, block_bytes = _BLOCKS.get(kind, (1, 0))
        end = max(end, offset + math.prod(sizes) // block * block_bytes)
    if tensors:
        source.ends(-(-source.skip(0) // alignment) * alignment + end, "tensors")
    return ""


def _gguf_name(source: _Source) -> bytes:
    (length,) = source.unpack("<Q")
    if length > _NAME_MAX:
        raise _Broken(f"has a name of {length} bytes in its header")
    return source.take(length)


def _skip_value(source: _Source, kind: int, nested: int = 0) -> None:
    if kind in _SCALARS:
        source.skip(_SCALARS[kind])
    elif kind == _STRING:
        source.skip(*source.unpack("<Q"))
    elif kind == _ARRAY and nested < _NESTED_MAX:
        inner, count = source.unpack("<IQ")
        if inner in _SCALARS:
            source.skip(count * _SCALARS[inner])
        else:
            for _ in range(count):
                _skip_value(source, inner, nested + 1)
    else:
        raise _Broken(f"has a value of an unknown kind in its header ({kind})")


def _archive(source: _Source) -> str:
    """Find the directory at the end of a zip archive, as `torch.save` and `numpy.savez` write it."""
    begin = max(0, source.size - 22 - 65535)  # a comment may follow
    tail = source.take(source.size - begin, begin)
    found = tail.rfind(b"PK\x05\x06")
    if not 0 <= found <= len(tail) - 22:
        raise _Broken("is cut off: it lacks the directory that a zip archive has at its end")
    end, length, at = begin + found, *struct.unpack_from("<II", tail, found + 12)
    if end >= 20 and (locator := source.take(20, end - 20)).startswith(b"PK\x06\x07"):  # of archives beyond 4 GiB
        (end,) = struct.unpack_from("<Q", locator, 8)
        length, at = source.unpack("<QQ", end + 40)
    if at + length != end or (length and source.take(4, at) != b"PK\x01\x02"):
        raise _Broken(f"is cut off or damaged: its directory should be at byte {at} and have {length} bytes")
    return ""


_NPY = re.compile(
    r"\{'descr': '[<>|=]?([a-zA-Z])(\d{0,10})(?:\[\w+\])?', 'fortran_order': (?:True|False), 'shape': \(([\dL, ]{0,999})\), ?\}\s*"
)


def _npy(source: _Source) -> str:
    (major,) = source.unpack("<B", 6)
    if major not in (1, 2, 3):
        raise _Unjudged(f"is of version {major} of the format, which is not read here")
    header = source.take(*source.unpack("<H" if major == 1 else "<I", 8)).decode("utf-8", "replace")
    if not header.startswith("{"):
        raise _Broken("has a header that is no dictionary")
    found = _NPY.fullmatch(header)
    if found is None or found[1] == "O":
        raise _Unjudged("is an array of records or objects, or of another writer than NumPy")
    item = int(found[2] or 1) * (4 if found[1] == "U" else 1)
    # Python 2 wrote a long integer with an L behind it.
    shape = [int(word) for part in found[3].split(",") if (word := part.strip().removesuffix("L"))]
    end = source.skip(0) + item * math.prod(shape)
    behind = source.ends(end, "elements")
    if behind and source.take(min(6, source.size - end), end) == b"\x93NUMPY":
        raise _Unjudged("holds more than one array")
    return behind


_LOOK_BYTES = 4096


def _json(source: _Source) -> str:
    count = min(source.size, _LOOK_BYTES)
    first = source.take(count, 0).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    last = source.take(count, source.size - count).rstrip()
    if first not in (b"{", b"[") or last.endswith(b"*/") or b"//" in last.rpartition(b"\n")[2]:
        raise _Unjudged("does not begin like JSON, or ends with a comment")
    if not last.endswith((b"}", b"]")):
        raise _Broken(f"is cut off: it begins with {first.decode()}, and does not end with a bracket")
    return ""


class _Format(NamedTuple):
    name: str
    #: Returns what is unusual and allowed, or nothing; any other error than these two is one of the file's header.
    read: Callable[[_Source], str]
    #: How files of the format begin; none if only the name tells.
    magics: tuple[bytes, ...]
    #: Names that no other format uses: a file of such a name that begins otherwise is broken.
    own: tuple[str, ...]
    suffixes: tuple[str, ...] = ()


_FORMATS = (
    _Format("npy", _npy, (b"\x93NUMPY",), (".npy",)),
    _Format("GGUF", _gguf, (b"GGUF",), (".gguf",)),
    _Format("zip", _archive, (b"PK\x03\x04", b"PK\x05\x06"), (".npz",), (".pt", ".pth", ".ckpt", ".pt2", ".zip")),
    _Format("safetensors", _safetensors, (), (".safetensors",)),
    _Format("tensorbin", _tensorbin, (), (".tensorbin",)),
    _Format("JSON", _json, (), (), (".json",)),
)


def inspect(file: BinaryIO, name: str, present: Collection[str] = ()) -> Content:
    """Inspect one file.

    Args:
        file: open for reading in binary.
        name: its path in the cache, which may tell the format.
        present: the paths of all files of the cache, of which a marker tells.

    Returns:
        `whole`: header and length agree. `broken`: they contradict each other. `suspicious`: it can be read, and something
        about it is unusual. `unknown`: nothing can be said.

    Raises:
        OSError: it cannot be read.

    Example:
        >>> import io
        >>> inspect(io.BytesIO(b"GGUF"), "model.gguf").message
        'is cut off: it ends at byte 4, within its header'
    """
    if posixpath.basename(name).startswith(MARKERS[0]):
        return _marker(file, name, present)
    source, lowered = _Source(file), name.lower()
    head = source.take(min(64, source.size))
    if head.startswith(_LFS):
        how = "is a pointer of Git LFS, and not the file that it stands for: fetch that with git lfs pull"
        return Content("broken", how, "Git LFS")
    named = next((one for one in _FORMATS if lowered.endswith(one.own + one.suffixes)), None)
    begun = next((one for one in _FORMATS if head.startswith(one.magics)), None) if head else None
    if (chosen := begun or named) is None:
        return Content("unknown", "is of no format that is read here")
    try:
        if begun is None:
            _require_begin(head, chosen, lowered.endswith(chosen.own))
        doubt = chosen.read(source)
    except _Broken as error:
        return Content("broken", str(error), chosen.name)
    except _Unjudged as error:
        return Content("unknown", str(error), chosen.name)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, struct.error):
        return Content("broken", "has a header that makes no sense", chosen.name)
    if named not in (None, chosen) and lowered.endswith(named.own):
        doubt = f"is named like {named.name}, and is {chosen.name}"
    told = doubt or "has the length that its header says"
    return Content("suspicious" if doubt else "whole", told, chosen.name)


def _require_begin(head: bytes, known: _Format, is_own: bool) -> None:
    if not head:
        raise _Broken(f"is empty, and is named like {known.name}")
    if known.magics:
        # Zeros are a file that was reserved, and a part of the magic is one that was cut.
        is_cut = not head.strip(b"\0") or any(magic.startswith(head) for magic in known.magics)
        if is_own or is_cut:
            raise _Broken(f"does not begin like {known.name}, as its name says: it is cut off or damaged")
        raise _Unjudged(f"does not begin like {known.name}, as its name suggests")


def _marker(file: BinaryIO, path: str, present: Collection[str]) -> Content:
    """Judge `.weights_complete` of tt-metal, which vouches for the files beside it; from format 3 on it lists them."""
    name = "tt-metal marker"
    raw = file.read(_READ_MAX + 1)
    if len(raw) > _READ_MAX:
        return Content("unknown", "is too large to be read", name)
    try:
        listed = json.loads(raw).get("cache_files")
    except (ValueError, AttributeError, RecursionError):
        return Content("broken", "is cut off or no JSON, and should list the files of the cache", name)
    if not isinstance(listed, list) or not listed:
        return Content("suspicious", "vouches for a whole cache and lists no files (before format 3)", name)
    gone = [one for one in map(str, listed) if posixpath.join(posixpath.dirname(path), one) not in present]
    if gone:
        shown = for_terminal(gone[0][:100], 80)
        return Content("broken", f"lists {len(gone):,} files that are not there, the first '{shown}'", name)
    return Content("whole", "lists files that are all there", name)
