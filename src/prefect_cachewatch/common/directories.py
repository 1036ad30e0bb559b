"""Opens the path to a file, directory by directory, and follows no link that another user planted.

A directory of ours belongs to this user, is not writable for others, and is no link. Below a directory on the way that
every user may write to, the next entry must belong to this user or root. Standard library only and cheap to import.
`files` does the writing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Stands for the cache directory in a command, an environment variable or a path.
CACHE_DIR_PLACEHOLDER = "{cache_dir}"
_LINKS_MAX = 40  # the kernel's limit


class FileRefused(OSError):
    """A path that is not trusted; `strerror` gives the reason, as part of a sentence that begins with the path."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(errno.EPERM, why, path)

    def __str__(self) -> str:
        """The reason alone, since the message that shows it names the path."""
        return str(self.strerror)

    def __reduce__(self) -> tuple[type[FileRefused], tuple[str, str]]:
        """Survive pickle with both parts."""
        return type(self), (str(self.strerror), str(self.filename or ""))


def open_directory_entry(path: str | os.PathLike[str], *, follow: bool = True, make: bool = False) -> tuple[int, str]:
    """Open the directory that holds a path's last part, resolving links step by step.

    A link is followed by the rule of the kernel's protected_symlinks, whatever the kernel's setting: a link that
    another user made in a sticky directory where every user may write is refused.

    Args:
        path: absolute, or relative to the working directory.
        follow: resolve the last part too if it is a link; a link in /proc is not, since its text is not a path.
        make: make the directories that are missing, for this user only.

    Returns:
        A descriptor of the directory (O_PATH, for the calls that take `dir_fd`) and the name in it, which may not
        exist.

    Raises:
        FileRefused: another user planted a link.
        OSError: there is no such directory, or the path's form names a directory (`/`, `..`, a trailing slash).
    """
    text = os.fsdecode(os.fspath(path))
    if not text:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
    # Resolving magic links (/proc/self/fd/1 -> "pipe:[7]") by their text would write a file of that name.
    proc = _device("/proc")
    here = os.open("/" if text.startswith("/") else ".", _WAY)
    todo = _parts(text)
    links = 0
    if not todo or todo[0] == ".." or text.endswith(("/", "/.")):
        os.close(here)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
    try:
        while True:
            name = todo.pop()
            try:
                entry = os.stat(name, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                if not todo:
                    return here, name
                if not make:
                    raise
                _make_below(here, name)
                entry = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(entry.st_mode) and (todo or follow):
                if entry.st_dev == proc and not _is_text(here, name):
                    if not todo:
                        return here, name
                    here = _step(here, name, follow=0)
                    continue
                refuse_planted(entry, os.fstat(here), "the link on the way to it", text)
                links += 1
                if links > _LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), text)
                target = os.readlink(name, dir_fd=here)
                todo += _parts(target)
                if target.startswith("/"):
                    here = _step(here, "/")
                if not todo:  # a link to / itself
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
                continue
            if not todo:
                if name == "..":
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
                return here, name
            here = _step(here, name)
    except BaseException:
        os.close(here)
        raise


def refuse_planted(entry: os.stat_result, directory: os.stat_result, what: str, path: str) -> None:
    """Refuse an entry that another user made in a sticky directory where every user may write.

    Args:
        entry: status of the file or link.
        directory: status of the directory that holds it.
        what: kind of entry, for the message.
        path: for the error.

    Raises:
        FileRefused: another user made it.
    """
    shared = stat.S_ISVTX | stat.S_IWOTH
    if directory.st_mode & shared == shared and entry.st_uid not in (os.geteuid(), directory.st_uid):
        raise FileRefused(
            f"{what} belongs to uid {entry.st_uid} and lies in a directory where everybody may write", path
        )


def open_own_directory(path: str | os.PathLike[str]) -> int:
    """Open a directory of ours, provided that no other user could have written into it or put it there.

    Returns:
        A descriptor, which can be read from too.

    Raises:
        FileRefused: it is a link, no directory, or another user's, or others may write into it or on the way to it.
        OSError: it does not exist, or cannot be opened.
    """
    return _open_own(os.fspath(path), make=False)


def make_own_directory(path: str | os.PathLike[str]) -> int:
    """Open a directory of ours as `open_own_directory` does; make it and its parents, private, if they are missing.

    Returns:
        A descriptor, which can be read from too.

    Raises:
        FileRefused: it is not trusted.
        OSError: it cannot be made or opened.
    """
    return _open_own(os.fspath(path), make=True)


def _open_own(path: str, make: bool) -> int:
    path = os.path.abspath(path)
    _refuse_shared_way(path)
    if make:
        # Pretend to open a file below it, so that the directory itself is made by the rule for its parents.
        os.close(open_directory_entry(os.path.join(path, "x"), follow=False, make=True)[0])
        _refuse_shared_way(path)
    here, name = open_directory_entry(path, follow=False)
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=here)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        entry = os.stat(name, dir_fd=here, follow_symlinks=False)
        kind = "a symbolic link" if stat.S_ISLNK(entry.st_mode) else "not a directory"
        raise FileRefused(f"it is {kind}", path) from None
    finally:
        os.close(here)
    status = os.fstat(fd)
    why = ""
    if status.st_uid != os.geteuid():
        why = f"it belongs to uid {status.st_uid}, and this is uid {os.geteuid()}"
    elif status.st_mode & 0o022:
        why = "others may write into it"
    if why:
        os.close(fd)
        raise FileRefused(why, path)
    return fd


def _refuse_shared_way(path: str) -> None:
    """Refuse a path on which another user has made a directory inside one where every user may write.

    A home directory of another user (sudo with the caller's HOME, a container's home) stays usable.
    """
    at, shared = "/", False
    for part in [*reversed(_parts(os.path.realpath(os.path.dirname(path)))), ""]:
        try:
            status = os.stat(at, follow_symlinks=False)
        except FileNotFoundError:
            return  # we make what does not exist
        if shared and status.st_uid not in (0, os.geteuid()):
            raise FileRefused(f"it lies below {at}, which uid {status.st_uid} made where everybody may write", path)
        shared = bool(status.st_mode & stat.S_IWOTH)
        at = os.path.join(at, part)


def _make_below(here: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        return  # another process of ours made it first, or it is judged like any other entry


def _step(here: int, name: str, follow: int = os.O_NOFOLLOW) -> int:
    """Open a directory below and close the one before; a link that took its place meanwhile is not followed."""
    below = os.open(name, _WAY | follow, dir_fd=here)
    os.close(here)
    return below


def _parts(path: str) -> list[str]:
    """Split a path into its parts, in reverse order."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _is_text(here: int, name: str) -> bool:
    """Say whether a link in /proc is an ordinary path: /proc/self, thread-self, mounts, net."""
    return name in ("self", "thread-self", "mounts", "net") and not os.readlink(name, dir_fd=here).startswith("/")


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def state_directory(name: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Return this user's state directory.

    It is `$CACHEWATCH_STATE`, `$XDG_STATE_HOME/cachewatch` or `~/.local/state/cachewatch`.

    Args:
        name: a subdirectory of it.
        environ: default `os.environ`; XDG_STATE_HOME counts only if it is absolute.

    Returns:
        The path.

    Example:
        >>> state_directory("runs", {"XDG_STATE_HOME": "/var/state"})
        '/var/state/cachewatch/runs'
    """
    env = os.environ if environ is None else environ
    if own := env.get("CACHEWATCH_STATE"):
        return os.path.normpath(os.path.join(os.path.abspath(own), name))
    state = env.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.normpath(os.path.join(state, "cachewatch", name))
