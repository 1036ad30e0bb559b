"""Checks, with a deadline, the directories that Prefect reads when it is imported, and the one that keeps the runs."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from prefect_cachewatch.common.aside import Files, look_ahead
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError

_HOME_BYTES, _STATE_BYTES = 1 << 20, 1 << 16  # a new database of Prefect's; the first files of a run
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


def require_places(files: Files) -> None:
    """Check that Prefect's home, state and working directory answer, and that the first two can be written to.

    Args:
        files: the helper process that looks.

    Raises:
        InputError: one does not answer, or cannot be written to.
    """
    home, unless = prefect_home()
    _require(files, "Prefect's home", home, "PREFECT_HOME", _HOME_BYTES, unless)
    _require(files, "state directory", state_home(), "CACHEWATCH_STATE", _STATE_BYTES)
    with contextlib.suppress(FileNotFoundError):  # removed; a later check reports it
        here = Path.cwd()
        what = f"working directory {here}"
        look_ahead(
            files, what, os.path.lexists, here / ".cachewatch", instead="check the mount, or change to another one"
        )


def prefect_home() -> tuple[Path, Path]:
    """Return Prefect's home, and the path that need only be there for Prefect to do without a home that it can write to."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    # With a configured API, in a profile perhaps, it does.
    served = os.environ.get("PREFECT_API_URL") or os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL")
    return home, home if served else home / "profiles.toml"


def _require(files: Files, what: str, path: Path, variable: str, room_bytes: int, unless: Path | None = None) -> None:
    path = path.absolute()
    named = f"{what} {path}"
    elsewhere = f"check the mount, or set {variable} to a directory elsewhere"
    try:
        if unless is not None and look_ahead(files, named, os.path.lexists, unless.absolute(), instead=elsewhere):
            return
        look_ahead(files, named, try_to_write, str(path), room_bytes, instead=elsewhere)
    except OSError as error:
        why = f"cannot be used: {error.strerror}; set {variable} to a directory that can be written to"
        raise InputError(f"{for_terminal(named, 4096)} {why}") from error


def try_to_write(path: str, room_bytes: int) -> None:
    """Write to a directory, or to the place where it would be made, without leaving a trace.

    Args:
        path: absolute; it need not exist.
        room_bytes: how much must fit.

    Raises:
        OSError: it is no directory, cannot be written to, or has no room.
    """
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    directory_fd = os.open(path, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory_fd)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None
        return
    finally:
        os.close(directory_fd)
    with open(fd, "wb", buffering=0) as file:
        while room_bytes > 0:
            room_bytes -= file.write(bytes(min(room_bytes, 1 << 16)))
