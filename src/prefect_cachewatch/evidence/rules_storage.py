"""Rules for causes that lie in the storage: full, read-only, hung, written in another way; pure.

Each takes the view of an evidence and returns the cause, or None where it does not apply.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fnmatch import fnmatch

from prefect_cachewatch.common.mounts import is_in
from prefect_cachewatch.common.temporary import is_temporary
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.evidence.causes import Cause, Confidence
from prefect_cachewatch.evidence.model import FILLING_BYTES_PER_S, FilesystemFacts, ProcessFacts
from prefect_cachewatch.evidence.view import DENIED, NO_SPACE, QUOTA, READ_ONLY, View, quoted, shown, who
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE
from prefect_cachewatch.supervise.open_files import OpenFile

_MIB = 1 << 20
_FULL_LINES = 5
_PATH = re.compile(r"(?<![\w/])/[^\s'\"<>|,;()\[\]{}]{1,4000}")
_DISCARDED_BYTES = 1 << 16
_NO_FACTS = FilesystemFacts("the cache directory")


def filesystem_unresponsive(view: View) -> Cause | None:
    """A cache directory's file system did not answer a statvfs in time; certain if another call hangs in it too."""
    known, blind = view.evidence.filesystems, view.evidence.growth.kind == "filesystem_unresponsive"
    hung = next((f for f in known if not f.responded), None)
    if hung is None and not blind:
        return None
    facts = hung or next(iter(known), _NO_FACTS)
    summary = f"the {facts.type or 'unknown'} file system under {shown(facts.path)} does not answer"
    line = f"{_mount(facts)}: statvfs and stat {facts.error or 'did not return in time'}"
    # A busy machine also delays a single statvfs: failed scans, or a process in the kernel, must confirm it.
    sure = hung and (blind or any(wait.kind == "disk" for wait in view.waits))
    return Cause("filesystem_unresponsive", summary, (line,), "high" if sure else "medium")


def cache_directory_missing(view: View) -> Cause | None:
    """The cache directory is not there any more."""
    known = view.evidence.filesystems
    gone = next((f for f in known if "No such file" in f.error), None)
    if gone is None and view.evidence.growth.kind != "cache_directory_missing":
        return None
    path = shown((gone or next(iter(known), _NO_FACTS)).path)
    summary = f"{path} is gone: it was removed, renamed or unmounted during the run"
    return Cause("cache_directory_missing", summary, (f"stat {path}: {gone.error if gone else 'missing'}",))


def read_only_filesystem(view: View) -> Cause | None:
    """A cache directory's file system is mounted read-only, or became so after an error."""
    facts = next((f for f in view.evidence.filesystems if f.read_only), None)
    line = view.log_line(READ_ONLY)
    if facts is None and not (line and view.names_cache(line)):
        return None
    summary = f"the file system under {shown((facts or _NO_FACTS).path)} is read-only"
    lines = (_mount(facts),) if facts else ()
    return Cause("read_only_filesystem", summary, lines, "high" if facts else "medium", quoted(line))


def inodes_exhausted(view: View) -> Cause | None:
    """No inode is free: no new file can be made, whatever space is left."""
    facts = next((f for f in view.evidence.filesystems if f.has_no_inode), None)
    if facts is None:
        return None
    summary = f"no inode is free under {shown(facts.path)}: no new file can be made there"
    line = f"{_mount(facts)}: {facts.free_inodes} of {facts.total_inodes} inodes free"
    return Cause("inodes_exhausted", summary, (line, *_spaces([facts])))


def disk_full(view: View) -> Cause | None:
    """There is no space for the generator's user, or its log says that there was none."""
    line, own = view.log_line(NO_SPACE), view.evidence.filesystems
    if (facts := next((f for f in own if f.has_no_space), None)) is not None:
        summary = f"the file system under {shown(facts.path)} is full ({format_bytes(facts.free_bytes or 0)} free)"
        return Cause("disk_full", summary, (_mount(facts), *_spaces([facts])), said=quoted(line))
    others = sorted(view.evidence.other_filesystems, key=lambda facts: -len(facts.path))
    # Full still, so that an old line counts.
    old = next((each for each in view.evidence.log_kept.splitlines() if NO_SPACE.search(each)), "")
    if (other := _other_full(view, others, line or old)) is not None or not line:
        return other
    sure: Confidence = "medium" if view.alive else "high"
    if any(f.free_bytes and f.free_bytes < 0.05 * (f.total_bytes or 0) for f in own) or view.names_cache(line):
        summary = "the generator ran out of space on its cache's file system"
        return Cause("disk_full", summary, _spaces(own), sure, quoted(line))
    where = next((facts.path for facts in others for place in _places(line) if is_in(place, facts.path)), "")
    summary = "the generator's log says that a file system was full, and it is not the cache's"
    if where:
        summary = f"the generator ran out of space under {shown(where)}, which is not the cache's file system"
    sure = "medium" if where or not view.alive else "low"
    return Cause("disk_full", summary, _spaces([*own, *others]), sure, quoted(line))


def _other_full(view: View, others: Iterable[FilesystemFacts], line: str) -> Cause | None:
    """A file system that the tree uses besides its cache's is full: its log says so, it writes a file there, or it retries."""
    written = [file.target for file in view.files if "w" in file.access]
    for facts in others:
        writes = any(is_in(target, facts.path) for target in written)
        if (facts.has_no_space or facts.has_no_inode) and (line or writes or view.polls):
            what = "has no free inode"
            if facts.has_no_space:
                what = f"is full ({format_bytes(facts.free_bytes or 0)} free)"
            summary = f"the file system on {shown(facts.path)} {what}, and it is not the cache's"
            sure: Confidence = "high" if line else "medium" if writes else "low"
            return Cause("disk_full", summary, (_mount(facts), *_spaces([facts])), sure, quoted(line))
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
    summary = f"the generator was told that its disk quota is exceeded{where}"
    return Cause("quota_exceeded", summary, _spaces(view.evidence.filesystems), said=quoted(line))


def permission_denied(view: View) -> Cause | None:
    """The generator's user may not write in the cache directory."""
    line = view.log_line(DENIED)
    for facts in view.evidence.filesystems:
        process = next((process for process in view.alive if _may_not_write(process, facts)), None)
        if process is not None:
            summary = f"{who(process)} runs as uid {process.uid} and may not write in {shown(facts.path)}"
            lines = (f"{shown(facts.path)} belongs to uid {facts.owner_uid}, mode {facts.mode or 0:04o}",)
            sure: Confidence = "high" if line or view.evidence.growth.first_write_s is None else "medium"
            return Cause("permission_denied", summary, lines, sure, quoted(line))
    if not line or not view.names_cache(line):
        return None
    summary, sure = "the generator was refused access to a file of its cache", "medium" if view.alive else "high"
    return Cause("permission_denied", summary, (), sure, quoted(line))


def _may_not_write(process: ProcessFacts, facts: FilesystemFacts) -> bool:
    if facts.mode is None or process.uid is None or process.may_override_permissions is not False:
        return False
    # The process may be in the directory's group: only a directory without write permission for its group is certain.
    return not facts.mode & (0o200 if process.uid == facts.owner_uid else 0o022)


def in_place_writes(view: View) -> Cause | None:
    """Files are written without growing: their modification time moves, their size does not."""
    growth, written = view.evidence.growth, view.written_bytes or 0
    lately = (file.target for file in _written_lately(view, in_cache=True))
    lasting = (path for path in lately if not path.endswith(" (deleted)") and not is_temporary(path.rpartition("/")[2]))
    names = list(dict.fromkeys((*growth.touched, *lasting)))
    # A heartbeat file changes too, and a log is written beside it: filling takes more bytes than these.
    filled = written >= FILLING_BYTES_PER_S * max(1.0, view.window_s)
    if not (names or growth.changed_in_place) or not (filled or (not names and written >= _MIB)):
        return None
    example = f", for example {shown(names[0])}" if names else ""
    summary = f"files of a fixed size are being filled{example}: they change and do not grow"
    which = ", ".join(shown(name, 60) for name in names[:5]) or "names unknown"
    lines = (f"modified in the window, same size: {which}", _written(view))
    return Cause("in_place_writes", summary, lines, "high" if names else "medium")


def churning(view: View) -> Cause | None:
    """Bytes are written and thrown away again, with their files or out of them; nothing stays."""
    growth = view.evidence.growth
    # No scan sees a file that lives for less than a poll; the directory's own time shows it.
    ages = [f.changed_age_s for f in view.evidence.filesystems if f.changed_age_s is not None]
    stirred = min(ages, default=math.inf) <= _recent_s(view)
    hidden = stirred and (view.written_bytes or 0) >= _MIB and not _written_lately(view, in_cache=False)
    if growth.kind != "churning" and growth.discarded_bytes < _DISCARDED_BYTES and not hidden:
        return None
    lines = (
        f"{format_bytes(growth.discarded_bytes)} written in the window and gone again",
        _written(view),
        "entries of the cache directory come and go" if stirred else "",
    )
    sure: Confidence = "high" if growth.kind == "churning" else "medium"
    return Cause("churning", "what is written is thrown away again, and nothing is kept", lines, sure)


def writing_elsewhere(view: View) -> Cause | None:
    """Bytes are written, and go to files outside the cache directories."""
    growth, files = view.evidence.growth, _written_lately(view, in_cache=False)
    device = sum(process.io_in_window.write_bytes for process in view.alive if process.io_in_window)
    if (view.written_bytes or 0) < _MIB:
        return None
    # What went to pipes and sockets is counted as written too, and what went into watched files that do not grow.
    if not files and (device < _MIB or growth.touched or growth.changed_in_place):
        return None
    names = [f"{shown(file.target)} ({format_bytes(file.size_bytes or 0)})" for file in files[:5]]
    summary = "it writes to files outside the watched directories"
    if files:
        summary = f"it writes to {shown(files[0].target)}, which is not in a watched directory"
    lines = (_written(view), "written lately: " + ", ".join(names) if names else "")
    return Cause("writing_elsewhere", summary, lines, "high" if files else "medium")


def reading_checkpoint(view: View) -> Cause | None:
    """It reads at speed and has not written yet."""
    rate, written = view.read_bytes_per_s or 0, view.written_bytes or 0
    if rate < _MIB or written > 0.1 * rate * view.window_s:
        return None
    inputs = [file for file in view.files if file.access == "r" and not file.in_cache]
    largest = max(inputs, key=lambda file: file.size_bytes or 0, default=None)
    early = view.evidence.growth.first_write_s is None
    what, yet = shown(largest.target) if largest else "its input", "has not written yet" if early else "does not write"
    lines = (
        f"{format_bytes(rate * view.window_s)} read in {view.window_s:.1f} s, {format_bytes(written)} written",
        f"at byte {largest.position_bytes or 0} of {largest.size_bytes or 0} of {what}" if largest else "",
    )
    summary = f"it is reading {what} at {format_bytes(rate)}/s and {yet}"
    return Cause("reading_checkpoint", summary, lines, "high" if early and largest else "medium")


def still_writing(view: View) -> Cause | None:
    """The time limit passed while the generator was writing."""
    growth = view.evidence.growth
    if growth.kind != "deadline_exceeded" or growth.pause_s > 0.5 * growth.window_s or not growth.bytes_written:
        return None
    rate = growth.bytes_written / growth.last_growth_s if growth.last_growth_s else 0.0
    summary = f"it was still writing when its time limit came ({format_bytes(rate)}/s on average)"
    line = f"{format_bytes(growth.bytes_written)} written, the last {growth.pause_s:.1f} s before the limit"
    return Cause("still_writing", summary, (line,))


def _recent_s(view: View) -> float:
    return max(1.0, 0.5 * view.window_s)


def _written_lately(view: View, in_cache: bool) -> list[OpenFile]:
    found = {
        file.target: file
        for file in view.files
        if "w" in file.access and file.in_cache is in_cache and (file.fd > 2 or in_cache)
        if file.changed_age_s is not None and file.changed_age_s <= _recent_s(view)
        if not any(fnmatch(file.target.rpartition("/")[2], glob) for glob in DEFAULT_IGNORE)
    }
    return sorted(found.values(), key=lambda file: -(file.size_bytes or 0))


def _mount(facts: FilesystemFacts) -> str:
    return f"{shown(facts.source)} on {shown(facts.mount_point)} type {facts.type} ({','.join(facts.options[:8])})"


def _spaces(filesystems: Iterable[FilesystemFacts]) -> tuple[str, ...]:
    return tuple(
        f"{format_bytes(facts.free_bytes)} of {format_bytes(facts.total_bytes)} free under {shown(facts.path)}"
        for facts in filesystems
        if facts.free_bytes is not None and facts.total_bytes is not None
    )


def _written(view: View) -> str:
    return f"{format_bytes(view.written_bytes or 0)} written by the tree in {view.window_s:.1f} s"
