"""Pre-flight: cache directories are checked, locked and measured before the generator is started.

A `CacheDirectories` holds the resources of one job while it runs: resolved directories, a lock on each by
descriptor, and the scan process. An error is one sentence, and then nothing was changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.aside import Files, InPlace
from prefect_cachewatch.common.closing import Closing
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.files import LOCK_FILE
from prefect_cachewatch.common.locks import try_lock
from prefect_cachewatch.common.mounts import Mount, mount_of, read_mounts
from prefect_cachewatch.common.parked import park
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import (
    CacheDirectoryBusy,
    CacheDirectoryError,
    CommandError,
    ScanError,
    ScanTimeout,
)
from prefect_cachewatch.measure.growth import Rewriting
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.supervise.filelocks import (
    describe_holders,
    find_holders,
    is_ours,
    is_reader_only,
    mark_as_ours,
    take_exclusive,
)
from prefect_cachewatch.supervise.tending import wake
from prefect_cachewatch.watching.servers.records import find_server_on

_CHECK_TIMEOUT_S, _WOKEN_S, _HOME_TIMEOUT_S = 10.0, 10.0, 3.0
_BELOW_S = 20.0
_NAMED = 5
_LEAST_FREE_BYTES = 1 << 20
# Files that were removed and are still open: a local disk shows none of these, FUSE and NFS show them by such names. The
# write probe's own is one of them, and is no growth.
_REMOVED = (".fuse_hidden*", ".nfs*", ".cachewatch-probe-*")


def check_command(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
    """Check that a command can be executed; it is looked for as execvp(3) does.

    Args:
        command: argv.
        env: the environment that it will get; its PATH is searched.
        cwd: its working directory, None for the present one.

    Raises:
        CommandError: not found (exit code 127), not executable (126), or the working directory is wrong (125).
    """
    if cwd is not None and not Path(cwd).is_dir():
        raise CommandError(f"working directory {for_terminal(cwd)} is not a directory: create it first", exit_code=125)
    program, shown = command[0], for_terminal(command[0])
    where = [""] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    refused: tuple[str, str] | None = None
    for directory in where:
        path = os.path.join(cwd or ".", directory, program)
        why = _why_not_executable(path, searched=bool(directory))
        if why is None:
            return
        if why:
            refused = refused or (path if directory else program, why)
    if refused is not None:
        raise CommandError(f"command {for_terminal(refused[0])!r} is not executable: {refused[1]}", exit_code=126)
    if len(command) == 1 and len(words := program.split()) > 1:
        raise CommandError(
            f"command {shown!r} is one word, and no program has this name: leave out the quotes around it, as in "
            f"-- {for_terminal(' '.join(words), 100)}",
            exit_code=127,
        )
    if "/" in program:
        raise CommandError(f"command {shown!r} does not exist: check the path", exit_code=127)
    raise CommandError(f"command {shown!r} not found in PATH: check its name, or give its full path", exit_code=127)


def _why_not_executable(path: str, *, searched: bool) -> str | None:
    """Say why a file cannot be executed; empty if there is no such file, None if it can be."""
    try:
        found = os.stat(path)
    except OSError as error:
        absent = error.errno == errno.ENOENT or (searched and error.errno == errno.ENOTDIR)
        return "" if absent else error.strerror or "it cannot be looked at"
    if stat.S_ISDIR(found.st_mode):
        return "it is a directory; name the program in it"
    if not os.access(path, os.X_OK):
        return "chmod +x it, or name its interpreter first"
    return None


class CacheDirectories(Closing):
    """The directories of one job, held from pre-flight to the last attempt's end.

    Args:
        cache_dirs: absolute paths.
        ignore: globs that never count.
        create: whether missing directories are made.
        expected_bytes: size of the finished cache, if known; if it exceeds the free space, the job is refused.
        deadline_s: least deadline of a scan.
        lock: whether the directories are locked against other jobs; false for work in another task or process.
        files: the helper process that looks at the home directory; default this process.

    Raises:
        CacheDirectoryError: a directory cannot be used; `CacheDirectoryBusy` if another job holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as d, CacheDirectories([Path(d) / "cache"]) as site:
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
        files: Files | None = None,
    ) -> None:
        self._files = files or InPlace()
        self.ignore = [*ignore, *_REMOVED]
        self.scanner = DirectoryScanner(deadline_s)
        self._closed = False
        self.to_clean = False
        """Whether to record what each attempt makes, so that `clean` may remove it; set it before `begin`."""
        self.own_build: str | None = None
        """Directory that a store has made for the run: nothing in it was there to be used."""
        self.cleaned = ""
        """What was removed before the attempt, as a sentence: an empty start is then no proof of a wrong directory."""
        self.growth_mark: str | None = None
        """File for the next run after a kill: when the first directory grew last; set it before `begin`."""
        self._remembered_s: float | None = None
        self._watched_only = not lock
        self._deadline_s = deadline_s
        self.paths: list[str] = []
        self.lock_fds: list[int] = []
        self.mounts: dict[str, Mount | None] = {}
        self.shared: list[str] = []
        """Directories that every user may write to."""
        try:
            self._check(list(dict.fromkeys(map(str, cache_dirs))), create, expected_bytes)
            for path in self.paths if lock else ():
                self.lock_fds += _lock(path)
            if lock:
                self._require_alone()
        except BaseException:
            self.close()
            raise

    @property
    def on_network(self) -> bool:
        """Whether a file's times may come from another machine's clock."""
        return any(mount is not None and mount.is_network for mount in self.mounts.values())

    def begin(self) -> dict[str, Any]:
        """Take the start of an attempt: files that exist now do not count as growth.

        Returns:
            The scan process's answer.

        Raises:
            CacheDirectoryError: the directories cannot be measured at all.
        """
        marked = {} if self.growth_mark is None else {"mark": self.growth_mark}
        try:
            # A first scan of a cold tree may take minutes; no generator is running yet that could hang unseen.
            answer = self.scanner.request(
                "begin", max(self.scanner.deadline_s, 120.0), roots=self.paths, ignore=self.ignore, **marked
            )
        except ScanError as error:
            raise CacheDirectoryError(f"{self._names()} cannot be measured: {error.message}") from error
        for root in answer["roots"]:
            if root["missing"] or root["error"]:
                shown = for_terminal(root["path"])
                raise CacheDirectoryError(
                    f"cache directory {shown} cannot be measured: {root['error']}", path=root["path"]
                )
        if self.to_clean:
            self._remember()
        return answer

    def _remember(self) -> None:
        self._remembered_s = None
        try:
            answer = self.scanner.request("remember", max(self.scanner.deadline_s, 120.0, self._walk_s))
        except ScanError as error:
            raise CacheDirectoryError(
                f"what an attempt makes in {self._names()} cannot be told from what is there: {error.message}; "
                "use on_retry resume"
            ) from error
        if answer["refused"]:
            raise CacheDirectoryError(f"{for_terminal(answer['refused'], 2000)}: nothing was started")
        self._remembered_s = float(answer["remembered_s"])

    @property
    def _walk_s(self) -> float:
        """How long a scan of all files may take."""
        return max(60.0, 10 * (self._remembered_s or 0.0))

    def restart_scanner(self) -> None:
        """Replace a scan process that has died; never one that hangs, and none after the end."""
        if self._closed:
            return
        self.scanner.close()
        self.scanner = DirectoryScanner(self._deadline_s)

    def note_end(self, *, failed: bool) -> None:
        """List the files that the attempt made, as soon as its tree is gone: later files are not the attempt's.

        Args:
            failed: whether they may have to be removed for another attempt.
        """
        if self._remembered_s is not None and self.to_clean and failed:
            with contextlib.suppress(ScanError):  # without a list the files are unknown, and `clean` then refuses
                self.scanner.request("sight", self._walk_s)

    def clean(self) -> dict[str, Any]:
        """Remove the files and directories that the last attempt is known to have made.

        Returns:
            `removed` (files), `freed_bytes`, and `kept`: newer files of unknown origin, with the first
            `kept_paths`.

        Raises:
            CacheDirectoryError: its files are not known, and nothing was changed; or one of them cannot be removed.
        """
        try:
            answer = self.scanner.request("clean", max(600.0, self._walk_s))
        except ScanError as error:
            raise CacheDirectoryError(f"{self._names()} cannot be cleaned: {error.message}") from error
        if answer["refused"]:
            raise CacheDirectoryError(f"{for_terminal(answer['refused'], 2000)}: nothing was removed")
        if answer["failed"]:
            more = f" and {answer['failed'] - 1:,} more" if answer["failed"] > 1 else ""
            raise CacheDirectoryError(
                f"what the attempt made cannot be removed: {for_terminal(answer['problems'][0], 2000)}{more}"
            )
        return answer

    @property
    def found_paths(self) -> list[str]:
        """The directories that may have held a cache at the start."""
        return [path for path in self.paths if path != self.own_build]

    def rewriting(self) -> Rewriting | None:
        """Say what became of the files that were there at the start; None if that is not known."""
        if not self.found_paths or self.scanner.pending:
            return None
        leave_out = [self.own_build] if self.own_build is not None else []
        try:
            answer = self.scanner.request("rewriting", max(10.0, self._walk_s), leave_out=leave_out)
        except ScanError:
            return None
        return Rewriting(**answer)

    def close(self) -> None:
        """Release the locks and the scan process."""
        self._closed = True
        self.scanner.close()
        while self.lock_fds:
            os.close(self.lock_fds.pop())

    def _names(self) -> str:
        names = ", ".join(for_terminal(path) for path in self.paths)
        return f"cache directory {names}" if len(self.paths) == 1 else f"cache directories {names}"

    def _require_alone(self) -> None:
        """Refuse a directory inside another run's, or around it: each run would count and clean the other's files."""
        try:
            found = self.scanner.request("overlap", _CHECK_TIMEOUT_S + _BELOW_S, paths=self.paths, budget_s=_BELOW_S)
        except ScanError as error:
            raise CacheDirectoryError(f"{self._names()} cannot be looked through: {error.message}") from error
        if not found:
            return
        path, other = found["path"], found.get("above") or found["below"]
        with contextlib.suppress(OSError):
            holders = find_holders(os.stat(other))
            named = f" ({describe_holders(holders[:1])})" if holders else ""
            how = "lies in" if "above" in found else "holds"
            raise CacheDirectoryBusy(
                f"cache directory {for_terminal(path)} {how} {for_terminal(other)}, which is in use by another job{named}: "
                "wait for it to end, or give each job a directory of its own",
                path=path,
                holder_pid=holders[0].pid if holders else None,
            )

    def _check(self, paths: Sequence[str], create: bool, expected_bytes: int | None) -> None:
        mounts = read_mounts()
        try:
            homes = self._files.run(_homes, timeout_s=_HOME_TIMEOUT_S)
        except TimeoutError:  # it hangs, so no cache directory of this job can be it
            homes = set()
        missing = []
        for path in paths:
            answer = self._ask(path, create=False, count=expected_bytes is not None)
            resolved = answer["path"]
            _refuse_special(path, resolved, mounts, homes)
            if answer.get("missing") and create:
                missing.append(path)
            elif answer["error"]:
                raise CacheDirectoryError(answer["error"], path=path)
            else:
                self._check_space(path, answer, expected_bytes)
            if answer.get("shared") and resolved not in self.shared:
                self.shared.append(resolved)
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
            return  # it is running already: a full disk is a cause to name, not a reason to refuse the watch
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


def _homes() -> set[str]:
    return {os.path.realpath(home) for home in (os.environ.get("HOME"), os.path.expanduser("~")) if home}


def _refuse_special(path: str, resolved: str, mounts: Sequence[Mount], home: Collection[str]) -> None:
    shown = for_terminal(path)
    what = None
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


def _lock(path: str, until_s: float | None = None) -> list[int]:
    """Take the directory's lock: flock on its own descriptor, so that no lock file is left in a cache.

    If a reader of the directory has locked it too (a backup program), a lock file excludes other runs.
    """
    fds = [os.open(path, OPEN_DIRECTORY)]
    try:
        try:
            at_once = try_lock(fds[0])
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK, errno.EISDIR):
                raise
            # NFS makes flock a byte-range lock, which needs a file open for writing.
            taken = _lock_file(fds)
        else:
            taken = at_once or (is_reader_only(fds[0]) and _lock_file(fds))
    except OSError as error:
        _close(fds)
        raise CacheDirectoryError(
            f"cache directory {for_terminal(path)} cannot be locked: {error.strerror}", path=path
        ) from error
    if taken:
        mark_as_ours(fds[0])
        return [fds[0], *map(park, fds[1:])]
    status, ours = os.fstat(fds[-1]), is_ours(fds[0])
    _close(fds)  # closed before asking which processes hold locks
    holders = find_holders(status)
    if until_s is None and wake(holder.pid for holder in holders):
        until_s = time.monotonic() + _WOKEN_S  # of a run that is over, unless its flow still lives
    if until_s is not None and time.monotonic() < until_s:
        time.sleep(0.1)
        return _lock(path, until_s)
    if (server := find_server_on(path)) is not None:
        raise CacheDirectoryBusy(
            f"cache directory {for_terminal(path)} is in use by server {for_terminal(server.name, 100)} ({server.who}), "
            f"which was left running: stop it first with {server.stop_command}, or use another directory",
            path=path,
            holder_pid=server.pid,
        )
    whose = "is in use by another job" if ours else "is locked by a program that is no job of cachewatch"
    named = f" ({describe_holders(holders[:1])})" if holders else ""
    raise CacheDirectoryBusy(
        f"cache directory {for_terminal(path)} {whose}{named}: wait for it to end, or use another directory",
        path=path,
        holder_pid=holders[0].pid if holders else None,
    )


def _lock_file(fds: list[int]) -> bool:
    # *.lock never counts as growth. Mode 0600: on a local disk a user who can read a file can lock it.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fds.append(os.open(LOCK_FILE, flags, 0o600, dir_fd=fds[0]))
    return take_exclusive(fds[1], past_readers=True)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
