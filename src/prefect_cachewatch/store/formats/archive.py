"""Reads zip archives, which `torch.save` and `numpy.savez` write, with Python's `zipfile`.

The directory and the header of each member are read, and the contents of small members that are stored without
compression. Nothing is unpacked.
"""

from __future__ import annotations

import io
import struct
import zipfile
from typing import BinaryIO, cast

from prefect_cachewatch.store.formats.reading import Broken, Source, Unjudged, quote

# A directory of 100,000 members; each costs ten times as much in memory.
_MAX_READ_BYTES = 8 << 20
_CHECKED_BYTES = 64 << 10
_CHECKED_TOTAL_BYTES = 8 << 20
_ENCRYPTED = 1
_HEADER_BYTES = 30  # before the member's name


class _BeforeStart(OSError):
    """As a file refuses such a place; `zipfile` expects it of a short archive."""


class _Bounded(io.RawIOBase):
    """A source as `zipfile` reads it; every byte counts against the source's budget."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if begin + offset < 0:
            raise _BeforeStart("a place before its first byte")
        self._position = begin + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._source.size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        data = self._source.read(self._position, count, "its directory", most=_MAX_READ_BYTES)
        self._position += count
        return data


def read_archive(source: Source) -> list[str]:
    """Read the directory, and compare it with the header of each member.

    Returns:
        What is unusual and allowed.

    Raises:
        Broken: they contradict each other, or the archive is cut.
        Unjudged: a directory beyond the budget, or a kind of archive that Python does not read.
    """
    try:
        with zipfile.ZipFile(cast("BinaryIO", _Bounded(source))) as archive:
            return _check_members(archive)
    except (zipfile.BadZipFile, _BeforeStart, EOFError, ValueError, LookupError, struct.error) as error:
        raise Broken(f"is cut off or damaged, as a zip archive ({quote(str(error))})") from None
    except (NotImplementedError, RuntimeError) as error:
        raise Unjudged(f"is a zip archive that is not read here ({quote(str(error))})") from None


def _check_members(archive: zipfile.ZipFile) -> list[str]:
    doubts: list[str] = []
    left = _CHECKED_TOTAL_BYTES
    for member in archive.infolist():
        if member.flag_bits & _ENCRYPTED:
            continue
        # Opening it compares the header before its contents with the directory.
        with archive.open(member) as opened:
            if member.compress_type != zipfile.ZIP_STORED:
                continue
            if member.compress_size != member.file_size:
                raise Broken(f"has two sizes for the member {quote(member.filename)}")
            if member.header_offset + _HEADER_BYTES + member.file_size > archive.start_dir:
                raise Broken(f"has no room for the member {quote(member.filename)}, of {member.file_size} bytes")
            if member.file_size <= min(_CHECKED_BYTES, left):
                left -= member.file_size
                try:
                    opened.read()
                except zipfile.BadZipFile:
                    # Only a doubt: `torch.save` can be told to compute no checksums.
                    doubts.append(
                        f"has other contents in the member {quote(member.filename)} than its checksum says, "
                        "or was written without checksums"
                    )
    return doubts[:1]
