"""The file with the longest silences of a job's completed runs: beside the cache or in its store, for every worker.

One JSON line a run, the newest last. Writers on several machines append under a lock; a long file is replaced by its
newer half in one step. Whatever else stands in it is skipped: others may write there, and no window that is learned
from it is shorter than the floor. The functions are called in the file server. It makes no decision (see
`watching.learned`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import time
from dataclasses import asdict, fields
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import FileRefused, open_directory_entry, refuse_planted
from prefect_cachewatch.common.files import PUBLIC, write_all, write_entry
from prefect_cachewatch.watching.learned import PAUSES, PastPauses

_MOST_BYTES = 256 << 10
_LINE_BYTES = 1024
_LONGEST_S = 366 * 86400.0
_LOCK_S, _AGAIN_S = 2.0, 0.02
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def find_pauses_file(directory: str) -> str:
    """Choose the file for a cache directory: hidden beside it, or in it where it is a mount of its own.

    Args:
        directory: absolute, existing.

    Returns:
        The path; the file need not exist.
    """
    parent, name = os.path.split(directory)
    # Beside a mount point it would lie on this machine's own disk, where no other worker finds it.
    beside = os.stat(parent).st_dev == os.stat(directory).st_dev and os.access(parent, os.W_OK | os.X_OK)
    return f"{parent}/.{name}{PAUSES}" if beside else f"{directory}/{PAUSES}"


def read_runs(path: str, job: str) -> list[tuple[bool, PastPauses]]:
    """Read the completed runs of a job, the newest last.

    Args:
        path: of the file.
        job: its fingerprint.

    Returns:
        Of each run whether its cache had bytes in it at the start, and its silences; none if there is no file.

    Raises:
        OSError: it cannot be read, or is not a file of ours.
    """
    try:
        with Opened(_open(path, _FLAGS & ~(os.O_RDWR | os.O_APPEND))) as fd:
            data = _last_bytes(fd)
    except FileNotFoundError:
        return []
    return [run for line in data.split(b"\n") if (run := _run_of(line, job)) is not None]


def add_run(path: str, job: str, warm: bool, silences: PastPauses, ended_at: str) -> None:
    """Add a completed run.

    Args:
        path: of the file; its directory must exist.
        job: the job's fingerprint.
        warm: whether the cache had bytes in it at the start.
        silences: the longest silence of each phase.
        ended_at: ISO 8601, for people.

    Raises:
        OSError: it cannot be written, or is not a file of ours.
    """
    times = {
        name: None if value is None else math.ceil(1000 * value) / 1000 for name, value in asdict(silences).items()
    }
    line = json.dumps({"job": job, "warm": warm, "ended_at": ended_at, **times}).encode("ascii") + b"\n"
    end_s = time.monotonic() + _LOCK_S
    while True:
        with Opened(_open(path, _FLAGS | os.O_CREAT)) as fd:
            alone = _lock(fd, end_s)
            if alone and not _is_at(fd, path) and time.monotonic() < end_s:
                continue  # another writer has replaced it meanwhile
            data = _last_bytes(fd)
            if data and not data.endswith(b"\n"):  # a line that a crash has cut must not spoil this one
                line = b"\n" + line
            # Without a lock a line of another writer may be lost with it: better than a file that never ends.
            if os.fstat(fd).st_size > (_MOST_BYTES if alone else 2 * _MOST_BYTES):
                here, name = open_directory_entry(path, follow=False)
                with Opened(here):
                    write_entry(here, name, data[data.find(b"\n", len(data) // 2) + 1 :] + line, mode=PUBLIC)
            else:
                write_all(fd, line)
            return


def _open(path: str, flags: int) -> int:
    here, name = open_directory_entry(path, follow=False)
    with Opened(here):
        fd = os.open(name, flags, PUBLIC, dir_fd=here)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise FileRefused("it is not a regular file with one name", path)
            refuse_planted(status, os.fstat(here), "it", path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _lock(fd: int, end_s: float) -> bool:
    """Lock it until it is closed; false if the file system has no locks, or another writer hangs."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or time.monotonic() > end_s:
                return False
        time.sleep(_AGAIN_S)


def _is_at(fd: int, path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    return False


def _last_bytes(fd: int) -> bytes:
    size, data = os.fstat(fd).st_size, b""
    at = max(0, size - _MOST_BYTES)
    while len(data) < _MOST_BYTES and (piece := os.pread(fd, _MOST_BYTES - len(data), at + len(data))):
        data += piece
    return data


def _run_of(line: bytes, job: str) -> tuple[bool, PastPauses] | None:
    if len(line) > _LINE_BYTES:
        return None
    try:
        found = json.loads(line)
        if found["job"] != job or not isinstance(found["warm"], bool):
            return None
        return found["warm"], PastPauses(**{field.name: _seconds(found[field.name]) for field in fields(PastPauses)})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise ValueError("no time in seconds")
    return float(value)
