"""The directory of a run's report and log, inside the user's state directory and not in the cache that is watched."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.aside import AHEAD_S, Files
from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY, make_own_directory, state_directory
from prefect_cachewatch.common.locks import try_lock
from prefect_cachewatch.common.removal import look_path, remove_path
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.errors import InputError

KEEP_RUNS = 200
KEEP_S = 30 * 86400.0


def state_home() -> Path:
    """Return the user's state directory; see `directories.state_directory`."""
    return Path(state_directory())


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run; it is not pruned until it is closed or the process ends."""

    path: Path
    hold: Any

    def close(self) -> None:
        """Allow it to be pruned from now on."""
        with contextlib.suppress(OSError):
            self.hold.close()


def open_run_directory(files: Files, name: str, run_id: str, kind: str = "generations") -> RunDirectory:
    """Make the directory of one run, readable only by its owner, and prune old ones.

    Args:
        files: does the file access.
        name: of the job.
        run_id: of the run, unique.
        kind: of run; each kind is pruned separately.

    Returns:
        The directory; the caller closes it.

    Raises:
        InputError: it cannot be made, or its file system does not answer.
    """
    runs = state_home() / kind
    path = runs / f"{slugify(name)}-{run_id}"
    try:
        hold = files.open(_Hold, path, timeout_s=AHEAD_S)
    except OSError as error:
        raise InputError(
            f"run directory {path} cannot be made: {error.strerror}; set CACHEWATCH_STATE to a writable directory"
        ) from error
    with contextlib.suppress(OSError):  # the next run will prune what this one could not
        files.run(prune_run_directories, runs, timeout_s=AHEAD_S)
    return RunDirectory(path, hold)


def prune_run_directories(runs: Path, keep: int = KEEP_RUNS, keep_s: float = KEEP_S) -> int:
    """Remove run directories beyond a count or an age, oldest first, but none of a run in progress.

    Args:
        runs: the directory that holds them.
        keep: the most that are kept.
        keep_s: the longest that one is kept, in seconds.

    Returns:
        How many were removed.
    """
    found = []
    with os.scandir(runs) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another run pruned it first
                if entry.is_dir(follow_symlinks=False):
                    own = look_path(entry.path)
                    if own.owner == os.geteuid():
                        found.append((own.modified_ns / 1e9, entry.path, own))
    found.sort(reverse=True)
    oldest_s = time.time() - keep_s
    removed = 0
    for rank, (modified_s, path, own) in enumerate(found):
        if (rank >= keep or modified_s < oldest_s) and not _in_use(path):
            removed += not remove_path(path, own).failed
    return removed


class _Hold:
    """Marks a directory as in use by a live run, in the process that holds it: a long run outlasts many short ones."""

    def __init__(self, path: Path) -> None:
        os.close(make_own_directory(path.parent))
        self._fd = make_own_directory(path)
        with contextlib.suppress(OSError):  # a file system without locks: treat it as not held
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def close(self) -> None:
        os.close(self._fd)


def _in_use(path: str) -> bool:
    try:
        with Opened(os.open(path, OPEN_DIRECTORY)) as fd:
            return not try_lock(fd)
    except OSError:
        return False
