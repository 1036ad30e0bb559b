"""The ledger as it reads best: one record a file in a dict, all compared at each scan.

What the packed ledger counts is held against this one; it needs some 500 bytes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from prefect_cachewatch.measure.ledger import Growth
from prefect_cachewatch.measure.snapshot import StatLike

__all__ = ["PlainLedger"]

# Deleted paths whose high-water is remembered. Beyond it the oldest are forgotten, so that a generator
# that makes and deletes temporary files for days needs no more memory; churn is judged by what is kept.
_RETIRED_MAX = 50_000
# What stood there at the start may be overwritten once, and no slower than this: a file that is written to for ever
# without growing is no growth for ever.
_OVERWRITE_BYTES_PER_S = 1 << 18
_OVERWRITTEN_MAX = 1000


class FileRecord(NamedTuple):
    """What the ledger knows of one inode; sizes in bytes, times in nanoseconds of the file system's clock."""

    directory: str
    name: str
    size_bytes: int
    blocks: int
    high_bytes: int
    high_blocks: int
    modified_ns: int
    changed_ns: int
    written_bytes: int
    written_blocks: int
    grown_scan: int
    original: bool
    """Whether it stood there at the start and nothing of it has been counted."""
    touched: bool = False
    """Whether it is such a file and was touched, which says nothing when it happens again."""

    @property
    def path(self) -> str:
        return self.directory + self.name


class PlainLedger:
    """Counts growth over scans; feed each scan between `begin` and `end`.

    Args:
        birth_ns: creation time of a path in nanoseconds, or None if unknown. Asked only when an inode
            number shows up under another path, to tell a rename from a number that was used again.

    Example:
        >>> import os
        >>> ledger = PlainLedger()
        >>> ledger.begin(); ledger.end().bytes_written
        0
    """

    def __init__(self, birth_ns: Callable[[str], int | None] = lambda path: None) -> None:
        self.files: dict[int, FileRecord] = {}
        self.scans = 0
        self._birth_ns = birth_ns
        self._retired: dict[str, tuple[int, int]] = {}
        self._missing: dict[int, tuple[int, FileRecord]] = {}  # the scan that did not find it
        self._seen: dict[int, FileRecord] = {}
        self._places: dict[int, list[tuple[str, str]]] = {}
        self._fresh: list[tuple[int, str, str, StatLike]] = []
        self._old_count = 0
        self._bytes_written = self._blocks_written = 0
        self._bytes_kept = self._blocks_kept = 0
        self._bytes_present = self._blocks_present = 0
        self._newest: FileRecord | None = None
        self._touched_ns: int | None = None
        self._overwriting_ns: int | None = None
        self._overwritten: dict[tuple[str, str], int] = {}  # until when by its change time a file may be overwritten
        self._grown_bytes = self._grown_blocks = 0

    def begin(self) -> None:
        """Begin a scan; one that was begun and never ended leaves no trace."""
        self._seen, self._places = {}, {}
        self._grown_bytes = self._grown_blocks = 0
        self._fresh = []
        self._old_count = 0
        self._bytes_present = self._blocks_present = 0
        self._newest = None
        self._touched_ns = self._overwriting_ns = None

    def see(self, directory: str, rank: int, names: Sequence[str], stats: Sequence[StatLike]) -> None:
        """Take in the regular files of one directory.

        Args:
            directory: its path with a trailing slash.
            rank: number of its device within the scan; inode numbers are unique within one only.
            names: file names.
            stats: their stat results, in the same order.
        """
        files, seen, fresh = self.files, self._seen, self._fresh
        high_rank = rank << 64
        present = blocks_present = 0
        for name, status in zip(names, stats, strict=True):
            key = status.st_ino | high_rank
            self._places.setdefault(key, []).append((directory, name))
            if key in seen:  # a further name of an inode that was counted, or a directory watched twice
                continue
            size, blocks = status.st_size, status.st_blocks
            record = files.get(key)
            if record is None:
                seen[key] = _PENDING
                fresh.append((key, directory, name, status))
            elif record.changed_ns == status.st_ctime_ns and record.size_bytes == size and record.blocks == blocks:
                if record.directory != directory and status.st_nlink == 1:
                    # A directory above was renamed, which changes no time of the file.
                    record = record._replace(directory=directory, name=name)
                seen[key] = record
                self._old_count += 1
            elif self._is_another_file(record, directory, name, status):
                seen[key] = _PENDING
                fresh.append((key, directory, name, status))
            else:
                seen[key] = self._changed(record, directory, name, status)
                self._old_count += 1
            present += size
            blocks_present += blocks
        self._bytes_present += present
        self._blocks_present += blocks_present

    def end(self) -> Growth:
        """End the scan.

        Returns:
            The totals. The first scan is the start: whatever it saw is no growth.
        """
        seen = self._seen
        fresh, self._fresh = self._fresh, []
        for place in fresh:
            key, directory, name, status = place
            record = self._missing.get(key, (0, None))[1] if key not in self.files else None
            if record is None or not self._is_surely(record, directory + name, status):
                self._fresh.append(place)
                continue
            del self._missing[key]
            self._bytes_kept += record.written_bytes
            self._blocks_kept += record.written_blocks
            if self._retired.get(record.path) == (record.high_bytes, record.high_blocks):
                del self._retired[record.path]
            same = (record.size_bytes, record.blocks, record.changed_ns)
            if same == (status.st_size, status.st_blocks, status.st_ctime_ns):
                seen[key] = record._replace(directory=directory, name=name)
            else:
                seen[key] = self._changed(record, directory, name, status)
        if self._old_count < len(self.files):
            fresh_keys = {key for key, *_ in self._fresh}
            for key, record in self.files.items():
                if key not in seen or key in fresh_keys:
                    self._retire(record)
                    self._missing[key] = self.scans, record
        self._missing = {k: (scan, r) for k, (scan, r) in self._missing.items() if scan >= self.scans + 1 - 10}
        for key, directory, name, status in self._fresh:
            seen[key] = self._new(directory, name, status)
        for key, record in seen.items():
            # Of a file with several names the one that was known before stays, if the file still has it.
            if (record.directory, record.name) not in self._places[key]:
                seen[key] = record._replace(directory=self._places[key][0][0], name=self._places[key][0][1])
        self.files, self._seen, self._fresh = seen, {}, []
        self._bytes_written += self._grown_bytes
        self._blocks_written += self._grown_blocks
        self._bytes_kept += self._grown_bytes
        self._blocks_kept += self._grown_blocks
        self.scans += 1
        newest = self._newest
        return Growth(
            bytes_written=self._bytes_written,
            allocated_written=self._blocks_written * 512,
            bytes_kept=self._bytes_kept,
            allocated_kept=self._blocks_kept * 512,
            bytes_present=self._bytes_present,
            allocated_present=self._blocks_present * 512,
            files_present=len(seen),
            touched_ns=self._touched_ns,
            newest_changed_ns=newest.changed_ns if newest else None,
            overwriting_ns=self._overwriting_ns,
            last_path=newest.path if newest else None,
        )

    def _is_surely(self, record: FileRecord, path: str, status: StatLike) -> bool:
        if (record.size_bytes, record.blocks, record.changed_ns) == (
            status.st_size,
            status.st_blocks,
            status.st_ctime_ns,
        ):
            return True  # a directory above was renamed
        born = self._birth_ns(path)
        if born is None:
            return (record.size_bytes, record.modified_ns) == (status.st_size, status.st_mtime_ns)
        return born <= record.changed_ns

    def _is_another_file(self, record: FileRecord, directory: str, name: str, status: StatLike) -> bool:
        if (name == record.name and directory == record.directory) or status.st_nlink > 1:
            return False
        # The number moved to another path: renamed, or deleted and given to a new file (ext4 and tmpfs do so at
        # once). A file that was made after the known one last changed cannot be it.
        # overlayfs makes a copy, with a birth of its own, of what is renamed.
        if (record.size_bytes, record.modified_ns) == (status.st_size, status.st_mtime_ns):
            return False
        born = self._birth_ns(directory + name)
        if born is not None:
            return born > record.changed_ns
        return status.st_size < record.size_bytes

    def _new(self, directory: str, name: str, status: StatLike) -> FileRecord:
        high, high_blocks = self._retired.pop(directory + name, (0, 0))
        if self.scans == 0:
            high, high_blocks = max(high, status.st_size), max(high_blocks, status.st_blocks)
        original = self.scans == 0
        empty = FileRecord(directory, name, 0, 0, high, high_blocks, status.st_mtime_ns, 0, 0, 0, -1, original, False)
        return self._changed(empty, directory, name, status)

    def _changed(self, record: FileRecord, directory: str, name: str, status: StatLike) -> FileRecord:
        size, blocks = status.st_size, status.st_blocks
        high_bytes, high_blocks = record.high_bytes, record.high_blocks
        # What stood here at the start was never counted: if it is written anew, that is growth, once. A write moves the
        # modification time, as touch(1) does. That sets the access time to the same moment, but so may a read and a write
        # in one tick, or a mapping that is written to; a change of mode moves the change time alone, but so do a write
        # and setting the date back. These count no bytes, but are not nothing either.
        moved = status.st_mtime_ns != record.modified_ns
        is_touch = size == record.size_bytes and (
            status.st_atime_ns == status.st_mtime_ns
            if moved
            else status.st_ctime_ns != record.changed_ns != 0
            and status.st_nlink == 1
            and record.path == directory + name
        )
        is_write = moved and not is_touch
        if record.original and size <= record.size_bytes and (is_write):
            high_bytes = high_blocks = 0
        elif record.original and size < record.size_bytes:
            high_bytes, high_blocks = size, blocks
        grown = max(0, size - high_bytes)
        grown_blocks = max(0, blocks - high_blocks)
        has_grown = grown > 0 or grown_blocks > 0
        same_place = name == record.name and directory == record.directory
        if not same_place and status.st_nlink > 1:  # another link was listed first; the name stays
            directory, name = record.directory, record.name
        after = FileRecord(
            directory, name, size, blocks,
            max(size, high_bytes), max(blocks, high_blocks),
            status.st_mtime_ns, status.st_ctime_ns,
            record.written_bytes + grown, record.written_blocks + grown_blocks,
            self.scans if has_grown else record.grown_scan,
            record.original and not has_grown,
            record.original and not has_grown and (record.touched or is_touch),
        )  # fmt: skip
        if is_write and (record.original or self._overwritten):
            self._note_overwriting(record, after)
        elif after.touched and not record.touched:
            self._overwriting_ns = max(self._overwriting_ns or after.changed_ns, after.changed_ns)
        if has_grown:
            self._grown_bytes += grown
            self._grown_blocks += grown_blocks
            if self._newest is None or after.changed_ns >= self._newest.changed_ns:
                self._newest = after
        if self.scans and (after.modified_ns != record.modified_ns or record.changed_ns == 0):
            self._touched_ns = max(self._touched_ns or 0, after.changed_ns)
        return after

    def _note_overwriting(self, record: FileRecord, after: FileRecord) -> None:
        """Take in a write to a file that stood there at the start, or did until it was overwritten in this run.

        A large file that is overwritten in place shows nothing but its modification time, for as long as it takes.
        """
        place = after.directory, after.name
        if record.original:
            allocated_bytes = min(after.size_bytes, after.blocks * 512)
            if record.size_bytes == after.size_bytes and allocated_bytes >= _OVERWRITE_BYTES_PER_S:
                until_ns = after.changed_ns + allocated_bytes * 1_000_000_000 // _OVERWRITE_BYTES_PER_S
                self._overwritten[place] = until_ns
                if len(self._overwritten) > _OVERWRITTEN_MAX:
                    del self._overwritten[next(iter(self._overwritten))]
        elif record.size_bytes != after.size_bytes or self._overwritten.get(place, 0) < after.changed_ns:
            self._overwritten.pop(place, None)
            return
        self._overwriting_ns = max(self._overwriting_ns or after.changed_ns, after.changed_ns)

    def _retire(self, record: FileRecord) -> None:
        self._bytes_kept -= record.written_bytes
        self._blocks_kept -= record.written_blocks
        self._retired.pop(record.path, None)
        if not record.original:  # what stood here at the start was never counted, and may be written anew
            self._retired[record.path] = (record.high_bytes, record.high_blocks)
        if len(self._retired) > _RETIRED_MAX:
            del self._retired[next(iter(self._retired))]


_PENDING = FileRecord("", "", 0, 0, 0, 0, 0, 0, 0, 0, -1, False, False)
