"""Files that a scan did not find, for as long as they may turn up again, packed. Pure; standard library only.

A file that is renamed while a scan is under way, or a directory above it, may be in no place when the scan comes there;
a partial scan does not look everywhere. Taken for a new one when it turns up, it would count as written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set

from prefect_cachewatch.measure.folder import FileRecord, Folder, Seen, read_listing

__all__ = ["Missing"]

# What has been missing in so many full scans was deleted, and so was what is beyond this number of files and was not
# lost in the last scan alone: temporary files come and go for days.
_FULL_SCANS = 10
_FILES_MAX = 50_000
_INODE = (1 << 64) - 1


class Missing:
    """The records of missing files.

    Example:
        >>> missing = Missing()
        >>> missing.add({7: FileRecord("/c/", "a", 10, 1, 10, 1, 5, 5, 10, 1, 3, False)})
        >>> missing.look_for({7, 8})
        >>> [record.path for record in missing.found.values()]
        ['/c/a']
    """

    def __init__(self) -> None:
        self.found: dict[int, FileRecord] = {}
        """What `look_for` found, by inode number with the rank of the device above it."""
        self._folders: deque[tuple[int, list[Folder]]] = deque()
        self._places: dict[int, tuple[Folder, int]] = {}
        self._full_scans = 0
        self._files = 0

    def add(self, records: Mapping[int, FileRecord]) -> None:
        """Take in what a scan did not find.

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
        """Find files that turned up, for `found` and `take`."""
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

    def look_for_renamed(self, came: Mapping[tuple[int, int, int], list[int]]) -> None:
        """Find files that are known by path and turned up at another one, for `found` and `take`.

        Args:
            came: rank, size and modification time to the numbers of files that nothing is known of; found ones are taken out.
        """
        for _, folders in reversed(self._folders) if came else ():
            for folder in folders:
                for index, (key, record) in enumerate(zip(folder.keys(), folder.records(), strict=True)):
                    numbers = came.get((folder.rank, record.size_bytes, record.modified_ns))
                    if numbers and key & _INODE:
                        number = numbers.pop()
                        self.found[number], self._places[number] = record, (folder, index)

    def take(self, key: int) -> None:
        """Take out a file that was found."""
        del self.found[key]
        folder, index = self._places[key]
        folder.facts[index] = 0  # no file has this number

    def end_full_scan(self) -> None:
        """Take in that a full scan has ended."""
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
