"""Writes cachewatch's own files: a regular file whole or not at all, any other kind of file directly.

A regular file is written under an unpredictable name, which is opened exclusively in the target directory, and is then
renamed. Its mode is 0600 unless the file existed with another mode. A device, FIFO, socket, /dev/stdout or a link to
one is written directly, is never replaced, and is waited for only until a deadline. Standard library only and cheap to
import, since helper processes use it. `directories` opens the path to the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from typing import BinaryIO

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import FileRefused, open_directory_entry, refuse_planted

#: Name of the lock file used where the cache directory itself cannot be locked (NFS, another process's read lock).
LOCK_FILE = ".cachewatch.lock"

#: Mode of a new file that other users must not read.
PRIVATE = 0o600
#: Mode of a new file that is not secret; the umask applies.
PUBLIC = 0o666
#: Largest file that is read whole where a person names it: nobody writes more by hand.
INPUT_MAX_BYTES = 4 * 2**20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO without a reader, or a terminal without a carrier, would block.
_STRAIGHT = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 4096  # a pipe takes at least this much at once if it takes anything (PIPE_BUF)


def write_file(
    path: str | os.PathLike[str], data: bytes, *, mode: int = PRIVATE, sync: bool = False, timeout_s: float = 10.0
) -> None:
    """Write a file that the user named: a regular file whole or not at all, any other kind directly.

    A link is written through, unless another user planted it (see `directories`).

    Args:
        path: of the file; its directory must exist.
        data: the whole contents.
        mode: of a new file, before the umask; an existing file keeps its own.
        sync: sync it to disk before the rename.
        timeout_s: the longest wait for the reader of a pipe, socket or terminal.

    Raises:
        FileRefused: it must not be written; `strerror` says why.
        OSError: it could not be written; a regular file is unchanged then.
    """
    here, name = open_directory_entry(path)
    with Opened(here):
        status = _look(here, name)
        if status is None or stat.S_ISREG(status.st_mode):
            if status is not None:
                refuse_planted(status, os.fstat(here), "it", os.fspath(path))
            try:
                write_entry(here, name, data, mode=mode, sync=sync)
            except OSError as error:
                if error.errno != errno.EBUSY or status is None:
                    raise
                # A file that is itself a mount point, as in a container, cannot be renamed over.
                _write_straight(here, name, data, timeout_s, os.O_TRUNC | os.O_NOFOLLOW)
        else:
            _write_special(here, name, status, data, timeout_s, os.fspath(path))


def write_entry(
    directory_fd: int,
    name: str,
    data: bytes,
    *,
    mode: int = PRIVATE,
    exact: bool = False,
    sync: bool = False,
    prefix: str = ".cachewatch-new-",
) -> None:
    """Write a regular file in a directory, whole or not at all; a link of that name is replaced, not followed.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name in it.
        data: the whole contents.
        mode: of a new file, before the umask; an existing regular file keeps its mode, and its owner if that is
            permitted.
        exact: set this mode despite the umask and an existing file's mode, since another user must read it.
        sync: sync it to disk before the rename.
        prefix: of its temporary name.

    Raises:
        OSError: it could not be written; the old file is unchanged then.
    """
    temporary = prefix + os.urandom(12).hex()
    old = _look(directory_fd, name)
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    keeps = old is not None and stat.S_ISREG(old.st_mode)
    fd = os.open(temporary, _NEW, PRIVATE if keeps else mode, dir_fd=directory_fd)
    try:
        try:
            if exact:
                os.fchmod(fd, mode)
            elif old is not None and keeps:
                _take_over(fd, old)
            write_all(fd, data)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)  # a network file system may report a full disk only here
        rename_entry(directory_fd, temporary, directory_fd, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


def create_file(path: str | os.PathLike[str], *, mode: int = PRIVATE, append: bool = False) -> int:
    """Create a regular file that must not exist yet, for writing piece by piece.

    Args:
        path: of the file; a link of that name counts as existing.
        mode: of the file, before the umask.
        append: make each write go to the end.

    Returns:
        A descriptor for writing.

    Raises:
        FileRefused: another user planted a link on the way.
        OSError: it cannot be made.
    """
    here, name = open_directory_entry(path, follow=False)
    with Opened(here):
        return os.open(name, _NEW | (os.O_APPEND if append else 0), mode, dir_fd=here)


def open_for_writing(path: str | os.PathLike[str], *, mode: int = PRIVATE) -> int:
    """Open a path that the user named for a stream: create or empty a regular file, open any other kind as it is.

    Args:
        path: of the file; a link is followed, unless another user planted it.
        mode: of a new file, before the umask.

    Returns:
        A descriptor for writing. That of a pipe, terminal or device does not block (EAGAIN). For one of this process's
        own descriptors (/dev/stdout, /dev/fd/3) it is a copy.

    Raises:
        FileRefused: it must not be written; `strerror` says why.
        OSError: it cannot be opened, for example a FIFO without a reader.
    """
    here, name = open_directory_entry(path)
    with Opened(here):
        status = _look(here, name)
        if status is None:
            return os.open(name, _NEW, mode, dir_fd=here)
        if not stat.S_ISREG(status.st_mode):
            return _open_special(here, name, status, os.fspath(path))
        refuse_planted(status, os.fstat(here), "it", os.fspath(path))
        # O_NONBLOCK: another kind of file that took its place meanwhile must not block us either.
        fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.ftruncate(fd, 0)
        return fd


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all bytes to a descriptor, in as many calls as it needs; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_within(fd: int, data: bytes | memoryview, timeout_s: float) -> None:
    """Write all bytes to a descriptor that may block, with a deadline for its reader.

    Args:
        fd: of a file, pipe, socket, terminal or device; its flags, which others may share, are left as they are.
        data: the bytes.
        timeout_s: the longest wait, in seconds.

    Raises:
        OSError: it could not be written; TimeoutError if the reader did not take it in time.
    """
    # In pieces that a pipe takes at once if it takes anything at all.
    view, end_s = memoryview(data), time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    whole = stat.S_ISREG(os.fstat(fd).st_mode) or not os.get_blocking(fd)
    while view:
        if not poll.poll(max(0.0, end_s - time.monotonic()) * 1000):  # a regular file is always ready
            raise TimeoutError(errno.ETIMEDOUT, f"its reader did not take it within {timeout_s:g} s")
        with contextlib.suppress(BlockingIOError):
            view = view[os.write(fd, view if whole else view[:_PIECE]) :]


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file that a person names for reading; nothing is waited for, such as the writer of a FIFO.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_input(path: str | os.PathLike[str]) -> bytes:
    """Read a file that a person names: `INPUT_MAX_BYTES` and one byte more at most.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_input(path) as file:
        return file.read(INPUT_MAX_BYTES + 1)


def is_special(path: str | os.PathLike[str]) -> bool:
    """Say whether a path leads to something other than a regular file: not read first, no temporary file beside it."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False


def begins_otherwise(path: str | os.PathLike[str], head: bytes) -> bool:
    """Say whether a regular file holds something that does not begin with `head`: it is none of ours to replace.

    Args:
        path: of the file; one that is missing, empty or cannot be read holds nothing, nor does one that another user
            planted: whoever writes it refuses it by its owner.
        head: the first bytes of a file of ours.
    """
    try:
        here, name = open_directory_entry(path)
        with Opened(here):
            status = _look(here, name)
            if status is None:
                return False
            refuse_planted(status, os.fstat(here), "it", os.fspath(path))
        with open_input(path) as file:
            found = file.read(len(head))
    except OSError:
        return False
    return bool(found) and found != head


def rename_entry(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Rename within or between directories; on NFS, a lost answer does not count as a failure.

    Args:
        source_fd: descriptor of the directory it leaves.
        source: its name there.
        target_fd: descriptor of the directory it enters.
        target: its name there; a file of that name is replaced.

    Raises:
        OSError: it could not be renamed.
    """
    before = os.stat(source, dir_fd=source_fd, follow_symlinks=False)
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except FileNotFoundError:
        # The answer got lost, the client asked again, and the second time the source was gone. The rename worked if the
        # entry under the new name is the one that we renamed.
        after = _look(target_fd, target)
        if after is None or (after.st_dev, after.st_ino) != (before.st_dev, before.st_ino):
            raise


def _look(here: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _take_over(fd: int, old: os.stat_result) -> None:
    """Give a new file the old one's mode; the group's bits only if the group is the same."""
    mine, mode = os.fstat(fd), old.st_mode & 0o777
    if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(fd, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.chown(fd, -1, old.st_gid)
            except OSError:
                mode &= ~0o070
    with contextlib.suppress(PermissionError):  # file systems without modes
        os.fchmod(fd, mode)


def _write_special(here: int, name: str, status: os.stat_result, data: bytes, timeout_s: float, path: str) -> None:
    if stat.S_ISSOCK(status.st_mode):
        _send(here, name, data, timeout_s)
        return
    with Opened(_open_special(here, name, status, path)) as fd:
        write_within(fd, data, timeout_s)


def _write_straight(here: int, name: str, data: bytes, timeout_s: float, flags: int) -> None:
    with Opened(os.open(name, _STRAIGHT | flags, dir_fd=here)) as fd:
        write_within(fd, data, timeout_s)


def _open_special(here: int, name: str, status: os.stat_result, path: str) -> int:
    """Open a file that is not regular, without waiting for its other end."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if stat.S_ISBLK(status.st_mode):
        raise FileRefused("it is a block device, and what is on it would be lost", path)
    if stat.S_ISLNK(status.st_mode):  # a link in /proc/PID/fd: all other links were resolved
        found = os.stat(name, dir_fd=here)
        if stat.S_ISDIR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            return _open_special(here, name, found, path)
        # Our own descriptor is written at its current position, and a socket cannot be opened again.
        own = _own_descriptor(name, found)
        if own is not None and not (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)):
            return os.dup(own)
        try:
            return os.open(name, _STRAIGHT, dir_fd=here)
        except OSError:
            if own is None:
                raise
            return os.dup(own)  # it may belong to the user who ran `su`, but we got it open
    refuse_planted(status, os.fstat(here), "it", path)
    try:
        return os.open(name, _STRAIGHT | os.O_NOFOLLOW, dir_fd=here)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(status.st_mode):
            raise OSError(errno.ENXIO, "it is a pipe that nobody reads", path) from None
        raise


def _own_descriptor(name: str, found: os.stat_result) -> int | None:
    """Return which open descriptor of this process an entry of a /proc/PID/fd means."""
    try:
        mine = os.fstat(int(name))
    except (ValueError, OSError):
        return None
    return int(name) if (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino) else None


def _send(here: int, name: str, data: bytes, timeout_s: float) -> None:
    import socket  # noqa: PLC0415 - noqa: PLC0415 - seldom needed, and helper processes do without it

    where = f"/proc/self/fd/{here}/{name}"  # a socket address holds 107 bytes
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as sock:
            sock.settimeout(timeout_s)
            try:
                sock.connect(where)
                sock.sendall(data)
            except TimeoutError:
                raise TimeoutError(errno.ETIMEDOUT, f"its reader did not take it within {timeout_s:g} s") from None
            except OSError as error:
                if error.errno == errno.EPROTOTYPE and kind == socket.SOCK_STREAM:
                    continue
                raise
            return
