"""Files below watched directories that have no name (yet): O_TMPFILE, or removed while open; standard library only.

No walk finds them. A process tree that holds one open shows it in /proc. It asks the file systems of such files alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["find_unnamed"]

_DELETED = " (deleted)"
_BUDGET_S = 0.2


def find_unnamed(
    roots: Sequence[str], holders: Iterable[int], budget_s: float = _BUDGET_S
) -> Iterator[tuple[str, os.stat_result]]:
    """Find regular files without a name that a process tree holds open below some directories.

    Args:
        roots: absolute directories.
        holders: pids at the top of the tree.
        budget_s: the longest time; processes that were not reached in it are not looked at.

    Returns:
        The path each would have, or had, and its stat result; a file that is held twice comes twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d, tempfile.TemporaryFile(dir=d) as file:
        ...     _ = file.write(b"abc"), file.flush()
        ...     [status.st_size for _, status in find_unnamed([os.path.realpath(d)], [os.getpid()])]
        [3]
    """
    below = tuple(root.rstrip("/") + "/" for root in roots)
    end_s = time.monotonic() + budget_s
    pending, seen = list(holders), set[int]()
    while pending and time.monotonic() < end_s:
        pid = pending.pop(0)
        if pid in seen:
            continue
        seen.add(pid)
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
            pending += _children(pid)
        except OSError:  # it has ended, or is another user's
            continue
        for fd in fds:
            link = f"/proc/{pid}/fd/{fd}"
            try:
                target = os.readlink(link)
                if not target.endswith(_DELETED) or not target.startswith(below):
                    continue
                status = os.stat(link)
            except OSError:
                continue
            if status.st_mode & 0o170000 == 0o100000 and status.st_nlink == 0:
                yield target.removesuffix(_DELETED), status


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            found += map(int, file.read().split())
    return found
