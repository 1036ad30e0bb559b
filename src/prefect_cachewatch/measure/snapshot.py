"""One scan of the cache directories: every regular file's size, blocks and times.

Standard library only, since it runs in the scan process. It walks by directory descriptor, follows no symbolic link and
crosses no mount point; it keeps no history (see `ledger`).
"""

from __future__ import annotations

import errno
import fnmatch
import operator
import os
import re
import resource
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.measure.borders import find_borders
from prefect_cachewatch.measure.links import LINKS_MAX

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any, NamedTuple, Protocol
else:
    from prefect_cachewatch.common.tuples import NamedTuple

    Protocol = object

# Files that grow beside a cache without being part of it.
DEFAULT_IGNORE = ("*.log", "*.lock", ".nfs*")

# Errors that are normal in a tree that is being written to: an entry is gone, replaced by a file or a link, or stale on
# NFS.
RACES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})
_MAX_ERRORS = 20
# A directory of 200,000 files is read in parts, so that not all stat results are in memory at once.
_PART = 4096
_mode_of = operator.attrgetter("st_mode")


THREADS = 16
_WAITING_S = 0.0002  # for a call; a local one takes 2 us, one to a server in the same building 300 us and more
_SAMPLE = 64
# What lies deeper is not measured, and the scan says so: a path below it must stay within the kernel's 4,096 bytes.
_LEVELS_MAX, _PATH_BYTES_MAX = 100, 3800


class StatLike(Protocol):
    """The fields of an `os.stat_result` that are read."""

    @property
    def st_dev(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_nlink(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_blocks(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...
    @property
    def st_atime_ns(self) -> int: ...


# (directory path with a trailing slash, rank of its device, file names, their stat results)
Visit = Callable[[str, int, list[str], list[os.stat_result]], None]
# (directory path with a trailing slash, its stat result from before the listing, names of its subdirectories)
Note = Callable[[str, os.stat_result, tuple[str, ...]], None]
# Names of the subdirectories on the same mount, with their stat results if these were kept.
Subdirectories = list["tuple[str, os.stat_result | None]"]
# Whether a directory's entries and their stat results are unchanged; if so, it is not visited.
Same = Callable[[str, int, list[str], list[os.stat_result]], bool]


class RootScan(NamedTuple):
    """The result for one watched directory: its identity, or why it could not be read."""

    path: str
    device: int = 0
    inode: int = 0
    missing: bool = False
    error: str | None = None


class _Everything:
    def __contains__(self, path: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


class Walk:
    """One walk over all watched directories; the visitor gets the files.

    Args:
        same: see `walk_directories`.
        to_note: likewise.
        borders: entries to skip, since they are other mounts; see `find_borders`.
    """

    def __init__(
        self,
        same: Same = lambda directory, rank, names, stats: False,
        to_note: Container[str] = EVERYTHING,
        borders: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        self.roots: list[RootScan] = []
        self.directories = 0
        self.errors: list[str] = []
        self.links: list[str] = []
        """Symbolic links, which the walk does not follow."""
        self.linked_directories: Sequence[tuple[str, str]] = ()
        """Links to directories outside, and where they lead."""
        self._entered: set[int] = set()
        self.calls = StatCalls()
        self.same, self.to_note, self.borders = same, to_note, borders

    def has_entered(self, status: os.stat_result, rank: int) -> bool:
        """Say whether a directory was already listed in this walk.

        One that appears twice (a nested root, a bind mount) counts once. On some file systems two directories share an
        inode number; they are told apart by their dates.
        """
        return hash((rank, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)) in self._entered

    def enter(self, status: os.stat_result, rank: int) -> None:
        """Record that a directory is being listed."""
        self._entered.add(hash((rank, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)))


class IgnoreTest:
    """Says whether a file is ignored, by its name and its directory relative to the watched one.

    Args:
        ends: literal ends of names.
        begins: literal beginnings.
        by_name: matches other patterns against the name.
        by_path: matches patterns with a slash against the relative path.
    """

    def __init__(
        self,
        ends: tuple[str, ...],
        begins: tuple[str, ...],
        by_name: Callable[[str], object] | None,
        by_path: Callable[[str], object] | None,
    ) -> None:
        self._ends, self._begins = ends, begins
        self._by_name, self._by_path = by_name, by_path
        self._literal = None if by_name or by_path else (*ends, *begins)

    def __call__(self, name: str, relative: str) -> bool:
        return bool(
            (self._ends and name.endswith(self._ends))
            or (self._begins and name.startswith(self._begins))
            or (self._by_name and self._by_name(name))
            or (self._by_path and self._by_path(relative + name))
        )

    def may_match(self, names: Sequence[str]) -> bool:
        """Say whether any of a directory's names could be ignored; false is certain."""
        if self._literal is None:
            return True
        text = "/".join(names)
        return any(part in text for part in self._literal)


def compile_ignore(globs: Iterable[str]) -> IgnoreTest | None:
    """Turn ignore globs into a test on (name, directory relative to the watched one).

    Args:
        globs: shell patterns; one with a slash is matched against the relative path, else the name.

    Returns:
        A test that is true for a file to ignore, or None if there is nothing to ignore. Plain prefixes and suffixes
        cost no regex.

    Example:
        >>> compile_ignore(["*.log"])("run.log", "a/")
        True
    """
    suffixes: list[str] = []
    prefixes: list[str] = []
    names: list[str] = []
    paths: list[str] = []
    for glob in globs:
        special = re.search(r"[*?\[]", glob[1:-1]) is not None
        if "/" in glob:
            paths.append(fnmatch.translate(glob.removeprefix("/")))
        elif glob.startswith("*") and not special and glob[-1:] not in ("*", "?", "]"):
            suffixes.append(glob[1:])
        elif glob.endswith("*") and not special and glob[:1] not in ("?", "[", "*"):
            prefixes.append(glob[:-1])
        else:
            names.append(fnmatch.translate(glob))
    by_name = re.compile("|".join(names)).match if names else None
    by_path = re.compile("|".join(paths)).match if paths else None
    if not (suffixes or prefixes or by_name or by_path):
        return None
    return IgnoreTest(tuple(suffixes), tuple(prefixes), by_name, by_path)


def walk_directories(
    roots: Sequence[str],
    ignore: Iterable[str],
    visit: Visit,
    note: Note = lambda path, status, below: None,
    same: Same = lambda directory, rank, names, stats: False,
    to_note: Container[str] = EVERYTHING,
) -> Walk:
    """Stat every regular file below some directories once, one directory at a time.

    It changes the working directory of the process while it walks (a stat by bare name is the
    fastest there is from Python) and ends in `/`: use it in the scan process.

    Args:
        roots: absolute paths of directories; none is followed if it is a symbolic link.
        ignore: globs of files to leave out (see `compile_ignore`).
        visit: called for a directory with its path, its device's rank, the names of its regular files
            and their stat results; more than once for a large one.
        note: called with a directory's path, its stat result and its subdirectories' names.
        same: called for each directory, or part of one, with all its entries; an unchanged one is neither sorted by
            kind nor matched against the globs, and is not visited.
        to_note: directories that are noted even if they are unchanged.

    Returns:
        The result for the roots. The `RootScan` of a missing or unreadable root says so; an unreadable directory below
        is in `errors`; an entry that vanishes during the walk is left out silently.

    Example:
        >>> walk_directories(["/proc/self/nowhere"], [], lambda *_: None).roots[0].missing
        True
    """
    walk = Walk(same, to_note, find_borders(roots))
    ignored = compile_ignore(ignore)
    ranks: dict[int, int] = {}
    for root in roots:
        try:
            fd = os.open(root, OPEN_DIRECTORY)
        except OSError as error:
            walk.roots.append(RootScan(root, missing=error.errno in RACES, error=os.strerror(error.errno or 0)))
            continue
        try:
            status = os.fstat(fd)
            rank = ranks.setdefault(status.st_dev, len(ranks))
            path = root.rstrip("/") + "/"
            walk_below(fd, path, len(path), rank, ignored, visit, note, walk)
        except OSError as error:
            walk.roots.append(RootScan(root, error=os.strerror(error.errno or 0)))
        else:
            walk.roots.append(RootScan(root, status.st_dev, status.st_ino))
    walk.calls.close()
    os.chdir("/")
    return walk


def walk_below(
    top_fd: int, top: str, root_length: int, rank: int, ignored: IgnoreTest | None, visit: Visit, note: Note, walk: Walk
) -> None:
    """Walk an open directory and everything below it on its mount; changes the working directory.

    Args:
        top_fd: its descriptor, which is closed.
        top: its path with a trailing slash.
        root_length: of the watched directory's path, to which ignore globs are relative.
        rank: of its device.
        ignored: which files to leave out.
        visit: see `walk_directories`.
        note: see `walk_directories`.
        walk: collects the counts and the errors.

    Raises:
        OSError: the directory itself cannot be listed.
    """
    # Depth first; the directories on the way down stay open, which pins them against renames and links.
    below: Subdirectories = []
    try:
        status = os.fstat(top_fd)
        if not walk.has_entered(status, rank):
            below = list_directory(top_fd, top, status, root_length, rank, ignored, visit, note, walk)
    except BaseException:
        os.close(top_fd)
        raise
    way = [(top, top_fd, below)]
    try:
        while way:
            here, parent, pending = way[-1]
            if not pending:
                way.pop()
                os.close(parent)
                continue
            name, own = pending.pop()
            path = f"{here}{name}/"
            if len(way) >= _LEVELS_MAX or len(os.fsencode(path)) > _PATH_BYTES_MAX:
                note_error(walk, here + name, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))
                continue
            try:
                fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
            except OSError as error:
                note_error(walk, here + name, error)
                continue
            below = []
            try:
                if own is None:
                    own = os.fstat(fd)
                if own.st_dev == status.st_dev and not walk.has_entered(own, rank):
                    below = list_directory(fd, path, own, root_length, rank, ignored, visit, note, walk)
            except OSError as error:
                note_error(walk, here + name, error)
            finally:
                if below:
                    way.append((path, fd, below))
                else:
                    os.close(fd)
    finally:
        for _, fd, _ in way:
            os.close(fd)


def list_directory(
    fd: int,
    here: str,
    own: os.stat_result,
    root_length: int,
    rank: int,
    ignored: IgnoreTest | None,
    visit: Visit,
    note: Note,
    walk: Walk,
) -> Subdirectories:
    """Visit the files of one open directory, which becomes the working directory.

    Args:
        fd: its descriptor.
        here: its path with a trailing slash.
        own: its stat result, read before or after it was opened.
        root_length: see `walk_below`, as the others.
        rank: of its device.
        ignored: which files to leave out.
        visit: gets the files.
        note: gets the directory.
        walk: collects the counts and the errors.

    Returns:
        The subdirectories on the same mount.
    """
    os.fchdir(fd)
    listed = os.listdir(fd)
    if here in walk.borders:
        listed = [name for name in listed if name not in walk.borders[here]]
    walk.directories += 1
    walk.enter(own, rank)
    subdirectories: Subdirectories = []
    for part in (listed,) if len(listed) <= _PART else _parts_of(listed):
        try:
            everything = list(map(os.lstat, part)) if walk.calls.settled else walk.calls.all(part)
        except OSError:  # one of them vanished or cannot be read: stat them one by one
            everything = None
        # A mount may have come between its stat and its opening. All entries are on its device, except mounts.
        elsewhere = everything is None or (everything and everything[0].st_dev != own.st_dev)
        if elsewhere and os.fstat(fd).st_dev != own.st_dev:
            return []
        if everything is not None and walk.same(here, rank, part, everything):
            if part is listed and here not in walk.to_note:
                return []
            continue
        names, stats = _regular_files(
            part, everything, here, here[root_length:], own.st_dev, ignored, subdirectories, walk
        )
        if names:
            visit(here, rank, names, stats)
    note(here, own, tuple([name for name, _ in subdirectories]) if subdirectories else ())
    if len(listed) > _PART:  # so many stat results would take more memory than the ledger; they are read again
        return [(name, None) for name, _ in subdirectories]
    return subdirectories


def _parts_of(listed: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(listed), _PART):
        yield listed[start : start + _PART]


def _regular_files(
    listed: list[str],
    everything: list[os.stat_result] | None,
    here: str,
    relative: str,
    device: int,
    ignored: IgnoreTest | None,
    subdirectories: Subdirectories,
    walk: Walk,
) -> tuple[list[str], list[os.stat_result]]:
    # The usual leaf, only regular files and none to ignore, is recorded without a Python step for each file.
    if (
        everything is not None
        and (ignored is None or not ignored.may_match(listed))
        and all(mode & 0o170000 == 0o100000 for mode in set(map(_mode_of, everything)))
    ):
        return listed, everything
    names: list[str] = []
    stats: list[os.stat_result] = []
    for name, status in zip(listed, everything or walk.calls.each(listed), strict=True):
        if isinstance(status, OSError):
            note_error(walk, here + name, status)
            continue
        kind = status.st_mode & 0o170000
        if kind == 0o100000:
            if ignored is None or not ignored(name, relative):
                names.append(name)
                stats.append(status)
        elif kind == 0o040000 and status.st_dev == device:
            subdirectories.append((name, status))
        elif kind == 0o120000 and len(walk.links) < LINKS_MAX and (ignored is None or not ignored(name, relative)):
            walk.links.append(here + name)
    return names, stats


def note_error(walk: Walk, path: str, error: OSError) -> None:
    """Record what could not be read, unless it is a normal error in a tree that is being written to."""
    if error.errno not in RACES and len(walk.errors) < _MAX_ERRORS:
        walk.errors.append(f"{path}: {os.strerror(error.errno or 0)}")


class StatCalls:
    """The stat calls of one walk, made in the working directory; close it at the end.

    Example:
        >>> calls = StatCalls()
        >>> [type(status).__name__ for status in calls.each(["/", "/nowhere"])]
        ['stat_result', 'FileNotFoundError']
        >>> calls.close()
    """

    def __init__(self) -> None:
        self.settled = False
        """Whether calls turned out to be quick, so that one after the other is best."""
        self._pool: Any = None
        self._calls = 0
        self._waited_s = 0.0
        self._waits_before = _voluntary_waits()

    @property
    def threaded(self) -> bool:
        """Whether calls wait so long that threads make them."""
        return self._pool is not None

    def all(self, names: Sequence[str]) -> list[os.stat_result]:
        """Stat some names without following links.

        Args:
            names: file names.

        Returns:
            Their stat results.

        Raises:
            OSError: one of them cannot be read.
        """
        if self.settled:
            return list(map(os.lstat, names))
        found = self.each(names)
        for status in found:
            if isinstance(status, OSError):
                raise status
        return found  # type: ignore[return-value]

    def each(self, names: Sequence[str]) -> list[os.stat_result | OSError]:
        """Stat some names without following links; an entry that cannot be read yields its error."""
        if self._pool is None or len(names) < 2:
            return self._one_by_one(names)
        slices = [names[start::THREADS] for start in range(min(THREADS, len(names)))]
        found: list[os.stat_result | OSError] = [*names]  # type: ignore[list-item]
        for start, part in enumerate(self._pool.map(_stat_each, slices)):
            found[start::THREADS] = part
        return found

    def _one_by_one(self, names: Sequence[str]) -> list[os.stat_result | OSError]:
        if self._calls >= _SAMPLE:
            return _stat_each(names)
        found: list[os.stat_result | OSError] = []
        for done, name in enumerate(names):
            if self._calls >= _SAMPLE:
                return found + self.each(names[done:])
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            found += _stat_each([name])
            self._waited_s += time.perf_counter() - wall_s - (time.thread_time() - cpu_s)
            self._calls += 1
            if self._calls == _SAMPLE and self._do_wait():
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - noqa: PLC0415 - a megabyte, seldom

                self._pool = ThreadPoolExecutor(THREADS, "stat")
            self.settled = self._calls >= _SAMPLE and self._pool is None
        return found

    def _do_wait(self) -> bool:
        # On a busy host time passes outside quick calls: then the thread was preempted, and did not wait.
        waits = _voluntary_waits() - self._waits_before
        return self._waited_s > _SAMPLE * _WAITING_S and waits >= _SAMPLE // 2

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown()


def _voluntary_waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _stat_each(names: Sequence[str]) -> list[os.stat_result | OSError]:
    found: list[os.stat_result | OSError] = []
    for name in names:
        try:
            found.append(os.lstat(name))
        except OSError as error:
            found.append(error)
    return found
