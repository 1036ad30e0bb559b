"""Records when a run's files last grew, beside the files and on the clock of their own file system.

After a kill it tells which of the files may be cut. The scan process writes it while it measures, and `store.records`
reads it. Standard library only. It makes no decision.
"""

from __future__ import annotations

import json
import os

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.removal import look

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from collections.abc import Hashable

# Fixed length, so that one write replaces it and its length never changes.
MARK_BYTES = 256
_CLOCK_BACK_NS = 60 * 10**9


class GrowthMark:
    """Renews the mark with each scan. If that fails, an older mark stays, which only makes more files suspect.

    Args:
        path: of the mark, absolute, on the file system of the directory.
        directory: the measured directory, absolute.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str, directory: str) -> None:
        self._directory = directory
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._now_ns: int | None = None
        self._last_ns: int | None = None
        self._numbers: Hashable = None

    def close(self) -> None:
        """Close the mark's file."""
        os.close(self._fd)

    def begin_scan(self) -> None:
        """Read the file system's clock; call it before each scan."""
        self._now_ns = None
        try:
            os.utime(self._fd)
            self._now_ns = os.fstat(self._fd).st_ctime_ns
        except OSError:
            pass

    def end_scan(self, numbers: Hashable) -> None:
        """Record the result of a scan.

        Args:
            numbers: a value that differs from the last scan's if anything was written.
        """
        now_ns, last_ns = self._now_ns, self._last_ns
        if now_ns is not None and last_ns is not None and numbers != self._numbers:
            # Growth may have come at any time since the last scan. The earlier time is used, in case the clock was set
            # back.
            try:
                write_mark(self._fd, self._directory, min(now_ns, last_ns))
            except OSError:
                return
        self._numbers = numbers
        if now_ns is not None:
            self._last_ns = now_ns


def write_mark(fd: int, directory: str, grew_after_ns: int) -> None:
    """Write a mark in one step.

    Args:
        fd: of the mark.
        directory: the measured directory; it is identified by its inode and birth, which a copy does not have.
        grew_after_ns: the last growth came after this moment of the file system's clock.

    Raises:
        OSError: it cannot be written.
    """
    with Opened(os.open(directory, OPEN_DIRECTORY)) as descriptor:
        entry = look(descriptor)
    body = {"grew_after_ns": grew_after_ns, "inode": entry.inode, "born_ns": entry.born_ns}
    os.pwrite(fd, json.dumps(body).encode("ascii").ljust(MARK_BYTES - 1) + b"\n", 0)


def read_mark(data: bytes, build_fd: int, now_ns: int) -> int | str:
    """Read a mark back.

    Args:
        data: contents of the mark's file.
        build_fd: descriptor of the directory.
        now_ns: the current time on its file system's clock.

    Returns:
        The moment after which the last growth came, on that clock; or, if the mark does not apply to this directory,
        the reason as a text.
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
