"""Growth accounting: turns scans into two counters that never fall. Standard library only; it touches no file itself.

One row a file, which is known by device and inode: its mark, the most bytes and blocks that it ever had, never falls, and
growth is what exceeds the mark. A rename keeps the row, a hard link counts once, and a deletion subtracts nothing. A path
that is written again counts only beyond what was counted for it before. Files that existed at the start are no growth, but
overwriting one counts once. It makes no decision: see `prefect_cachewatch.watching.stall`.
"""

from __future__ import annotations

import heapq
import operator
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from prefect_cachewatch.common.mounts import Mount, mount_of
from prefect_cachewatch.common.tuples import NamedTuple
from prefect_cachewatch.measure.growth import Growth, Rewriting
from prefect_cachewatch.measure.links import LINKS_MAX
from prefect_cachewatch.measure.walk import IgnoreTest, Kinds, Part, sort_entries

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

    from prefect_cachewatch.measure.walk import StatLike

    _Facts = tuple[int, int, int, int]

# Deleted paths whose mark is remembered, and files that are missing. Beyond this number the oldest are forgotten, so that
# a generator that makes and deletes temporary files for days needs no more memory; churn is judged by what is kept.
_RETIRED_MAX = _LOST_MAX = 50_000
# A file that a scan does not find may have been moved while it looked; one that is missing in so many was deleted.
_FORGET_AFTER = 10
# A file that existed at the start may be overwritten once, and no slower than this: a file that is written to
# indefinitely without growing must not count as growth indefinitely.
_OVERWRITE_BYTES_PER_S = 1 << 18
_OVERWRITTEN_MAX = 1000
_IN_PLACE_MAX, _GROWN_MAX = 64, 1000
_ORIGINAL = -2  # in place of the scan in which it grew: it existed at the start, and no byte of it has been counted
_TOUCHED = -3  # the same, and it was touched; a second touch then proves nothing
_MOST = (1 << 63) - 1
# File systems that number a file anew after the kernel has forgotten it. There a file is known by its path, so that a
# renamed one counts once more.
_WITHOUT_NUMBERS = ("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse")

# What tells whether a file is as it was: any change to it changes one of these.
_facts_of = operator.attrgetter("st_ino", "st_size", "st_blocks", "st_ctime_ns")
_modified_of, _kind_of = operator.attrgetter("st_mtime_ns"), operator.attrgetter("st_dev", "st_nlink")


class Changed(NamedTuple):
    """A file that changed in the last scan."""

    path: str
    size_bytes: int
    changed_ns: int


class _Known(NamedTuple):
    """A part of a directory as it was seen last."""

    mark: int
    """A hash of the names and facts of all its entries."""
    names: str
    """Of its files, joined by slashes."""
    rows: array[int]
    below: tuple[int, ...]
    links: tuple[str, ...]

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield names and rows."""
        return zip(self.names.split("/"), self.rows) if self.rows else iter(())  # noqa: B905 - speed


class _Folder:
    """A directory and the number of the scan that saw it last."""

    __slots__ = ("parts", "seen")

    def __init__(self) -> None:
        self.parts: list[_Known] = []
        self.seen = 0

    def files(self) -> dict[str, int]:
        return {name: row for part in self.parts for name, row in part.files()}


def known_by_path(roots: Iterable[str], mounts: Sequence[Mount]) -> tuple[str, ...]:
    """Return the directories on file systems whose inode numbers do not last, with a trailing slash.

    Args:
        roots: absolute paths, resolved.
        mounts: the mount table.

    Example:
        >>> known_by_path(["/m/c"], [Mount("1", "/m", "fuse.sshfs", "host:", ())])
        ('/m/c/',)
    """
    found = ((root, mount_of(root, mounts)) for root in roots)
    return tuple(root.rstrip("/") + "/" for root, mount in found if mount and mount.type in _WITHOUT_NUMBERS)


class Ledger:
    """Counts growth over scans: `begin`, a walk with the ledger as its visitor, `end`.

    Args:
        birth_ns: returns the creation time of a path in nanoseconds, or None if unknown. Called only when an inode
            number appears under another path, to tell a rename from a reused number.
        by_path: directories whose files are known by path; see `known_by_path`.
        ignore: globs of files that never count.

    Example:
        >>> ledger = Ledger()
        >>> ledger.begin(); ledger.end().bytes_written
        0
    """

    def __init__(
        self,
        birth_ns: Callable[[str], int | None] = lambda path: None,
        by_path: tuple[str, ...] = (),
        ignore: Iterable[str] = (),
    ) -> None:
        self.scans = 0
        self.links: list[str] = []
        """Symbolic links that the scan saw."""
        self.grown: list[Changed] = []
        """Files that grew in the last scan, some of them if there are many."""
        self.in_place: list[Changed] = []
        """Files that changed in the last scan without growing, some of them if there are many."""
        self._birth_ns, self._by_path, self._ignored = birth_ns, by_path, IgnoreTest(ignore)
        self._walks = 0
        self._ended = True
        self._inside = True  # whether what is seen lies in a watched directory, not behind a link
        self._device: int | None = None  # of most files; their inode numbers alone are their keys
        self._rows: dict[int | str, int] = {}
        self._folders: dict[str, _Folder] = {}
        self._free: list[int] = []
        # A row's columns. `base` is the part of its mark that was never counted: what was there at the start, or was
        # counted for an earlier file of its path.
        self._size, self._blocks, self._changed, self._modified = (array("q") for _ in range(4))
        self._high, self._high_blocks, self._base, self._base_blocks = (array("q") for _ in range(4))
        self._grown_in, self._names = array("i"), array("i")  # the last scan that saw it grow; its names
        self._lost: dict[int, tuple[int, str]] = {}  # rows without a name: since which scan, and the last path
        self._dropped: dict[int, str] = {}  # rows that lost a name in this scan
        self._taken: set[int] = set()  # rows that were new or changed in this scan: a further name tells nothing
        self._anew: list[tuple[int, str, int | None]] = []  # new rows where another file stood
        self._retired: dict[str, tuple[int, int, int]] = {}  # marks by path, and what stood there at the start
        self._overwritten: dict[int, int] = {}  # until which change time a file may be overwritten
        self._start_inodes, self._start_rows = array("Q"), array("i")
        self._start: dict[str, int] = {}  # bytes of each directory, and how many of them were written anew
        self._start_files, self._rewritten = 0, dict[str, int]()
        self._written = self._written_blocks = self._kept = self._kept_blocks = 0
        self._present = self._present_blocks = self._files = 0
        self._newest: tuple[bool, int, str] | None = None
        self._touched_ns: int | None = None
        self._overwriting_ns: int | None = None

    def begin(self) -> None:
        """Begin a scan. What one saw that never ended, since a directory was missing, counts in the next one."""
        self._walks += 1
        self.links, self._taken = [], set()
        for anew in self._anew:
            self._settle(*anew)
        self._anew = []
        if self._ended:
            self._newest = self._touched_ns = self._overwriting_ns = None
            self.grown, self.in_place = [], []
        self._ended = False

    def take(self, directory: str, parts: Iterable[Part]) -> list[tuple[str, StatLike]]:
        """Take in a directory.

        Args:
            directory: its path with a trailing slash.
            parts: all entries.

        Returns:
            Its subdirectories.
        """
        folder = self._folders.get(directory) or self._folders.setdefault(directory, _Folder())
        before, now, known = folder.parts, list[_Known](), None
        below: list[tuple[str, StatLike]] = []
        try:
            for index, part in enumerate(parts):
                facts = list(map(_facts_of, part.stats))
                mark = hash((*part.names, *facts))
                if index < len(before) and before[index].mark == mark:
                    now.append(before[index])
                else:
                    if known is None:
                        known = folder.files()
                    kinds = sort_entries(part, self._ignored)
                    if kinds.stats is not part.stats:
                        facts = list(map(_facts_of, kinds.stats))
                    now.append(self._see(mark, directory, kinds, facts, known))
                below += [(part.names[at], part.stats[at]) for at in now[-1].below]
                if now[-1].links and len(self.links) < LINKS_MAX:
                    self.links += [directory + name for name in now[-1].links]
        finally:
            folder.parts, folder.seen = now, self._walks
            for index, old in enumerate(before):
                if index >= len(now) or now[index] is not old:
                    self._drop(directory, old)
        return below

    def take_linked(self, files: Iterable[tuple[str, StatLike]]) -> None:
        """Take in the files outside that links lead to: paths and stat results."""
        found: dict[str, list[tuple[str, StatLike]]] = {}
        for path, status in files:
            directory, _, name = path.rpartition("/")
            found.setdefault(directory + "/", []).append((name, status))
        self._inside = False
        for directory, entries in found.items():
            names, stats = zip(*entries, strict=True)
            self.take(directory, [Part(directory, "", names, stats)])
        self._inside = True

    def end(self) -> Growth:
        """End the scan.

        Returns:
            The totals. The first scan is the start: nothing that it saw counts as growth.
        """
        for directory in [path for path, folder in self._folders.items() if folder.seen != self._walks]:
            for part in self._folders.pop(directory).parts:
                self._drop(directory, part)
        for row, path in self._dropped.items():
            if not self._names[row] and row not in self._lost:
                self._lose(row, path)
        for row, path, was in self._anew:
            self._settle(row, path, was)
        self._dropped, self._anew = {}, []
        self._forget()
        if self.scans == 0:
            # Made now, the numbers lie side by side in memory: scattered among those of the walk, they slow down each
            # later scan. Of a file that was moved in mid-scan the later row is found, and the other one goes.
            self._rows.update(zip(self._start_inodes, self._start_rows))  # noqa: B905 - speed
            self._start_inodes, self._start_rows = array("Q"), array("i")
            self._start_files = self._files
        self.scans += 1
        self._ended = True
        newest = self._newest
        return Growth(
            bytes_written=self._written,
            allocated_written=self._written_blocks * 512,
            bytes_kept=self._kept,
            allocated_kept=self._kept_blocks * 512,
            bytes_present=self._present,
            allocated_present=self._present_blocks * 512,
            files_present=self._files,
            touched_ns=self._touched_ns,
            newest_changed_ns=newest[1] if newest else None,
            last_path=newest[2] if newest else None,
            overwriting_ns=self._overwriting_ns,
        )

    def rewriting(self, leave_out: Sequence[str] = ()) -> Rewriting:
        """Say how much of what the first scan found was written anew.

        Args:
            leave_out: directories that do not count, with all below them.
        """
        tops = tuple(path.rstrip("/") + "/" for path in leave_out)
        counted = [path for path in self._start if not (tops and path.startswith(tops))]
        return Rewriting(
            self._start_files,
            sum(map(self._start.__getitem__, counted)),
            sum(self._rewritten.get(p, 0) for p in counted),
        )

    def listing(self, limit: int) -> dict[str, Any]:
        """List the files that grew last, by scan and then by change time, which programs cannot set.

        Args:
            limit: the most files listed.

        Returns:
            Totals; `entries`, the latest first; `rest`, for the directories with the most other bytes: path, files, bytes.
        """
        rest: dict[str, list[int]] = {}
        listed: set[int] = set()  # of those with several names

        def files() -> Iterator[tuple[int, int, int, str, str]]:
            for directory, folder in self._folders.items():
                count = rest.setdefault(directory, [0, 0])
                for name, row in folder.files().items():
                    if self._names[row] > 1:
                        if row in listed:
                            continue
                        listed.add(row)
                    count[0] += 1
                    count[1] += self._size[row]
                    yield max(self._grown_in[row], -1), self._changed[row], row, directory, name

        entries = []
        for grown_in, changed_ns, row, directory, name in heapq.nlargest(limit, files()):
            rest[directory][0] -= 1
            rest[directory][1] -= self._size[row]
            entries.append(
                {
                    "path": directory + name,
                    "size_bytes": self._size[row],
                    "allocated_bytes": self._blocks[row] * 512,
                    "modified_ns": self._modified[row],
                    "changed_ns": changed_ns,
                    "grown_scan": grown_in,
                    "written_bytes": self._high[row] - self._base[row],
                }
            )
        return {
            "total_files": self._files,
            "total_bytes": self._present,
            "allocated_bytes": self._present_blocks * 512,
            "scan": self.scans - 1,
            "entries": entries,
            "rest": heapq.nlargest(limit, ((d, n, b) for d, (n, b) in rest.items() if n), key=operator.itemgetter(2)),
        }

    def _see(self, mark: int, directory: str, kinds: Kinds, facts: list[_Facts], known: dict[str, int]) -> _Known:
        names, stats = kinds.names, kinds.stats
        if self._device is None and stats:
            self._device = stats[0].st_dev
        rows = self._take_start(directory, stats, facts) if self.scans == 0 else None
        if rows is None:
            rows = array("i", [self._row(directory, name, status, known) for name, status in zip(names, stats)])  # noqa: B905
            for row in rows:
                self._names[row] += 1
        return _Known(mark, "/".join(names), rows, kinds.below, kinds.links)

    def _take_start(self, directory: str, stats: Sequence[StatLike], facts: list[_Facts]) -> array[int] | None:
        """Take files of the first scan column by column, since there may be a million; None where that is not possible."""
        if set(map(_kind_of, stats)) != {(self._device, 1)} or directory.startswith(self._by_path or "\0"):
            return None
        inodes, sizes, blocks, changed = zip(*facts)  # noqa: B905 - speed
        first, count = len(self._size), len(inodes)
        self._start_inodes.extend(inodes)
        self._start_rows.extend(range(first, first + count))
        for columns, values in (
            ((self._size, self._high, self._base), array("q", sizes)),
            ((self._blocks, self._high_blocks, self._base_blocks), array("q", blocks)),
            ((self._changed,), _times(changed)),
            ((self._modified,), _times(list(map(_modified_of, stats)))),
            ((self._grown_in,), array("i", [_ORIGINAL]) * count),
            ((self._names,), array("i", [1]) * count),
        ):
            for column in columns:
                column.extend(values)
        size = sum(sizes)
        self._note_present(size, sum(blocks), count)
        self._start[directory] = self._start.get(directory, 0) + size
        return array("i", range(first, first + count))

    def _row(self, directory: str, name: str, status: StatLike, known: dict[str, int]) -> int:
        """Return the row of a file, up to date; a new one for a new file.

        Args:
            directory: its path with a trailing slash.
            name: of the file.
            status: its stat result.
            known: the rows that had each name in this directory.
        """
        path, was = directory + name, known.get(name)
        key: int | str = status.st_ino if status.st_dev == self._device else status.st_ino | (status.st_dev + 1) << 64
        if self._by_path and path.startswith(self._by_path):
            key = path
        row = self._rows.get(key)
        stays = was == row
        if row is not None and self.scans and row not in self._taken:
            facts = (status.st_size, status.st_blocks, _clamped(status.st_ctime_ns))
            same = facts == (self._size[row], self._blocks[row], self._changed[row])
            if row in self._lost:
                if not same and not self._is_surely(row, path, status):
                    row = None
                else:
                    stays = self._find(row) == path
            elif not same and not stays and self._is_another(row, path, status):
                row = None
            if row is not None and not same:
                self._update(row, path, status, stays=stays)
        return self._new(key, path, status, was) if row is None else row

    def _is_surely(self, row: int, path: str, status: StatLike) -> bool:
        born = self._birth_ns(path)
        if born is None:
            return (self._size[row], self._modified[row]) == (status.st_size, _clamped(status.st_mtime_ns))
        return born <= self._changed[row]

    def _is_another(self, row: int, path: str, status: StatLike) -> bool:
        # The number moved to another path: the file was renamed, or deleted and its number reused (ext4 and tmpfs do so
        # at once). A file that was made after the known one last changed is a different one. overlayfs copies a file
        # that is renamed, and the copy has a new birth.
        if status.st_nlink > 1 or (self._size[row], self._modified[row]) == (
            status.st_size,
            _clamped(status.st_mtime_ns),
        ):
            return False
        born = self._birth_ns(path)
        return born > self._changed[row] if born is not None else status.st_size < self._size[row]

    def _new(self, key: int | str, path: str, status: StatLike, was: int | None) -> int:
        size, blocks, changed = status.st_size, status.st_blocks, _clamped(status.st_ctime_ns)
        original = self.scans == 0
        base, base_blocks, grown_in = (size, blocks, _ORIGINAL) if original else (0, 0, -1)
        values = size, blocks, changed, _clamped(status.st_mtime_ns), size, blocks, base, base_blocks, grown_in, 0
        columns = (
            self._size, self._blocks, self._changed, self._modified, self._high, self._high_blocks, self._base,
            self._base_blocks, self._grown_in, self._names,
        )  # fmt: skip
        row = self._free.pop() if self._free else len(self._size)
        for column, value in zip(columns, values, strict=True):
            if row == len(column):
                column.append(value)
            else:
                column[row] = value
        self._rows[key] = row
        self._taken.add(row)
        self._note_present(size, blocks, 1)
        if original:
            directory = path[: path.rindex("/") + 1]
            self._start[directory] = self._start.get(directory, 0) + size
            return row
        self._touched_ns = max(self._touched_ns or 0, changed)
        if was is None and path not in self._retired:
            self._count(row, path, size, blocks)
        else:
            self._anew.append((row, path, was))  # whether the other one is gone is known at the end
        return row

    def _update(self, row: int, path: str, status: StatLike, *, stays: bool) -> None:
        # A file that existed at the start was never counted: if it is rewritten, that is growth, once. A write moves
        # the modification time, but so does touch(1). A touch sets the access time to the same moment, but so may a
        # read and a write in one tick, or a write through a mapping. A change of mode moves only the change time, but
        # so do a write followed by setting the date back. These cases count no bytes, but still count as activity.
        size, blocks, changed = status.st_size, status.st_blocks, _clamped(status.st_ctime_ns)
        old_size, modified = self._size[row], _clamped(status.st_mtime_ns)
        moved = modified != self._modified[row]
        is_touch = size == old_size and (
            status.st_atime_ns == status.st_mtime_ns
            if moved
            else changed != self._changed[row] and status.st_nlink == 1 and stays
        )
        is_write, original = moved and not is_touch, self._grown_in[row] <= _ORIGINAL
        start = self._high[row]
        if original and size <= old_size and is_write:
            self._high[row] = self._high_blocks[row] = self._base[row] = self._base_blocks[row] = 0
        elif original and size < old_size:
            self._high[row] = self._base[row] = size
            self._high_blocks[row] = self._base_blocks[row] = blocks
        self._note_present(size - old_size, blocks - self._blocks[row], 0)
        self._size[row], self._blocks[row] = size, blocks
        self._changed[row], self._modified[row] = changed, modified
        self._taken.add(row)
        grown, grown_blocks = max(0, size - self._high[row]), max(0, blocks - self._high_blocks[row])
        self._high[row] += grown
        self._high_blocks[row] += grown_blocks
        has_grown = self._count(row, path, grown, grown_blocks)
        if has_grown and original:
            self._note_rewritten(path, start)
        if is_write and (original or row in self._overwritten):
            self._note_overwriting(row, old_size, original=original)
        elif is_touch and original and not has_grown and self._grown_in[row] == _ORIGINAL:
            self._grown_in[row] = _TOUCHED
            self._overwriting_ns = max(self._overwriting_ns or 0, changed)
        if moved and self.scans:
            self._touched_ns = max(self._touched_ns or 0, changed)
        if self.scans and not has_grown and 0 < size == old_size and len(self.in_place) < _IN_PLACE_MAX:
            self.in_place.append(Changed(path, size, changed))

    def _count(self, row: int, path: str, grown: int, grown_blocks: int) -> bool:
        """Count growth; returns whether there is any."""
        if not (grown or grown_blocks):
            return False
        self._written += grown
        self._written_blocks += grown_blocks
        self._kept += grown
        self._kept_blocks += grown_blocks
        self._grown_in[row] = self.scans
        if len(self.grown) < _GROWN_MAX:
            self.grown.append(Changed(path, self._size[row], self._changed[row]))
        # A file in a watched directory goes before one outside.
        self._newest = max(self._newest or (False, -_MOST - 1, ""), (self._inside, self._changed[row], path))
        return True

    def _note_overwriting(self, row: int, old_size: int, *, original: bool) -> None:
        """Record a write to a file that existed at the start, until it has been overwritten in this run.

        While a large file is overwritten in place, only its modification time changes.
        """
        size, changed = self._size[row], self._changed[row]
        if original:
            allocated_bytes = min(size, self._blocks[row] * 512)
            if old_size == size and allocated_bytes >= _OVERWRITE_BYTES_PER_S:
                self._overwritten[row] = changed + allocated_bytes * 1_000_000_000 // _OVERWRITE_BYTES_PER_S
                if len(self._overwritten) > _OVERWRITTEN_MAX:
                    del self._overwritten[next(iter(self._overwritten))]
        elif old_size != size or self._overwritten[row] < changed:
            del self._overwritten[row]
            return
        self._overwriting_ns = max(self._overwriting_ns or 0, changed)

    def _note_rewritten(self, path: str, start_bytes: int) -> None:
        directory = path[: path.rindex("/") + 1]
        self._rewritten[directory] = self._rewritten.get(directory, 0) + start_bytes

    def _note_present(self, size: int, blocks: int, files: int) -> None:
        self._present += size
        self._present_blocks += blocks
        self._files += files

    def _drop(self, directory: str, part: _Known) -> None:
        """Take the names of a part that is no longer so from its files."""
        for name, row in part.files():
            self._names[row] -= 1
            if not self._names[row]:
                self._dropped[row] = directory + name

    def _lose(self, row: int, path: str) -> None:
        self._lost[row] = self.scans, path
        self._note_kept(row, -1)
        self._retired.pop(path, None)
        # A file that existed at the start was never counted, and may be rewritten.
        original = self._grown_in[row] <= _ORIGINAL
        self._retired[path] = (0, 0, self._high[row]) if original else (self._high[row], self._high_blocks[row], 0)
        if len(self._retired) > _RETIRED_MAX:
            del self._retired[next(iter(self._retired))]

    def _find(self, row: int) -> str:
        """Take a file back that was missing; returns its last path."""
        _, path = self._lost.pop(row)
        self._note_kept(row, 1)
        if self._retired.get(path, ())[:2] == (self._high[row], self._high_blocks[row]):
            del self._retired[path]
        return path

    def _note_kept(self, row: int, sign: int) -> None:
        self._kept += sign * (self._high[row] - self._base[row])
        self._kept_blocks += sign * (self._high_blocks[row] - self._base_blocks[row])
        self._note_present(sign * self._size[row], sign * self._blocks[row], sign)

    def _settle(self, row: int, path: str, was: int | None) -> None:
        """Count a new file beyond what was counted for its path before."""
        high, high_blocks, start_bytes = self._retired.pop(path, (0, 0, 0))
        if was is not None and self._grown_in[was] <= _ORIGINAL:
            start_bytes = self._high[was]
        if start_bytes:
            self._note_rewritten(path, start_bytes)
        size, blocks = self._size[row], self._blocks[row]
        self._high[row], self._high_blocks[row] = max(size, high), max(blocks, high_blocks)
        self._base[row], self._base_blocks[row] = high, high_blocks
        self._count(row, path, max(0, size - high), max(0, blocks - high_blocks))

    def _forget(self) -> None:
        """Free the rows of files that have been missing for long."""
        gone: set[int] = set()
        for row, (since, _) in self._lost.items():  # the longest missing first
            if since > self.scans - _FORGET_AFTER and (since == self.scans or len(self._lost) - len(gone) <= _LOST_MAX):
                break
            gone.add(row)
        if not gone:
            return
        for key in [key for key, row in self._rows.items() if row in gone]:
            del self._rows[key]
        for row in gone:
            del self._lost[row]
            self._overwritten.pop(row, None)
        self._free += gone


def _times(values: Sequence[int]) -> array[int]:
    try:
        return array("q", values)
    except OverflowError:
        return array("q", map(_clamped, values))


def _clamped(time_ns: int) -> int:
    """A date that 64 bits do not hold, such as one after 2262, becomes the nearest one."""
    return time_ns if -_MOST <= time_ns <= _MOST else max(-_MOST, min(time_ns, _MOST))
