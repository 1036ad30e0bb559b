"""Where a run keeps its report and log: the user's state directory, apart from the cache it watches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

from prefect_cachewatch.common.directories import make_own_directory
from prefect_cachewatch.common.removal import look_path, remove_path
from prefect_cachewatch.errors import InputError

__all__ = ["make_run_directory", "prune_run_directories", "release_run_directory", "slugify", "state_home"]

KEEP_RUNS = 200
KEEP_S = 30 * 86400.0
_held: dict[Path, int] = {}


def state_home() -> Path:
    """Say where state lies: `$CACHEWATCH_STATE`, else `$XDG_STATE_HOME/cachewatch`, else `~/.local/state/cachewatch`."""
    if own := os.environ.get("CACHEWATCH_STATE"):
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".local" / "state") / "cachewatch"


def slugify(name: str) -> str:
    """Turn a name into lower-case letters, digits and dashes, as Prefect's artifact keys want it.

    Example:
        >>> slugify("Llama 3.1/70B (N300)")
        'llama-3-1-70b-n300'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:100].strip("-") or "cache"


def make_run_directory(name: str, run_id: str, kind: str = "generations") -> Path:
    """Make the directory of one run, readable by its owner only and held until it is released, and prune old ones.

    Args:
        name: of the job.
        run_id: of the run, unique.
        kind: of run; each kind is pruned for itself.

    Returns:
        The directory.

    Raises:
        InputError: it cannot be made.
    """
    runs = state_home() / kind
    path = runs / f"{slugify(name)}-{run_id}"
    try:
        os.close(make_own_directory(runs))
        prune_run_directories(runs)
        _hold(path, make_own_directory(path))
    except OSError as error:
        raise InputError(
            f"run directory {path} cannot be made: {error.strerror}; set CACHEWATCH_STATE to a writable directory"
        ) from error
    return path


def release_run_directory(path: Path) -> None:
    """Let a run's directory be pruned from now on; without this, when the process ends.

    Args:
        path: what `make_run_directory` returned.
    """
    if (fd := _held.pop(path, None)) is not None:
        os.close(fd)


def prune_run_directories(runs: Path, keep: int = KEEP_RUNS, keep_s: float = KEEP_S) -> int:
    """Remove run directories beyond a count or an age, oldest first, but none of a run that is going on.

    Args:
        runs: the directory of run directories.
        keep: the most that are kept.
        keep_s: the longest that one is kept, in seconds.

    Returns:
        How many were removed.
    """
    found = []
    with os.scandir(runs) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another run's pruning was quicker
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


def _hold(path: Path, fd: int) -> None:
    """Mark a directory as a living run's: a long run outlasts many short ones."""
    if path in _held:
        os.close(fd)
    else:
        _held[path] = fd
        with contextlib.suppress(OSError):  # a file system without locks: as if nobody held it
            fcntl.flock(_held[path], fcntl.LOCK_SH | fcntl.LOCK_NB)


def _in_use(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
