"""When a run's files last grew, kept beside them on the clock of their own file system.

Whoever finds the files after a kill takes from it which of them may be cut. Written by the scan process while it
measures, read by `publish.target`; standard library only. It judges nothing.
"""

from __future__ import annotations

import json
import os

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.removal import look

TYPE_CHECKING = False  # typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["MARK_BYTES", "GrowthMark", "read_mark", "write_mark"]

# Of one length, so that it is overwritten in one step and never shorter or longer than it was.
MARK_BYTES = 256
_CLOCK_BACK_NS = 60 * 10**9


class GrowthMark:
    """Renews the mark with each scan; what cannot be written leaves an older mark, which only makes more files suspect.

    Args:
        path: of the mark, absolute, on the file system of the directory.
        directory: what is measured, absolute.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, directory: str) -> None:
        self._directory = directory
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._now_ns: int | None = None
        self._full_ns: int | None = None
        self._numbers: Hashable = None

    def close(self) -> None:
        """Let go of the mark."""
        os.close(self._fd)

    def begin_scan(self) -> None:
        """Ask the file system what time it is; to be called before each scan."""
        self._now_ns = None
        try:
            os.utime(self._fd)
            self._now_ns = os.fstat(self._fd).st_ctime_ns
        except OSError:
            pass

    def end_scan(self, numbers: Hashable, full: bool) -> None:
        """Note what a scan has found.

        Args:
            numbers: what differs from the last scan's where something was written.
            full: whether it looked at everything.
        """
        now_ns, full_ns = self._now_ns, self._full_ns
        if now_ns is not None and full_ns is not None and numbers != self._numbers:
            # It may have grown any time since all was looked at; by the earlier time, should the clock have gone back.
            try:
                write_mark(self._fd, self._directory, min(now_ns, full_ns))
            except OSError:
                return
        self._numbers = numbers
        if full and now_ns is not None:
            self._full_ns = now_ns


def write_mark(fd: int, directory: str, grew_after_ns: int) -> None:
    """Write a mark in one step.

    Args:
        fd: of the mark.
        directory: what was measured; it is named by its inode and birth, which a copy does not have.
        grew_after_ns: the last growth came after this moment of the file system's clock.

    Raises:
        OSError: it cannot be written.
    """
    with Opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
        entry = look(descriptor)
    body = {"grew_after_ns": grew_after_ns, "inode": entry.inode, "born_ns": entry.born_ns}
    os.pwrite(fd, json.dumps(body).encode("ascii").ljust(MARK_BYTES - 1) + b"\n", 0)


def read_mark(data: bytes, build_fd: int, now_ns: int) -> int | str:
    """Read a mark back.

    Args:
        data: what the mark's file holds.
        build_fd: descriptor of the directory.
        now_ns: what time it is on its file system's clock.

    Returns:
        The moment after which the last growth came, on that clock; or, where the mark says nothing about this
        directory, why not.
    """
    try:
        body = json.loads(data)
        grew_after_ns, inode, born_ns = int(body["grew_after_ns"]), int(body["inode"]), body["born_ns"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "nothing is known about when it was written"
    entry = look(build_fd)
    if (inode, born_ns) != (entry.inode, entry.born_ns):
        return "the directory was copied or restored since, and its files' change times with it"
    if grew_after_ns > now_ns + _CLOCK_BACK_NS:
        return "the clock of its file system was set back since"
    return grew_after_ns
