"""Who writes where: directories in which a process has files open for writing, and processes that write below some.

Reads /proc alone, never a file system that may hang; a process of another user is seen by root only.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable

from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.measure.snapshot import DEFAULT_IGNORE, IgnoreTest, compile_ignore
from prefect_cachewatch.supervise.open_files import list_open_files
from prefect_cachewatch.supervise.proc import descendants

__all__ = ["NO_CACHE", "directories_written", "is_no_cache", "own_files", "writers_below"]

#: Names of files that are plainly no cache: logs, locks, what Python and version control write by themselves.
NO_CACHE = (*DEFAULT_IGNORE, "*.pyc", "*.pyc.*", "*.pyo", "*.pid", "*.sock", ".git/*", "*/.git/*")

_NOT_CACHES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/", "/SYSV")


@functools.cache
def _no_cache() -> IgnoreTest | None:  # made when it is asked for: most runs never do
    return compile_ignore(NO_CACHE)


def is_no_cache(path: str) -> bool:
    """Say whether a file is plainly of no cache: noise by its name, no file on a disk, or state of ours.

    Args:
        path: absolute.

    Returns:
        Whether it is so.

    Example:
        >>> [is_no_cache(path) for path in ("/a/__pycache__/m.cpython-311.pyc", "/proc/7/fd", "/a/layer0.bin")]
        [True, True, False]
    """
    directory, _, name = path.rpartition("/")
    ignored = _no_cache()
    noise = ignored is not None and ignored(name, directory[1:] + "/")
    return noise or path.startswith((*_NOT_CACHES, f"{os.path.realpath(state_home())}/"))


def own_files(leave_out: Collection[int]) -> set[str]:
    """List the files that this process and its helpers have open for writing: the log, the trace, the report.

    Args:
        leave_out: pids below this process that are somebody else's.
    """
    pids = {os.getpid(), *descendants(os.getpid())} - {*leave_out}
    return {file.target for pid in pids for file in list_open_files(pid, ())[0] if file.access in ("w", "rw")}


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
                found[os.path.dirname(file.target)] += not is_no_cache(file.target)
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
