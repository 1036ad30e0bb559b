"""Full and partial scans of the same directories into one ledger; standard library only.

A partial scan looks at the files that changed recently, stats the known directories and lists those that changed. It
may miss changes to other files until the next full scan, so no verdict rests on it (see
`prefect_cachewatch.watching.stall`). It never counts anything that a full scan would not count.
"""

from __future__ import annotations

import operator
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.tuples import NamedTuple
from prefect_cachewatch.measure.borders import find_borders
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.measure.ledger import Ledger
from prefect_cachewatch.measure.links import Links
from prefect_cachewatch.measure.snapshot import (
    EVERYTHING,
    RACES,
    RootScan,
    Walk,
    compile_ignore,
    list_directory,
    note_error,
    walk_below,
    walk_directories,
)

HOT_SCANS = 10  # a file that changed within this many scans is looked at in each scan
HOT_NEWEST = 100  # and so are the files that changed last, however long ago
_ROUNDS = 8  # directories without changes are all looked at within this many partial scans
_QUIET_MIN = 1000
# A directory's date may be this coarse: one that changed shortly before its listing may change again without a new
# date.
_COARSE_NS = 2_000_000_000


_pack = struct.Struct("QQqq").pack
_identity_and_times = operator.attrgetter("st_dev", "st_ino", "st_mtime_ns", "st_ctime_ns")


_LINK_RANKS = 1 << 20


def _pack_facts(status: os.stat_result) -> bytes:
    try:
        return _pack(*_identity_and_times(status))
    except struct.error:  # a date after 2262 or before 1677
        device, inode, *times = _identity_and_times(status)
        return _pack(device, inode, *((time + (1 << 63)) % (1 << 64) - (1 << 63) for time in times))


class _Directory:
    """A directory as of its last listing: 136 bytes and the names below."""

    __slots__ = ("below", "facts", "seen_in", "settled")

    def __init__(self, facts: bytes, below: tuple[str, ...], settled: bool, seen_in: int) -> None:
        self.facts = facts
        """Device, inode, times of modification and change, packed."""
        self.below, self.settled = below, settled
        self.seen_in = seen_in
        """The number of the full scan that last noted it."""

    @property
    def identity(self) -> bytes:
        """Device and inode."""
        return self.facts[:16]


class TreeScan(NamedTuple):
    """One scan: the ledger's totals, None if a watched directory could not be read, and the walk's results."""

    growth: Growth | None
    walk: Walk
    full: bool


class Tree:
    """Watched directories and their known state.

    Args:
        roots: absolute paths.
        ignore: globs of files to leave out.
        ledger: records what is seen.
        wall_ns: the wall clock, in nanoseconds.
    """

    def __init__(
        self, roots: Sequence[str], ignore: Sequence[str], ledger: Ledger, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.roots, self.ignore, self.ledger = list(roots), list(ignore), ledger
        self._wall_ns = wall_ns
        self._ignored = compile_ignore(ignore)
        self._links, self._link_paths = Links(self.roots), list[str]()
        self._link_ranks: dict[int, int] = {}
        self._known: dict[str, _Directory] = {}
        self._root_of: dict[str, tuple[RootScan, int]] = {}
        self._hot: dict[tuple[str, str], int] = {}
        self._quiet: list[str] = []
        self._new: dict[str, _Directory] = {}
        self._settled_ns = 0
        self._path_of: dict[bytes, str] = {}
        self._begun = 0
        self._borders: Mapping[str, frozenset[str]] = {}
        self._doubtful: set[str] = set()
        """Directories whose date proves nothing, to be listed in the next partial scan."""

    def full_scan(self) -> TreeScan:
        """Scan everything."""
        # The known state is updated in place; an error on the way makes the next scan a full one. A directory whose
        # files are unchanged needs no new date, unless its date proved nothing.
        to_note = self._doubtful if self._known else EVERYTHING
        self._new, self._known, self._doubtful = self._known, {}, set()
        self._settled_ns = self._wall_ns() - _COARSE_NS
        self._begun += 1
        self.ledger.begin()
        walk = walk_directories(self.roots, self.ignore, self.ledger.see, self._note, self.ledger.is_same, to_note)
        self._borders = walk.borders
        known, self._new = self._new, {}
        if any(root.missing or root.error for root in walk.roots):
            # An incomplete scan does not count: files that could not be seen were not necessarily deleted.
            return TreeScan(None, walk, True)
        if len(known) > walk.directories:
            known = {
                path: directory
                for path, directory in known.items()
                if directory.seen_in == self._begun or self.ledger.has_found_same(path)
            }
        ranks: dict[int, int] = {}
        self._root_of = {r.path: (r, ranks.setdefault(r.device, len(ranks))) for r in walk.roots}
        self._link_paths = walk.links
        self._look_at_links(walk)
        growth = self.ledger.end()
        self._known, self._quiet = known, []
        if self.ledger.scans == 1:
            self._hot = {(file.directory, file.name): 0 for file in reversed(self.ledger.newest(HOT_NEWEST))}
        self._after()
        return TreeScan(growth, walk, True)

    def partial_scan(self, budget_s: float) -> TreeScan:
        """Scan the files that changed recently and the directories; everything if nothing is known yet.

        Args:
            budget_s: after this time nothing more is looked at; recently changed files come first.

        Returns:
            The scan; a full one if a partial one is not possible.
        """
        walk = Walk(same=self.ledger.is_same, borders=self._borders)
        for root, _ in self._root_of.values() if self._known else ():
            try:
                status = os.lstat(root.path)
            except OSError:
                break
            if (status.st_dev, status.st_ino) != (root.device, root.inode):
                break
            walk.roots.append(root)
        if not self._known or len(walk.roots) < len(self._root_of) or find_borders(self.roots) != self._borders:
            return self.full_scan()
        stop_s = time.monotonic() + budget_s
        known, self._new = self._known, {}
        self._settled_ns = self._wall_ns() - _COARSE_NS
        self._known = {}  # an error on the way makes the next scan a full one
        self.ledger.begin(full=False)
        first = self._look_at_hot_files(known, stop_s - budget_s / 2, walk)
        self._look_at_directories(known, first, stop_s, walk)
        walk.calls.close()
        os.chdir("/")
        self._look_at_links(walk)
        growth = self.ledger.end()
        known.update(self._new)
        self._known, self._new = known, {}
        self._after()
        return TreeScan(growth, walk, False)

    def _look_at_links(self, walk: Walk) -> None:
        """Record the files outside that links lead to, as files of their own directories."""
        linked = self._links.look(self._link_paths)
        walk.linked_directories = linked.directories
        ranks = {root.device: rank for root, rank in self._root_of.values()}
        found: dict[tuple[str, int], list[tuple[str, os.stat_result]]] = {}
        for path, status in linked.files:
            name = path.rpartition("/")[2]
            rank = ranks.get(status.st_dev)
            if rank is None:  # far above those of the watched directories
                rank = self._link_ranks.setdefault(status.st_dev, _LINK_RANKS + len(self._link_ranks))
            if not (self._ignored and self._ignored(name, "")):
                found.setdefault((_parent(path), rank), []).append((name, status))
        self.ledger.outside = {directory for directory, _ in found}
        for (directory, rank), files in found.items():
            self.ledger.see(directory, rank, [name for name, _ in files], [status for _, status in files])

    def _root_above(self, path: str) -> tuple[RootScan, int]:
        above = [entry for entry in self._root_of.values() if path.startswith(entry[0].path.rstrip("/") + "/")]
        return max(above, key=lambda entry: len(entry[0].path))

    def _after(self) -> None:
        scan = self.ledger.scans
        for place in self.ledger.moved:
            self._hot.pop(place, None)
            self._hot[place] = scan
        cold = [place for place, moved in self._hot.items() if moved < scan - HOT_SCANS]
        for place in cold[: max(0, len(self._hot) - HOT_NEWEST)]:
            del self._hot[place]
        for directory in self.ledger.doubtful:
            if directory in self._known:
                self._known[directory].settled = False
                self._doubtful.add(directory)

    def _note(self, path: str, status: os.stat_result, below: tuple[str, ...]) -> None:
        facts, settled = _pack_facts(status), status.st_mtime_ns < self._settled_ns
        directory = self._new.get(path)
        if directory is None:
            self._new[path] = _Directory(facts, below, settled, self._begun)
        else:
            directory.seen_in = self._begun
            if directory.facts != facts or directory.below != below or directory.settled != settled:
                directory.facts, directory.below, directory.settled = facts, below, settled
        if not settled:
            self._doubtful.add(path)

    def _look_at_hot_files(self, known: dict[str, _Directory], stop_s: float, walk: Walk) -> list[str]:
        """Stat the files that changed recently, the latest first; return their directories."""
        hot: dict[str, list[str]] = {}
        for directory, name in reversed(self._hot):
            hot.setdefault(directory, []).append(name)
        first = []
        for directory, names in hot.items():
            if time.monotonic() > stop_s:
                break
            if directory not in known:
                continue
            looks = {}
            for name in names:
                try:
                    looks[name] = os.lstat(directory + name)
                except OSError as error:
                    note_error(walk, directory + name, error)
                    del self._hot[directory, name]
            if len(looks) < len(names) or not self.ledger.look(directory, looks):
                known[directory].settled = False
                self._doubtful.add(directory)
            first.append(directory)
        return first

    def _look_at_directories(self, known: dict[str, _Directory], first: list[str], stop_s: float, walk: Walk) -> None:
        if not self._quiet:
            self._quiet = list(known)
        doubtful = [path for path in self._doubtful if path in known]
        self._doubtful.clear()
        roots = [root.path.rstrip("/") + "/" for root in walk.roots]
        queue = list(dict.fromkeys([*reversed(first), *doubtful, *roots]))
        left = max(_QUIET_MIN, -(-len(known) // _ROUNDS))
        checked: set[str] = set()
        self._path_of = {}
        lstat, steps = os.lstat, 0
        while True:
            steps += 1
            # Reading the clock at each step would cost as much as a stat.
            if steps % 8 == 1 and time.monotonic() > stop_s:
                self._doubtful.update(path for path in queue if path in known and not known[path].settled)
                return
            if queue:
                path = queue.pop()
            elif left and self._quiet:
                path, left = self._quiet.pop(), left - 1
            else:
                return
            directory = known.get(path)
            if path in checked or path in self._new or directory is None:
                continue
            checked.add(path)
            try:
                now = lstat(path[:-1])
            except OSError as error:
                if error.errno in RACES:
                    self._drop(known, path)
                    queue.append(_parent(path))
                else:
                    note_error(walk, path, error)
                continue
            if not directory.settled or _pack_facts(now) != directory.facts:
                queue += self._list(known, path, walk)

    def _list(self, known: dict[str, _Directory], path: str, walk: Walk) -> list[str]:
        """List a directory again, and walk what is new below it; return the directories to look at because of it."""
        root, rank = self._root_above(path)
        root_path = root.path.rstrip("/") + "/"
        before = known[path].below
        try:
            fd = _open_below(root_path, path)
        except OSError as error:
            note_error(walk, path, error)
            if error.errno in RACES:
                self._drop(known, path)
            return [_parent(path)]
        args = len(root_path), rank, self._ignored, self.ledger.see, self._note, walk
        queue = []
        try:
            status = os.fstat(fd)
            if status.st_dev != root.device:
                self._drop(known, path)
                return []
            self.ledger.drop(path)  # in case it has no file any more
            below = [name for name, _ in list_directory(fd, path, status, *args)]
            for name in set(before) - set(below):
                self._drop(known, path + name + "/")
            for name in below:
                inner = path + name + "/"
                here, old = os.stat(name, dir_fd=fd, follow_symlinks=False), known.get(inner)
                if old is not None and _pack_facts(here)[:16] == old.identity:
                    queue.append(inner)
                    continue
                if old is not None:
                    self._drop(known, inner)
                came = set(self._new)
                walk_below(os.open(name, OPEN_DIRECTORY, dir_fd=fd), inner, *args)
                queue += self._former_paths(known, self._new.keys() - came)
        except OSError as error:  # what is new below may have gone again: list the directory once more
            note_error(walk, path, error)
            if path in self._new:
                self._new[path].settled = False
                self._doubtful.add(path)
        finally:
            os.close(fd)
        return queue

    def _former_paths(self, known: dict[str, _Directory], new: Iterable[str]) -> list[str]:
        """Return where new directories were known before: a renamed one is gone from there."""
        if not self._path_of:
            self._path_of = {directory.identity: path for path, directory in known.items()}
        return [former for path in new if (former := self._path_of.get(self._new[path].identity)) is not None]

    def _drop(self, known: dict[str, _Directory], path: str) -> None:
        """Forget a directory and everything below it, except what this scan saw."""
        pending = [path]
        while pending:
            here = pending.pop()
            directory = known.pop(here, None)
            if directory is not None:
                if here not in self._new:
                    self.ledger.drop(here)
                pending += [here + name + "/" for name in directory.below]


def _parent(path: str) -> str:
    return path[: path.rstrip("/").rfind("/") + 1]


def _open_below(root: str, path: str) -> int:
    """Open a directory below a root, following no symbolic link on the way."""
    fd = os.open(root, OPEN_DIRECTORY)
    for name in path[len(root) :].split("/")[:-1]:
        with Opened(fd) as above:
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
    return fd
