"""Writes a job's marker files in the scan process: if the file system hangs, the scan process hangs, not the watch.

A marker that cannot be written is reported, and the generation goes on.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from prefect_cachewatch import __version__
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import ScanError
from prefect_cachewatch.watching.site import CacheDirectories

if TYPE_CHECKING:  # what reads a command line does not stay in the process that watches
    from pathlib import Path

    from prefect_cachewatch.config import MarkerFiles

_TIMEOUT_S = 10.0


def write_started(site: CacheDirectories, markers: MarkerFiles | None) -> list[str]:
    """Write the marker of the start, unless the cache is marked as completed.

    Args:
        site: the directories, measured once.
        markers: which files, or None.

    Returns:
        What went wrong, in one sentence at most.
    """
    if markers is None or markers.started is None:
        return []
    return _write(site, markers.started, "Cache generation started", unless=markers.completed)


def write_completed(site: CacheDirectories, markers: MarkerFiles | None) -> list[str]:
    """Write the marker of the end.

    Args:
        site: the directories.
        markers: which files, or None.

    Returns:
        What went wrong, in one sentence at most.
    """
    if markers is None or markers.completed is None:
        return []
    return _write(site, markers.completed, "Cache generation completed")


def _write(site: CacheDirectories, marker: Path, what: str, unless: Path | None = None) -> list[str]:
    path = os.path.join(site.paths[0], marker)
    shown = for_terminal(path)
    if site.scanner.pending:
        return [f"marker {shown} was not written: the file system does not answer"]
    text = f"{what} at {time.strftime('%Y-%m-%dT%H:%M:%S+00:00', time.gmtime())} (cachewatch {__version__})\n"
    other = None if unless is None else os.path.join(site.paths[0], unless)
    try:
        site.scanner.request("mark", _TIMEOUT_S, path=path, text=text, unless=other)
    except ScanError as error:
        return [f"marker {shown} was not written: {error.message}"]
    return []
