"""Lock files that lock by being there, as filelock's SoftFileLock makes them: whether one still has a living holder.

A run that was killed leaves such a file behind, and every later run waits for it without end. A file without a holder is
*stale*; whatever leaves a doubt is not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from prefect_cachewatch.common.files import LOCK_FILE
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.supervise.filelocks import has_exclusive_holder
from prefect_cachewatch.supervise.proc import read_stat
from prefect_cachewatch.supervise.run_files import pid_namespace

# A holder of other kinds than filelock's does not keep the file open, but touches it now and then.
_QUIET_S = 60.0
YOUNG = "it was written a moment ago"
_CONTENT_BYTES = 256
_PID = re.compile(r"\A\s*(\d{1,10})\b\s*(\S{1,255})?")
# Of files that lock by being there, and of the directories in which programs keep nothing but such.
_NAME = re.compile(r"(?i)(?:.*[._-])?(?:lock|lck|lockfile|baton)(?:\.\d+)?|.+\.(?:pid|incomplete)")
_DIRECTORIES = (".lock", ".locks", "locks")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's PROC_PID_INIT_INO; in any other a holder may be out of sight
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class LockFile:
    """A lock file, or a directory that locks by being there, as it was found.

    Attributes:
        path: absolute.
        device: number of its file system.
        inode: its number there.
        age_s: since it was written.
        pid: written in it; None if there is none.
        why_held: why it is not certain that it is stale; empty for a stale one.
        in_log: whether the log names it as waited for.
        size_bytes: of its content.
        holder: who has locked it, or works in its directory, and is no process of the tree that waits; empty if nobody
            is known to.
        in_use: whether a process of that tree has it open.
        is_directory: whether it is a directory.
    """

    path: str
    device: int
    inode: int
    age_s: float
    pid: int | None = None
    why_held: str = ""
    in_log: bool = False
    size_bytes: int = 0
    holder: str = ""
    in_use: bool = False
    is_directory: bool = False

    @property
    def stale(self) -> bool:
        """Whether it certainly has no living holder."""
        return not self.why_held


def has_lock_name(path: str) -> bool:
    """Say whether a file is named as programs name what they lock by.

    Example:
        >>> [has_lock_name(path) for path in ("/c/lock", "/c/.lock/0", "/c/a.lck", "/c/clock", "/c/a.bin")]
        [True, True, True, False, False]
    """
    directory, name = os.path.split(path)
    return _NAME.fullmatch(name) is not None or os.path.basename(directory) in _DIRECTORIES


def find_lock_files(
    tops: Sequence[str], inodes: Collection[int], most: int = 20_000, budget_s: float = 0.2
) -> Iterator[str]:
    """Find what is named as a lock below directories, and files that a process has locked; follows no link.

    Args:
        tops: the directories, those first that are looked through first.
        inodes: numbers of the files that are locked, as candidates: a number is unique in one file system only.
        most: how many entries are looked at.
        budget_s: the longest time, in seconds; not a bound for a file system that hangs.

    Yields:
        Their paths.
    """
    end_s = time.monotonic() + budget_s
    pending, seen = list(reversed(tops)), set[str]()
    while pending:
        here = pending.pop()
        if here in seen:
            continue
        seen.add(here)
        with contextlib.suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                most -= 1
                if most < 0 or time.monotonic() > end_s:
                    return
                if entry.is_dir(follow_symlinks=False):
                    pending.insert(0, entry.path)
                    if has_lock_name(entry.path):
                        yield entry.path
                    continue
                wanted = entry.inode() in inodes or has_lock_name(entry.path)
                if wanted and entry.name != LOCK_FILE and entry.is_file(follow_symlinks=False):
                    yield entry.path


def look_at_lock(path: str) -> LockFile | None:
    """Say whether a lock file is stale.

    Args:
        path: absolute.

    Returns:
        What was found; None if there is no such regular file, or directory with at most one entry, the holder's mark.
    """
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        age_s = max(0.0, time.time() - status.st_mtime)
        marks = 0 if os.path.basename(path) in _DIRECTORIES else 1
        if stat.S_ISDIR(status.st_mode) and len(os.listdir(fd)) <= marks:
            why = _why_elsewhere(path) or _why_young(status)
            return LockFile(path, status.st_dev, status.st_ino, age_s, why_held=why, is_directory=True)
        if not stat.S_ISREG(status.st_mode):
            return None
        pid, why = _read_holder(fd, path, status)
        return LockFile(
            path,
            status.st_dev,
            status.st_ino,
            age_s,
            pid,
            why or _why_open(fd) or _why_young(status),
            size_bytes=status.st_size,
        )
    finally:
        os.close(fd)


def _read_holder(fd: int, path: str, status: os.stat_result) -> tuple[int | None, str]:
    """The pid in a lock file, and why its content or its place leave a doubt."""
    found = _PID.match(os.pread(fd, _CONTENT_BYTES, 0).decode("ascii", "replace"))
    pid, host = (int(found[1]), found[2]) if found else (None, None)
    if host is not None and host != socket.gethostname():
        return pid, "another host has written it"
    if pid is not None and read_stat(pid) is not None:
        return pid, f"pid {pid}, which is written in it, lives"
    if pid is not None and host is None and pid_namespace() != _INITIAL_PID_NAMESPACE:
        return pid, "its pid may be of another container"
    return pid, _why_elsewhere(path) if pid is None or host is None else ""


def _why_elsewhere(path: str) -> str:
    mount = mount_of(path, read_mounts())
    return "a process of another host may hold it" if mount is None or mount.is_network else ""


def _why_young(status: os.stat_result) -> str:
    return YOUNG if time.time() - status.st_mtime < _QUIET_S else ""


def _why_open(fd: int) -> str:
    """Say whether a process of this host, also of another container, has the file open; a free one keeps our lease."""
    if has_exclusive_holder(fd):
        return "a process has locked it"
    try:
        # The kernel grants it only if no other descriptor of the file is open. Whoever opens it then makes the kernel send
        # a signal to us; the usual one would end this process.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return "a process has it open"
        return f"it cannot be told whether a process has it open ({error.strerror})"
    return ""
