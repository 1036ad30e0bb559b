"""Writes, renames and removals that a power cut or kill -9 cannot leave half done.

Every call takes a directory descriptor and a bare name, so that no symbolic link planted meanwhile is followed. The
callers know what the names mean.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from prefect_cachewatch.common.files import rename_entry, write_entry
from prefect_cachewatch.common.removal import remove_tree
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError

T = TypeVar("T")

# Names of this form are half-done work of a process that died; no reader opens them.
_LEFTOVER = ".cachewatch-new-"
_TRASH = ".cachewatch-trash-"
# To the letter, so that nothing of others that is only called alike is removed.
_OURS = re.compile(r"\.cachewatch-(?:new|trash)-(?:[0-9a-f]{16}|[0-9a-f]{24})")


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
    """Make a directory's entries durable.

    Args:
        directory_fd: descriptor of the directory.

    Raises:
        OSError: the storage reports a failed write.
    """
    try:
        os.fsync(directory_fd)
    except OSError as error:
        # Some FUSE file systems have no fsync for directories; nothing more can be done on them.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def write_durably(directory_fd: int, name: str, data: bytes) -> None:
    """Write a file so that its name shows either the old contents or all of the new, never a part.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name in it.
        data: the whole contents.

    Raises:
        OSError: it could not be written; the old file is unchanged then.
    """
    write_entry(directory_fd, name, data, mode=0o644, sync=True, prefix=_LEFTOVER)
    sync_directory(directory_fd)


def switch_link(directory_fd: int, name: str, target: str) -> None:
    """Point a symbolic link at another target in one step.

    Args:
        directory_fd: descriptor of the directory that holds the link.
        name: the link's name.
        target: its new target.

    Raises:
        OSError: it could not be switched; the link is unchanged then.
    """
    temporary = _LEFTOVER + secrets.token_hex(8)
    os.symlink(target, temporary, dir_fd=directory_fd)
    try:
        # rename(2) replaces a link atomically; unlink + symlink would leave readers a moment without one.
        rename_entry(directory_fd, temporary, directory_fd, name)
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
        target: its name there, which must not exist.

    Raises:
        StoreError: the target exists, or the two are on different file systems.
        OSError: it could not be moved.
    """
    # rename(2) would silently replace an empty directory.
    if entry_exists(target_fd, target):
        raise StoreError(f"'{for_terminal(target)}' is already there: nothing was moved")
    try:
        rename_entry(source_fd, source, target_fd, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise StoreError(
                f"'{for_terminal(source)}' cannot be moved: the store lies on two file systems; put it on one"
            ) from None
        raise
    sync_directory(target_fd)
    sync_directory(source_fd)


def discard_tree(directory_fd: int, name: str, trash_fd: int | None = None) -> None:
    """Remove a directory with everything below it; another process sees it whole or not at all.

    Args:
        directory_fd: descriptor of the directory that holds it.
        name: its name.
        trash_fd: directory that it is moved to first, on the same file system; default the same directory.

    Raises:
        StoreError: an entry in it cannot be removed, or is another mount; it has lost its name by then.
        OSError: it cannot be renamed.
    """
    target_fd = directory_fd if trash_fd is None else trash_fd
    _remove(target_fd, move_to_trash(directory_fd, name, trash_fd))


def move_to_trash(directory_fd: int, name: str, trash_fd: int | None = None) -> str:
    """Rename an entry, so that no process finds it half removed.

    Args:
        directory_fd: descriptor of the directory that holds it.
        name: its name.
        trash_fd: directory that it is moved to, on the same file system; default the same directory.

    Returns:
        The name under which `remove_leftovers` will find it.
    """
    trash = _TRASH + secrets.token_hex(8)
    target_fd = directory_fd if trash_fd is None else trash_fd
    rename_entry(directory_fd, name, target_fd, trash)
    sync_directory(directory_fd)
    if trash_fd is not None:
        sync_directory(trash_fd)
    return trash


def remove_leftovers(directory_fd: int) -> int:
    """Remove the remains of killed processes from a directory.

    Args:
        directory_fd: descriptor of the directory; the caller holds the lock of its writers.

    Returns:
        How many entries were removed.

    Raises:
        StoreError: an entry cannot be removed; all others were.
    """
    count, failed = 0, None
    for name in os.listdir(directory_fd):
        if is_leftover(name):
            try:
                _remove(directory_fd, name)
                count += 1
            except StoreError as error:
                failed = failed or error
    if failed is not None:
        raise failed
    return count


def is_leftover(name: str) -> bool:
    """Say whether a name is one of our half-done work."""
    return _OURS.fullmatch(name) is not None


def entry_exists(directory_fd: int, name: str) -> bool:
    """Say whether a directory has an entry of this name, even a dangling link."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def holds_change_times(directory_fd: int) -> bool:
    """Say whether change times are the file system's own: on some (FAT, sshfs) they follow the modification time.

    Args:
        directory_fd: descriptor of a directory of ours there.

    Returns:
        True if no program can set them.

    Raises:
        OSError: no file can be created there.
    """
    name = _LEFTOVER + secrets.token_hex(8)
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    try:
        made_ns = os.fstat(fd).st_ctime_ns
        os.utime(fd, ns=(0, 0))
        return os.fstat(fd).st_ctime_ns >= made_ns
    finally:
        os.close(fd)
        os.unlink(name, dir_fd=directory_fd)


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


def read_record(
    directory_fd: int, name: str, limit_bytes: int, decode: Callable[[Any], T], *, path: str, lost: str
) -> T | None:
    """Read a JSON file of the store's own, which is accepted as a whole or not at all.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name.
        limit_bytes: a larger file is refused.
        decode: converts the JSON data to a value; for missing data it raises as a dict or a list does.
        path: of the directory, for messages.
        lost: what is lost by moving the file away and what to do then, for the message.

    Returns:
        The value; None if there is no such file.

    Raises:
        StoreError: it was cut or edited, or cannot be read.
    """
    shown = for_terminal(f"{path}/{name}", 1000)
    try:
        with refusing("read", f"{path}/{name}"), contextlib.suppress(FileNotFoundError):
            return decode(json.loads(read_small_file(directory_fd, name, limit_bytes)))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        raise StoreError(f"{shown} was cut short or edited: move it away {lost}", path=f"{path}/{name}") from None
    return None


def read_note(directory_fd: int, name: str, limit_bytes: int, decode: Callable[[Any], T]) -> T | None:
    """Read a JSON file of the store's own whose loss costs only time.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name.
        limit_bytes: a larger file is ignored.
        decode: as for `read_record`.

    Returns:
        The value; None if there is no file, or it was cut or edited, or cannot be read.
    """
    try:
        return read_record(directory_fd, name, limit_bytes, decode, path="", lost="")
    except StoreError:
        return None


def _remove(directory_fd: int, name: str) -> None:
    done = remove_tree(directory_fd, name)
    if done.failed:
        raise StoreError(f"cannot remove '{for_terminal(done.problems[0], 1000)}': see to it by hand")
