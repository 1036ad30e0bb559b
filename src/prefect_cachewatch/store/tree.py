"""Lists a build: files, links and entries that do not belong there, walked by descriptor; reads no contents."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import Entry, look, open_below, walk
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.layout import refusing

_MAX_DEPTH = 200


class Said(NamedTuple):
    """What a look says of a file: the message is a sentence without its subject, the file."""

    category: str
    path: str
    message: str


@dataclass(frozen=True)
class ScannedFile:
    """A regular file as its directory entry shows it; the path is relative to the build."""

    path: str
    size_bytes: int
    mtime_ns: int
    #: Not compared: some file systems (sshfs, rclone) give a file another one now and then.
    inode: int = field(compare=False)
    links: int
    #: When contents, name or attributes changed last; unlike the modification time, no program can set it.
    changed_ns: int = 0


@dataclass
class BuildTree:
    """All entries of a build."""

    files: list[ScannedFile] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    #: What each of the links leads to in the end, relative to the build.
    leads: dict[str, str] = field(default_factory=dict)
    #: Devices, pipes, sockets, mounts.
    others: list[str] = field(default_factory=list)
    #: Links that lead out of the build or nowhere.
    escapes: list[str] = field(default_factory=list)
    #: What this user cannot read, or is nested too deep, each with the reason.
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    #: Each directory after those in it; not compared, since their order may be another one.
    directories: list[str] = field(default_factory=list, compare=False)

    @property
    def total_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)

    def names_of(self) -> dict[str, list[str]]:
        """Return the names by which each file is known: those of the links that lead to it, else its own.

        The blobs of a hub cache are named by digests, and only the links of a snapshot tell what they are.
        """
        by_links: dict[str, list[str]] = {}
        for link, path in self.leads.items():
            by_links.setdefault(path, []).append(link)
        return {file.path: sorted(by_links.get(file.path, [file.path])) for file in self.files}


def scan_build(build_fd: int) -> BuildTree:
    """List a build, by the descriptor of its directory, each kind of entry in order of path.

    Raises:
        StoreError: an entry vanishes meanwhile, or the storage fails.
    """
    tree, closed = BuildTree(), list[str]()
    top, real_root = look(build_fd), os.path.realpath(f"/proc/self/fd/{build_fd}")
    try:
        for fd, here, _ in walk(build_fd, closed.append):
            depth = here.count("/")
            if depth == _MAX_DEPTH + 1:  # a reader that opens the cache by its path would fail too: PATH_MAX is near
                tree.unreadable.append((here, f"nested more than {_MAX_DEPTH} directories deep"))
            if depth <= _MAX_DEPTH:
                tree.directories.append(here)
                try:
                    with os.scandir(fd) as entries:
                        for entry in entries:
                            _sort_in(tree, fd, entry, here + entry.name, top, real_root)
                except PermissionError as error:  # it can be listed, and what is in it cannot be looked at
                    tree.unreadable.append((here.rstrip("/") or ".", os.strerror(error.errno or 0)))
    except OSError as error:
        told = f"cannot read the build: {os.strerror(error.errno or 0)}; does something still write into it?"
        raise StoreError(told) from None
    for path in closed:
        if path not in tree.others and path.count("/") <= _MAX_DEPTH:
            _require_denied(build_fd, path)
            tree.unreadable.append((path, os.strerror(13)))
    tree.files.sort(key=lambda file: file.path)
    for found in (tree.links, tree.others, tree.escapes, tree.unreadable):
        found.sort()
    return tree


def _require_denied(build_fd: int, path: str) -> None:
    """Raise StoreError unless this user may not enter a directory: what failed for a moment is no fault of the build."""
    why = "it could not be opened a moment ago"
    try:
        os.close(open_below(build_fd, path))
    except PermissionError:
        return
    except OSError as error:
        why = os.strerror(error.errno or 0)
    raise StoreError(f"cannot read {for_terminal(path, 1000)} of the build: {why}")


def _sort_in(tree: BuildTree, fd: int, entry: os.DirEntry[str], path: str, top: Entry, real_root: str) -> None:
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        times = status.st_mtime_ns, status.st_ino, status.st_nlink, status.st_ctime_ns
        tree.files.append(ScannedFile(path, status.st_size, *times))
        if not _is_readable(status) and not os.access(entry.name, os.R_OK, dir_fd=fd):
            tree.unreadable.append((path, os.strerror(13)))
    elif stat.S_ISLNK(status.st_mode):
        # By what the link resolves to, and not by its text: `..` after a link to a directory leads elsewhere.
        real = os.path.realpath(f"{real_root}/{path}")
        if os.path.lexists(real) and real.startswith(real_root + "/") and not os.path.islink(real):
            tree.links.append((path, os.readlink(entry.name, dir_fd=fd)))
            tree.leads[path] = real.removeprefix(real_root + "/")
        else:
            tree.escapes.append(path)
    elif not (stat.S_ISDIR(status.st_mode) and look(fd, entry.name).is_beside(top)):
        tree.others.append(path)


def _is_readable(status: os.stat_result) -> bool:
    # Without a system call for the usual file: there may be 100,000 of them.
    user = os.geteuid()
    return user == 0 or (status.st_uid == user and bool(status.st_mode & stat.S_IRUSR))


def open_file(build_fd: int, path: str) -> int:
    """Open a regular file of a build for reading, without following a link on the way.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.

    Raises:
        StoreError: it vanished, cannot be read, or is not a regular file any more.
    """
    above, _, name = path.rpartition("/")
    with refusing("read", path, named=f"'{for_terminal(path)}'"), Opened(open_below(build_fd, above)) as above_fd:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        told = f"'{for_terminal(path)}' became something else while it was read: is it being written?"
        raise StoreError(told, path=path)
    return fd


def matches_any(path: str, globs: Iterable[str]) -> bool:
    """Say whether a path relative to the cache matches one of several globs.

    Args:
        path: relative, with `/`.
        globs: case-sensitive shell patterns; one with a slash is matched against the whole path, any other against the
            name.

    Example:
        >>> matches_any("a/b.tmp.12", ["*.tmp.*"]), matches_any("a/b", ["c/*"])
        (True, False)
    """
    name = path.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(path, glob.removeprefix("/")) if "/" in glob else fnmatch.fnmatchcase(name, glob)
        for glob in globs
    )
