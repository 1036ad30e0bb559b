"""The known files of one directory, packed into columns: about 65 bytes a file. Pure; standard library only.

A record is made on demand and never stored: a million of them would take half a gigabyte. The counting is done in
`ledger`.
"""

from __future__ import annotations

import operator
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Literal, NamedTuple

    from prefect_cachewatch.measure.snapshot import StatLike
else:
    from prefect_cachewatch.common.tuples import NamedTuple

_ORIGINAL = -2  # in place of the scan in which it grew: it existed at the start, and no byte of it has been counted
_TOUCHED = -3  # the same, and it was touched
_inode_of = operator.attrgetter("st_ino")
_size_of = operator.attrgetter("st_size")
_blocks_of = operator.attrgetter("st_blocks")
_changed_of = operator.attrgetter("st_ctime_ns")
_accessed_of = operator.attrgetter("st_atime_ns")
_modified_of = operator.attrgetter("st_mtime_ns")
_links_of = operator.attrgetter("st_nlink")


# A file that has been missing in this many full scans was deleted. Beyond this number of files, so was every missing
# file that was not lost in the last scan: temporary files may come and go for days.
_FULL_SCANS = 10
_FILES_MAX = 50_000
_INODE = (1 << 64) - 1


class FileRecord(NamedTuple):
    """The ledger's data on one inode; sizes in bytes, times in nanoseconds of the file system's clock."""

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
    """Whether it existed at the start and no byte of it has been counted."""
    touched: bool = False
    """Whether it is such a file and was touched; a second touch then proves nothing."""

    @property
    def path(self) -> str:
        return self.directory + self.name


class Seen(NamedTuple):
    """One file of a listing, with the field names of `os.stat_result`."""

    st_ino: int
    st_nlink: int
    st_size: int
    st_blocks: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_atime_ns: int = 0
    st_dev: int = 0


class Listing(NamedTuple):
    """Some files of a directory as one scan saw them."""

    directory: str
    rank: int
    names: str
    facts: array[int]
    """Inode numbers, then sizes, blocks and change times: any change to a file changes one of these."""
    modified: array[int] | None
    """Modification times; None if each equals the change time."""
    accessed: array[int]
    """Access times; folders do not store them."""
    links: array[int] | None
    """Link counts; None if every file has only one name."""

    def __len__(self) -> int:
        return len(self.facts) // 4

    def seen(self, index: int) -> Seen:
        """Return the file at an index."""
        count, facts = len(self), self.facts
        changed_ns = facts[3 * count + index]
        return Seen(
            facts[index], 1 if self.links is None else self.links[index], facts[count + index],
            facts[2 * count + index], changed_ns if self.modified is None else self.modified[index], changed_ns,
            self.accessed[index],
        )  # fmt: skip

    def inodes(self) -> array[int]:
        """Return the inode numbers."""
        return self.facts[: len(self)]

    def keys(self) -> list[int]:
        """Return the inode numbers, each with its device's rank in the bits above it."""
        high = self.rank << 64
        return [inode | high for inode in self.inodes()]

    def only(self, indices: Sequence[int]) -> Listing:
        """Return a listing of only some files."""
        count, names = len(self), self.names.split("/")
        return Listing(
            self.directory, self.rank, "/".join(names[i] for i in indices),
            _column("Q", [self.facts[start + i] for start in range(0, 4 * count, count) for i in indices]),
            None if self.modified is None else _column("q", [self.modified[i] for i in indices]),
            _column("q", [self.accessed[i] for i in indices]),
            None if self.links is None else array("Q", [self.links[i] for i in indices]),
        )  # fmt: skip


def read_facts(stats: Sequence[StatLike]) -> array[int]:
    """Pack inode numbers, sizes, blocks and change times, column after column."""
    values = [*map(_inode_of, stats), *map(_size_of, stats), *map(_blocks_of, stats), *map(_changed_of, stats)]
    return _column("Q", values)


def _column(code: Literal["q", "Q"], values: list[int]) -> array[int]:
    try:
        return array(code, values)
    except OverflowError:
        return array(code, [clamped(code, value) for value in values])


def clamped(code: str, value: int) -> int:
    """A date that 64 bits do not hold, such as one after 2262, becomes the nearest one."""
    least, most = (0, (1 << 64) - 1) if code == "Q" else (-(1 << 63), (1 << 63) - 1)
    return min(max(value, least), most)


def read_listing(
    directory: str, rank: int, names: str, stats: Sequence[StatLike], facts: array[int] | None = None
) -> Listing:
    """Pack the result of a scan.

    Args:
        directory: path with a trailing slash.
        rank: of its device.
        names: file names, joined by slashes.
        stats: their stat results.
        facts: result of `read_facts`, if it was already computed.

    Returns:
        The listing.

    Example:
        >>> read_listing("/c/", 0, "a", [Seen(7, 1, 512, 1, 20, 30)]).seen(0)
        Seen(st_ino=7, st_nlink=1, st_size=512, st_blocks=1, st_mtime_ns=20, st_ctime_ns=30, st_atime_ns=0, st_dev=0)
    """
    links, modified = list(map(_links_of, stats)), list(map(_modified_of, stats))
    return Listing(
        directory, rank, names, read_facts(stats) if facts is None else facts,
        None if modified == list(map(_changed_of, stats)) else _column("q", modified),
        _column("q", list(map(_accessed_of, stats))), array("Q", links) if max(links, default=1) > 1 else None,
    )  # fmt: skip


class Folder:
    """The records of one directory, or of a part of a large one.

    Args:
        listing: its files.
        linked: whether one of them has further names, so that its inode may also appear elsewhere.
    """

    __slots__ = (
        "codes", "directory", "extra", "facts", "highest", "linked", "lowest", "modified", "names", "rank", "seen_in",
    )  # fmt: skip

    def __init__(self, listing: Listing, linked: bool = False) -> None:
        self.directory, self.rank, self.names = listing.directory, listing.rank, listing.names
        self.facts, self.modified = listing.facts, listing.modified
        self.linked = linked
        self.seen_in = 0
        """The number of the scan in which it was last found unchanged."""
        # If all files agree, which is the usual case, one number stands for the column.
        self.codes: array[int] | int = _ORIGINAL
        # High-water and written bytes and blocks follow from size and blocks, except for files that shrank or were
        # taken over.
        self.extra: array[int] | None = None
        inodes = listing.inodes()
        self.lowest, self.highest = min(inodes), max(inodes)

    def __len__(self) -> int:
        return len(self.facts) // 4

    @property
    def bytes_present(self) -> int:
        """Total apparent size of its files."""
        return sum(self.sizes())

    @property
    def is_original(self) -> bool:
        """Whether all its files existed at the start, and no byte of them has been counted."""
        return isinstance(self.codes, int) and self.codes <= _ORIGINAL

    def sizes(self) -> array[int]:
        """Return the apparent sizes."""
        return self.facts[len(self) : 2 * len(self)]

    @property
    def blocks_present(self) -> int:
        """Total blocks of its files."""
        return sum(self.facts[2 * len(self) : 3 * len(self)])

    def modified_ns(self, index: int) -> int:
        """Return when a file was modified."""
        return self.facts[3 * len(self) + index] if self.modified is None else self.modified[index]

    def last_seen(self, index: int) -> tuple[int, int]:
        """Return the last scan that saw a file grow, -1 if none did, and the file's change time."""
        code = self.codes if isinstance(self.codes, int) else self.codes[index]
        return max(code, -1), self.facts[3 * len(self) + index]

    @classmethod
    def of_records(cls, listing: Listing, records: Sequence[FileRecord], linked: bool) -> Folder:
        """Make a folder from records in the listing's order."""
        folder = cls(listing, linked)
        folder.codes = array("i", [_code(record) for record in records])
        for index, record in enumerate(records):
            folder._set_extra(index, record)
        if len(set(folder.codes)) == 1:
            folder.codes = folder.codes[0]
        return folder

    def is_as_listed(self, names: str, facts: array[int]) -> bool:
        """Whether nothing has changed since."""
        return not self.linked and self.facts == facts and self.names == names

    def has_the_same_files(self, names: str, facts: array[int]) -> bool:
        """Whether the same inodes have the same names, in the same order."""
        count = len(self)
        return (
            not self.linked
            and len(facts) == len(self.facts)
            and self.names == names
            and self.facts[:count] == facts[:count]
        )

    def changed_indices(self, facts: array[int]) -> list[int]:
        """Return the indices of the files that differ, for a listing with the same files."""
        count, old = len(self), self.facts
        found: set[int] = set()
        for start in (count, 2 * count, 3 * count):
            if old[start : start + count] != facts[start : start + count]:
                found.update(i for i in range(count) if old[start + i] != facts[start + i])
        return sorted(found)

    def name_at(self, index: int) -> str:
        return self.names.split("/")[index]

    def differs(self, index: int, status: StatLike) -> bool:
        """Whether a file with the same inode has changed."""
        count, facts = len(self), self.facts
        return (
            facts[count + index] != status.st_size
            or facts[2 * count + index] != status.st_blocks
            or facts[3 * count + index] != status.st_ctime_ns
        )

    def inodes(self) -> array[int]:
        """Return the inode numbers."""
        return self.facts[: len(self)]

    def keys(self) -> list[int]:
        """Return the inode numbers, each with its device's rank in the bits above it."""
        high = self.rank << 64
        return [inode | high for inode in self.inodes()]

    def records(self) -> Iterator[FileRecord]:
        """Yield all records, in order."""
        for index, name in enumerate(self.names.split("/")):
            yield self.record(index, name)

    def record(self, index: int, name: str) -> FileRecord:
        """Return the record at an index."""
        count, facts, extra = len(self), self.facts, self.extra
        size, blocks = facts[count + index], facts[2 * count + index]
        code = self.codes if isinstance(self.codes, int) else self.codes[index]
        original = code <= _ORIGINAL
        high = (size, blocks, 0, 0) if original else (size, blocks, size, blocks)
        if extra is not None:
            high = (extra[index], extra[count + index], extra[2 * count + index], extra[3 * count + index])
        return FileRecord(
            self.directory, name, size, blocks, high[0], high[1], self.modified_ns(index),
            facts[3 * count + index], high[2], high[3], -1 if original else code, original, code == _TOUCHED,
        )  # fmt: skip

    def put(self, index: int, record: FileRecord) -> None:
        """Replace the record at an index with one of the same inode and name."""
        count, facts = len(self), self.facts
        if self.extra is None and not _is_plain(record):
            self._make_extra()
        facts[count + index], facts[2 * count + index] = record.size_bytes, record.blocks
        if self.modified is None and record.modified_ns != record.changed_ns:
            self.modified = _column("q", list(facts[3 * count :]))
        if self.modified is not None:
            self.modified[index] = clamped("q", record.modified_ns)
        facts[3 * count + index] = clamped("Q", record.changed_ns)
        code = _code(record)
        if isinstance(self.codes, int) and self.codes != code:
            self.codes = array("i", [self.codes]) * count
        if not isinstance(self.codes, int):
            self.codes[index] = code
        self._set_extra(index, record)

    def _make_extra(self) -> None:
        made = array("q", bytes(32 * len(self)))
        for index in range(len(self)):
            made_of = self.record(index, "")
            for column, value in enumerate(_highs(made_of)):
                made[column * len(self) + index] = value
        self.extra = made

    def _set_extra(self, index: int, record: FileRecord) -> None:
        if self.extra is None:
            if _is_plain(record):
                return
            self._make_extra()
        assert self.extra is not None
        for column, value in enumerate(_highs(record)):
            self.extra[column * len(self) + index] = value


def _highs(record: FileRecord) -> tuple[int, int, int, int]:
    return record.high_bytes, record.high_blocks, record.written_bytes, record.written_blocks


def _is_plain(record: FileRecord) -> bool:
    size, blocks = record.size_bytes, record.blocks
    return _highs(record) == ((size, blocks, 0, 0) if record.original else (size, blocks, size, blocks))


def _code(record: FileRecord) -> int:
    if record.original:
        return _TOUCHED if record.touched else _ORIGINAL
    return record.grown_scan


class Missing:
    """The records of files that a scan did not find, kept as long as the files may reappear.

    A scan may miss a file if the file, or a directory above it, is renamed during the scan; a partial scan does not
    look everywhere. If the file were taken for a new one when it reappears, its bytes would be counted twice.

    Example:
        >>> missing = Missing()
        >>> missing.add({7: FileRecord("/c/", "a", 10, 1, 10, 1, 5, 5, 10, 1, 3, False)})
        >>> missing.look_for({7, 8})
        >>> [record.path for record in missing.found.values()]
        ['/c/a']
    """

    def __init__(self) -> None:
        self.found: dict[int, FileRecord] = {}
        """The result of `look_for`, by inode number with the rank of the device in the bits above it."""
        self._folders: deque[tuple[int, list[Folder]]] = deque()
        self._places: dict[int, tuple[Folder, int]] = {}
        self._full_scans = 0
        self._files = 0

    def add(self, records: Mapping[int, FileRecord]) -> None:
        """Add the files that a scan did not find.

        Args:
            records: by inode number with the rank of the device above it.
        """
        if not records:
            return
        by_directory: dict[tuple[str, int], list[tuple[int, FileRecord]]] = {}
        for key, record in records.items():
            by_directory.setdefault((record.directory, key >> 64), []).append((key, record))
        self._folders.append((self._full_scans, [_pack(rank, items) for (_, rank), items in by_directory.items()]))
        self._files += len(records)
        while self._files > _FILES_MAX and len(self._folders) > 1:
            self._forget_the_oldest()

    def look_for(self, keys: Set[int]) -> None:
        """Find files that have reappeared, for `found` and `take`."""
        self.found, self._places = {}, {}
        if not keys or not self._folders:
            return
        least, most = min(keys), max(keys)
        for _, folders in reversed(self._folders):
            for folder in folders:
                high = folder.rank << 64
                if folder.highest | high < least or folder.lowest | high > most:
                    continue
                if keys.isdisjoint(folder.keys()):
                    continue
                for index, (key, record) in enumerate(zip(folder.keys(), folder.records(), strict=True)):
                    if key in keys and key not in self.found:
                        self.found[key], self._places[key] = record, (folder, index)

    def take(self, key: int) -> None:
        """Remove a file that was found."""
        del self.found[key]
        folder, index = self._places[key]
        folder.facts[index] = 0  # no file has this inode number

    def end_full_scan(self) -> None:
        """Note that a full scan has ended."""
        self._full_scans += 1
        while self._folders and self._folders[0][0] < self._full_scans - _FULL_SCANS:
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        self._files -= sum(map(len, self._folders.popleft()[1]))


def _pack(rank: int, items: list[tuple[int, FileRecord]]) -> Folder:
    records = [record for _, record in items]
    stats = [Seen(key & _INODE, 1, r.size_bytes, r.blocks, r.modified_ns, r.changed_ns) for key, r in items]
    listing = read_listing(records[0].directory, rank, "/".join(record.name for record in records), stats)
    return Folder.of_records(listing, records, linked=False)
