"""The directories of one cache, opened by descriptor and checked before anything is done; its two locks and its link."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.common.directories import OPEN_DIRECTORY, FileRefused, refuse_planted
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.files import refusing, sync_directory
from prefect_cachewatch.store.locks import HeldLock, hold_exclusive
from prefect_cachewatch.store.names import check_build_id, check_cache_name

BUILDS, CURRENT, LOCK, _SWITCH = "builds", "current", ".lock", ".switch"
_SWITCH_WAIT_S = 60.0
#: A publisher waits this long for the switch: what it has written took hours, and a switch that reads all takes minutes.
PUBLISH_WAIT_S = 3600.0
_LINK = re.compile(r"builds/([^/]+)/?")


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


def check_root(root: str | os.PathLike[str]) -> Path:
    """Make the root of a store absolute, and refuse a directory that cannot be one.

    Args:
        root: an existing directory; symbolic links in its path are resolved once, here.

    Returns:
        Its absolute path without links.

    Raises:
        StoreError: it is not a directory, or is `/` or the home directory.
    """
    text = os.fspath(root)
    shown = for_terminal(text, 1000)
    if not text or "\0" in text:
        raise StoreError("the store's root is no path: give a directory such as /mnt/caches")
    path = Path(os.path.realpath(text))
    if not path.exists():
        raise StoreError(f"the store {shown} does not exist: create the directory first (mkdir -p {shown})", path=text)
    if not path.is_dir():
        raise StoreError(f"the store {shown} is not a directory: give one such as /mnt/caches", path=text)
    if path in (Path("/"), Path(os.path.realpath(Path.home()))):
        raise StoreError(
            f"{shown} cannot be a store: give a directory of its own, such as {path / 'caches'}", path=text
        )
    return path


@contextlib.contextmanager
def open_folder(root: Path, name: str, *, create: bool = False, change: bool = False) -> Iterator[CacheFolder]:
    """Open the directories of one cache and check that nothing was planted there.

    Args:
        root: as `check_root` returned it.
        name: the cache's name.
        create: create missing directories, for a publisher.
        change: the caller will switch or remove something. Then, as for a publisher, a folder is refused that another
            user made where every user may write. Another owner's folder in a directory that only some may write to is
            accepted: volumes that a group shares need that.

    Yields:
        The open folder; closed at the end of the block.

    Raises:
        StoreError: the name leads out of the root, there is no such cache, there is a link or a file in place of a
            directory, it belongs to another user, or it lies on two file systems. An OSError of the block becomes one
            too.
    """
    check_cache_name(name)
    path = f"{root}/{name}".replace("//", "/")
    with contextlib.ExitStack() as stack:
        root_fd = _open(stack, None, str(root), str(root), create=False)
        fd = _open(stack, root_fd, name, path, create=create)
        if create or change:
            _refuse_planted(fd, root_fd, path)  # before anything is made in it
        builds_fd = _open(stack, fd, BUILDS, f"{path}/{BUILDS}", create=create)
        if create or change:
            _refuse_planted(builds_fd, fd, f"{path}/{BUILDS}")
        owner = os.fstat(fd).st_uid
        if create and os.geteuid() not in (owner, 0):
            raise StoreError(
                f"{for_terminal(path, 1000)} belongs to uid {owner}, and this is uid {os.geteuid()}: publish as its owner",
                path=path,
            )
        if os.fstat(builds_fd).st_dev != os.fstat(fd).st_dev:
            raise StoreError(
                f"{for_terminal(path, 1000)} and its {BUILDS}/ lie on two file systems: put them on one", path=path
            )
        try:
            if create:
                # Always, not only after a mkdir: the process that created them may have died before they were durable.
                for holder in (fd, root_fd):
                    sync_directory(holder)
            yield CacheFolder(name, path, fd, builds_fd)
        except OSError as error:
            # Unforeseen errors (no permission, read-only, an I/O error) become one sentence too.
            at = f" at '{for_terminal(os.fsdecode(error.filename))}'" if isinstance(error.filename, str | bytes) else ""
            raise StoreError(
                f"cannot work in {for_terminal(path, 1000)}: {os.strerror(error.errno or 0)}{at}", path=path
            ) from None


@contextlib.contextmanager
def open_build(folder: CacheFolder, build_id: str) -> Iterator[int]:
    """Open a build's directory.

    Args:
        folder: the open cache.
        build_id: which build.

    Yields:
        Its descriptor.

    Raises:
        StoreError: there is none, or there is a link in its place.
    """
    path = folder.build_path(check_build_id(build_id))
    with contextlib.ExitStack() as stack:
        try:
            os.stat(build_id, dir_fd=folder.builds_fd, follow_symlinks=False)
        except FileNotFoundError:
            raise StoreError(
                f"there is no build {build_id} of '{for_terminal(folder.name)}': see cachewatch store list", path=path
            ) from None
        fd = _open(stack, folder.builds_fd, build_id, path, create=False)
        if os.fstat(fd).st_dev != os.fstat(folder.fd).st_dev:
            raise StoreError(f"{path} lies on another file system than the store: unmount it")
        yield fd


def hold_switch(folder: CacheFolder, purpose: str, *, wait_s: float = _SWITCH_WAIT_S) -> HeldLock:
    """Keep other processes from switching, adopting or removing builds, and from writing records, for a moment.

    Raises:
        StoreBusy: another process holds the lock for longer than a minute, or than `wait_s`.
    """
    return hold_exclusive(folder.fd, _SWITCH, purpose, wait_s=wait_s)


def read_current(folder: CacheFolder) -> str | None:
    """Read which build is active.

    Args:
        folder: the open cache.

    Returns:
        Its id, or None if nothing was ever activated.

    Raises:
        StoreError: `current` is not a link, or does not lead to a build of this cache.
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
    match = _LINK.fullmatch(target)
    with contextlib.suppress(StoreError):
        if match:
            return check_build_id(match[1])
    raise StoreError(
        f"{link} leads to '{for_terminal(target)}', which is no build of this cache: remove the link, then activate a build",
        path=link,
    )


def require_current(folder: CacheFolder) -> str:
    """Read which build is active; raises StoreError if none is."""
    if (build_id := read_current(folder)) is None:
        raise StoreError(
            f"'{for_terminal(folder.name)}' has no active build: activate one with cachewatch store activate"
        )
    return build_id


def _refuse_planted(fd: int, above_fd: int, path: str) -> None:
    try:  # root must not publish into a folder that any user could have planted
        refuse_planted(os.fstat(fd), os.fstat(above_fd), "it", path)
    except FileRefused as error:
        raise StoreError(f"{for_terminal(path, 1000)} is not used: {error}; remove it", path=path) from None


def _open(stack: contextlib.ExitStack, directory_fd: int | None, name: str, path: str, *, create: bool) -> int:
    shown = for_terminal(path, 1000)
    if create:
        with refusing("create", path), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=directory_fd)
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=directory_fd)
    except FileNotFoundError:
        raise StoreError(
            f"there is no {shown}: publish with cachewatch generate --store, or check root and name", path=path
        ) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise StoreError(f"cannot open {shown}: {os.strerror(error.errno or 0)}", path=path) from None
        try:
            os.readlink(name, dir_fd=directory_fd)
        except OSError:
            raise StoreError(f"{shown} is not a directory: move it away", path=path) from None
        raise StoreError(f"{shown} is a symbolic link; the store follows none: remove it", path=path) from None
    stack.callback(os.close, fd)
    return fd
