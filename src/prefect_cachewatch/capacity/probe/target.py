"""The directory that a probe measures: checks whether it may, reads its file system, makes a scratch directory in it.

Nothing is measured here. Everything the probe writes is inside one directory made by
`scratch_directory` and removed when its block ends, for whatever reason.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefect_cachewatch.capacity.units import say_bytes
from prefect_cachewatch.common.mounts import MOUNT_TABLE, Mount, is_network_type, mount_of, read_mounts
from prefect_cachewatch.common.removal import look_path, remove_path
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

SCRATCH_PREFIX = ".cachewatch-probe-"
MEMORY_FILESYSTEMS = frozenset({"ramfs", "tmpfs"})
MIN_SIZE_BYTES = 16 * 2**20
MIN_FREE_INODES = 1024


@dataclass(frozen=True)
class ProbeTarget:
    """A directory that may be probed, and the kernel's facts about the storage under it."""

    path: Path
    filesystem: str
    total_bytes: int
    free_bytes: int

    @property
    def is_network(self) -> bool:
        """Whether other machines share the storage, going by the file system's type."""
        return is_network_type(self.filesystem)

    @property
    def is_memory(self) -> bool:
        """Whether the file system is memory, not a storage device."""
        return self.filesystem in MEMORY_FILESYSTEMS


def inspect_target(directory: Path, mountinfo: str | os.PathLike[str] = MOUNT_TABLE) -> ProbeTarget:
    """Check that a directory may be probed, and look at its file system; writes nothing.

    Args:
        directory: an existing directory of the user's own, not the root of a file system.
        mountinfo: the kernel's table of mounts.

    Returns:
        The target, its path resolved.

    Raises:
        InputError: one sentence for a missing, read-only, protected or full directory.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     inspect_target(Path(home)).path == Path(home).resolve()
        True
    """
    shown = for_terminal(str(directory))
    try:
        path = directory.resolve(strict=True)
        is_directory = path.is_dir()
        status = os.statvfs(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{shown} cannot be probed ({reason}): make a directory on the storage in question") from None
    if not is_directory:
        raise InputError(f"{shown} is not a directory: name a directory on the storage to probe")
    mounts = read_mounts(mountinfo)
    mount = mount_of(str(path), mounts)
    filesystem = mount.type if mount is not None else "unknown"
    _refuse_protected(path, shown, filesystem, mounts)
    if status.f_flag & os.ST_RDONLY:
        raise InputError(
            f"{shown} is on a read-only file system ({filesystem}): probe where the caches will be written"
        )
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(
            f"{shown} is not writable for this user: give it the right to write, or name another directory"
        )
    if status.f_files > 0 and status.f_favail < MIN_FREE_INODES:
        raise InputError(
            f"{shown} has {status.f_favail} free inodes left and the probe wants {MIN_FREE_INODES}: make room first"
        )
    return ProbeTarget(
        path=path,
        filesystem=filesystem,
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
    )


def size_budget(target: ProbeTarget, size_bytes: int, keep_free: float) -> int:
    """Say how many bytes the probe may have on the storage at once.

    Args:
        target: the directory's facts.
        size_bytes: what the user allows.
        keep_free: share of the file system, 0 to 1, that stays free whatever the user allows.

    Returns:
        Bytes: `size_bytes`, or less where the storage is nearly full.

    Raises:
        InputError: if less than 16 MiB are left.

    Example:
        >>> size_budget(ProbeTarget(Path("/x"), "ext4", 10**9, 10**8), 2**30, 0.05)
        50000000
    """
    reserve = int(target.total_bytes * keep_free)
    usable = min(size_bytes, target.free_bytes - reserve)
    if usable < MIN_SIZE_BYTES:
        raise InputError(
            f"{for_terminal(str(target.path))} is too full to probe: "
            f"{say_bytes(max(0, target.free_bytes))} free, of which {say_bytes(reserve)} "
            f"({keep_free:.0%} of the file system) must stay free, and the probe needs "
            f"{say_bytes(MIN_SIZE_BYTES)}; make room or lower --keep-free"
        )
    return usable


@contextmanager
def scratch_directory(target: ProbeTarget, warn: Callable[[str], None]) -> Iterator[Path]:
    """Make the probe's own directory inside the target, and remove it with all it holds.

    Args:
        target: the directory's facts.
        warn: told, in one sentence, when something could not be removed.

    Yields:
        The directory.

    Raises:
        InputError: if it cannot be made: full, read-only, no permission.
    """
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=target.path))
        made = look_path(scratch)
    except OSError as error:
        raise write_refused(error, target.path) from None
    try:
        yield scratch
    finally:
        # On NFS a file that is still open is renamed to .nfs* and goes with its last descriptor, so a directory can be
        # non-empty for a moment.
        for _ in range(20):
            remove_path(scratch, made)
            if not scratch.exists():
                break
            time.sleep(0.1)
        else:
            warn(f"the probe's own directory could not be removed: delete {for_terminal(str(scratch))} by hand")


def write_refused(error: OSError, path: Path) -> InputError:
    """Put an error of the operating system while writing into one sentence.

    Args:
        error: what the system said.
        path: the directory that was probed.

    Returns:
        The error to raise.
    """
    shown = for_terminal(str(path))
    if error.errno == errno.EROFS:
        return InputError(f"{shown} is read-only: probe where the caches will be written")
    if error.errno in (errno.EACCES, errno.EPERM):
        return InputError(
            f"{shown} is not writable for this user: give it the right to write, or name another directory"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"{shown} is full, by space, inodes or quota: make room, then probe again")
    return InputError(f"{shown} cannot be written to ({error.strerror}): name a directory on healthy storage")


def leftovers(directory: Path) -> list[Path]:
    """Find directories that a killed probe left behind; they are named, never removed.

    Removing them could hit a probe that runs on another machine right now.
    """
    try:
        with os.scandir(directory) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.name.startswith(SCRATCH_PREFIX))
    except OSError:
        return []


def opens_direct(directory: Path) -> bool:
    """Say whether files in a directory open with O_DIRECT; on tmpfs they may, without any effect."""
    path = directory / "opens-direct"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _refuse_protected(path: Path, shown: str, filesystem: str, mounts: Sequence[Mount]) -> None:
    own = "make a directory of your own in it and probe that"
    if path == Path("/"):
        raise InputError(f"{shown} is the root directory: make a directory of your own on the storage and probe that")
    if path == Path("~").expanduser().resolve():
        raise InputError(f"{shown} is your home directory: {own}")
    # os.path.ismount does not see a bind mount of the same file system; the table does.
    if os.path.ismount(path) or any(mount.mount_point == str(path) for mount in mounts):
        kind = "network file system" if is_network_type(filesystem) else "file system"
        raise InputError(f"{shown} is the root of a mounted {kind} ({filesystem}): {own}")
