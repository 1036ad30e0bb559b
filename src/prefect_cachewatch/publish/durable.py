"""Writes, renames and removals that a power cut or kill -9 cannot leave half done.

Everything goes by directory descriptor and a bare name, so that no symbolic link planted
meanwhile is followed. What the names mean is known above.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat

from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.text import for_terminal

__all__ = [
    "OPEN_DIRECTORY",
    "discard_tree",
    "entry_exists",
    "move_entry",
    "move_to_trash",
    "read_small_file",
    "remove_leftovers",
    "switch_link",
    "sync_directory",
    "write_durably",
]

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Names of this form are half-done work of a process that died; nobody reads them.
_LEFTOVER = ".cachewatch-new-"
_TRASH = ".cachewatch-trash-"


def sync_directory(directory_fd: int) -> None:
    """Make a directory's entries durable.

    Args:
        directory_fd: descriptor of the directory.

    Raises:
        OSError: if the storage reports a failed write.
    """
    try:
        os.fsync(directory_fd)
    except OSError as error:
        # Some FUSE file systems have no fsync for directories; there is nothing more to do on them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def write_durably(directory_fd: int, name: str, data: bytes) -> None:
    """Write a file so that its name shows the old contents or all of the new, never a part.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name in it.
        data: all of the contents.

    Raises:
        OSError: if it could not be written; the old file is unchanged then.
    """
    temporary = _LEFTOVER + secrets.token_hex(8)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o644, dir_fd=directory_fd)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        _replace(directory_fd, temporary, name)
    except BaseException:
        _remove(directory_fd, temporary)
        raise
    sync_directory(directory_fd)


def switch_link(directory_fd: int, name: str, target: str) -> None:
    """Point a symbolic link at another target in one step.

    Args:
        directory_fd: descriptor of the directory that holds the link.
        name: the link's name.
        target: what it says afterwards.

    Raises:
        OSError: if it could not be switched; the link says what it said before then.
    """
    temporary = _LEFTOVER + secrets.token_hex(8)
    os.symlink(target, temporary, dir_fd=directory_fd)
    try:
        # rename(2) replaces a link atomically; unlink + symlink would leave readers a moment without one.
        _replace(directory_fd, temporary, name)
    except BaseException:
        _remove(directory_fd, temporary)
        raise
    sync_directory(directory_fd)


def move_entry(source_fd: int, source: str, target_fd: int, target: str) -> None:
    """Move a directory or file between two directories of one file system.

    Args:
        source_fd: descriptor of the directory it leaves.
        source: its name there.
        target_fd: descriptor of the directory it enters.
        target: its name there; nothing may be there.

    Raises:
        StoreError: if something is there already, or the two lie on different file systems.
        OSError: if it could not be moved.
    """
    # rename(2) would silently replace an empty directory.
    if entry_exists(target_fd, target):
        raise StoreError(f"'{for_terminal(target)}' is already there: nothing was moved")
    try:
        _rename(source_fd, source, target_fd, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise StoreError(
                f"'{for_terminal(source)}' cannot be moved: the store lies on two file systems; put it on one"
            ) from None
        raise
    sync_directory(target_fd)
    sync_directory(source_fd)


def discard_tree(directory_fd: int, name: str) -> None:
    """Remove a directory with all below it; whoever looks sees it whole or not at all.

    Args:
        directory_fd: descriptor of the directory that holds it.
        name: its name.

    Raises:
        OSError: if something in it cannot be removed; it has lost its name by then.
    """
    _remove(directory_fd, move_to_trash(directory_fd, name))


def move_to_trash(directory_fd: int, name: str) -> str:
    """Take an entry's name away, so that nobody finds it half removed.

    Args:
        directory_fd: descriptor of the directory that holds it.
        name: its name.

    Returns:
        The name under which `remove_leftovers` will find it.
    """
    trash = _TRASH + secrets.token_hex(8)
    _rename(directory_fd, name, directory_fd, trash)
    sync_directory(directory_fd)
    return trash


def remove_leftovers(directory_fd: int) -> int:
    """Remove what processes that were killed half-way left in a directory.

    Args:
        directory_fd: descriptor of the directory; the caller holds the lock of its writers.

    Returns:
        How many entries went.
    """
    count = 0
    for name in os.listdir(directory_fd):
        if name.startswith((_LEFTOVER, _TRASH)):
            _remove(directory_fd, name)
            count += 1
    return count


def entry_exists(directory_fd: int, name: str) -> bool:
    """Say whether a directory has an entry of this name, be it a dangling link."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_small_file(directory_fd: int, name: str, limit_bytes: int) -> bytes:
    """Read a regular file by descriptor, following no link and waiting for no pipe.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name.
        limit_bytes: a larger file is refused, since nobody wrote such a one here.

    Returns:
        Its contents.

    Raises:
        StoreError: if it is no regular file or too large.
        OSError: if it cannot be read; FileNotFoundError if it is not there.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreError(f"'{for_terminal(name)}' is a symbolic link; the store follows none: remove it") from None
        raise
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"'{for_terminal(name)}' is not a regular file: remove it")
        if status.st_size > limit_bytes:
            raise StoreError(f"'{for_terminal(name)}' is larger than {limit_bytes} bytes: cachewatch did not write it")
        return file.read(limit_bytes + 1)


def _remove(directory_fd: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory_fd)
    except IsADirectoryError:
        if not shutil.rmtree.avoids_symlink_attacks:
            raise StoreError("this Python cannot remove directories without following links: nothing removed") from None
        # Two clean-ups may be at the same trash.
        shutil.rmtree(name, onerror=_unless_gone, dir_fd=directory_fd)
    except FileNotFoundError:
        pass


def _replace(directory_fd: int, source: str, target: str) -> None:
    _rename(directory_fd, source, directory_fd, target)


def _rename(source_fd: int, source: str, target_fd: int, target: str) -> None:
    before = os.stat(source, dir_fd=source_fd, follow_symlinks=False)
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except FileNotFoundError:
        # NFS: the answer got lost, the client asked again, and the second time the source was gone.
        # It worked if what stands under the new name is what we renamed.
        try:
            after = os.stat(target, dir_fd=target_fd, follow_symlinks=False)
        except FileNotFoundError:
            after = None
        if after is None or (after.st_dev, after.st_ino) != (before.st_dev, before.st_ino):
            raise


def _unless_gone(_function: object, _path: str, info: tuple[object, BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]
