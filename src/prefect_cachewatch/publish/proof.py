"""Says of a file of a killed attempt whether it is provably whole, provably cut, or neither: by its own format, read in full.

A size that agrees with a header proves nothing: a writer may have reserved it before it wrote. So a file is whole only

- by its checksums, each of which is computed: zip archives, so `torch.save` and `.npz`; or
- by its sizes, if there is also no block of zeros in what was to be written and its last byte is no zero: then no part of
  a block was left out by a writer that appends, or that reserved the file with zeros or holes and filled it; or
- by the marker of tt-metal that lists it, if it has not changed since the marker was written.

What a writer that goes over a file a second time has left out is seen by checksums alone.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, TypeVar

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import open_below
from prefect_cachewatch.common.temporary import MARKERS
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.publish.formats import Finding, examine
from prefect_cachewatch.publish.formats.reading import Checked
from prefect_cachewatch.publish.formats.weights_complete import judge_marker, read_marker
from prefect_cachewatch.publish.tree import BuildTree, ScannedFile, open_file, scan_build

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 4096
_ZEROS = bytes(_BLOCK_BYTES)
_MARKER = MARKERS[0]
T = TypeVar("T")


@dataclass(frozen=True)
class Proof:
    """What one file's content proves, and how; and the file that was read, by inode, size and change time."""

    verdict: Literal["whole", "cut", "unknown"]
    by: Literal["checksums", "sizes", "marker"] | None = None
    file: tuple[int, int, int] = (0, 0, 0)

    def is_of(self, file: ScannedFile) -> bool:
        """Say whether a file is still the one that was read."""
        return self.file == _identity(file)


class _Late(Exception):
    """The time to read it is over."""


def prove(file: BinaryIO, name: str, until_s: float = float("inf")) -> Proof:
    """Read one file in full and say what it proves.

    Args:
        file: open for reading in binary.
        name: whose ending may tell the format.
        until_s: on the monotonic clock; a file that takes longer is unknown.

    Returns:
        The proof.

    Raises:
        OSError: it cannot be read.

    Example:
        >>> import io
        >>> prove(io.BytesIO(b"GGUF"), "model.gguf").verdict
        'cut'
    """
    finding, layout = examine(file, name)
    if finding.verdict == "broken":
        return Proof("cut")
    try:
        if layout is not None and layout.checked is not None:
            if all(_agrees(file, piece, until_s) for piece in layout.checked):
                return Proof("whole", "checksums")
        elif layout is not None and layout.written is not None and _is_filled(file, layout.written, until_s):
            return Proof("whole", "sizes")
    except _Late:
        pass
    return Proof("unknown")


def prove_files(path: str, wanted: Collection[str], budget_s: float = float("inf")) -> dict[str, Proof]:
    """Read files of a build, the small ones first, as far as the time allows; reads may hang with the file system.

    Args:
        path: of the build.
        wanted: paths in it.
        budget_s: seconds after which no further file is read.

    Returns:
        What they prove; nothing of a file that cannot be read, or that is replaced meanwhile.

    Raises:
        StoreError: the build cannot be listed.
        OSError: its directory cannot be opened.
    """
    until_s = time.monotonic() + budget_s
    names = frozenset(wanted)
    with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
        tree = scan_build(fd)
        vouched = _vouched(fd, tree)
        found: dict[str, Proof] = {}
        for file in sorted(tree.files, key=lambda file: file.size_bytes):
            if file.path not in names:
                continue
            with contextlib.suppress(StoreError, OSError):
                found[file.path] = _prove_one(fd, file, vouched, until_s)
        return found


def _prove_one(build_fd: int, file: ScannedFile, vouched: Mapping[str, int], until_s: float) -> Proof:
    proof = _read(build_fd, file, lambda opened: prove(opened, file.path, until_s))
    if proof.verdict == "unknown" and file.changed_ns < vouched.get(file.path, 0):
        proof = Proof("whole", "marker")
    return Proof(proof.verdict, proof.by, _identity(file))


def _vouched(build_fd: int, tree: BuildTree) -> dict[str, int]:
    """Return what whole markers list, with the moment at which the marker was there; of a marker itself one after it."""
    present = {file.path for file in tree.files} | {path for path, _ in tree.links}
    found: dict[str, int] = {}
    now_ns = time.time_ns()
    for marker in tree.files:
        # One of the future was written before the clock was set back: what is older by its date may be newer.
        if not posixpath.basename(marker.path).startswith(_MARKER) or marker.changed_ns > now_ns:
            continue
        with contextlib.suppress(StoreError, OSError):
            listed = _read(build_fd, marker, read_marker)
            if isinstance(listed, Finding) or judge_marker(marker.path, listed, present).verdict != "whole":
                continue
            above = posixpath.dirname(marker.path)
            found[marker.path] = marker.changed_ns + 1
            for path in listed:
                name = posixpath.join(above, path)
                found[name] = max(found.get(name, 0), marker.changed_ns)
    return found


def _read(build_fd: int, file: ScannedFile, read: Callable[[BinaryIO], T]) -> T:
    parent, _, name = file.path.rpartition("/")
    with Opened(open_below(build_fd, parent)) as directory_fd:
        fd = open_file(directory_fd, name, file.path)
    with open(fd, "rb") as opened:
        result = read(opened)
        status = os.fstat(fd)
        if (status.st_ino, status.st_size, status.st_ctime_ns) != _identity(file):
            raise StoreError("it was replaced or written while it was read")
        return result


def _identity(file: ScannedFile) -> tuple[int, int, int]:
    return file.inode, file.size_bytes, file.changed_ns


def _require_time(until_s: float) -> None:
    if time.monotonic() > until_s:
        raise _Late


def _chunks(file: BinaryIO, first: int, behind: int, until_s: float) -> Iterator[bytes]:
    file.seek(first)
    while first < behind:
        _require_time(until_s)
        data = file.read(min(_CHUNK_BYTES, behind - first))
        if not data:
            raise OSError("it was cut while it was read")
        first += len(data)
        yield data


def _unpacked(file: BinaryIO, first: int, behind: int, until_s: float) -> Iterator[bytes]:
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    for packed in _chunks(file, first, behind, until_s):
        left = packed
        while left:  # a little packed may be much
            _require_time(until_s)
            yield unpack.decompress(left, _CHUNK_BYTES)
            left = unpack.unconsumed_tail
    yield unpack.flush()
    if not unpack.eof:
        raise zlib.error("it goes on")


def _agrees(file: BinaryIO, piece: Checked, until_s: float) -> bool:
    read, checksum = _unpacked if piece.packed else _chunks, 0
    try:
        for data in read(file, piece.first, piece.behind, until_s):
            checksum = zlib.crc32(data, checksum)
    except zlib.error:
        return False
    return checksum == piece.checksum


def _is_filled(file: BinaryIO, ranges: Sequence[tuple[int, int]], until_s: float) -> bool:
    """Say whether no block of what was to be written is zeros, and neither is its last byte."""
    last = b""
    for first, behind in _joined(ranges):
        for data in _chunks(file, first, behind, until_s):
            for at in range(0, len(data), _BLOCK_BYTES):
                block = data[at : at + _BLOCK_BYTES]
                if block == _ZEROS[: len(block)]:
                    return False
            last = data[-1:]
    return last != b"\0"


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, behind in ranges:
        if joined and first - joined[-1][1] < _BLOCK_BYTES:
            joined[-1] = (joined[-1][0], behind)
        else:
            joined.append((first, behind))
    return joined
