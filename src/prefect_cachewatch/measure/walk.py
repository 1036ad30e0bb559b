"""Walks directories by descriptor and reads every entry's status, one directory at a time; it keeps no history (see `ledger`).

Standard library only, since it runs in the scan process. It follows no symbolic link and crosses no mount point.
"""

from __future__ import annotations

import errno
import fnmatch
import operator
import os
import re
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.removal import look_path

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from typing import NamedTuple, Protocol
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
# What lies deeper is not measured, and the scan says so: a path below it must stay within the kernel's 4,096 bytes.
_LEVELS_MAX, _PATH_BYTES_MAX = 100, 3800
THREADS = 16
_WAITING_S = 0.0002  # for a call; a local one takes 2 us, one to a server in the same building 300 us and more
_SAMPLE = 64
_mode_of = operator.attrgetter("st_mode")


class StatLike(Protocol):
    """The fields of an `os.stat_result` that are read."""

    @property
    def st_mode(self) -> int: ...
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


class Part(NamedTuple):
    """A directory's entries, or some of a large one's, with their stat results."""

    directory: str
    """Path with a trailing slash."""
    relative: str
    """The same, from the watched directory."""
    names: Sequence[str]
    stats: Sequence[StatLike]


class Kinds(NamedTuple):
    """The entries of a part by kind: regular files, and the places of subdirectories and symbolic links."""

    names: Sequence[str]
    stats: Sequence[StatLike]
    below: tuple[int, ...] = ()
    links: tuple[str, ...] = ()


class Visitor(Protocol):
    """Takes in each directory, and returns its subdirectories: names and stat results."""

    def take(self, directory: str, parts: Iterable[Part]) -> Iterable[tuple[str, StatLike]]: ...


class RootScan(NamedTuple):
    """The result for one watched directory: its identity, or why it could not be read."""

    path: str
    device: int = 0
    inode: int = 0
    missing: bool = False
    error: str | None = None


class IgnoreTest:
    """Says whether a file is ignored, by its name and its directory relative to the watched one.

    Args:
        globs: shell patterns; one with a slash is matched against the relative path, else the name.

    Example:
        >>> IgnoreTest(["*.log"])("run.log", "a/")
        True
    """

    def __init__(self, globs: Iterable[str]) -> None:
        # Literal ends and beginnings cost no regular expression.
        ends, begins, by_name, by_path = list[str](), list[str](), list[str](), list[str]()
        for glob in globs:
            special = re.search(r"[*?\[]", glob[1:-1]) is not None
            if "/" in glob:
                by_path.append(fnmatch.translate(glob.removeprefix("/")))
            elif glob.startswith("*") and not special and glob[-1:] not in ("*", "?", "]"):
                ends.append(glob[1:])
            elif glob.endswith("*") and not special and glob[:1] not in ("?", "[", "*"):
                begins.append(glob[:-1])
            else:
                by_name.append(fnmatch.translate(glob))
        self._ends, self._begins = tuple(ends), tuple(begins)
        self._by_name = re.compile("|".join(by_name)).match if by_name else None
        self._by_path = re.compile("|".join(by_path)).match if by_path else None

    def __call__(self, name: str, relative: str) -> bool:
        return bool(
            (self._ends and name.endswith(self._ends))
            or (self._begins and name.startswith(self._begins))
            or (self._by_name and self._by_name(name))
            or (self._by_path and self._by_path(relative + name))
        )

    def may_match(self, names: Sequence[str]) -> bool:
        """Say whether any of a directory's names could be ignored; false is certain."""
        if self._by_name or self._by_path:
            return True
        text = "/".join(names)
        return any(part in text for part in (*self._ends, *self._begins))


def sort_entries(part: Part, ignored: IgnoreTest) -> Kinds:
    """Tell files from directories and links, and leave out the ignored ones.

    Args:
        part: the entries.
        ignored: which files and links to leave out.
    """
    # The usual leaf, only regular files and none to ignore, takes no Python step for each file.
    kinds = set(map(_mode_of, part.stats))
    if all(mode & 0o170000 == 0o100000 for mode in kinds) and not ignored.may_match(part.names):
        return Kinds(part.names, part.stats)
    names, stats, below, links = list[str](), list["StatLike"](), list[int](), list[str]()
    for index, (name, status) in enumerate(zip(part.names, part.stats, strict=True)):
        kind = status.st_mode & 0o170000
        if kind == 0o040000:
            below.append(index)
        elif kind == 0o100000 and not ignored(name, part.relative):
            names.append(name)
            stats.append(status)
        elif kind == 0o120000 and not ignored(name, part.relative):
            links.append(name)
    return Kinds(names, stats, tuple(below), tuple(links))


class Walk:
    """One walk over all watched directories.

    Args:
        roots: absolute paths of directories; none is followed if it is a symbolic link.
        visitor: gets each directory once.

    Example:
        >>> Walk(["/proc/self/nowhere"], None).roots[0].missing
        True
    """

    def __init__(self, roots: Sequence[str], visitor: Visitor) -> None:
        self.roots: list[RootScan] = []
        """For each root its identity, or why it could not be read."""
        self.directories = 0
        self.errors: list[str] = []
        """Unreadable directories and files below, the first ones; what vanishes meanwhile is no error."""
        self.calls = StatCalls()
        self._visitor, self._borders = visitor, find_borders(roots)
        self._entered: set[int] = set()
        for root in roots:
            self.roots.append(self._walk_root(root))
        self.calls.close()

    def _walk_root(self, root: str) -> RootScan:
        top = root.rstrip("/") + "/"
        try:
            with Opened(os.open(root, OPEN_DIRECTORY)) as fd:
                own = os.fstat(fd)
                self._walk_below(fd, top, len(top), own, 1)
        except OSError as error:
            return RootScan(root, missing=error.errno in RACES, error=os.strerror(error.errno or 0))
        return RootScan(root, own.st_dev, own.st_ino)

    def _walk_below(self, fd: int, here: str, root_length: int, own: StatLike, level: int) -> None:
        # The directories on the way down stay open, which pins them against renames and links.
        for name, status in self._list(fd, here, root_length, own):
            path = f"{here}{name}/"
            if status.st_dev != own.st_dev:
                continue
            try:
                if level >= _LEVELS_MAX or (
                    len(path) > _PATH_BYTES_MAX // 4 and len(os.fsencode(path)) > _PATH_BYTES_MAX
                ):
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
                with Opened(os.open(name, OPEN_DIRECTORY, dir_fd=fd)) as below:
                    self._walk_below(below, path, root_length, status, level + 1)
            except OSError as error:
                self._note_error(here + name, error)

    def _list(self, fd: int, here: str, root_length: int, own: StatLike) -> list[tuple[str, StatLike]]:
        # One that appears twice (a nested root, a bind mount) counts once. On some file systems two directories share an
        # inode number; they are told apart by their dates.
        identity = hash((own.st_dev, own.st_ino, own.st_mtime_ns, own.st_ctime_ns))
        if identity in self._entered:
            return []
        os.stat(".", dir_fd=fd)  # one that can be listed and not entered is one error, not one for each file
        listed = os.listdir(fd)
        if here in self._borders:
            listed = [name for name in listed if name not in self._borders[here]]
        self.directories += 1
        self._entered.add(identity)
        return list(self._visitor.take(here, self._parts(fd, here, here[root_length:], listed, own.st_dev)))

    def _parts(self, fd: int, here: str, relative: str, listed: list[str], device: int) -> Iterator[Part]:
        for start in range(0, len(listed), _PART):
            names = listed[start : start + _PART]
            found = self.calls.each(fd, names)
            stats = [status for status in found if not isinstance(status, OSError)]
            if len(stats) < len(names):
                for name, status in zip(names, found, strict=True):
                    if isinstance(status, OSError):
                        self._note_error(here + name, status)
                names = [name for name, status in zip(names, found, strict=True) if not isinstance(status, OSError)]
            # A mount may have come between its stat and its opening. All entries are on its device, except mounts.
            if (not stats or stats[0].st_dev != device) and os.fstat(fd).st_dev != device:
                return
            yield Part(here, relative, names, stats)

    def _note_error(self, path: str, error: OSError) -> None:
        if error.errno not in RACES and len(self.errors) < _MAX_ERRORS:
            self.errors.append(f"{path}: {os.strerror(error.errno or 0)}")


def find_borders(roots: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Find the mount points below some directories, which a walk does not cross.

    Args:
        roots: absolute paths.

    Returns:
        The names of the mount points, by the path of their directory with a trailing slash.

    Example:
        >>> "sys" in find_borders(["/"]).get("/", ())
        True
    """
    points = {mount.mount_point for mount in read_mounts()}
    found: dict[str, set[str]] = {}
    for root in roots:
        real, top = os.path.realpath(root).rstrip("/") + "/", root.rstrip("/") + "/"
        for point in points:
            if point.startswith(real) and point != real and _is_elsewhere(point, root):
                around, _, name = (top + point[len(real) :]).rpartition("/")
                found.setdefault(around + "/", set()).add(name)
    return {around: frozenset(names) for around, names in found.items()}


def _is_elsewhere(point: str, root: str) -> bool:
    # A mount in the table may be hidden by a later one above it: then its path now belongs to that one.
    try:
        return look_path(point).mount != look_path(root + "/.").mount
    except OSError:  # the mount point is not visible, or the walk will report the error
        return False


Stat = Callable[[str], os.stat_result]


class StatCalls:
    """The stat calls of one walk; made by threads where the first ones wait for a server.

    Example:
        >>> calls = StatCalls()
        >>> with Opened(os.open("/", OPEN_DIRECTORY)) as root:
        ...     [type(status).__name__ for status in calls.each(root, ["proc", "nowhere"])]
        ['stat_result', 'FileNotFoundError']
        >>> calls.close()
    """

    def __init__(self) -> None:
        self.settled = False
        """Whether calls turned out to be quick, so that one after the other is best."""
        self._pool: ThreadPoolExecutor | None = None
        self._calls, self._waited_s = 0, 0.0
        self._waits_before = _voluntary_waits()

    @property
    def threaded(self) -> bool:
        """Whether calls wait so long that threads make them."""
        return self._pool is not None

    def each(self, fd: int, names: Sequence[str]) -> list[os.stat_result | OSError]:
        """Stat some entries of a directory without following links; one that cannot be read yields its error."""
        stat = partial(os.stat, dir_fd=fd, follow_symlinks=False)
        if self.settled:
            try:
                return list(map(stat, names))
            except OSError:
                return _stat_each(stat, names)
        left = max(0, _SAMPLE - self._calls)
        found = self._sample(stat, names[:left]) if left else []
        rest = names[left:] if left else names
        if self._pool is None or len(rest) < 2:
            return found + _stat_each(stat, rest)
        slices = [rest[start::THREADS] for start in range(min(THREADS, len(rest)))]
        slow: list[os.stat_result | OSError] = [*rest]  # type: ignore[list-item]
        for start, part in enumerate(self._pool.map(partial(_stat_each, stat), slices)):
            slow[start::THREADS] = part
        return found + slow

    def _sample(self, stat: Stat, names: Sequence[str]) -> list[os.stat_result | OSError]:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        found = _stat_each(stat, names)
        self._waited_s += time.perf_counter() - wall_s - (time.thread_time() - cpu_s)
        self._calls += len(names)
        if self._calls >= _SAMPLE:
            # On a busy host time passes outside quick calls: then the thread was preempted, and did not wait.
            waits = _voluntary_waits() - self._waits_before
            if self._waited_s > _SAMPLE * _WAITING_S and waits >= _SAMPLE // 2:
                from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a megabyte, seldom

                self._pool = ThreadPoolExecutor(THREADS, "stat")
            self.settled = self._pool is None
        return found

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown()


def _voluntary_waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _stat_each(stat: Stat, names: Sequence[str]) -> list[os.stat_result | OSError]:
    found: list[os.stat_result | OSError] = []
    for name in names:
        try:
            found.append(stat(name))
        except OSError as error:
            found.append(error)
    return found
