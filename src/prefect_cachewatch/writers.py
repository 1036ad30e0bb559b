"""Who writes where: directories in which a process has files open for writing, and processes that write below some.

Reads /proc alone, never a file system that may hang; a process of another user is seen by root only.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable

from prefect_cachewatch.postmortem.procdetails import list_open_files

__all__ = ["directories_written", "writers_below"]

_NOT_CACHES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/", "/SYSV")


def directories_written(pids: Iterable[int]) -> list[str]:
    """List the directories in which processes have files open for writing.

    Args:
        pids: of the processes.

    Returns:
        Directories, the one with the most files first.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     os.path.dirname(os.path.realpath(file.name)) in directories_written([os.getpid()])
        True
    """
    found: Counter[str] = Counter()
    for pid in pids:
        for file in list_open_files(pid, ())[0]:
            gone = file.target.endswith(" (deleted)")
            if file.fd > 2 and file.kind == "file" and file.access in ("w", "rw") and not gone:  # output is no cache
                found[os.path.dirname(file.target)] += not file.target.startswith(_NOT_CACHES)
    return [path for path, count in found.most_common() if count]


def writers_below(paths: Iterable[str], leave_out: Collection[int], budget_s: float = 1.0) -> list[int]:
    """Find processes that have a file below some directories open for writing.

    Args:
        paths: absolute directories, resolved.
        leave_out: pids that are not looked at.
        budget_s: the longest time; processes that were not reached in it are not found.

    Returns:
        Their pids.
    """
    tops, found, end_s = list(paths), list[int](), time.monotonic() + budget_s
    for name in os.listdir("/proc"):
        if time.monotonic() > end_s:
            break
        if name.isdigit() and int(name) not in leave_out:
            files = list_open_files(int(name), tops)[0]
            if any(file.in_cache and file.kind == "file" and file.access in ("w", "rw") for file in files):
                found.append(int(name))
    return found
