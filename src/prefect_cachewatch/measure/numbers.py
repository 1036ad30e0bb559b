"""Identifies a file by a number: its inode number, or one made from its device or its path.

Inode numbers are unique on one device. On overlayfs over two file systems, a directory's files are on other devices
than the directory, with equal numbers. Some FUSE servers (sshfs, rclone) renumber a file after the kernel has forgotten
it, or give two files one number: there files are identified by path, and a rename by size and date. Pure; standard
library only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set

from prefect_cachewatch.measure.folder import FileRecord, Folder, Listing, Seen

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from prefect_cachewatch.measure.snapshot import StatLike

    # A listing, an index in it, and the file's name.
    _Sighting = tuple[Listing, int, str]

_MASK = (1 << 64) - 1
_device_of = operator.attrgetter("st_dev")


class Numbers:
    """The numbering rule of each device, by its rank within the scan; inode numbers unless evidence is against them."""

    def __init__(self) -> None:
        self.odd: set[int] = set()
        """Ranks whose files have numbers other than their inode numbers."""
        self.by_path: set[int] = set()
        """Ranks whose files are identified by path."""
        self._devices: dict[int, int] = {}

    def notice(self, rank: int, stats: Sequence[StatLike]) -> None:
        """Note which devices the files are on."""
        devices = set(map(_device_of, stats))
        if devices != {self._devices.setdefault(rank, stats[0].st_dev)}:
            self.odd.add(rank)

    def of(self, directory: str, rank: int, names: Iterable[str], stats: Sequence[StatLike]) -> Sequence[StatLike]:
        """Number files.

        Args:
            directory: its path with a trailing slash.
            rank: of its device.
            names: of the files.
            stats: their stat results, in the same order.

        Returns:
            The stat results, with these numbers in place of the inode numbers.
        """
        if rank in self.by_path:
            return [_with(number_of_path(directory, name), 1, s) for name, s in zip(names, stats, strict=True)]
        usual = self._devices.get(rank)
        return [
            s if s.st_dev == usual else _with(hash((s.st_dev, s.st_ino)) & _MASK, s.st_nlink, s) for s in stats
        ]  # fmt: skip

    def go_by_path(self, rank: int) -> None:
        """Stop trusting the inode numbers of a device."""
        self.by_path.add(rank)
        self.odd.add(rank)


def number_of_path(directory: str, name: str) -> int:
    """Return the number of a file that is identified by path."""
    return hash(directory + name) & _MASK


def renumber_folder(folder: Folder) -> None:
    """Give the files of a folder the numbers of their paths."""
    numbers = [number_of_path(folder.directory, name) for name in folder.names.split("/")]
    for index, number in enumerate(numbers):
        folder.facts[index] = number
    folder.lowest, folder.highest, folder.linked = min(numbers), max(numbers), False


def renumber_listing(listing: Listing) -> Listing:
    """Give the files of a listing the numbers of their paths."""
    facts = listing.facts[:]
    for index, name in enumerate(listing.names.split("/")):
        facts[index] = number_of_path(listing.directory, name)
    return Listing(listing.directory, listing.rank, listing.names, facts, listing.modified, listing.accessed, None)


class Sightings:
    """Compares what a scan saw of files in changed directories with what was known of them.

    Args:
        listings: what the scan saw.
        pool: what was known, by number with the rank of the device in the bits above it.
    """

    def __init__(self, listings: Iterable[Listing], pool: Mapping[int, FileRecord]) -> None:
        self.steady: set[int] = set()
        """Numbers of files that still have their earlier name: that name stays, others are additional ones."""
        self.unknown: dict[int, _Sighting] = {}
        """Files that `pool` does not know, by number."""
        self._first: dict[int, _Sighting] = {}
        self._twice: list[tuple[int, _Sighting]] = []
        for listing in listings:
            directory = listing.directory
            for index, (key, name) in enumerate(zip(listing.keys(), listing.names.split("/"), strict=True)):
                here = listing, index, name
                record = pool.get(key)
                if record is None:
                    self.unknown.setdefault(key, here)
                elif record.name == name and record.directory == directory:
                    self.steady.add(key)
                if self._first.setdefault(key, here) is not here:
                    self._twice.append((key, here))

    def renumbered(self, pool: dict[int, FileRecord], numbers: Numbers) -> set[int]:
        """Find known files that have a new number, and give them that number in `pool`.

        Args:
            pool: as for the class.
            numbers: the rules so far.

        Returns:
            The ranks of devices that renumbered a file in which nothing changed, including its change time.
        """
        doubted: set[int] = set()
        if not self.unknown or not pool:
            return doubted
        places = {record.path: key for key, record in pool.items()}
        new: dict[int, int] = {}
        for key, sighting in self.unknown.items():
            former = places.get(_path(sighting))
            if former is None or former >> 64 != key >> 64 or key >> 64 in numbers.by_path:
                continue
            record, seen = pool[former], _seen(sighting)
            if former in self._first and _is_the_same(record, _seen(self._first[former])):
                continue  # it was moved, and another file has its place
            if _is_the_same(record, seen):
                doubted.add(key >> 64)
            elif key >> 64 in numbers.odd and (record.size_bytes, record.modified_ns) == (
                seen.st_size,
                seen.st_mtime_ns,
            ):
                new[key] = former  # overlayfs copies a changed file to another file system
        if numbers.by_path:
            new |= self._renamed(pool, numbers.by_path)
        for key, former in new.items():
            pool[key] = pool.pop(former)
            del self.unknown[key]
        return doubted

    def collided(self, known: Mapping[int, FileRecord]) -> list[tuple[int, str, str]]:
        """Find files without further names that have the number of another file.

        Args:
            known: files in unchanged directories, by number.

        Returns:
            Number, path, and the path of the other.
        """
        found = []
        for key, sighting in self._twice:
            first = self._first[key]
            one, other = _seen(first), _seen(sighting)
            if one.st_nlink == other.st_nlink == 1 and _path(first) != _path(sighting) and _is_other(one, other):
                found.append((key, _path(sighting), _path(first)))
        for key, record in known.items():
            this = _seen(self.unknown[key])
            if this.st_nlink == 1 and (record.size_bytes, record.modified_ns) != (this.st_size, this.st_mtime_ns):
                found.append((key, _path(self.unknown[key]), record.path))
        return found

    def by_size_and_date(self, ranks: Set[int], known: Set[int]) -> dict[tuple[int, int, int], list[int]]:
        """Map (rank, size, modification time) to the numbers in `unknown` on some devices, without the `known` ones."""
        found: dict[tuple[int, int, int], list[int]] = {}
        for key, sighting in self.unknown.items() if ranks else ():
            if key >> 64 in ranks and key not in known:
                seen = _seen(sighting)
                found.setdefault((key >> 64, seen.st_size, seen.st_mtime_ns), []).append(key)
        return found

    def _renamed(self, pool: Mapping[int, FileRecord], by_path: Set[int]) -> dict[int, int]:
        """Map numbers in `unknown` to numbers in `pool`, by size and date, for files that are identified by path."""
        former: dict[tuple[int, int, int], list[int]] = {}
        for key, record in pool.items():
            if key >> 64 in by_path and key not in self._first:
                former.setdefault((key >> 64, record.size_bytes, record.modified_ns), []).append(key)
        found = {}
        for key, sighting in self.unknown.items() if former else ():
            seen = _seen(sighting)
            if keys := former.get((key >> 64, seen.st_size, seen.st_mtime_ns)):
                found[key] = keys.pop()
        return found


def _path(sighting: _Sighting) -> str:
    return sighting[0].directory + sighting[2]


def _seen(sighting: _Sighting) -> Seen:
    return sighting[0].seen(sighting[1])


def _is_the_same(record: FileRecord, seen: Seen) -> bool:
    facts = record.size_bytes, record.blocks, record.modified_ns, record.changed_ns
    return facts == (seen.st_size, seen.st_blocks, seen.st_mtime_ns, seen.st_ctime_ns)


def _is_other(one: Seen, other: Seen) -> bool:
    return (one.st_size, one.st_mtime_ns) != (other.st_size, other.st_mtime_ns)


def _with(number: int, links: int, status: StatLike) -> Seen:
    return Seen(
        number, links, status.st_size, status.st_blocks, status.st_mtime_ns, status.st_ctime_ns, status.st_atime_ns,
        status.st_dev,
    )  # fmt: skip
