"""Rules for causes that lie in the storage: full, read-only, hung, written in another way; pure.

Each takes the view of an evidence and returns the cause, or None where it does not apply.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.evidence.causes import Cause
from prefect_cachewatch.evidence.model import FilesystemFacts, ProcessFacts
from prefect_cachewatch.evidence.readings import FILLING_BYTES_PER_S
from prefect_cachewatch.evidence.view import DENIED, NO_SPACE, QUOTA, READ_ONLY, View, quoted, shown, who
from prefect_cachewatch.evidence.waits import WaitKind
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE
from prefect_cachewatch.supervise.open_files import OpenFile

_MIB = 1 << 20
_FULL_LINES = 5
_PATH = re.compile(r"(?<![\w/])/[^\s'\"<>|,;()\[\]{}]{1,4000}")
_LITTLE_SPACE_BYTES = _MIB
_DISCARDED_BYTES = 1 << 16
_MUCH_WRITTEN_BYTES = _MIB
_READING_BYTES_PER_S = _MIB


def filesystem_unresponsive(view: View) -> Cause | None:
    """A cache directory's file system did not answer a statvfs in time; certain if another call hangs in it too."""
    hung = next((f for f in view.evidence.filesystems if not f.responded), None)
    kind = view.evidence.growth.kind
    waits = any(wait.kind is WaitKind.DISK for wait in view.waits)
    if hung is None and kind != "filesystem_unresponsive":
        return None
    facts = hung or next(iter(view.evidence.filesystems), FilesystemFacts("the cache directory"))
    return Cause(
        "filesystem_unresponsive",
        f"the {facts.type or 'unknown'} file system under {shown(facts.path)} does not answer",
        (f"{_mount(facts)}: statvfs and stat {facts.error or 'did not return in time'}",),
        # A busy machine also delays a single statvfs: failed scans, or a process in the kernel, must confirm it.
        "high" if hung and (kind == "filesystem_unresponsive" or waits) else "medium",
    )


def cache_directory_missing(view: View) -> Cause | None:
    """The cache directory is not there any more."""
    gone = next((f for f in view.evidence.filesystems if "No such file" in f.error), None)
    if gone is None and view.evidence.growth.kind != "cache_directory_missing":
        return None
    path = shown(gone.path if gone else next((f.path for f in view.evidence.filesystems), "the cache directory"))
    return Cause(
        "cache_directory_missing",
        f"{path} is gone: it was removed, renamed or unmounted during the run",
        (f"stat {path}: {gone.error if gone else 'missing'}",),
    )


def read_only_filesystem(view: View) -> Cause | None:
    """A cache directory's file system is mounted read-only, or became so after an error."""
    facts = next((f for f in view.evidence.filesystems if f.read_only), None)
    line = view.log_line(READ_ONLY)
    if facts is None and not (line and view.names_cache(line)):
        return None
    path = shown(facts.path if facts else "the cache directory")
    return Cause(
        "read_only_filesystem",
        f"the file system under {path} is read-only",
        (_mount(facts) if facts else "",),
        "high" if facts else "medium",
        quoted(line),
    )


def inodes_exhausted(view: View) -> Cause | None:
    """No inode is free: no new file can be made, whatever space is left."""
    for facts in view.evidence.filesystems:
        if facts.total_inodes and facts.free_inodes is not None and facts.free_inodes < 2:
            return Cause(
                "inodes_exhausted",
                f"no inode is free under {shown(facts.path)}: no new file can be made there",
                (f"{_mount(facts)}: {facts.free_inodes} of {facts.total_inodes} inodes free", _space(facts)),
            )
    return None


def disk_full(view: View) -> Cause | None:
    """There is no space for the generator's user, or its log says that there was none."""
    line = view.log_line(NO_SPACE)
    for facts in view.evidence.filesystems:
        if facts.free_bytes is not None and facts.free_bytes < _LITTLE_SPACE_BYTES:
            return Cause(
                "disk_full",
                f"the file system under {shown(facts.path)} is full ({format_bytes(facts.free_bytes)} free)",
                (_mount(facts), _space(facts)),
                said=quoted(line),
            )
    # Full still, so that an old line counts.
    old = next((each for each in view.evidence.log_kept.splitlines() if NO_SPACE.search(each)), "")
    if (other := _other_full(view, line or old)) is not None:
        return other
    if not line:
        return None
    tight = next(
        (f for f in view.evidence.filesystems if f.free_bytes and f.free_bytes < 0.05 * (f.total_bytes or 0)),
        None,
    )
    if tight or view.names_cache(line):
        return Cause(
            "disk_full",
            "the generator ran out of space on its cache's file system",
            tuple(_space(f) for f in view.evidence.filesystems),
            "medium" if view.alive else "high",
            quoted(line),
        )
    named = {facts.path: facts for facts in view.evidence.other_filesystems}
    where = next(
        (path for path in sorted(named, key=len, reverse=True) for place in _places(line) if is_in(place, path)), ""
    )
    return Cause(
        "disk_full",
        f"the generator ran out of space under {shown(where)}, which is not the cache's file system"
        if where
        else "the generator's log says that a file system was full, and it is not the cache's",
        tuple(_space(f) for f in (*view.evidence.filesystems, *named.values())),
        "medium" if where or not view.alive else "low",
        quoted(line),
    )


def _other_full(view: View, line: str) -> Cause | None:
    """A file system that the tree uses besides its cache's is full: its log says so, it writes a file there, or it retries."""
    for facts in view.evidence.other_filesystems:
        no_space = facts.free_bytes is not None and facts.total_bytes and facts.free_bytes < _LITTLE_SPACE_BYTES
        no_inode = facts.total_inodes and facts.free_inodes is not None and facts.free_inodes < 2
        files = (f for process in view.alive for f in process.files if f.kind == "file" and "w" in f.access)
        writes = any(is_in(f.target, facts.path) for f in files)
        if not (no_space or no_inode) or not (line or writes or view.polls):
            continue
        what = f"is full ({format_bytes(facts.free_bytes or 0)} free)" if no_space else "has no free inode"
        return Cause(
            "disk_full",
            f"the file system on {shown(facts.path)} {what}, and it is not the cache's",
            (_mount(facts), _space(facts)),
            "high" if line else "medium" if writes else "low",
            quoted(line),
        )
    return None


def named_as_full(log: str) -> list[str]:
    """Find the paths in the last lines of a log among those that speak of a full file system.

    Example:
        >>> named_as_full("OSError: [Errno 28] No space left on device: '/scratch/tmp/x.bin'")
        ['/scratch/tmp/x.bin']
    """
    lines = [line for line in log.splitlines() if NO_SPACE.search(line)]
    return [path for line in lines[-_FULL_LINES:] for path in _places(line)]


def _places(line: str) -> list[str]:
    return [path.rstrip(".:") for path in _PATH.findall(line[:5000])]


def quota_exceeded(view: View) -> Cause | None:
    """The user's quota is used up, by the generator's message."""
    line = view.log_line(QUOTA)
    if not line:
        return None
    place = next(iter(_places(line)), "")
    where = f" at {shown(place)}" + ("" if view.names_cache(place) else ", which is not in the cache") if place else ""
    return Cause(
        "quota_exceeded",
        f"the generator was told that its disk quota is exceeded{where}",
        tuple(_space(f) for f in view.evidence.filesystems),
        "high" if view.evidence.growth.kind != "completed" else "low",
        quoted(line),
    )


def permission_denied(view: View) -> Cause | None:
    """The generator's user may not write in the cache directory."""
    line = view.log_line(DENIED)
    for facts in view.evidence.filesystems:
        for process in view.alive:
            if _may_not_write(process, facts):
                return Cause(
                    "permission_denied",
                    f"{who(process)} runs as uid {process.uid} and may not write in {shown(facts.path)}",
                    (f"{shown(facts.path)} belongs to uid {facts.owner_uid}, mode {facts.mode or 0:04o}",),
                    "high" if line or view.evidence.growth.first_write_s is None else "medium",
                    quoted(line),
                )
    if line and view.names_cache(line):
        return Cause(
            "permission_denied",
            "the generator was refused access to a file of its cache",
            (),
            "medium" if view.alive else "high",
            quoted(line),
        )
    return None


def in_place_writes(view: View) -> Cause | None:
    """Files are written without growing: their modification time moves, their size does not."""
    names = list(view.evidence.growth.touched)
    names += [
        file.target for file in _written_lately(view, in_cache=True) if _is_lasting(file) and file.target not in names
    ]
    # A heartbeat file changes too, and a log is written beside it: filling takes more bytes than these.
    filled = (view.written_bytes or 0) >= FILLING_BYTES_PER_S * max(1.0, view.window_s)
    if not (names or view.evidence.growth.changed_in_place):
        return None
    if not filled and (names or (view.written_bytes or 0) < _MUCH_WRITTEN_BYTES):
        return None
    example = f", for example {shown(names[0])}" if names else ""
    return Cause(
        "in_place_writes",
        f"files of a fixed size are being filled{example}: they change and do not grow",
        (
            f"modified in the window, same size: {', '.join(shown(n, 60) for n in names[:5]) or 'names unknown'}",
            _written(view),
        ),
        "high" if names else "medium",
    )


def churning(view: View) -> Cause | None:
    """Bytes are written and removed again; nothing stays."""
    growth = view.evidence.growth
    # No scan sees a file that lives for less than a poll; the directory's own time shows it.
    stirred = any(f.changed_age_s is not None and f.changed_age_s <= _recent_s(view) for f in view.evidence.filesystems)
    hidden = stirred and (view.written_bytes or 0) >= _MUCH_WRITTEN_BYTES and not _written_lately(view, in_cache=False)
    if growth.kind != "churning" and growth.discarded_bytes < _DISCARDED_BYTES and not hidden:
        return None
    return Cause(
        "churning",
        "files are written and deleted again, and nothing is kept",
        (
            f"{format_bytes(growth.discarded_bytes)} written in the window and gone again",
            _written(view),
            "entries of the cache directory come and go" if stirred else "",
        ),
        "high" if growth.kind == "churning" else "medium",
    )


def writing_elsewhere(view: View) -> Cause | None:
    """Bytes are written, and go to files outside the cache directories."""
    written = view.written_bytes
    if written is None or written < _MUCH_WRITTEN_BYTES:
        return None
    files = _written_lately(view, in_cache=False)
    device = sum(p.io_in_window.write_bytes for p in view.alive if p.io_in_window)
    if not files and device < _MUCH_WRITTEN_BYTES:
        return None  # what went to pipes and sockets is counted as written too
    if not files and (view.evidence.growth.touched or view.evidence.growth.changed_in_place):
        return None  # it may have gone into watched files that do not grow
    names = [f"{shown(f.target)} ({format_bytes(f.size_bytes or 0)})" for f in files[:5]]
    return Cause(
        "writing_elsewhere",
        f"it writes to {shown(files[0].target)}, which is not in a watched directory"
        if files
        else "it writes to files outside the watched directories",
        (_written(view), "written lately: " + ", ".join(names) if names else ""),
        "high" if files else "medium",
    )


def reading_checkpoint(view: View) -> Cause | None:
    """It reads at speed and has not written yet."""
    rate = view.read_bytes_per_s
    if rate is None or rate < _READING_BYTES_PER_S:
        return None
    if view.written_bytes and view.written_bytes > 0.1 * rate * view.window_s:
        return None
    inputs = [f for p in view.alive for f in p.files if f.kind == "file" and f.access == "r" and not f.in_cache]
    largest = max(inputs, key=lambda f: f.size_bytes or 0, default=None)
    where = f" {shown(largest.target)}" if largest else ""
    early = view.evidence.growth.first_write_s is None
    return Cause(
        "reading_checkpoint",
        f"it is reading{where or ' its input'} at {format_bytes(rate)}/s and {'has not written yet' if early else 'does not write'}",
        (
            f"{format_bytes(rate * view.window_s)} read in {view.window_s:.1f} s, "
            f"{format_bytes(view.written_bytes or 0)} written",
            f"at {_position(largest)}" if largest else "",
        ),
        "high" if early and largest else "medium",
    )


def still_writing(view: View) -> Cause | None:
    """The time limit passed while the generator was writing."""
    growth = view.evidence.growth
    if growth.kind != "deadline_exceeded" or growth.pause_s > 0.5 * growth.window_s or not growth.bytes_written:
        return None
    rate = growth.bytes_written / growth.last_growth_s if growth.last_growth_s else 0.0
    return Cause(
        "still_writing",
        f"it was still writing when its time limit came ({format_bytes(rate)}/s on average)",
        (f"{format_bytes(growth.bytes_written)} written, the last {growth.pause_s:.1f} s before the limit",),
    )


def blocked_on_io(view: View) -> Cause | None:
    """A thread waits for a disk or a network file system in the kernel."""
    wait = view.leaf(WaitKind.DISK)
    if wait is None:
        return None
    busy = (view.read_bytes_per_s or 0) * view.window_s + (view.written_bytes or 0) >= _MUCH_WRITTEN_BYTES
    if busy and wait.thread.state != "D":
        return None
    target = f" on {shown(wait.target)}" if wait.target else ""
    call = wait.thread.syscall or "a kernel call"
    return Cause(
        "blocked_on_io",
        f"{who(wait.process)} waits in the kernel for storage ({call}{target})",
        (
            f"thread {wait.thread.tid} is in state {wait.thread.state} in {wait.thread.wait_channel or 'the kernel'}, "
            f"{call}{target}",
            *(f"kernel: {frame}" for frame in wait.thread.kernel_stack[:6]),
        ),
        "low" if busy else "high" if wait.thread.state == "D" else "medium",
    )


def _may_not_write(process: ProcessFacts, facts: FilesystemFacts) -> bool:
    if facts.mode is None or process.uid is None or process.may_override_permissions is not False:
        return False
    if process.uid == facts.owner_uid:
        return not facts.mode & 0o200
    # The process may be in the directory's group: only a directory without write permission for its group is certain.
    return not facts.mode & 0o022


def _is_lasting(file: OpenFile) -> bool:
    return not file.target.endswith(" (deleted)") and not is_temporary(file.target.rpartition("/")[2])


def _recent_s(view: View) -> float:
    return max(1.0, 0.5 * view.window_s)


def _written_lately(view: View, in_cache: bool) -> list[OpenFile]:
    recent_s = _recent_s(view)
    found = {
        file.target: file
        for process in view.alive
        for file in process.files
        if file.kind == "file" and "w" in file.access and file.in_cache is in_cache
        if file.fd > 2 or in_cache
        if file.changed_age_s is not None and file.changed_age_s <= recent_s
        if not any(fnmatch(file.target.rsplit("/", 1)[-1], glob) for glob in DEFAULT_IGNORE)
    }
    return sorted(found.values(), key=lambda file: -(file.size_bytes or 0))


def _mount(facts: FilesystemFacts) -> str:
    return f"{shown(facts.source)} on {shown(facts.mount_point)} type {facts.type} ({','.join(facts.options[:8])})"


def _space(facts: FilesystemFacts) -> str:
    if facts.free_bytes is None or facts.total_bytes is None:
        return ""
    return f"{format_bytes(facts.free_bytes)} of {format_bytes(facts.total_bytes)} free under {shown(facts.path)}"


def _written(view: View) -> str:
    return f"{format_bytes(view.written_bytes or 0)} written by the tree in {view.window_s:.1f} s"


def _position(file: OpenFile) -> str:
    if not file.size_bytes:
        return f"byte {file.position_bytes or 0} of {shown(file.target)}"
    share = 100 * (file.position_bytes or 0) / file.size_bytes
    return f"{share:.0f} % of {shown(file.target)} ({format_bytes(file.size_bytes)})"
