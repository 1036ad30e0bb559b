"""Where the parts of a cache lie: names and ids, directories opened by descriptor, and changes that are whole or not there.

A power cut or kill -9 leaves the old or the new, never a part. Every call takes the descriptor of a directory and a bare
name, so that no symbolic link planted meanwhile is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prefect_cachewatch.common.directories import OPEN_DIRECTORY, FileRefused, refuse_planted
from prefect_cachewatch.common.files import rename_entry, write_entry
from prefect_cachewatch.common.removal import remove_tree
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError

BUILDS, CURRENT, LOCK, SWITCH = "builds", "current", ".lock", ".switch"
BEGUN, MANIFEST, BAD = ".begun", ".json", ".bad"
BUILD_ID = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")
_NAME_MAX_BYTES = 200
_NEW, _TRASH = ".cachewatch-new-", ".cachewatch-trash-"
# To the letter, so that nothing of others that is only called alike is removed.
_OURS = re.compile(r"\.cachewatch-(?P<kind>new|trash)-(?:[0-9a-f]{16}|[0-9a-f]{24})")


@dataclass(frozen=True)
class CacheFolder:
    """Open descriptors of `ROOT/NAME` and its builds."""

    name: str
    path: str
    fd: int
    builds_fd: int

    def build_path(self, build_id: str) -> str:
        """Return the absolute path of a build."""
        return f"{self.path}/{BUILDS}/{build_id}"


# -- names


def check_cache_name(name: str) -> str:
    """Refuse a cache name that is not one directory name below the store's root; raises StoreError.

    Example:
        >>> check_cache_name("llama-3-70b-n300")
        'llama-3-70b-n300'
    """
    is_long = len(name.encode("utf-8", "surrogateescape")) > _NAME_MAX_BYTES
    if is_long or not re.fullmatch(r"[^/.\-\x00-\x1f\x7f][^/\x00-\x1f\x7f]*", name):
        raise StoreError(
            f"'{for_terminal(name, 80)}' is no name of a cache: give one of 1 to {_NAME_MAX_BYTES} bytes without slashes and "
            "control characters that begins with a letter or a digit, such as llama-3-70b-n300"
        )
    return name


def make_build_id(now_s: float, entropy: bytes) -> str:
    """Name a build by the millisecond it began and four random bytes, so that names sort by age.

    Args:
        now_s: wall time, seconds since 1970.
        entropy: at least four random bytes.

    Example:
        >>> make_build_id(0, bytes([1, 2, 3, 4]))
        '19700101T000000000Z-01020304'
    """
    seconds, milliseconds = divmod(int(now_s * 1000), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}{milliseconds:03d}Z-{entropy[:4].hex()}"


def check_build_id(build_id: str) -> str:
    """Refuse a text that is no build id, before it becomes part of a path; raises StoreError."""
    if not BUILD_ID.fullmatch(build_id):
        raise StoreError(
            f"'{for_terminal(build_id, 80)}' is not a build id: take one that cachewatch store list shows, "
            "such as 20260131T235959123Z-0a1b2c3d"
        )
    return build_id


# -- directories


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


def check_root(root: str | os.PathLike[str]) -> Path:
    """Make the root of a store absolute, its links resolved once; raises StoreError for what cannot be one."""
    text = os.fspath(root)
    shown = for_terminal(text, 1000)
    if not text or "\0" in text:
        raise StoreError("the store's root is no path: give a directory such as /mnt/caches")
    path = Path(os.path.realpath(text))
    if not os.path.lexists(path):
        raise StoreError(f"the store {shown} does not exist: create the directory first (mkdir -p {shown})", path=text)
    if not os.path.isdir(path):
        raise StoreError(f"the store {shown} is not a directory: give one such as /mnt/caches", path=text)
    if path in (Path("/"), Path(os.path.realpath(Path.home()))):
        raise StoreError(f"{shown} cannot be a store: give a directory of its own, such as {path}/caches", path=text)
    return path


@contextlib.contextmanager
def open_folder(root: Path, name: str, *, create: bool = False, change: bool = False) -> Iterator[CacheFolder]:
    """Open the directories of one cache and check that nothing was planted there.

    Args:
        root: as `check_root` returned it.
        name: the cache's name.
        create: create missing directories, for a writer.
        change: the caller will switch or remove something. Then, as for a writer, a folder is refused that another
            user made where every user may write. Another owner's folder in a directory that only some may write to is
            accepted: volumes that a group shares need that.

    Yields:
        The open folder; closed at the end of the block.

    Raises:
        StoreError: the name leads out of the root, there is no such cache, there is a link or a file in place of a
            directory, it belongs to another user, or it lies on two file systems. An OSError of the block becomes one
            too.
    """
    path = f"{root}/{check_cache_name(name)}"
    guarded = create or change
    with contextlib.ExitStack() as stack:
        root_fd = _open(stack, None, str(root), str(root))
        fd = _open(stack, root_fd, name, path, create=create, guarded=guarded)
        builds_fd = _open(stack, fd, BUILDS, f"{path}/{BUILDS}", create=create, guarded=guarded)
        owner, me = os.fstat(fd).st_uid, os.geteuid()
        if create and me not in (owner, 0):
            told = f"{for_terminal(path, 1000)} belongs to uid {owner}, and this is uid {me}: publish as its owner"
            raise StoreError(told, path=path)
        if os.fstat(builds_fd).st_dev != os.fstat(fd).st_dev:
            told = f"{for_terminal(path, 1000)} and its {BUILDS}/ lie on two file systems: put them on one"
            raise StoreError(told, path=path)
        try:
            # Always, not only after a mkdir: the process that created them may have died before they were durable.
            for holder in (fd, root_fd) if create else ():
                sync_directory(holder)
            yield CacheFolder(name, path, fd, builds_fd)
        except OSError as error:
            # Unforeseen errors (no permission, read-only, an I/O error) become one sentence too.
            at = f" at '{for_terminal(os.fsdecode(error.filename))}'" if isinstance(error.filename, str | bytes) else ""
            told = f"cannot work in {for_terminal(path, 1000)}: {os.strerror(error.errno or 0)}{at}"
            raise StoreError(told, path=path) from None


@contextlib.contextmanager
def open_build(folder: CacheFolder, build_id: str) -> Iterator[int]:
    """Open a build's directory; raises StoreError if there is none, or something else in its place."""
    path = folder.build_path(check_build_id(build_id))
    if not exists(folder.builds_fd, build_id):
        told = f"there is no build {build_id} of '{for_terminal(folder.name)}': see cachewatch store list"
        raise StoreError(told, path=path)
    with contextlib.ExitStack() as stack:
        fd = _open(stack, folder.builds_fd, build_id, path)
        if os.fstat(fd).st_dev != os.fstat(folder.fd).st_dev:
            raise StoreError(f"{path} lies on another file system than the store: unmount it")
        yield fd


def _open(
    stack: contextlib.ExitStack,
    above_fd: int | None,
    name: str,
    path: str,
    *,
    create: bool = False,
    guarded: bool = False,
) -> int:
    shown = for_terminal(path, 1000)
    if create:
        with refusing("create", path), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=above_fd)
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=above_fd)
        stack.callback(os.close, fd)
        if guarded and above_fd is not None:  # root must not publish into a folder that any user could have planted
            refuse_planted(os.fstat(fd), os.fstat(above_fd), "it", path)
    except FileRefused as error:
        raise StoreError(f"{shown} is not used: {error}; remove it", path=path) from None
    except FileNotFoundError:
        told = f"there is no {shown}: publish with cachewatch generate --store, or check root and name"
        raise StoreError(told, path=path) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise StoreError(f"cannot open {shown}: {os.strerror(error.errno or 0)}", path=path) from None
        told = f"{shown} is a symbolic link or no directory, and the store follows none: move it away"
        raise StoreError(told, path=path) from None
    return fd


def read_current(folder: CacheFolder) -> str | None:
    """Read which build is current; None if nothing was ever activated.

    Raises:
        StoreError: `current` is no link, or does not lead to a build of this cache.
    """
    link = f"{for_terminal(folder.path, 1000)}/{CURRENT}"
    try:
        target = os.readlink(CURRENT, dir_fd=folder.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise StoreError(f"{link} is not a symbolic link: move it away, then activate a build", path=link) from None
    above, _, build_id = target.removesuffix("/").partition("/")
    if above != BUILDS or not BUILD_ID.fullmatch(build_id):
        told = f"leads to '{for_terminal(target)}', which is no build of this cache: remove the link, then activate a build"
        raise StoreError(f"{link} {told}", path=link)
    return build_id


def require_current(folder: CacheFolder) -> str:
    """Read which build is current; raises StoreError if none is."""
    if (build_id := read_current(folder)) is None:
        raise StoreError(
            f"'{for_terminal(folder.name)}' has no active build: activate one with cachewatch store activate"
        )
    return build_id


# -- entries


def exists(directory_fd: int, name: str) -> bool:
    """Say whether a directory has an entry of this name, even a dangling link."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def open_small_file(directory_fd: int, name: str, limit_bytes: int) -> int:
    """Open a regular file for reading, without following a link or waiting for a pipe.

    Args:
        directory_fd: descriptor of the directory.
        name: the file's name.
        limit_bytes: a larger file is refused, since the store writes none here.

    Raises:
        StoreError: it is a link, not a regular file, or too large.
        OSError: it cannot be read; FileNotFoundError if it does not exist.
    """
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
    raise StoreError(f"'{for_terminal(name)}' is no regular file of at most {limit_bytes} bytes: remove it")


def read_small_file(directory_fd: int, name: str, limit_bytes: int) -> bytes:
    """Read a file as `open_small_file` opens it."""
    with os.fdopen(open_small_file(directory_fd, name, limit_bytes), "rb") as file:
        return file.read(limit_bytes + 1)


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


# -- what a file system can do


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
    what = None
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        what = "make symbolic links"
        os.symlink("nowhere", link)
        what = "rename an entry over another"
        os.rename(link, file)
    except OSError as error:
        why = f"its file system cannot {what} ({os.strerror(error.errno or 0)}); take a local disk or NFS"
        return what and f"{for_terminal(path, 1000)} cannot be a store: {why}"
    finally:
        for left in (file, link):
            with contextlib.suppress(OSError):
                os.unlink(left)
    return None
