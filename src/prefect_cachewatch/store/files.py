"""Writes, switches and removes entries of the store so that a power cut or kill -9 leaves the old or the new, never a part.

Every call takes a directory descriptor and a bare name, so that no symbolic link planted meanwhile is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator

from prefect_cachewatch.common.files import rename_entry, write_entry
from prefect_cachewatch.common.removal import remove_tree
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError

_NEW, _TRASH = ".cachewatch-new-", ".cachewatch-trash-"
# To the letter, so that nothing of others that is only called alike is removed.
_OURS = re.compile(r"\.cachewatch-(?P<kind>new|trash)-(?:[0-9a-f]{16}|[0-9a-f]{24})")


@contextlib.contextmanager
def refusing(
    what: str, path: str, then: str = "", kind: type[StoreError] = StoreError, named: str | None = None
) -> Iterator[None]:
    """Turn an OSError into one sentence.

    Args:
        what: follows "cannot", before the path.
        path: of the file or directory.
        then: the end of the sentence.
        kind: class of the error to raise.
        named: the path in the sentence; default `path`, made harmless for a terminal.

    Raises:
        StoreError: for any OSError.

    Example:
        >>> with refusing("open", "/nowhere"):
        ...     os.open("/nowhere", os.O_RDONLY)
        Traceback (most recent call last):
        prefect_cachewatch.errors.StoreError: cannot open /nowhere: No such file or directory
    """
    try:
        yield
    except OSError as error:
        named = for_terminal(path, 1000) if named is None else named
        raise kind(f"cannot {what} {named}: {os.strerror(error.errno or 0)}{then}", path=path) from None


def sync_directory(directory_fd: int) -> None:
    """Make a directory's entries durable; raises OSError if the storage reports a failed write."""
    try:
        os.fsync(directory_fd)
    except OSError as error:
        # Some FUSE file systems have no fsync for directories; nothing more can be done on them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


def write_durably(directory_fd: int, name: str, data: bytes) -> None:
    """Write a file so that its name shows either the old contents or all of the new; raises OSError, and then the old."""
    write_entry(directory_fd, name, data, mode=0o644, sync=True, prefix=_NEW)
    sync_directory(directory_fd)


def switch_link(directory_fd: int, name: str, target: str) -> None:
    """Point a symbolic link at another target in one step; raises OSError, and then the link is unchanged."""
    temporary = _NEW + secrets.token_hex(8)
    os.symlink(target, temporary, dir_fd=directory_fd)
    try:
        # rename(2) replaces a link atomically; unlink + symlink would leave readers a moment without one.
        rename_entry(directory_fd, temporary, directory_fd, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise
    sync_directory(directory_fd)


def remove_file(directory_fd: int, name: str) -> None:
    """Remove a file of ours; a missing one is no error."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory_fd)


def move_to_trash(directory_fd: int, name: str) -> None:
    """Rename an entry, so that no process finds it half removed; a missing one is no error. See `empty_trash`."""
    with contextlib.suppress(FileNotFoundError):
        rename_entry(directory_fd, name, directory_fd, _TRASH + secrets.token_hex(8))
        sync_directory(directory_fd)


def empty_trash(directory_fd: int, *, new: bool = False) -> list[str]:
    """Remove what was moved to the trash, and the remains of killed processes.

    Args:
        directory_fd: descriptor of the directory.
        new: also files that were never finished; the caller holds the locks of their writers.

    Returns:
        What could not be removed, each with path and reason.
    """
    problems = []
    for name in os.listdir(directory_fd):
        found = _OURS.fullmatch(name)
        if found and (new or found["kind"] == "trash") and (done := remove_tree(directory_fd, name)).failed:
            problems.append(f"cannot remove '{for_terminal(done.problems[0], 1000)}': see to it by hand")
    return problems


def exists(directory_fd: int, name: str) -> bool:
    """Say whether a directory has an entry of this name, even a dangling link."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_small_file(directory_fd: int, name: str, limit_bytes: int) -> bytes:
    """Read a regular file by descriptor, without following a link or waiting for a pipe.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name.
        limit_bytes: a larger file is refused, since the store writes none here.

    Returns:
        Its contents.

    Raises:
        StoreError: it is not a regular file, or too large.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
    with os.fdopen(open_small_file(directory_fd, name, limit_bytes), "rb") as file:
        return file.read(limit_bytes + 1)


def open_small_file(directory_fd: int, name: str, limit_bytes: int) -> int:
    """Open a file as `read_small_file` does, and return its descriptor."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StoreError(f"'{for_terminal(name)}' is a symbolic link; the store follows none: remove it") from None
        raise
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit_bytes:
        return fd
    os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"'{for_terminal(name)}' is not a regular file: remove it")
    raise StoreError(f"'{for_terminal(name)}' is larger than {limit_bytes} bytes: cachewatch did not write it")


def holds_change_times(directory_fd: int) -> bool:
    """Say whether change times are the file system's own: on some (FAT, sshfs) they follow the modification time."""
    name = _NEW + secrets.token_hex(8)
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    try:
        made_ns = os.fstat(fd).st_ctime_ns
        os.utime(fd, ns=(0, 0))
        return os.fstat(fd).st_ctime_ns >= made_ns
    finally:
        os.close(fd)
        remove_file(directory_fd, name)


def find_lacking(path: str) -> str | None:
    """Try what the store needs of a file system: a link that is renamed over another entry; may hang with it.

    Args:
        path: of a directory.

    Returns:
        What it lacks, as a sentence; None if it lacks nothing, or nothing can be made there, which is another fault.
    """
    file, link = (f"{path}/{_NEW}{secrets.token_hex(8)}" for _ in range(2))
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return None
    what = "make symbolic links"
    try:
        os.symlink("nowhere", link)
        what = "rename an entry over another"
        os.rename(link, file)
    except OSError as error:
        return (
            f"{for_terminal(path, 1000)} cannot be a store: its file system cannot {what} "
            f"({os.strerror(error.errno or 0)}); take a local disk or NFS"
        )
    finally:
        for left in (file, link):
            with contextlib.suppress(OSError):
                os.unlink(left)
    return None
