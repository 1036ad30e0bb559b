"""Reads zip archives, which `torch.save` and `numpy.savez` write: the directory at the end, and what it lists.

Small members that are stored without compression are compared with their checksum; nothing else is read in full. Of a
`torch.save` archive each storage that its pickle names must be there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_cachewatch.publish.formats.reading import (
    Broken,
    Checked,
    Cursor,
    Layout,
    Source,
    Unjudged,
    quote,
    require_apart,
)
from prefect_cachewatch.publish.formats.torch_pickle import read_storages

_END, _END_BYTES = b"PK\x05\x06", 22
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_ENTRY, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_MAX_COMMENT = 0xFFFF
_MAX_ENTRIES = 100_000
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _DEFLATED = 1, 8
_CHECKED_BYTES = 64 << 10
_CHECKED_TOTAL_BYTES = 8 << 20
_PICKLE, _MAX_PICKLE_BYTES = b"/data.pkl", 16 << 20


@dataclass(frozen=True)
class _Member:
    name: bytes
    flags: int
    method: int
    checksum: int
    packed_bytes: int
    size_bytes: int
    offset: int

    @property
    def shown(self) -> str:
        return quote(self.name.decode("utf-8", "backslashreplace"))

    @property
    def plain(self) -> bool:
        return self.method == 0 and not self.flags & _ENCRYPTED

    @property
    def readable(self) -> bool:
        return self.method in (0, _DEFLATED) and not self.flags & _ENCRYPTED


def read_archive(source: Source) -> Layout:
    """Compare the directory with the file's size, with the headers of the members that it lists, and with torch's pickle.

    Raises:
        Broken: they contradict each other, or a storage that the pickle names is missing or of another size.
        Unjudged: too many members, or a directory beyond the budget.
    """
    count, begin, size = _find_directory(source)
    if count > _MAX_ENTRIES:
        raise Unjudged(f"has {count} members, more than are read here")
    cursor = Cursor(source, begin, "its directory")
    members = [_read_entry(cursor) for _ in range(count)]
    if cursor.position != begin + size:
        raise Broken(f"has a directory of {size} bytes whose {count} members take {cursor.position - begin}")
    payload: list[tuple[int, int]] = []
    ranges: list[tuple[int, int, str]] = []
    checked: list[Checked] = []
    doubts: list[str] = []
    left = _CHECKED_TOTAL_BYTES
    for member in members:
        first, behind = _locate(source, member)
        ranges.append((member.offset, behind, member.name.decode("utf-8", "backslashreplace")))
        checked.append(Checked(first, behind, member.checksum, packed=not member.plain))
        if behind > begin or not member.plain:
            continue
        if member.size_bytes > _CHECKED_BYTES:
            payload.append((first, behind))
        elif member.size_bytes <= left:
            left -= member.size_bytes
            # Only a doubt: `torch.save` can be told to compute no checksums.
            if zlib.crc32(source.read(first, member.size_bytes, "a member")) != member.checksum:
                doubts.append(
                    f"has other contents in the member {member.shown} than its checksum says, or was written without checksums"
                )
    require_apart(ranges, "the member", 0, begin)
    _check_storages(source, members)
    readable = all(member.readable for member in members)
    return Layout(tuple(payload), tuple(doubts[:1]), tuple(checked) if readable else None)


def _check_storages(source: Source, members: Sequence[_Member]) -> None:
    """Require the storages that torch's pickle names: the loader takes their sizes from there, and reads past a smaller one."""
    sizes = {member.name: member.size_bytes for member in members}
    for pickle in members:
        top = pickle.name.removesuffix(_PICKLE)
        if top == pickle.name or b"/" in top or top + b"/version" not in sizes or not pickle.plain:
            continue
        first, _ = _locate(source, pickle)
        data = source.read(first, pickle.size_bytes, "its data.pkl", most=_MAX_PICKLE_BYTES)
        for storage in read_storages(data, source.require_time):
            record = top + b"/data/" + storage.key.encode("utf-8", "surrogatepass")
            shown = quote(record.decode("utf-8", "backslashreplace"))
            if record not in sizes:
                raise Broken(f"lacks the storage {shown}, which its data.pkl names")
            if not storage.fits(sizes[record]):
                needed = storage.items * storage.item_bytes
                raise Broken(f"has {sizes[record]} bytes in the storage {shown}, and its data.pkl names {needed}")


def _find_directory(source: Source) -> tuple[int, int, int]:
    tail_at = max(0, source.size - _MAX_COMMENT - _END_BYTES)
    tail = source.read(tail_at, source.size - tail_at, "its end")
    at = tail.rfind(_END)
    while at >= 0 and not _ends_here(tail, at):
        at = tail.rfind(_END, 0, at)
    if at < 0:
        raise Broken("is cut off: the directory at the end of a zip archive is missing")
    count, size, begin = struct.unpack_from("<HII", tail, at + 10)
    end = tail_at + at
    if count == _FULL16 or _FULL32 in (size, begin) or _has_locator(source, end):
        short = (count, size, begin)
        count, size, begin, end = _read_end64(source, end)
        fulls = (_FULL16, _FULL32, _FULL32)
        if any(told not in (full, large) for told, full, large in zip(short, fulls, (count, size, begin), strict=True)):
            raise Broken("is damaged: its two ends contradict each other")
    if begin + size != end:
        raise Broken(f"has a directory that should end at byte {begin + size}, and ends at byte {end}")
    return count, begin, size


def _ends_here(tail: bytes, at: int) -> bool:
    return at + _END_BYTES <= len(tail) and at + _END_BYTES + struct.unpack_from("<H", tail, at + 20)[0] == len(tail)


def _has_locator(source: Source, end: int) -> bool:
    return end >= 20 and source.read(end - 20, 4, "its end") == _LOCATOR64


def _read_end64(source: Source, end: int) -> tuple[int, int, int, int]:
    if not _has_locator(source, end):
        raise Broken("is damaged: the place of its directory is missing")
    (at,) = struct.unpack_from("<Q", source.read(end - 20, 20, "its end"), 8)
    record = source.read(at, 56, "its end")
    if not record.startswith(_END64):
        raise Broken("is damaged: its directory is not where its end says")
    count, size, begin = struct.unpack_from("<QQQ", record, 32)
    return count, size, begin, at


def _read_entry(cursor: Cursor) -> _Member:
    fixed = cursor.take(46)
    if not fixed.startswith(_ENTRY):
        raise Broken("has a directory that is damaged")
    flags, method = struct.unpack_from("<HH", fixed, 8)
    checksum, packed, size, name_bytes, extra_bytes, comment_bytes = struct.unpack_from("<IIIHHH", fixed, 16)
    (offset,) = struct.unpack_from("<I", fixed, 42)
    name = cursor.take(name_bytes)
    extra = cursor.take(extra_bytes)
    cursor.skip(comment_bytes)
    sizes = [size, packed, offset]
    large = [index for index, value in enumerate(sizes) if value == _FULL32]
    for index, value in zip(large, _read_extra64(extra, len(large)), strict=True):
        sizes[index] = value
    return _Member(name, flags, method, checksum, sizes[1], sizes[0], sizes[2])


def _read_extra64(extra: bytes, count: int) -> tuple[int, ...]:
    at = 0
    while count and at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1 and length >= 8 * count and at + 4 + 8 * count <= len(extra):
            return struct.unpack_from(f"<{count}Q", extra, at + 4)
        at += 4 + length
    if count:
        raise Broken("has a directory that is damaged: the size of a large member is missing")
    return ()


def _locate(source: Source, member: _Member) -> tuple[int, int]:
    header = source.read(member.offset, 30 + len(member.name), "a member that its directory lists")
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    if not header.startswith(_LOCAL):
        raise Broken(f"has no member {member.shown} where its directory says")
    if name_bytes != len(member.name) or header[30:] != member.name:
        raise Broken(f"has another member than {member.shown} where its directory says")
    if member.plain and member.packed_bytes != member.size_bytes:
        raise Broken(f"has two sizes for the member {member.shown}: {member.packed_bytes} and {member.size_bytes}")
    first = member.offset + 30 + name_bytes + extra_bytes
    return first, first + member.packed_bytes
