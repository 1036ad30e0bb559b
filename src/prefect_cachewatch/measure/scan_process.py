"""The scan process: walks, keeps the ledger, answers requests of `scanner`; standard library only.

It reads and writes one JSON object a line. It is a separate process because a stat on a file system that hangs cannot
be interrupted, and a thread that hangs in one blocks its whole process. It ends when its socket ends. It makes no
decision and sends no signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import heapq
import json
import os
import stat
import time
from collections.abc import Iterator
from operator import attrgetter, itemgetter

from prefect_cachewatch.common.files import PUBLIC, write_all, write_file
from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.measure.creation import Creation, Refusal
from prefect_cachewatch.measure.filling import Filling
from prefect_cachewatch.measure.folder import FileRecord
from prefect_cachewatch.measure.growth_mark import GrowthMark
from prefect_cachewatch.measure.ledger import AgeClock, Ledger
from prefect_cachewatch.measure.numbers import known_by_path
from prefect_cachewatch.measure.overlap import find_overlap
from prefect_cachewatch.measure.snapshot import walk_directories
from prefect_cachewatch.measure.space import find_full, look_at_storage
from prefect_cachewatch.measure.tree import Tree, TreeScan

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

_AT_FDCWD, _STATX_BTIME, _AT_SYMLINK_NOFOLLOW = -100, 0x800, 0x100
_AT_STATX_DONT_SYNC = 0x4000
_NAMED = 5  # files that change in place
_links_of, _size_of, _blocks_of = attrgetter("st_nlink"), attrgetter("st_size"), attrgetter("st_blocks")


class ScanServer:
    """Answers one request at a time, using a ledger."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.ignore: list[str] = []
        self.by_path: tuple[str, ...] = ()
        self.creation: Creation | None = None
        self.ledger = Ledger(birth_ns)
        self.tree = Tree([], [], self.ledger)
        self.filling = Filling()
        self.age_clock = AgeClock()
        self.mark: GrowthMark | None = None

    def begin(self, roots: list[str], ignore: list[str], mark: str | None = None) -> dict[str, Any]:
        """Begin a new ledger: existing files are no growth.

        Args:
            roots: absolute paths.
            ignore: globs of files that never count.
            mark: file that records when the first root grew last; see `growth_mark`.
        """
        self.roots, self.ignore = roots, ignore
        if self.mark is not None:
            self.mark.close()
            self.mark = None
        if mark is not None:
            # On failure an older mark or none stays: every file written from now on is suspect.
            with contextlib.suppress(OSError):
                self.mark = GrowthMark(mark, roots[0])
        self.by_path = known_by_path(roots, read_mounts())
        self.ledger = Ledger(birth_ns, self.by_path)
        self.tree, self.filling = Tree(roots, ignore, self.ledger), Filling()
        return self.scan(space=True)

    def scan(self, full: bool = True, budget_s: float = 1.0, space: bool = False) -> dict[str, Any]:
        began = time.perf_counter()
        if self.mark is not None:
            self.mark.begin_scan()
        made = self.tree.full_scan() if full else self.tree.partial_scan(budget_s)
        answer = self._answer(made, began)
        answer["no_room"] = find_full(self.roots)
        if space:
            answer["space"] = look_at_storage(self.roots)
        return answer

    def _answer(self, made: TreeScan, began: float) -> dict[str, Any]:
        growth, walk = made.growth, made.walk
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        answer: dict[str, Any] = {
            "roots": [root._asdict() for root in walk.roots],
            "directories": walk.directories,
            "errors": walk.errors,
            "linked": list(walk.linked_directories),
            "full": made.full,
            "by_path": bool(self.by_path),
        }
        if growth is not None:
            if (filled_ns := self.filling.look(self.ledger.in_place, self.ledger.grown)) is not None:
                growth = growth._replace(overwriting_ns=max(growth.overwriting_ns or filled_ns, filled_ns))
            if self.mark is not None:
                numbers = growth.bytes_written, growth.allocated_written, growth.newest_changed_ns, growth.touched_ns
                self.mark.end_scan((*numbers, growth.overwriting_ns, growth.files_present), made.full)
            answer["scan"] = self.ledger.scans - 1  # the initial scan is scan 0
            answer["growth"] = growth._asdict()
            answer["in_place"] = [record.path for record in self.ledger.in_place[:_NAMED]]
            # Ages are computed here, at the end of the walk, so that they contain no transport delay.
            began_ns = monotonic_ns - int((time.perf_counter() - began) * 1e9)
            ages_s = self.age_clock.ages_s(
                wall_ns,
                monotonic_ns,
                began_ns,
                [growth.newest_changed_ns, growth.touched_ns, growth.overwriting_ns],
                made.full,
            )
            answer["newest_changed_age_s"], answer["touched_age_s"], answer["overwriting_age_s"] = ages_s
        answer["scan_s"] = time.perf_counter() - began
        return answer

    def listing(self, limit: int) -> dict[str, Any]:
        folders = list(self.ledger.files.folders())
        newest = self.ledger.newest(limit)
        rest: dict[str, tuple[int, int]] = {}
        total = allocated = 0
        for folder in folders:
            total += folder.bytes_present
            allocated += folder.blocks_present * 512
            files, size = rest.get(folder.directory, (0, 0))
            rest[folder.directory] = (files + len(folder), size + folder.bytes_present)
        for record in newest:
            files, size = rest[record.directory]
            rest[record.directory] = (files - 1, size - record.size_bytes)
        rest = {directory: left for directory, left in rest.items() if left[0]}
        return {
            "total_files": sum(map(len, folders)),
            "total_bytes": total,
            "allocated_bytes": allocated,
            "scan": self.ledger.scans - 1,
            "entries": [_entry(record) for record in newest],
            "rest": heapq.nlargest(limit, ((d, n, b) for d, (n, b) in rest.items()), key=itemgetter(2)),
        }

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


def _entry(record: FileRecord) -> dict[str, Any]:
    return {
        "path": record.path,
        "size_bytes": record.size_bytes,
        "allocated_bytes": record.blocks * 512,
        "modified_ns": record.modified_ns,
        "changed_ns": record.changed_ns,
        "grown_scan": record.grown_scan,
        "written_bytes": record.written_bytes,
    }


def birth_ns(path: str) -> int | None:
    """Read a file's creation time with statx(2), which Python does not offer.

    Args:
        path: the file.

    Returns:
        Nanoseconds of the file system's clock; None if the file system does not record it.
    """
    buffer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(
            _AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW | _AT_STATX_DONT_SYNC, _STATX_BTIME, buffer
        )
    except AttributeError:  # a C library without statx
        return None
    if failed or not int.from_bytes(buffer.raw[0:4], "little") & _STATX_BTIME:
        return None
    seconds = int.from_bytes(buffer.raw[80:88], "little", signed=True)
    return seconds * 1_000_000_000 + int.from_bytes(buffer.raw[88:92], "little")


def check_directory(path: str, create: bool, count: bool = False, writable: bool = True) -> dict[str, Any]:
    """Check one directory before the start: resolve it, create it, and report whether it can be watched and written.

    Args:
        path: absolute path; symbolic links in it are resolved once, here.
        create: whether to create a missing directory.
        count: whether to count the existing bytes, which costs a scan.
        writable: whether this process must be able to write to it.

    Returns:
        `path` (resolved), `error` (one sentence or None), `free_bytes`, `free_inodes`, `created`.
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
    """Count bytes, allocated bytes, files and directories in one scan, each hard-linked file once; stores nothing."""
    began = time.perf_counter()
    linked: set[tuple[int, int]] = set()
    size = blocks = files = 0

    def visit(directory: str, rank: int, names: list[str], stats: list[os.stat_result]) -> None:
        nonlocal size, blocks, files
        if max(map(_links_of, stats)) == 1:
            size += sum(map(_size_of, stats))
            blocks += sum(map(_blocks_of, stats))
            files += len(stats)
            return
        for status in stats:
            if status.st_nlink > 1:
                key = (rank, status.st_ino)
                if key in linked:
                    continue
                linked.add(key)
            size += status.st_size
            blocks += status.st_blocks
            files += 1

    walk = walk_directories([os.path.realpath(root) for root in roots], ignore, visit)
    return {
        "bytes": size,
        "allocated_bytes": blocks * 512,
        "files": files,
        "directories": walk.directories,
        "errors": walk.errors,
        "roots": [root._asdict() for root in walk.roots],
        "scan_s": time.perf_counter() - began,
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
    for line in _requests(fd):
        request = json.loads(line)
        operation = request.pop("op")
        try:
            if operation == "begin":
                answer = server.begin(**request)
            elif operation == "scan":
                answer = server.scan(**request)
            elif operation == "listing":
                answer = server.listing(**request)
            elif operation == "rewriting":
                answer = server.ledger.rewriting(**request)._asdict()
            elif operation == "check":
                answer = check_directory(**request)
            elif operation == "identify":
                answer = identify(**request)
            elif operation == "measure":
                answer = measure(**request)
            elif operation == "mark":
                answer = write_marker(**request)
            elif operation == "overlap":
                answer = find_overlap(**request)
            elif operation == "remember":
                answer = server.remember()
            elif operation == "sight":
                answer = server.sight()
            elif operation == "clean":
                answer = server.clean()
            else:
                answer = {"failure": f"unknown operation {operation!r}"}
        except OSError as error:
            answer = {"failure": error.strerror or str(error), "errno": error.errno}
        except Exception as error:  # noqa: BLE001 - the other side turns it into a ScanError with this text
            answer = {"failure": f"{type(error).__name__}: {error}"}
        write_all(fd, json.dumps(answer).encode() + b"\n")
