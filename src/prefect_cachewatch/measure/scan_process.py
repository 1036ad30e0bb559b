"""The scan process: walks, keeps the ledger, answers requests of `scanner`; standard library only.

It reads and writes one JSON object a line. It is a separate process because a stat on a file system that hangs cannot
be interrupted, and a thread that hangs in one blocks its whole process. It ends when its socket ends. It makes no
decision and sends no signal.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence

from prefect_cachewatch.common.files import PUBLIC, write_all, write_file
from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.removal import look_path
from prefect_cachewatch.measure.creation import Creation, Refusal
from prefect_cachewatch.measure.filling import Filling
from prefect_cachewatch.measure.growth_mark import GrowthMark
from prefect_cachewatch.measure.ledger import Ledger, known_by_path
from prefect_cachewatch.measure.links import Links
from prefect_cachewatch.measure.overlap import find_overlap
from prefect_cachewatch.measure.space import look_at_storage
from prefect_cachewatch.measure.walk import Walk

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

_NAMED = 5  # files that change in place
_STEP_NS = 50_000_000  # more than a clock is slewed between two scans


class AgeClock:
    """Turns change times of files that grew in a scan into ages; if clocks disagree, an age counts as 0.

    A file that grew in this scan changed after the last scan began. An older date, or a step of the wall clock in
    between, shows that the file system and this process use different clocks.

    Example:
        >>> clock = AgeClock()
        >>> clock.ages_s(10**9, 0, 0, [None]), clock.ages_s(3 * 10**9, 2 * 10**9, 2 * 10**9, [10**9])
        ([None], [2.0])
        >>> clock.ages_s(3_603 * 10**9, 3 * 10**9, 3 * 10**9, [10**9])
        [0.0]
    """

    def __init__(self) -> None:
        self._offset_ns: int | None = None
        self._began_ns = 0

    def ages_s(
        self, wall_ns: int, monotonic_ns: int, began_ns: int, changed_ns: Sequence[int | None]
    ) -> list[float | None]:
        """Return how long ago files changed.

        Args:
            wall_ns: the wall clock at the end of the scan, nanoseconds.
            monotonic_ns: the monotonic clock at its end.
            began_ns: the monotonic clock at its beginning.
            changed_ns: change times by the file system's clock; None where there is none.

        Returns:
            Seconds before the end, in the same order.
        """
        offset_ns = wall_ns - monotonic_ns
        stepped = self._offset_ns is not None and abs(offset_ns - self._offset_ns) > _STEP_NS
        oldest_ns = wall_ns - (monotonic_ns - self._began_ns) - _STEP_NS
        self._offset_ns, self._began_ns = offset_ns, began_ns
        return [None if t is None else 0.0 if stepped or t < oldest_ns else (wall_ns - t) / 1e9 for t in changed_ns]


class ScanServer:
    """Answers one request at a time, using a ledger."""

    def __init__(self) -> None:
        self.creation: Creation | None = None
        self.age_clock = AgeClock()
        self.mark: GrowthMark | None = None
        self._take_up([], [])

    def _take_up(self, roots: list[str], ignore: list[str]) -> None:
        self.roots = roots
        self.by_path = known_by_path(roots, read_mounts())
        self.ledger = Ledger(birth_ns, self.by_path, ignore)
        self.links, self.filling = Links(roots), Filling()

    def begin(self, roots: list[str], ignore: list[str], mark: str | None = None) -> dict[str, Any]:
        """Begin a new ledger: existing files are no growth.

        Args:
            roots: absolute paths.
            ignore: globs of files that never count.
            mark: file that records when the first root grew last; see `growth_mark`.
        """
        if self.mark is not None:
            self.mark.close()
            self.mark = None
        if mark is not None:
            # On failure an older mark or none stays: every file written from now on is suspect.
            with contextlib.suppress(OSError):
                self.mark = GrowthMark(mark, roots[0])
        self._take_up(roots, ignore)
        return self.scan()

    def scan(self) -> dict[str, Any]:
        """Scan everything, and look at the storage."""
        began = time.perf_counter()
        if self.mark is not None:
            self.mark.begin_scan()
        self.ledger.begin()
        walk = Walk(self.roots, self.ledger)
        answer: dict[str, Any] = {
            "roots": [root._asdict() for root in walk.roots],
            "directories": walk.directories,
            "errors": walk.errors,
            "by_path": bool(self.by_path),
        }
        if not any(root.missing or root.error for root in walk.roots):
            # An incomplete scan does not count: files that could not be seen were not necessarily deleted.
            answer |= self._growth(began)
        answer["scan_s"] = time.perf_counter() - began
        answer["space"] = look_at_storage(self.roots)
        return answer

    def _growth(self, began: float) -> dict[str, Any]:
        linked = self.links.look(self.ledger.links)
        self.ledger.take_linked(linked.files)
        growth = self.ledger.end()
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        if (filled_ns := self.filling.look(self.ledger.in_place, self.ledger.grown)) is not None:
            growth = growth._replace(overwriting_ns=max(growth.overwriting_ns or filled_ns, filled_ns))
        if self.mark is not None:
            numbers = growth.bytes_written, growth.allocated_written, growth.newest_changed_ns, growth.touched_ns
            self.mark.end_scan((*numbers, growth.overwriting_ns, growth.files_present))
        # Ages are computed here, at the end of the walk, so that they contain no transport delay.
        began_ns = monotonic_ns - int((time.perf_counter() - began) * 1e9)
        dates = [growth.newest_changed_ns, growth.touched_ns, growth.overwriting_ns]
        newest_s, touched_s, overwriting_s = self.age_clock.ages_s(wall_ns, monotonic_ns, began_ns, dates)
        return {
            "linked": list(linked.directories),
            "scan": self.ledger.scans - 1,  # the initial scan is scan 0
            "growth": growth._asdict(),
            "in_place": [changed.path for changed in self.ledger.in_place[:_NAMED]],
            "newest_changed_age_s": newest_s,
            "touched_age_s": touched_s,
            "overwriting_age_s": overwriting_s,
        }

    def listing(self, limit: int) -> dict[str, Any]:
        """See `Ledger.listing`."""
        return self.ledger.listing(limit)

    def rewriting(self, leave_out: Sequence[str] = ()) -> dict[str, Any]:
        """See `Ledger.rewriting`."""
        return self.ledger.rewriting(leave_out)._asdict()

    def remember(self) -> dict[str, Any]:
        """Record existing files as not the attempt's, before its generator starts."""
        began = time.perf_counter()
        if self.creation is None:
            self.creation = Creation(self.roots)
        try:
            self.creation.remember()
        except Refusal as refusal:
            return {"refused": str(refusal)}
        return {"refused": None, "remembered_s": time.perf_counter() - began}

    def sight(self) -> dict[str, Any]:
        """List the files that an attempt made, after its tree is gone."""
        if self.creation is None:
            return {}
        return self.creation.sight()

    def clean(self) -> dict[str, Any]:
        """Remove what `sight` listed; see `Creation.clean`. If that is refused, no file was touched."""
        if self.creation is None:
            return {"refused": "the scan process was started anew meanwhile, and what the attempt made is not known"}
        try:
            return {"refused": None, **self.creation.clean()}
        except Refusal as refusal:
            return {"refused": str(refusal)}


def birth_ns(path: str) -> int | None:
    """Read a file's creation time in nanoseconds of its file system's clock; None if that is not recorded."""
    try:
        return look_path(path).born_ns
    except OSError:
        return None


def check_directory(path: str, create: bool, count: bool = False, writable: bool = True) -> dict[str, Any]:
    """Check one directory before the start: resolve it, create it, and report whether it can be watched and written.

    Args:
        path: absolute path; symbolic links in it are resolved once, here.
        create: whether to create a missing directory.
        count: whether to count the existing bytes, which costs a scan.
        writable: whether this process must be able to write to it.

    Returns:
        `path` (resolved), `error` (one sentence or None), `free_bytes`, `free_inodes`, `created`, and `shared`: whether it
        is everybody's, as /tmp is.
    """
    resolved = os.path.realpath(path)
    answer: dict[str, Any] = {"path": resolved, "error": None, "created": False}
    try:
        status = os.stat(resolved)
    except FileNotFoundError:
        if not create:
            error_text = f"cache directory {path} does not exist: create it, or let it be created"
            return answer | {"error": error_text, "missing": True}
        try:
            os.makedirs(resolved)
        except OSError as error:
            return answer | {"error": f"cache directory {path} cannot be created: {error.strerror}"}
        answer["created"] = True
        status = os.stat(resolved)
    except OSError as error:
        return answer | {"error": f"cache directory {path} cannot be read: {error.strerror}"}
    if not stat.S_ISDIR(status.st_mode):
        return answer | {"error": f"cache directory {path} is not a directory: name the directory the files go to"}
    if not os.access(resolved, os.R_OK | os.X_OK):
        return answer | {"error": f"cache directory {path} cannot be read: Permission denied"}
    if writable and not os.access(resolved, os.W_OK):
        space = os.statvfs(resolved)
        why = "its file system is read-only" if space.f_flag & os.ST_RDONLY else "Permission denied"
        return answer | {"error": f"cache directory {path} cannot be written to: {why}"}
    space = os.statvfs(resolved)
    answer["shared"] = status.st_mode & (stat.S_ISVTX | stat.S_IWOTH) == stat.S_ISVTX | stat.S_IWOTH
    answer["present_bytes"] = measure([resolved], [])["bytes"] if count else 0
    answer["free_bytes"] = space.f_bavail * space.f_frsize
    answer["free_inodes"] = space.f_favail if space.f_files else None
    return answer


def write_marker(path: str, text: str, unless: str | None = None) -> dict[str, Any]:
    """Write a small file atomically, by a temporary one beside it, unless another given file exists.

    Args:
        path: absolute path of the file.
        text: its contents.
        unless: absolute path of the other file.

    Returns:
        `written`.
    """
    if unless is not None and os.path.exists(unless):
        return {"written": False}
    write_file(path, text.encode(), mode=PUBLIC)
    return {"written": True}


def identify(paths: list[str]) -> dict[str, Any]:
    """Report for each file whether it exists, and its identity: a rewritten file is a different one.

    Args:
        paths: absolute paths.

    Returns:
        `files`: path to [inode, size, modification time, change time], or None if there is no file.
    """
    files: dict[str, list[int] | None] = {}
    for path in paths:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            files[path] = None
        else:
            files[path] = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return {"files": files}


def measure(roots: list[str], ignore: list[str]) -> dict[str, Any]:
    """Count bytes, files and directories in one scan, each hard-linked file once; stores nothing."""
    ledger = Ledger(ignore=ignore)
    ledger.begin()
    walk = Walk([os.path.realpath(root) for root in roots], ledger)
    found = ledger.end()
    return {
        "bytes": found.bytes_present,
        "files": found.files_present,
        "directories": walk.directories,
        "roots": [root._asdict() for root in walk.roots],
    }


def _requests(fd: int) -> Iterator[bytes]:
    """Yield each incoming line."""
    buffer = b""
    while True:
        line, separator, rest = buffer.partition(b"\n")
        if separator:
            buffer = rest
            yield line
            continue
        chunk = os.read(fd, 65536)
        if not chunk:
            return
        buffer += chunk


def main(fd: int) -> None:
    """Serve requests on a connected stream socket until it ends.

    Args:
        fd: descriptor of the socket.
    """
    gc.disable()  # no cycles are made here, and traversing the ledger's tuples costs a third of a scan
    os.chdir("/")
    server = ScanServer()
    operations: dict[str, Callable[..., dict[str, Any]]] = {
        "begin": server.begin,
        "scan": server.scan,
        "listing": server.listing,
        "rewriting": server.rewriting,
        "remember": server.remember,
        "sight": server.sight,
        "clean": server.clean,
        "check": check_directory,
        "overlap": find_overlap,
        "identify": identify,
        "mark": write_marker,
    }
    for line in _requests(fd):
        request = json.loads(line)
        try:
            answer = operations[request.pop("op")](**request)
        except OSError as error:
            answer = {"failure": error.strerror or str(error), "errno": error.errno}
        except Exception as error:  # noqa: BLE001 - the other side turns it into a ScanError with this text
            answer = {"failure": f"{type(error).__name__}: {error}"}
        write_all(fd, json.dumps(answer).encode() + b"\n")
