"""Lists a build: files, links and entries that do not belong there, walked by descriptor.

Unlike a scan of the watch it tolerates no race: a build that is being published must not change. It reads no contents.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import Entry, look, open_below
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.files import refusing

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
    others: list[str] = field(default_factory=list)
    escapes: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    #: Each directory before what is in it; not compared, since their order may be another one.
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
    """List a build.

    Args:
        build_fd: descriptor of the build's directory.

    Returns:
        Its files and links in order of path, and separately the entries that do not belong in a build: `others`
        (devices, pipes, sockets, mounts), `escapes` (links that lead out of the build or nowhere) and `unreadable`
        (entries that this user cannot read, or that are nested too deep, each with the reason).

    Raises:
        StoreError: a part of it vanishes meanwhile, or the storage fails.
    """
    tree = BuildTree()
    # A new open file description: scandir moves the position of the one that it reads.
    with Opened(os.open(".", OPEN_DIRECTORY, dir_fd=build_fd)) as fd:
        _walk(fd, "", look(build_fd), os.path.realpath(f"/proc/self/fd/{build_fd}"), tree, 0)
    tree.files.sort(key=lambda file: file.path)
    for found in (tree.links, tree.others, tree.escapes, tree.unreadable):
        found.sort()
    return tree


def open_file(build_fd: int, path: str) -> int:
    """Open a regular file of a build for reading, without following a link on the way.

    Args:
        build_fd: descriptor of the build's directory.
        path: of the file, relative to it.

    Returns:
        A descriptor.

    Raises:
        StoreError: it vanished, cannot be read, or is not a regular file any more.
    """
    above, _, name = path.rpartition("/")
    with refusing("read", path, named=f"'{for_terminal(path)}'"), Opened(open_below(build_fd, above)) as above_fd:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise StoreError(
            f"'{for_terminal(path)}' became something else while it was read: is it being written?", path=path
        )
    return fd


def _walk(fd: int, here: str, top: Entry, real_root: str, tree: BuildTree, depth: int) -> None:
    tree.directories.append(here)
    directories: list[str] = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                path = here + entry.name
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    times = status.st_mtime_ns, status.st_ino, status.st_nlink, status.st_ctime_ns
                    tree.files.append(ScannedFile(path, status.st_size, *times))
                    if not _is_readable(status) and not os.access(entry.name, os.R_OK, dir_fd=fd):
                        tree.unreadable.append((path, "Permission denied"))
                elif stat.S_ISLNK(status.st_mode):
                    leads = _leads_inside(f"{real_root}/{path}", real_root)
                    if leads is None:
                        tree.escapes.append(path)
                    else:
                        tree.links.append((path, os.readlink(entry.name, dir_fd=fd)))
                        tree.leads[path] = leads
                elif stat.S_ISDIR(status.st_mode) and look(fd, entry.name).is_beside(top):
                    directories.append(entry.name)
                else:
                    tree.others.append(path)
        for name in directories:
            if depth >= _MAX_DEPTH:
                # A reader that opens the cache by its path would fail too: PATH_MAX is near.
                tree.unreadable.append((here + name, f"nested more than {_MAX_DEPTH} directories deep"))
                continue
            try:
                below = os.open(name, OPEN_DIRECTORY, dir_fd=fd)
            except PermissionError as error:
                tree.unreadable.append((here + name, os.strerror(error.errno or 0)))
                continue
            with Opened(below):
                _walk(below, f"{here}{name}/", top, real_root, tree, depth + 1)
    except PermissionError as error:
        tree.unreadable.append((here.rstrip("/") or ".", os.strerror(error.errno or 0)))
    except OSError as error:
        raise StoreError(
            f"cannot read the build at '{for_terminal(here or '.')}': {os.strerror(error.errno or 0)}; "
            "does something still write into it?",
            path=here,
        ) from None


def _is_readable(status: os.stat_result) -> bool:
    # Without a system call for the usual file: there may be 100,000 of them.
    user = os.geteuid()
    return user == 0 or (status.st_uid == user and bool(status.st_mode & stat.S_IRUSR))


def _leads_inside(link: str, real_root: str) -> str | None:
    # By what the link resolves to, and not by its text: `..` after a link to a directory leads elsewhere.
    real = os.path.realpath(link)
    inside = os.path.lexists(real) and real.startswith(real_root + "/") and not os.path.islink(real)
    return real.removeprefix(real_root + "/") if inside else None
