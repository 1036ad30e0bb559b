"""Finds the lock files that a silent generator may wait for, and who holds or made each.

Those that its last lines name, those that it has open, those in the cache that are named as locks or that another
process has locked, and batons where builders leave them: its working directory and the user's cache. Whether it does wait
for one is judged by the rules.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from prefect_cachewatch.common.mounts import is_in, mount_of, read_mounts
from prefect_cachewatch.common.proc_locks import parse_locks
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.evidence.model import Evidence, FilesystemFacts, ProcessFacts
from prefect_cachewatch.supervise.filelocks import describe_holders, find_holders
from prefect_cachewatch.supervise.lockfiles import LockFile, find_lock_files, has_lock_name, look_at_lock
from prefect_cachewatch.supervise.proc import read_proc

_WAITS = re.compile(r"(?i)\b(?:wait|lock|acquir|block|held|busy|retry|baton|another process)")
_LOCK_WORD = re.compile(
    r"(?i)\b(?:lock|locked|baton|mutex|semaphore|acquir\w*|another (?:process|instance|run|worker|rank|build\w*))\b"
)
_HAS = re.compile(r"(?i)\b(?:acquired|created|released|removed|took|obtained)\b")
_HAS_NOT = re.compile(r"(?i)\b(?:not|cannot|can't|couldn't|never) (?:be )?(?:acquired|obtained)")
_PATH = re.compile(
    r"['\"]([^'\"/\n]{0,255}/[^'\"\n]{1,4000})['\"]|((?<![\w/])[\w.~-]{0,255}/[^\s'\"<>|,;()\[\]{}]{1,4000})"
)
# Of locks outside the cache: other names are left behind by locks of the kernel too.
_BATONS = ("lock", "baton")
_LAST_LINES = 20
_MOST = 50
_LOOK_S = 0.3


def named_locks(log_tail: str) -> tuple[str, ...]:
    """Find the files that the last lines of a log say it waits for, as a lock.

    Args:
        log_tail: the end of the log.

    Returns:
        Their paths as they are written, the last one first.

    Example:
        >>> named_locks("Still waiting to acquire lock on /hub/.locks/a.lock (elapsed: 20.1 seconds)\\n")
        ('/hub/.locks/a.lock',)
        >>> named_locks("The file lock '/my hub/a.lock' could not be acquired\\nLock 140 not acquired on /hub/b.lock, waiting 0.05 seconds")
        ('/hub/b.lock', '/my hub/a.lock')
        >>> named_locks("another process builds it: waiting for /c/pack_cpu/baton\\n")
        ('/c/pack_cpu/baton',)
        >>> named_locks("blocked: another process is building 'my pack/in progress'\\n")
        ('my pack/in progress',)
    """
    lines = [line[:5000] for line in log_tail.splitlines() if line.strip()][-_LAST_LINES:]
    found: list[str] = []
    for line in reversed(lines):
        if not _WAITS.search(line) or (_HAS.search(line) and not _HAS_NOT.search(line)):
            continue
        paths = [quoted or bare.rstrip(".:!?`") for quoted, bare in _PATH.findall(line)]
        found += [path for path in paths if has_lock_name(path) or _LOCK_WORD.search(line)]
    return tuple(dict.fromkeys(found))


def read_lock_files(
    known: Evidence, filesystems: Sequence[FilesystemFacts], tree: Mapping[int, ProcessFacts], locks_text: str = ""
) -> tuple[LockFile, ...]:
    """Look at the lock files that the log names, that the tree has open, and that lie in the cache directories.

    Only file systems that are known to answer are touched: those of the cache directories, once they did, and local ones.

    Args:
        known: the end of the log, and the file that grew last: its directory is looked through first.
        filesystems: what the cache directories' file systems answered.
        tree: its processes, with their open files.
        locks_text: /proc/locks.

    Returns:
        What was found of them; of each whether a process of the tree has it open.
    """
    mounts, tops = read_mounts(), {facts.path: facts for facts in filesystems}

    def may_be_asked(path: str) -> bool:
        top = next((facts for prefix, facts in tops.items() if is_in(path, prefix)), None)
        mount = mount_of(path, mounts)
        return top.responded if top is not None else mount is not None and not mount.is_network

    locked = {lock.inode: lock.mark for lock in parse_locks(locks_text) if not lock.waits and lock.exclusive}
    cwds = dict.fromkeys(process.cwd for process in tree.values() if process.cwd)
    # The log may name a lock by a path from the working directory.
    named = [os.path.normpath(os.path.join(cwd, name)) for name in named_locks(known.log_tail) for cwd in cwds or ["/"]]
    held = [file for process in tree.values() for file in process.files if file.kind == "file"]
    opened = [file.target for file in held if has_lock_name(file.target) or file.inode in locked]
    last = (*named, known.growth.last_path)
    directories = [os.path.dirname(path) for path in last if any(is_in(path, top) for top in tops)]
    below = find_lock_files([path for path in (*directories, *tops) if may_be_asked(path)], locked)
    shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    shared_locks = find_lock_files([shared], ()) if may_be_asked(shared) else iter(())
    batons = (path for path in shared_locks if os.path.basename(path) in _BATONS)
    beside = (f"{cwd}/{name}" for cwd in cwds for name in _BATONS)
    found: dict[str, LockFile] = {}
    for path in itertools.chain(named[:_MOST], opened[:_MOST], below, beside, batons):
        if len(found) >= _MOST:
            break
        lock = look_at_lock(path) if path not in found and may_be_asked(path) else None
        if lock is None or lock.pid in tree:  # a lock of the tree's own is not waited for
            continue
        in_use = any(file.target == path for file in held)
        lock = _with_holder(replace(lock, in_log=path in named, in_use=in_use), locked, tree)
        if lock is not None:
            found[path] = lock
    return tuple(found.values())


def _with_holder(lock: LockFile, locked: Mapping[int, str], tree: Collection[int]) -> LockFile | None:
    """Say who holds a lock file; None if the tree itself does, or the file is locked in another file system only."""
    mark = f"{os.major(lock.device):02x}:{os.minor(lock.device):02x}:{lock.inode}"
    if locked.get(lock.inode) == mark:
        try:
            holders = [each for each in find_holders(os.stat(lock.path), _LOOK_S) if each.exclusive]
        except OSError:
            return None
        if any(holder.pid in tree for holder in holders):
            return None
        who = describe_holders(holders) if holders else "a process that is not seen from here"
        return replace(lock, why_held=lock.why_held or "a process has locked it", holder=who)
    if lock.size_bytes and lock.path.lower().endswith(".incomplete"):
        return None  # a download that was cut short: data, and no lock
    if not has_lock_name(lock.path) and not lock.in_log:
        return lock if lock.pid is not None else None
    if lock.pid is None and lock.stale and (builder := _find_worker(os.path.dirname(lock.path), tree)) is not None:
        return replace(lock, why_held="a process works in its directory", holder=builder)
    return lock


def _find_worker(directory: str, tree: Collection[int]) -> str | None:
    """Find a process that is not of the tree and works in a directory: what it locks by a mere file shows nowhere else."""
    end_s = time.monotonic() + _LOOK_S
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in tree and time.monotonic() < end_s:
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if os.readlink(f"/proc/{name}/cwd") == directory:
                    return f"pid {name} ({for_terminal(os.fsdecode(read_proc(f'/proc/{name}/comm')).strip(), 40)})"
    return None
