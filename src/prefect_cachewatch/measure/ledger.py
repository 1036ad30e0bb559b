"""Growth accounting: turns scans into two counters that never fall. Pure; standard library only.

For each inode it keeps the high-water mark of apparent size and of allocated blocks. A rename keeps the count, a hard
link counts once, and a deletion subtracts nothing. A path that is written again counts only beyond what was counted for
it before. Files that existed at the start are no growth, but overwriting one counts once. A scan covers everything, or
some directories and files. It makes no decision: see `prefect_cachewatch.watching.stall`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import count

from prefect_cachewatch.measure.folder import FileRecord, Folder, Listing, Missing, clamped, read_facts, read_listing
from prefect_cachewatch.measure.growth import Growth, Rewriting
from prefect_cachewatch.measure.numbers import Numbers
from prefect_cachewatch.measure.rewriting import find_rewriting, take_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from prefect_cachewatch.measure.rewriting import StartListing
    from prefect_cachewatch.measure.snapshot import StatLike

# Deleted paths whose high-water mark is remembered. Beyond this number the oldest are forgotten, so that a generator
# that makes and deletes temporary files for days needs no more memory; churn is judged by what is kept.
_RETIRED_MAX = 50_000
# A file that existed at the start may be overwritten once, and no slower than this: a file that is written to
# indefinitely without growing must not count as growth indefinitely.
_OVERWRITE_BYTES_PER_S = 1 << 18
_OVERWRITTEN_MAX = 1000
_MOVED_MAX = 10_000
_IN_PLACE_MAX, _GROWN_MAX = 64, 1000
_STEP_NS = 50_000_000  # more than a clock is slewed between two scans

# A directory's path; with a number, a later part of a large directory.
_Key = str | tuple[str, int]


class Files(Mapping[int, FileRecord]):
    """The records by inode number, with the rank of the device in the bits above it; each is made on access."""

    def __init__(self, folders: Mapping[_Key, Folder]) -> None:
        self._folders = folders

    def __len__(self) -> int:
        return sum(map(len, self._folders.values()))

    def __iter__(self) -> Iterator[int]:
        for folder in self._folders.values():
            yield from folder.keys()

    def __getitem__(self, key: int) -> FileRecord:
        for folder in self._folders.values():
            for found, record in zip(folder.keys(), folder.records(), strict=True):
                if found == key:
                    return record
        raise KeyError(key)

    def folders(self) -> Iterable[Folder]:
        """Return the directories, or parts of large ones, that hold the records."""
        return self._folders.values()


class Ledger:
    """Counts growth over scans; feed each scan between `begin` and `end`.

    Args:
        birth_ns: returns the creation time of a path in nanoseconds, or None if unknown. Called only when an inode
            number appears under another path, to tell a rename from a reused number.
        by_path: directories whose files are identified by path; see `known_by_path`.

    Example:
        >>> import os
        >>> ledger = Ledger()
        >>> ledger.begin(); ledger.end().bytes_written
        0
    """

    def __init__(
        self, birth_ns: Callable[[str], int | None] = lambda path: None, by_path: tuple[str, ...] = ()
    ) -> None:
        self.scans = 0
        self.moved: list[tuple[str, str]] = []
        """Directory and name of each file that grew or was written to in the last scan."""
        self.grown: list[FileRecord] = []
        """Files that grew in the last scan, some of them if there are many."""
        self.outside: set[str] = set()
        """Directories that are not watched, of files that links lead to."""
        self.in_place: list[FileRecord] = []
        """Files that changed in the last scan without growing, some of them if there are many."""
        self.doubtful: set[str] = set()
        """Directories of which two named the same file in the last scan: it was moved meanwhile, or has two names."""
        self._birth_ns = birth_ns
        self._folders: dict[_Key, Folder] = {}
        self._retired: dict[str, tuple[int, int]] = {}
        # A file that a scan did not find may have been moved during the scan, or to a place where the scan did not
        # look.
        self._missing = Missing()
        self._numbers = Numbers(by_path)
        self._full = True
        self._begun = 0
        # How many parts of a directory have arrived; in a full scan only for directories whose first part has changed.
        self._parts: dict[str, int] = {}
        self._start: dict[str, Folder] = {}
        self._staged: dict[_Key, Listing] = {}
        self._patches: list[tuple[Folder, int, StatLike]] = []
        self._looks: list[tuple[Folder, int, StatLike]] = []
        self._bytes_written = self._blocks_written = 0
        self._bytes_kept = self._blocks_kept = 0
        self._bytes_present = self._blocks_present = self._files_present = 0
        self._newest: FileRecord | None = None
        self._touched_ns: int | None = None
        self._overwriting_ns: int | None = None
        self._overwritten: dict[tuple[str, str], int] = {}  # until which change time a file may be overwritten
        self._grown_bytes = self._grown_blocks = 0
        self._found: StartListing = []

    @property
    def files(self) -> Files:
        """The records of all files that were present in the last scan."""
        return Files(self._folders)

    def begin(self, full: bool = True) -> None:
        """Begin a scan. A scan that is never ended leaves no trace.

        Args:
            full: whether every directory will be seen. If not, a directory that is neither seen nor dropped stays as it
                was, except for the files in it that are looked at.
        """
        self._full = full
        self._begun += 1
        self._parts, self._start, self._staged, self._patches, self._looks = {}, {}, {}, [], []

    def is_same(self, directory: str, rank: int, names: Sequence[str], stats: Sequence[StatLike]) -> bool:
        """Accept all entries of a directory, or of a part of it, if they are unchanged.

        Args:
            directory: its path with a trailing slash.
            rank: number of its device within the scan.
            names: names of all entries.
            stats: their stat results, in the same order.

        Returns:
            Whether they are unchanged; if not, nothing was recorded.
        """
        folder, part = self._folders.get(directory), 0
        if folder is None:
            return False
        if folder.seen_in == self._begun or directory in self._parts:
            part = self._part_of(directory)
            folder = self._folders.get((directory, part) if part else directory)
            if folder is None:
                return False
        stats = self._numbers.of(directory, rank, names, stats)
        # A full scan spends most of its user time on this line.
        if folder.linked or folder.rank != rank or folder.facts != read_facts(stats) or folder.names != "/".join(names):
            return False
        folder.seen_in = self._begun
        if part or not self._full:
            self._parts[directory] = part + 1
        return True

    def has_found_same(self, directory: str) -> bool:
        """Say whether the first part of a directory was found unchanged in this scan."""
        folder = self._folders.get(directory)
        return folder is not None and folder.seen_in == self._begun

    def see(self, directory: str, rank: int, names: Sequence[str], stats: Sequence[StatLike]) -> None:
        """Record the regular files of one directory; a large one may come in several parts.

        Args:
            directory: its path with a trailing slash.
            rank: number of its device within the scan; inode numbers are unique within one only.
            names: file names.
            stats: their stat results, in the same order.
        """
        part = self._part_of(directory)
        self._parts[directory] = part + 1
        if not names:
            return
        key = (directory, part) if part else directory
        self._numbers.notice(rank, stats)
        stats = self._numbers.of(directory, rank, names, stats)
        joined, facts = "/".join(names), read_facts(stats)
        folder = self._folders.get(key)
        if folder is not None and folder.rank == rank:
            if folder.is_as_listed(joined, facts):
                folder.seen_in = self._begun
                return
            if folder.has_the_same_files(joined, facts):
                # The usual change is growth. A file that got a second name needs a closer look.
                changed = folder.changed_indices(facts)
                if all(stats[index].st_nlink == 1 for index in changed):
                    folder.seen_in = self._begun
                    self._patches += [(folder, index, stats[index]) for index in changed]
                    return
        listing = read_listing(directory, rank, joined, stats, facts)
        if self.scans == 0 and not part and listing.links is None:
            self._start[directory] = Folder(listing)  # nothing to compare with, and perhaps a million files
        else:
            self._staged[key] = listing

    def drop(self, directory: str) -> None:
        """Record in a partial scan that a directory is gone, or has no regular file.

        Args:
            directory: its path with a trailing slash.
        """
        self._parts.setdefault(directory, 0)

    def look(self, directory: str, looks: Mapping[str, StatLike]) -> bool:
        """Record some files of a directory that is not seen as a whole in this partial scan.

        Args:
            directory: its path with a trailing slash.
            looks: file names and their stat results.

        Returns:
            Whether they are the files known by these names; if not, the caller must see the directory.
        """
        missing = len(looks)
        for key in self._keys_of(directory):
            folder = self._folders[key]
            if folder.linked:
                continue
            for index, name in enumerate(folder.names.split("/")):
                status = looks.get(name)
                if status is None:
                    continue
                (status,) = self._numbers.of(directory, folder.rank, [name], [status])
                if status.st_ino != folder.facts[index] or status.st_nlink != 1:
                    return False
                missing -= 1
                if folder.differs(index, status):
                    self._looks.append((folder, index, status))
        return missing == 0

    def end(self) -> Growth:
        """End the scan.

        Returns:
            The totals. The first scan is the start: nothing that it saw counts as growth.
        """
        self._newest, self._touched_ns, self._overwriting_ns = None, None, None
        self.moved, self.in_place, self.grown, self.doubtful = [], [], [], set()
        self._grown_bytes = self._grown_blocks = 0
        if self.scans == 0:
            self._take_the_start()
        looks = [look for look in self._looks if look[0].directory not in self._parts]
        for folder, index, status in self._patches + looks:
            name = folder.name_at(index)
            before = folder.record(index, name)
            after = self._changed(before, folder.directory, name, status)
            folder.put(index, after)
            self._bytes_present += after.size_bytes - before.size_bytes
            self._blocks_present += after.blocks - before.blocks
        self._take_staged(self._stale())
        if self._full:
            self._missing.end_full_scan()
        if self.scans == 0:
            self._found = take_start(self._folders.values())
        self.begin()
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
            files_present=self._files_present,
            touched_ns=self._touched_ns,
            newest_changed_ns=newest.changed_ns if newest else None,
            overwriting_ns=self._overwriting_ns,
            last_path=newest.path if newest else None,
        )

    def rewriting(self, leave_out: Sequence[str] = ()) -> Rewriting:
        """Return what became of the files that the first scan found; see `find_rewriting`."""
        return find_rewriting(self._found, self._folders.values(), leave_out)

    def newest(self, limit: int) -> list[FileRecord]:
        """Return the files that grew last, by scan and then by change time, which programs cannot set.

        Args:
            limit: the most files returned.

        Returns:
            Their records, the latest first.
        """
        folders = list(self._folders.values())
        found = heapq.nlargest(
            limit,
            ((*folder.last_seen(i), n, i) for n, folder in enumerate(folders) for i in range(len(folder))),
        )
        return [folders[n].record(i, folders[n].name_at(i)) for _, _, n, i in found]

    def _part_of(self, directory: str) -> int:
        """Return how many parts of a directory have arrived in this scan."""
        part = self._parts.get(directory)
        if part is None:
            part = 1 if self.has_found_same(directory) else 0
        return part

    def _keys_of(self, directory: str) -> Iterator[_Key]:
        for part in count():
            key: _Key = (directory, part) if part else directory
            if key in self._folders:
                yield key
            elif part > self._parts.get(directory, 0):
                return

    def _add(self, key: _Key, folder: Folder) -> None:
        self._folders[key] = folder
        self._files_present += len(folder)
        self._bytes_present += folder.bytes_present
        self._blocks_present += folder.blocks_present

    def _take_the_start(self) -> None:
        for directory, folder in self._start.items():
            self._add(directory, folder)
        # Further parts of large directories: no file gets a record, unless one was seen in two parts.
        of, inodes = "", set[int]()
        for key, listing in list(self._staged.items()):
            directory, part = (key, 0) if isinstance(key, str) else key
            if directory != of:
                of, inodes = directory, set(self._start[directory].inodes() if directory in self._start else ())
            if part and listing.links is None and inodes.isdisjoint(listing.inodes()):
                self._add(key, Folder(self._staged.pop(key)))
            inodes.update(listing.inodes())

    def _stale(self) -> list[Folder]:
        """Take out the folders that have changed."""
        if self._full:
            stale = (
                [key for key, folder in self._folders.items() if folder.seen_in != self._begun] if self.scans else []
            )
        else:
            known = [key for name in self._parts for key in list(self._keys_of(name))]
            stale = [key for key in known if self._folders[key].seen_in != self._begun]
        folders = [self._folders.pop(key) for key in stale]
        for folder in folders:
            self._files_present -= len(folder)
            self._bytes_present -= folder.bytes_present
            self._blocks_present -= folder.blocks_present
        return folders

    def _take_staged(self, stale: list[Folder]) -> None:
        pool = {key: record for folder in stale for key, record in zip(folder.keys(), folder.records(), strict=True)}
        steady: set[int] = set()  # numbers of files that still have their earlier name: others are additional ones
        unknown: set[int] = set()
        for listing in self._staged.values():
            for key, name in zip(listing.keys(), listing.names.split("/"), strict=True):
                record = pool.get(key)
                if record is None:
                    unknown.add(key)
                elif record.name == name and record.directory == listing.directory:
                    steady.add(key)
        # A file that this scan saw elsewhere, or that is known from a place where it did not look, is not new.
        elsewhere = self._known(unknown)
        self._missing.look_for(unknown - elsewhere)
        taken = set(elsewhere)
        found: list[tuple[_Key, Listing, list[int], list[FileRecord | None]]] = []
        for place, listing in self._staged.items():
            indices, records = [], []
            names = listing.names.split("/")
            for index, key in enumerate(listing.keys()):
                if key in taken:
                    if key in elsewhere:
                        self.doubtful.add(listing.directory)
                    continue
                record, status = pool.get(key), listing.seen(index)
                if (
                    record is not None
                    and key in steady
                    and (record.name != names[index] or record.directory != listing.directory)
                ):
                    if status.st_nlink == 1:
                        self.doubtful.update((record.directory, listing.directory))
                    continue
                taken.add(key)
                indices.append(index)
                records.append(self._claim(pool, key, listing.directory, names[index], status))
            found.append((place, listing, indices, records))
        for record in pool.values():
            self._retire(record)
        self._missing.add(pool)
        for place, listing, indices, records in found:
            if not indices:
                continue
            names = listing.names.split("/")
            made = [
                record if record is not None else self._new(listing.directory, names[index], listing.seen(index))
                for index, record in zip(indices, records, strict=True)
            ]
            kept = listing if len(indices) == len(listing) else listing.only(indices)
            # A folder with linked files is compared again in each scan, since any of their names may go.
            self._add(place, Folder.of_records(kept, made, linked=listing.links is not None))

    def _known(self, keys: Set[int]) -> set[int]:
        """Return those of the given inodes that are in folders."""
        found: set[int] = set()
        if not keys or not self._folders:
            return found
        ranks: dict[int, set[int]] = {}
        for key in keys:
            ranks.setdefault(key >> 64, set()).add(key & ((1 << 64) - 1))
        bounds = {rank: (min(inodes), max(inodes)) for rank, inodes in ranks.items()}
        for folder in self._folders.values():
            least, most = bounds.get(folder.rank, (1, 0))
            if least <= folder.highest and folder.lowest <= most:
                here = ranks[folder.rank].intersection(folder.inodes())
                if here:
                    self.doubtful.add(folder.directory)
                    found |= {inode | folder.rank << 64 for inode in here}
        return found

    def _claim(
        self, pool: dict[int, FileRecord], key: int, directory: str, name: str, status: StatLike
    ) -> FileRecord | None:
        """Find the record of a file and remove it from the pool; None if the file is new."""
        record = pool.get(key)
        if record is None:
            record = self._missing.found.get(key)
            if record is None or not self._is_surely(record, directory + name, status):
                return None
            self._missing.take(key)
            self._bytes_kept += record.written_bytes
            self._blocks_kept += record.written_blocks
            if self._retired.get(record.path) == (record.high_bytes, record.high_blocks):
                del self._retired[record.path]
        elif record.changed_ns == status.st_ctime_ns and (record.size_bytes, record.blocks) == (
            status.st_size,
            status.st_blocks,
        ):
            pass  # at most a directory above was renamed, which changes no time of the file
        elif self._is_another_file(record, directory, name, status):
            return None
        pool.pop(key, None)
        if record.changed_ns == status.st_ctime_ns and (record.size_bytes, record.blocks) == (
            status.st_size,
            status.st_blocks,
        ):
            return record._replace(directory=directory, name=name)
        return self._changed(record, directory, name, status)

    def _is_surely(self, record: FileRecord, path: str, status: StatLike) -> bool:
        facts = status.st_size, status.st_blocks, status.st_ctime_ns
        if (record.size_bytes, record.blocks, record.changed_ns) == facts:
            return True  # a directory above was renamed
        born = self._birth_ns(path)
        if born is None:
            return (record.size_bytes, record.modified_ns) == (status.st_size, status.st_mtime_ns)
        return born <= record.changed_ns

    def _is_another_file(self, record: FileRecord, directory: str, name: str, status: StatLike) -> bool:
        if (name == record.name and directory == record.directory) or status.st_nlink > 1:
            return False
        # The number moved to another path: the file was renamed, or deleted and its number reused (ext4 and tmpfs do so
        # at once). A file that was made after the known one last changed is a different one. overlayfs copies a file
        # that is renamed, and the copy has a new birth.
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
        # A file that existed at the start was never counted: if it is rewritten, that is growth, once. A write moves
        # the modification time, but so does touch(1). A touch sets the access time to the same moment, but so may a
        # read and a write in one tick, or a write through a mapping. A change of mode moves only the change time, but
        # so do a write followed by setting the date back. These cases count no bytes, but still count as activity.
        modified_ns = clamped("q", status.st_mtime_ns)
        moved = modified_ns != record.modified_ns
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
        after = FileRecord(
            directory, name, size, blocks,
            max(size, high_bytes), max(blocks, high_blocks),
            modified_ns, status.st_ctime_ns,
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
            if self.scans and len(self.grown) < _GROWN_MAX:
                self.grown.append(after)
            if self._newest is None or self._order(after) >= self._order(self._newest):
                self._newest = after
        if self.scans and record.changed_ns and not has_grown and 0 < size == record.size_bytes:
            del self.in_place[_IN_PLACE_MAX - 1 :]
            self.in_place.append(after)
        if self.scans and (after.modified_ns != record.modified_ns or record.changed_ns == 0 or has_grown):
            if after.modified_ns != record.modified_ns or record.changed_ns == 0:
                self._touched_ns = max(self._touched_ns or 0, after.changed_ns)
            if len(self.moved) < _MOVED_MAX:
                self.moved.append((directory, name))
        return after

    def _order(self, record: FileRecord) -> tuple[bool, int]:
        """By what the newest growth is chosen: a file in a watched directory goes before one outside."""
        return record.directory not in self.outside, record.changed_ns

    def _note_overwriting(self, record: FileRecord, after: FileRecord) -> None:
        """Record a write to a file that existed at the start, until it has been overwritten in this run.

        While a large file is overwritten in place, only its modification time changes.
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
        if not record.original:  # a file that existed at the start was never counted, and may be rewritten
            self._retired[record.path] = (record.high_bytes, record.high_blocks)
        if len(self._retired) > _RETIRED_MAX:
            del self._retired[next(iter(self._retired))]


class AgeClock:
    """Turns change times of files that grew in a scan into ages; if clocks disagree, an age counts as 0.

    A file that grew in this scan changed after the last full scan began. An older date, or a step of the wall clock in
    between, shows that the file system and this process use different clocks.

    Example:
        >>> clock = AgeClock()
        >>> clock.ages_s(10**9, 0, 0, [None]), clock.ages_s(3 * 10**9, 2 * 10**9, 2 * 10**9, [10**9])
        ([None], [2.0])
        >>> clock.ages_s(3_603 * 10**9, 3 * 10**9, 3 * 10**9, [10**9])
        [0.0]
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._began_ns = 0
        self._stepped = False

    def ages_s(
        self, wall_ns: int, monotonic_ns: int, began_ns: int, changed_ns: Sequence[int | None], full: bool = True
    ) -> list[float | None]:
        """Return how long ago files changed.

        Args:
            wall_ns: the wall clock at the end of the scan, nanoseconds.
            monotonic_ns: the monotonic clock at its end.
            began_ns: the monotonic clock at its beginning.
            changed_ns: change times by the file system's clock; None where there is none.
            full: whether the scan was full, so that no change that the next one finds can be older.

        Returns:
            Seconds before the end, in the same order.
        """
        offset_ns = wall_ns - monotonic_ns
        unknown = self._stepped or (self._offset_ns is not None and abs(offset_ns - self._offset_ns) > _STEP_NS)
        oldest_ns = wall_ns - (monotonic_ns - self._began_ns) - _STEP_NS
        self._offset_ns, self._stepped = offset_ns, unknown and not full
        if full:
            self._began_ns = began_ns
        return [None if t is None else 0.0 if unknown or t < oldest_ns else (wall_ns - t) / 1e9 for t in changed_ns]
