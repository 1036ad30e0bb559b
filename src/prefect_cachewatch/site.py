"""Pre-flight: cache directories looked at, locked and measured, before anything is started.

A `CacheSite` is what one job holds while it runs: resolved directories, a lock on each by
descriptor, and the scan process. Whatever is wrong is one sentence, and nothing was touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from prefect_cachewatch.errors import (
    CacheDirectoryBusy,
    CacheDirectoryError,
    CommandError,
    ScanError,
    ScanTimeout,
)
from prefect_cachewatch.measure.mounts import Mount, mount_of, read_mounts
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.supervise.proc import command_line
from prefect_cachewatch.text import for_terminal, redact_argv
from prefect_cachewatch.units import format_bytes

__all__ = ["CacheSite", "check_command"]

_CHECK_TIMEOUT_S = 10.0
_LEAST_FREE_BYTES = 1 << 20


def check_command(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    """See that a command can be executed, as execvp(3) would look for it.

    Args:
        command: argv.
        env: the environment it will get; its PATH is searched.
        cwd: its working directory, None for the present one.

    Raises:
        CommandError: not found (exit code 127), not executable (126), or the working directory is wrong (125).
    """
    if cwd is not None and not Path(cwd).is_dir():
        raise CommandError(f"working directory {for_terminal(cwd)} is not a directory: create it first", exit_code=125)
    program, shown = command[0], for_terminal(command[0])
    if "/" not in program:
        import shutil  # noqa: PLC0415 - brings three compression libraries along

        search = env.get("PATH", os.defpath)
        if shutil.which(program, path=search) is None:
            found = next((p for d in search.split(os.pathsep) if (p := Path(cwd or ".", d, program)).is_file()), None)
            if found is not None:
                raise CommandError(
                    f"command {for_terminal(str(found))!r} is not executable: chmod +x it, or name its interpreter first",
                    exit_code=126,
                )
            raise CommandError(
                f"command {shown!r} not found in PATH: check its name, or give its full path", exit_code=127
            )
        return
    path = Path(cwd or ".") / program
    if not path.exists():
        raise CommandError(f"command {shown!r} does not exist: check the path", exit_code=127)
    if path.is_dir() or not os.access(path, os.X_OK):
        raise CommandError(
            f"command {shown!r} is not executable: chmod +x it, or name its interpreter first", exit_code=126
        )


class CacheSite:
    """The directories of one job, held from pre-flight to the last attempt's end.

    Args:
        cache_dirs: absolute paths.
        ignore: globs that never count.
        create: whether missing directories are made.
        expected_bytes: size of the finished cache, if known; more than what is free is refused.
        deadline_s: least deadline of a scan.
        lock: whether the directories are locked against other jobs; not for work that somebody else does.
        scanner: makes what measures them, given the least deadline; default a process on this host.

    Raises:
        CacheDirectoryError: a directory cannot be used; `CacheDirectoryBusy` if another job holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d, CacheSite([Path(d) / "cache"]) as site:
        ...     site.paths == [str(Path(d).resolve() / "cache")]
        True
    """

    def __init__(
        self,
        cache_dirs: Sequence[Path],
        *,
        ignore: Sequence[str] = (),
        create: bool = True,
        expected_bytes: int | None = None,
        deadline_s: float = 10.0,
        lock: bool = True,
        scanner: Callable[[float], DirectoryScanner] = DirectoryScanner,
    ) -> None:
        self.ignore = list(ignore)
        self._make_scanner = scanner
        self.scanner = scanner(deadline_s)
        self._closed = False
        self._watched_only = not lock
        self._deadline_s = deadline_s
        self.paths: list[str] = []
        self.lock_fds: list[int] = []
        self.mounts: dict[str, Mount | None] = {}
        try:
            self._check(list(dict.fromkeys(map(str, cache_dirs))), create, expected_bytes)
            for path in self.paths if lock else ():
                self.lock_fds.append(_lock(path))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CacheSite:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def on_network(self) -> bool:
        """Whether a file's times may come from another machine's clock."""
        return any(mount is not None and mount.is_network for mount in self.mounts.values())

    def begin(self) -> dict[str, Any]:
        """Take the start of an attempt: what is there now is no growth.

        Returns:
            The scan process's answer.

        Raises:
            CacheDirectoryError: the directories cannot be measured at all.
        """
        try:
            # A first scan of a cold tree may take minutes; nothing is running yet that could hang unseen.
            answer = self.scanner.request(
                "begin", max(self.scanner.deadline_s, 120.0), roots=self.paths, ignore=self.ignore
            )
        except ScanError as error:
            raise CacheDirectoryError(f"{self._names()} cannot be measured: {error.message}") from error
        for root in answer["roots"]:
            if root["missing"] or root["error"]:
                shown = for_terminal(root["path"])
                raise CacheDirectoryError(
                    f"cache directory {shown} cannot be measured: {root['error']}", path=root["path"]
                )
        return answer

    def restart_scanner(self) -> None:
        """Replace a scan process that has died; never one that is stuck, and none after the end."""
        if self._closed:
            return
        self.scanner.close()
        self.scanner = self._make_scanner(self._deadline_s)

    def clean(self) -> dict[str, Any]:
        """Remove what the attempts so far wrote: files and directories that were not there before the first.

        Returns:
            `removed` (files), `freed_bytes`, `problems`.
        """
        return self.scanner.request("clean", 600.0)

    def close(self) -> None:
        """Let go of the locks and the scan process."""
        self._closed = True
        self.scanner.close()
        while self.lock_fds:
            os.close(self.lock_fds.pop())

    def _names(self) -> str:
        names = ", ".join(for_terminal(path) for path in self.paths)
        return f"cache directory {names}" if len(self.paths) == 1 else f"cache directories {names}"

    def _check(self, paths: Sequence[str], create: bool, expected_bytes: int | None) -> None:
        mounts = read_mounts()
        missing = []
        for path in paths:
            answer = self._ask(path, create=False, count=expected_bytes is not None)
            resolved = answer["path"]
            _refuse_special(path, resolved, mounts)
            if answer.get("missing") and create:
                missing.append(path)
            elif answer["error"]:
                raise CacheDirectoryError(answer["error"], path=path)
            else:
                self._check_space(path, answer, expected_bytes)
            self.mounts[resolved] = mount_of(resolved, mounts)
            if resolved not in self.paths:
                self.paths.append(resolved)
        for path in missing:
            answer = self._ask(path, create=True)
            if answer["error"]:
                raise CacheDirectoryError(answer["error"], path=path)
            self._check_space(path, answer, expected_bytes)

    def _ask(self, path: str, create: bool, count: bool = False) -> dict[str, Any]:
        shown = for_terminal(path)
        try:
            answer = self.scanner.request(
                "check", _CHECK_TIMEOUT_S, path=path, create=create, count=count, writable=not self._watched_only
            )
        except ScanTimeout as error:
            raise CacheDirectoryError(
                f"cache directory {shown} does not answer within {_CHECK_TIMEOUT_S:.0f} s: "
                "its file system hangs; check the mount",
                path=path,
            ) from error
        except ScanError as error:
            raise CacheDirectoryError(f"cache directory {shown} cannot be used: {error.message}", path=path) from error
        if answer["error"]:
            answer["error"] = answer["error"].replace(path, shown)
        return answer

    def _check_space(self, path: str, answer: Mapping[str, Any], expected_bytes: int | None) -> None:
        if self._watched_only:
            return  # it runs already: a full disk is a cause to be named, no reason not to look
        free, inodes, shown = answer["free_bytes"], answer["free_inodes"], for_terminal(path)
        if free < _LEAST_FREE_BYTES:
            raise CacheDirectoryError(
                f"the file system of cache directory {shown} is full ({format_bytes(free)} free): make room first",
                path=path,
            )
        if inodes is not None and inodes < 1:
            raise CacheDirectoryError(
                f"the file system of cache directory {shown} has no free inodes: remove files first",
                path=path,
            )
        if expected_bytes is not None and free + answer["present_bytes"] < expected_bytes:
            raise CacheDirectoryError(
                f"cache directory {shown} needs {format_bytes(expected_bytes)} (expected_bytes), and its file system has "
                f"{format_bytes(free)} free: make room, or choose another directory",
                path=path,
            )


def _refuse_special(path: str, resolved: str, mounts: Sequence[Mount]) -> None:
    shown = for_terminal(path)
    what = None
    home = {os.path.realpath(home) for home in (os.environ.get("HOME"), os.path.expanduser("~")) if home}
    if resolved == "/":
        what = "the root directory"
    elif resolved in home:
        what = "the home directory"
    elif any(mount.mount_point == resolved for mount in mounts):
        what = "the root of a mounted file system"
    if what:
        raise CacheDirectoryError(
            f"cache directory {shown} is {what}: give the cache a directory of its own below it", path=path
        )


def _lock(path: str) -> int:
    """Take the directory's lock: flock on its own descriptor, so that no lock file is left in a cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK, errno.EISDIR):
                raise
            # NFS makes flock a byte-range lock, which needs a file open for writing; *.lock never counts as growth.
            file = os.open(".cachewatch.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=fd)
            os.close(fd)
            fd = file
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(os.fstat(fd))
        os.close(fd)
        from prefect_cachewatch.servers import find_server_on  # noqa: PLC0415 - seldom, and it brings pydantic along

        if (server := find_server_on(path)) is not None:
            raise CacheDirectoryBusy(
                f"cache directory {for_terminal(path)} is in use by server {for_terminal(server.name, 100)} ({server.who}), "
                f"which was left running: stop it first with {server.stop_command}, or use another directory",
                path=path,
                holder_pid=server.pid,
            ) from None
        raise CacheDirectoryBusy(
            f"cache directory {for_terminal(path)} is in use by another job{_describe(holder)}: "
            "wait for it to end, or use another directory",
            path=path,
            holder_pid=holder,
        ) from None
    except OSError as error:
        os.close(fd)
        raise CacheDirectoryError(
            f"cache directory {for_terminal(path)} cannot be locked: {error.strerror}", path=path
        ) from error
    return fd


def _holder(status: os.stat_result) -> int | None:
    mark = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if mark in fields and "FLOCK" in fields and "->" not in fields:
                return int(fields[4])
    return None


def _describe(pid: int | None) -> str:
    if pid is None or pid <= 0:
        return ""
    argv = command_line(pid)
    if not argv:
        return f" (pid {pid}, which has ended; its process tree is still being stopped)"
    return f" (pid {pid}: {for_terminal(' '.join(redact_argv(argv)), 120)})"
