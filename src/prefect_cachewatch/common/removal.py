"""Removes files: by descriptor, exactly the file that was examined, never across a mount or through a link.

Standard library only, since it runs in the scan process too. It identifies a file (`look`), walks below an open
directory (`walk`), and removes one entry, a whole tree of ours, or what a judge selects. Which process made a file is
decided elsewhere: see `measure.creation` and `store.records`.

Between the last look at an entry and its removal, another process may put a different file in its place under the same
name: the kernel has no call that removes a file by descriptor. That gap is a few microseconds, and a cache does not
belong in a directory that untrusted users may write to.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.tuples import NamedTuple

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT, _AT_EMPTY_PATH = -100, 0x100, 0x800, 0x1000
_STATX_BASIC, _STATX_BTIME, _STATX_MNT_ID = 0x7FF, 0x800, 0x1000
_STATX = struct.Struct("=IIQIIIHHQQQQqIiqIiqIiqIiIIIIQ")
_NAMED = 20  # paths kept for messages
_HELD = 64  # levels of a walk whose directories stay open; higher ones are opened again by `..`


class Entry(NamedTuple):
    """A file's identity and status; times in nanoseconds of the file system's clock."""

    device: int
    inode: int
    mount: int | None
    """The kernel's number of the mount it was seen through; None if the kernel gives none."""
    mode: int
    owner: int
    links: int
    size_bytes: int
    blocks: int
    born_ns: int | None
    """Birth time; None if the file system does not record it."""
    changed_ns: int
    modified_ns: int

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    def is_same(self, other: Entry) -> bool:
        """Whether two looks saw the same file, by device, inode and birth; without a birth time it must be unchanged.

        Without a birth time a directory is compared by its inode, since removing entries changes its status.
        """
        if (self.device, self.inode, stat.S_IFMT(self.mode)) != (other.device, other.inode, stat.S_IFMT(other.mode)):
            return False
        if self.born_ns is not None and other.born_ns is not None:
            return self.born_ns == other.born_ns
        return self.is_directory or self.changed_ns == other.changed_ns

    def is_beside(self, top: Entry) -> bool:
        """Whether it lies on the same mount as a directory above it.

        The device alone does not tell: a bind mount has the same device, and files of an overlay may have another than
        its directories.
        """
        if self.mount != top.mount:
            return False
        return self.device == top.device or (self.mount is not None and not self.is_directory)


class Removed:
    """The result of a removal.

    It counts the regular files, directories and others (links, pipes) that were removed, the files that were kept, and
    the failures.
    """

    def __init__(self) -> None:
        self.files = self.directories = self.others = self.freed_bytes = 0
        self.kept = 0
        self.kept_paths: list[str] = []
        """The first kept paths."""
        self.unread: list[str] = []
        """The first directories that could not be walked: unreadable, on another mount, or moved."""
        self.failed = 0
        self.problems: list[str] = []
        """Path and reason of the first entries that could not be removed."""

    def keep(self, path: str) -> None:
        self.kept += 1
        if len(self.kept_paths) < _NAMED:
            self.kept_paths.append(path)

    def pass_over(self, path: str) -> None:
        self.keep(path)
        if len(self.unread) < _NAMED:
            self.unread.append(path)

    def fail(self, path: str, why: str) -> None:
        self.failed += 1
        if len(self.problems) < _NAMED:
            self.problems.append(f"{path}: {why}")

    def took(self, entry: Entry) -> None:
        if entry.is_directory:
            self.directories += 1
        elif not entry.is_file:
            self.others += 1
        else:
            self.files += 1
            if entry.links == 1:
                self.freed_bytes += entry.blocks * 512


# (path of the directory with a trailing slash, or "" for the top; name; entry) -> whether to remove it
Judge = Callable[[str, str, Entry], bool]


def look(directory_fd: int, name: str = "") -> Entry:
    """Look at an entry of an open directory, following no link.

    Args:
        directory_fd: descriptor of the directory.
        name: a bare name in it; default the directory itself.

    Returns:
        The entry.

    Raises:
        OSError: it cannot be looked at; FileNotFoundError if there is none.
    """
    buffer = ctypes.create_string_buffer(256)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT | (0 if name else _AT_EMPTY_PATH)
    mask = _STATX_BASIC | _STATX_BTIME | _STATX_MNT_ID
    statx = getattr(_libc, "statx", None)
    if statx is None:  # the C library has no statx
        return _look_without_statx(directory_fd, name)
    if statx(directory_fd, os.fsencode(name), flags, mask, buffer):
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return _look_without_statx(directory_fd, name)
        raise OSError(number, os.strerror(number), name)
    (
        got, _, _, links, owner, _, mode, _, inode, size, blocks, _,
        _, _, _, born_s, born_ns, _, changed_s, changed_ns, _, modified_s, modified_ns, _,
        _, _, major, minor, mount,
    ) = _STATX.unpack_from(buffer)  # fmt: skip
    return Entry(
        os.makedev(major, minor), inode, mount if got & _STATX_MNT_ID else _mount_of(directory_fd, name),
        mode, owner, links, size, blocks,
        # Some file systems claim to record the birth time and give 0.
        (born_s * 10**9 + born_ns or None) if got & _STATX_BTIME else None,
        changed_s * 10**9 + changed_ns, modified_s * 10**9 + modified_ns,
    )  # fmt: skip


def look_path(path: str | os.PathLike[str]) -> Entry:
    """Look at an entry by its path, following links on the way but not the last one; raises OSError as `look` does."""
    return look(_AT_FDCWD, os.fspath(path))


def make_stamp(directory_fd: int) -> Entry:
    """Create a file in a directory and remove it again, to learn the file system's clock and its owner for our files.

    Args:
        directory_fd: descriptor of the directory.

    Returns:
        The file's entry: its birth if one is recorded, its change time and its owner.

    Raises:
        OSError: no file can be created there.
    """
    try:  # a file without a name is invisible to others and leaves the directory's dates unchanged
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    except OSError:
        name = f".cachewatch-new-{os.urandom(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory_fd)
        try:
            return look(fd)
        finally:
            os.close(fd)
            os.unlink(name, dir_fd=directory_fd)
    with Opened(fd):
        return look(fd)


def walk(top_fd: int, unread: Callable[[str], None] = lambda path: None) -> Iterator[tuple[int, str, Entry]]:
    """Walk an open directory and everything below it on its mount, depth first and to any depth.

    Args:
        top_fd: descriptor of the directory, which stays open.
        unread: called with the path of a directory that cannot be entered: unreadable, on another mount, or moved
            meanwhile.

    Yields:
        A directory's descriptor, valid until the next step, its path relative to the top with a trailing slash (`""`
        for the top), and its entry. Links are never entered.
    """
    levels = [_Level("", look(top_fd), os.open(".", OPEN_DIRECTORY, dir_fd=top_fd))]
    top = levels[0].entry
    try:
        levels[0].list()
        while levels:
            level = levels[-1]
            if level.pending:
                name = level.pending.pop()
                try:
                    levels.append(_enter(level.fd, name, top))
                except FileNotFoundError:
                    continue
                except OSError:
                    unread(_path_of(levels) + name)
                    continue
                if len(levels) > _HELD:
                    levels[-1 - _HELD].close()
                continue
            yield level.fd, _path_of(levels), level.entry
            levels.pop()
            try:
                if levels and levels[-1].fd < 0 and not levels[-1].reopen(level.fd):
                    unread(_path_of(levels))  # it was moved while we were below it, so its parents are unknown
                    return
            finally:
                level.close()
    finally:
        for level in levels:
            level.close()


def list_entries(fd: int, unread: Callable[[str], None] = lambda name: None) -> Iterator[tuple[str, Entry]]:
    """Look at every entry of an open directory.

    Args:
        fd: descriptor of the directory.
        unread: called with the name of an entry that cannot be looked at; with "" if the directory cannot be listed.

    Yields:
        Name and entry.
    """
    try:
        names = os.listdir(fd)
    except OSError:
        unread("")
        return
    for name in names:
        try:
            entry = look(fd, name)
        except FileNotFoundError:
            continue
        except OSError:
            unread(name)
            continue
        yield name, entry


def open_below(top_fd: int, path: str) -> int:
    """Open a directory below another by its relative path, without following links or crossing a mount.

    Args:
        top_fd: descriptor of the upper directory.
        path: relative, parts joined by slashes; empty for the upper one itself.

    Returns:
        A new descriptor.

    Raises:
        OSError: it cannot be opened; EXDEV if it lies on another mount.
    """
    top = look(top_fd)
    fd = os.open(".", OPEN_DIRECTORY, dir_fd=top_fd)
    for part in filter(None, path.split("/")):
        above = fd
        try:
            fd = -1
            fd = os.open(part, OPEN_DIRECTORY, dir_fd=above)
            if part in (".", "..") or not look(fd).is_beside(top):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        except OSError:
            if fd >= 0:
                os.close(fd)
            raise
        finally:
            os.close(above)
    return fd


def remove_entry(directory_fd: int, name: str, entry: Entry) -> bool:
    """Remove a file, link or empty directory if it is still the one that was looked at.

    Args:
        directory_fd: descriptor of its directory.
        name: its name there.
        entry: the result of `look`.

    Returns:
        Whether it was removed; False if it is gone, or another entry has its name.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        now = look(directory_fd, name)
        if now.mount != entry.mount or not now.is_same(entry):
            return False
        # The remaining race: see the top of this module. Neither call follows a link, and neither removes the other's
        # kind.
        (os.rmdir if now.is_directory else os.unlink)(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def remove_judged(top_fd: int, judge: Judge) -> Removed:
    """Remove the entries below an open directory that a judge selects; a directory only if it is empty then.

    Args:
        top_fd: descriptor of the directory, which itself stays.
        judge: called for every entry on its mount, for a directory after the entries below it.

    Returns:
        What was removed. `kept` counts files that stay and entries that could not be looked at; `problems` lists
        failures.
    """
    done = Removed()
    top = look(top_fd)
    for fd, path, _ in walk(top_fd, done.pass_over):
        for name, entry in list_entries(fd, lambda name, path=path: done.pass_over(path + name)):  # type: ignore[misc]
            if not entry.is_beside(top):
                if not entry.is_directory:  # the walk has already reported directories
                    done.keep(path + name)
                continue
            if not judge(path, name, entry):
                if not entry.is_directory:
                    done.keep(path + name)
                continue
            try:
                if remove_entry(fd, name, entry):
                    done.took(entry)
                elif _is_there(fd, name):  # another entry took its place
                    done.keep(path + name)
            except OSError as error:
                if not entry.is_directory or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    done.fail(path + name, os.strerror(error.errno or 0))
    return done


def empty_directory(directory_fd: int) -> Removed:
    """Remove everything in a directory that is entirely ours, but no other mount and nothing behind a link.

    Args:
        directory_fd: descriptor of the directory, which itself stays.

    Returns:
        What was removed, and in `problems` what was not.
    """
    done = remove_judged(directory_fd, lambda path, name, entry: True)
    for path in done.kept_paths:
        done.problems.append(f"{path}: not removed, since it is another mount, unreadable or changing")
    done.failed += done.kept
    return done


def remove_tree(directory_fd: int, name: str, entry: Entry | None = None) -> Removed:
    """Remove an entry that is entirely ours, a directory with everything below it, but never another mount.

    Args:
        directory_fd: descriptor of the directory that holds it.
        name: its name there.
        entry: the entry it must be; default the one that is there now.

    Returns:
        What was removed, and in `problems` what was not; both empty if there is no such entry.
    """
    done = Removed()
    try:
        top, now = look(directory_fd), look(directory_fd, name)
        if entry is not None and not now.is_same(entry):
            done.fail(name, "another one stands in its place")
            return done
        if not now.is_beside(top):
            done.fail(name, "it is another mount")
            return done
        if now.is_directory:
            with Opened(os.open(name, OPEN_DIRECTORY, dir_fd=directory_fd)) as fd:
                if not look(fd).is_same(now):
                    done.fail(name, "it was replaced meanwhile")
                    return done
                done = empty_directory(fd)
            done.problems = [f"{name}/{problem}" for problem in done.problems]
        if not done.failed and remove_entry(directory_fd, name, now):
            done.took(now)
    except FileNotFoundError:
        pass
    except OSError as error:
        done.fail(name, os.strerror(error.errno or 0))
    return done


def remove_path(path: str | os.PathLike[str], entry: Entry | None = None) -> Removed:
    """Remove an entry that is entirely ours by its path; see `remove_tree`.

    Args:
        path: of a file or directory; links on the way are followed, the last one is not.
        entry: the entry it must be; default the one that is there now.

    Returns:
        What was removed, and in `problems` what was not.
    """
    parent, name = os.path.split(os.path.abspath(path))
    try:
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        done = Removed()
        if error.errno != errno.ENOENT:
            done.fail(name, os.strerror(error.errno or 0))
        return done
    with Opened(fd):
        return remove_tree(fd, name, entry)


class _Level:
    """A directory on the current path of a walk."""

    def __init__(self, name: str, entry: Entry, fd: int) -> None:
        self.name, self.entry, self.fd = name, entry, fd
        self.pending: list[str] = []

    def list(self) -> None:
        with os.scandir(self.fd) as entries:
            self.pending = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def reopen(self, below_fd: int) -> bool:
        fd = -1
        with contextlib.suppress(OSError):
            fd = os.open("..", OPEN_DIRECTORY, dir_fd=below_fd)
            if look(fd).is_same(self.entry):
                self.fd, fd = fd, -1
        if fd >= 0:
            os.close(fd)
        return self.fd >= 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _enter(parent_fd: int, name: str, top: Entry) -> _Level:
    fd = os.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
    try:
        level = _Level(name, look(fd), fd)
        if not level.entry.is_beside(top):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
        level.list()
    except OSError:
        os.close(fd)
        raise
    return level


def _is_there(directory_fd: int, name: str) -> bool:
    try:
        look(directory_fd, name)
    except FileNotFoundError:
        return False
    return True


def _path_of(levels: list[_Level]) -> str:
    return "".join(f"{level.name}/" for level in levels[1:])


def _look_without_statx(directory_fd: int, name: str) -> Entry:
    status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False) if name else os.fstat(directory_fd)
    return Entry(
        status.st_dev, status.st_ino, _mount_of(directory_fd, name), status.st_mode, status.st_uid, status.st_nlink,
        status.st_size, status.st_blocks, None, status.st_ctime_ns, status.st_mtime_ns,
    )  # fmt: skip


def _mount_of(directory_fd: int, name: str) -> int | None:
    """The mount's number from /proc, for a kernel before 5.8."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd) if name else directory_fd
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("mnt_id:"):
                    return int(line.split(":")[1])
    except (FileNotFoundError, PermissionError, ValueError):
        pass
    finally:
        if fd != directory_fd:
            os.close(fd)
    return None


_libc = ctypes.CDLL(None, use_errno=True)
