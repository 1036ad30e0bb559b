"""Lists the files that a process has open, from /proc alone: a file system that hangs is never asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prefect_cachewatch.supervise.proc import read_proc

FileKind = Literal["file", "directory", "pipe", "socket", "tty", "device", "anon"]
Access = Literal["r", "w", "rw", ""]
_PLAIN_DEVICES = ("null", "zero", "full", "random", "urandom", "fuse")
_TERMINALS = ("tty", "pts/", "ptmx", "console")
_MEMORY_BELOW_DEV = ("shm/", "mqueue/", "hugepages/")
_ACCESS: tuple[Access, ...] = ("r", "w", "rw", "")


@dataclass(frozen=True)
class OpenFile:
    """One open descriptor. A FIFO counts as a pipe. Size and age come from the file system, if it answered."""

    fd: int
    target: str
    kind: FileKind
    access: Access = ""
    position_bytes: int | None = None
    in_cache: bool = False
    inode: int | None = None
    size_bytes: int | None = None
    changed_age_s: float | None = None


def list_open_files(pid: int, cache_dirs: Sequence[str], limit: int = 256) -> tuple[tuple[OpenFile, ...], int | None]:
    """List the open descriptors of a process from /proc alone.

    Args:
        pid: the process.
        cache_dirs: absolute directories; files below them are marked.
        limit: the most descriptors that are described.

    Returns:
        The files in order of their descriptors, and their total number (None: not permitted to read it).
    """
    try:
        fds = sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return (), None
    return tuple(f for fd in fds[:limit] if (f := _describe(pid, fd, cache_dirs))), len(fds)


def open_for_writing(pids: Iterable[int], cache_dirs: Sequence[str]) -> set[str]:
    """List the files below some directories that processes have open for writing, from /proc alone."""
    files = [file for pid in pids for file in list_open_files(pid, cache_dirs)[0]]
    return {file.target for file in files if file.in_cache and file.kind == "file" and "w" in file.access}


def _describe(pid: int, fd: int, cache_dirs: Sequence[str]) -> OpenFile | None:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None
    info: dict[bytes, bytes] = {}
    for line in read_proc(f"/proc/{pid}/fdinfo/{fd}", 4096).splitlines():
        key, _, value = line.partition(b":")
        info.setdefault(key, value.strip())
    flags = int(info.get(b"flags", b"0"), 8)
    inode = info.get(b"ino")
    number = int(inode) if inode else None
    kind: FileKind = "file"
    prefix, bracket, rest = target.partition(":[")
    if bracket and prefix in ("pipe", "socket"):
        kind = "pipe" if prefix == "pipe" else "socket"
        number = int(rest.rstrip("]"))
    elif target.startswith("anon_inode:") or not target.startswith("/"):
        kind = "anon"
    elif target.startswith("/dev/") and not target.startswith(_MEMORY_BELOW_DEV, 5):
        kind = "tty" if target.startswith(_TERMINALS, 5) else "anon" if target[5:] in _PLAIN_DEVICES else "device"
    elif flags & os.O_DIRECTORY:
        kind = "directory"
    return OpenFile(
        fd,
        target,
        kind,
        _ACCESS[flags & 3],
        int(info.get(b"pos", b"0")) if kind == "file" else None,
        any(target == top or target.startswith(top.rstrip("/") + "/") for top in cache_dirs),
        number,
    )
