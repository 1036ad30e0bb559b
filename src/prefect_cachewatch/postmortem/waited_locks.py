"""Finds the lock files that a generator may wait for: those that its log names, and those in the cache without a holder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.postmortem.model import FilesystemFacts
from prefect_cachewatch.supervise.lockfiles import LockFile, find_lock_files, look_at_lock

# Hugging Face's hub: "Still waiting to acquire lock on X (elapsed: 20.1 seconds)"; filelock: "The file lock 'X' could not
# be acquired", "Lock 140 not acquired on X, waiting 0.05 seconds".
_NAMED = re.compile(
    r"(?i)(?:wait\w*|acquir\w*)\b[^/\n]{0,100}(/[^'\"\n]{1,4000}?\.lock)\b|lock ['\"]?(/[^'\"\n]{1,4000}?\.lock)\b.{0,3}(?:could not|cannot) be acquired"
)
_LAST_LINES = 20
_MOST = 50


def named_locks(log_tail: str) -> tuple[str, ...]:
    """Find the lock files that the last lines of a log say it waits for.

    Args:
        log_tail: the end of the log.

    Returns:
        Their paths, the last one first.

    Example:
        >>> named_locks("Still waiting to acquire lock on /hub/.locks/a.lock (elapsed: 20.1 seconds)\\n")
        ('/hub/.locks/a.lock',)
    """
    lines = [line for line in log_tail.splitlines() if line.strip()][-_LAST_LINES:]
    found = (match[1] or match[2] for line in reversed(lines) for match in _NAMED.finditer(line[:5000]))
    return tuple(dict.fromkeys(found))


def read_lock_files(log_tail: str, filesystems: Sequence[FilesystemFacts]) -> tuple[LockFile, ...]:
    """Look at the lock files that the log names, and for stale ones in the cache directories.

    Args:
        log_tail: the end of the log.
        filesystems: of the cache directories; those that have not answered are left alone.

    Returns:
        Those that the log names, then stale ones that it does not name.
    """
    tops = {facts.path.rstrip("/") + "/": facts for facts in filesystems}
    mounts = read_mounts()
    found: dict[str, LockFile] = {}
    for path in named_locks(log_tail)[:_MOST]:
        top = next((facts for prefix, facts in tops.items() if path.startswith(prefix)), None)
        mount = mount_of(path, mounts)
        if (top.responded if top is not None else mount is not None and not mount.is_network) and (
            lock := look_at_lock(path)
        ):
            found[path] = replace(lock, in_log=True)
    for facts in filesystems:
        mount = mount_of(facts.path, mounts)
        if not facts.responded or mount is None or mount.is_network:
            continue
        for path in find_lock_files(facts.path):
            if path not in found and (lock := look_at_lock(path)) is not None and lock.stale:
                found[path] = lock
            if len(found) >= _MOST:
                break
    return tuple(found.values())
