"""State files of running guards: which processes belong to which run, for a janitor that comes after both guards died.

There is one file a run in `$XDG_STATE_HOME/cachewatch/runs`, mode 0600. The guards keep it locked (flock) as long as
one of them lives, and remove it when the tree is gone. It has JSON lines: a header, then one `[pid, start time]` for
each process. Standard library only. It sends no signals: see `janitor`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import FileRefused, make_own_directory, open_own_directory, state_directory
from prefect_cachewatch.common.parked import park
from prefect_cachewatch.supervise.proc import boot_id, namespace_of, read_stat
from prefect_cachewatch.supervise.run_updates import MAX_TREE

T = TypeVar("T")

SCHEMA = 1
SUFFIX = ".run"
_MAX_BYTES = 1 << 20
_RUN_TOKEN = re.compile(r"[0-9a-f]{32}")
_OPEN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO must not block


class RunFileRefused(Exception):
    """A file or directory that is not trusted; the message says why."""


@dataclass(frozen=True)
class RunFile:
    """The contents of a state file; each process is (pid, start time in clock ticks since boot)."""

    run_token: str
    boot_id: str
    machine: str
    pid_namespace: str
    flow: tuple[int, int]
    tree: tuple[tuple[int, int], ...]


def runs_directory(environ: Mapping[str, str] | None = None) -> str:
    """Return the directory of this user's state files.

    Args:
        environ: default `os.environ`.

    Returns:
        The path.

    Example:
        >>> runs_directory({"XDG_STATE_HOME": "/var/state"})
        '/var/state/cachewatch/runs'
    """
    return state_directory("runs", environ)


def open_runs_directory(path: str) -> int:
    """Open a directory of state files, provided that no other user could have written into it.

    Args:
        path: the directory.

    Returns:
        A descriptor.

    Raises:
        RunFileRefused: it is a symbolic link, belongs to another user, or is writable by others.
        OSError: it cannot be opened.
    """
    try:
        return open_own_directory(path)
    except FileRefused as error:
        raise RunFileRefused(str(error)) from error


def create_run_file(run_token: str, directory: str | None = None) -> tuple[int, str]:
    """Create the locked state file of a run that is about to start.

    Args:
        run_token: the run's identifier.
        directory: default `runs_directory()`; made if missing.

    Returns:
        A descriptor that holds the lock, parked, to be handed to the guards, and the path.

    Raises:
        OSError: it cannot be made.
        RunFileRefused: the directory is not trusted.
    """
    me = os.getpid()
    mine = read_stat(me)
    header = {
        "schema": SCHEMA,
        "run_token": run_token,
        "boot_id": boot_id(),
        "machine": machine_id(),
        "pid_namespace": pid_namespace(),
        "flow": [me, mine.start_ticks if mine else 0],
    }
    return create_locked(directory or runs_directory(), run_token + SUFFIX, header)


def create_locked(directory: str, name: str, header: Mapping[str, Any]) -> tuple[int, str]:
    """Create a locked file of one JSON line for a janitor.

    Args:
        directory: of such files; made if missing.
        name: of the file, new.
        header: its line.

    Returns:
        A descriptor that holds the lock, parked (see `common.parked`), and the path.

    Raises:
        OSError: it cannot be made.
        RunFileRefused: the directory is not trusted.
    """
    try:
        here = make_own_directory(directory)
    except FileRefused as error:
        raise RunFileRefused(str(error)) from error
    with Opened(here):
        # Not `write_entry`: the file is locked before it gets its name, and stays open so that the guards can write to
        # it.
        fd = os.open("." + name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FILE, 0o600, dir_fd=here)
        try:
            # Locked and written before it gets its name: a janitor never sees it unlocked or empty.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, json.dumps(header).encode() + b"\n")
            os.rename("." + name, name, src_dir_fd=here, dst_dir_fd=here)
            return park(fd), os.path.join(directory, name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink("." + name, dir_fd=here)
            os.close(fd)
            raise


def read_each_file(
    directory: str, suffix: str, read: Callable[[str, bytes, int, int], T]
) -> tuple[list[T], list[tuple[str, str]]]:
    """Read all files of one kind in a directory of state files; a missing directory counts as empty.

    Args:
        directory: of the files.
        suffix: of their names.
        read: gets name, content, descriptor and the directory's descriptor; raises FileNotFoundError if the run has
            ended.

    Returns:
        The results in order of the names, and path and reason of each file that is not trusted or cannot be read.
    """
    found: list[T] = []
    refused: list[tuple[str, str]] = []

    def note(path: str, error: Exception) -> None:
        refused.append((path, f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)))

    try:
        here = open_runs_directory(directory)
    except FileNotFoundError:
        return found, refused
    except (OSError, RunFileRefused) as error:
        note(directory, error)
        return found, refused
    with Opened(here):
        for name in sorted(os.listdir(here)):
            if name.startswith(".") or not name.endswith(suffix):
                continue
            try:
                fd, data = read_run_file(name, here)
                with Opened(fd):
                    found.append(read(name, data, fd, here))
            except FileNotFoundError:
                continue
            except (OSError, RunFileRefused) as error:
                note(os.path.join(directory, name), error)
    return found, refused


def read_run_file(name: str, directory_fd: int) -> tuple[int, bytes]:
    """Open a state file for a janitor; its contents are not checked yet.

    Args:
        name: in the directory.
        directory_fd: from `open_runs_directory`.

    Returns:
        A descriptor and the content.

    Raises:
        RunFileRefused: it is not a plain private file of this user.
        OSError: it has gone, or cannot be opened.
    """
    status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise RunFileRefused("it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise RunFileRefused("it is not a regular file")
    fd = os.open(name, os.O_RDWR | _OPEN_FILE, dir_fd=directory_fd)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RunFileRefused("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise RunFileRefused(f"it belongs to uid {status.st_uid}")
        if status.st_mode & 0o077:
            raise RunFileRefused(f"others have access to it (mode {status.st_mode & 0o777:04o})")
        if status.st_nlink > 1:
            raise RunFileRefused("it has another hard link")
        if status.st_size > _MAX_BYTES:
            raise RunFileRefused(f"it is too large for a state file ({status.st_size} bytes)")
        return fd, os.pread(fd, _MAX_BYTES, 0)
    except BaseException:
        os.close(fd)
        raise


def parse_run_file(data: bytes, name: str) -> RunFile:
    """Read a state file's text.

    Args:
        data: its content.
        name: the file's name, which must match its run_token.

    Returns:
        Its contents; a process line that is cut short is left out.

    Raises:
        RunFileRefused: it is not a state file of ours.
    """
    first, _, rest = data.partition(b"\n")
    try:
        header: Any = json.loads(first)
        if header["schema"] != SCHEMA:
            raise RunFileRefused(f"its schema is {str(header['schema'])[:20]}, and this version knows {SCHEMA}")
        run_token = header["run_token"]
        texts = [header[key] for key in ("boot_id", "machine", "pid_namespace")]
        flow = _identity(header["flow"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFileRefused("its first line is not the header of a state file") from error
    if flow is None or not all(isinstance(text, str) for text in texts):
        raise RunFileRefused("its first line is not the header of a state file")
    if not isinstance(run_token, str) or not _RUN_TOKEN.fullmatch(run_token) or name != run_token + SUFFIX:
        raise RunFileRefused("its name is not that of the run it describes")
    tree = []
    for line in rest.split(b"\n")[: MAX_TREE + 1]:
        with contextlib.suppress(ValueError, RecursionError):
            if (found := _identity(json.loads(line))) is not None:
                tree.append(found)
    boot, machine, namespace = texts
    return RunFile(run_token, boot, machine, namespace, flow, tuple(dict.fromkeys(tree)))


def machine_id() -> str:
    """Read this machine's identifier, since machines may share a home directory; empty if there is none."""
    try:
        with open("/etc/machine-id") as file:
            return file.read(100).strip() or os.uname().nodename
    except OSError:
        return os.uname().nodename


def pid_namespace() -> str:
    """Name this process's pid namespace: in another namespace the same pid means another process."""
    return namespace_of("self", "pid")


def _identity(value: Any) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        pid, ticks = value
        if 1 < pid < 1 << 22 and ticks >= 0:
            return pid, ticks
    return None
