"""Records which files runs have made in a directory that is generated in place: later runs may remove only these.

    CACHE_DIR/.cachewatch/begun.json   key and build of the last generation that began here, when, and how it ended
    CACHE_DIR/.cachewatch/created      identity of each file that a run made: appended as it appears
    (`measure.creation`)

The record covers files that were seen while a run wrote them. Later files, and files of other programs, are not in it.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prefect_cachewatch.common.closing import Opened
from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.files import write_all
from prefect_cachewatch.common.removal import Entry, Removed, list_entries, look, make_stamp, remove_judged, walk
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.measure.creation import (
    RECORD,
    Creation,
    Held,
    Refusal,
    created_line,
    holds,
    key_of,
    read_line,
    sort,
)
from prefect_cachewatch.publish.durable import read_note, write_durably
from prefect_cachewatch.publish.names import META_DIRECTORY
from prefect_cachewatch.supervise.proc import boot_id

BEGUN = "begun.json"
_NAMED = 5
_MAX_LINE = 1 << 16
_TICK_MAX_S = 0.05


# How long after the last sign of life of a killed run its generator may have written, besides its grace period. The
# second value is for a crash of the machine, whose last seconds never reached the disk.
_AFTER_NS, _AFTER_CRASH_NS = 5 * 10**9, 60 * 10**9


@dataclass(frozen=True)
class Doubt:
    """A period in which a generator wrote files that were never shown to be whole, on the file system's clock.

    `until_ns` is None if its end is unknown; `since_ns` is 0 if its beginning is unknown.
    """

    since_ns: int
    until_ns: int | None

    def covers(self, entry: Entry, grew_after_ns: int = 0) -> bool:
        """Say whether a file may have been cut in this period.

        Args:
            entry: the file, which no run is known to have made.
            grew_after_ns: a file that changed last before this moment is whole.
        """
        if entry.changed_ns < max(self.since_ns, grew_after_ns):
            return False
        if self.until_ns is None:
            return True
        if entry.born_ns is not None and entry.born_ns >= self.since_ns:
            return entry.born_ns <= self.until_ns
        # A later chown or chmod changes only the change time; a later write changes the modification time too.
        return min(entry.changed_ns, entry.modified_ns) <= self.until_ns


@dataclass(frozen=True)
class Begun:
    """The last generation that began in a directory: which one, when, whether it ended properly, and earlier doubts."""

    key: str
    build_id: str
    since_ns: int | None = None
    until_ns: int | None = None
    grace_s: float = 0.0
    boot_id: str = ""
    directory: tuple[int, int | None] | None = None
    doubts: tuple[Doubt, ...] = ()


class Made:
    """The files in a directory that runs are known to have made and that are unchanged since.

    Args:
        build_fd: descriptor of the directory.
        path: its path, for messages.
    """

    def __init__(self, build_fd: int, path: str) -> None:
        self.path = path
        self._held = Held(path)
        try:
            if not self._held.top.is_same(look(build_fd)):
                raise StoreError(f"{for_terminal(path, 1000)} was replaced meanwhile: begin again", path=path)
            self._keys = sort(self._read())
        except BaseException:
            self._held.close()
            raise

    def close(self) -> None:
        """Close the directory."""
        self._held.close()

    def knows(self, path: str, entry: Entry) -> bool:
        """Say whether a run has made a file.

        Args:
            path: relative to the directory.
            entry: as it is now.
        """
        if entry.is_directory or f"{path}/".startswith(META_DIRECTORY + "/"):
            return False
        return holds(self._keys, key_of(path, self._held.known(entry)))

    def entries(self) -> tuple[dict[str, Entry], dict[str, Entry]]:
        """Look at every file and link in the directory.

        Returns:
            Those that a run has made, and all others, by relative path.
        """
        made: dict[str, Entry] = {}
        others: dict[str, Entry] = {}
        for fd, path, _ in walk(self._held.fd):
            if f"{path}/".startswith(META_DIRECTORY + "/"):
                continue
            for name, entry in list_entries(fd):
                if entry.is_directory or not entry.is_beside(self._held.top):
                    continue
                if self.knows(path + name, entry):
                    made[path + name] = entry
                else:
                    others[path + name] = self._held.known(entry)
        return made, others

    def remove(self) -> Removed:
        """Remove all these files; directories stay, since other processes may hold them open.

        Returns:
            What was removed.

        Raises:
            StoreError: one of them cannot be removed.
        """
        done = remove_judged(self._held.fd, lambda path, name, entry: self.knows(path + name, entry))
        if done.failed:
            raise StoreError(
                f"cannot remove {for_terminal(f'{self.path}/{done.problems[0]}', 1000)}: see to it by hand"
            )
        return done

    def rewrite(self, meta_fd: int, made: dict[str, Entry]) -> None:
        """Rewrite the record with the files that still exist.

        Args:
            meta_fd: descriptor of cachewatch's own directory in it.
            made: the first result of `entries`.
        """
        top = self._held.top
        lines = [json.dumps({"inode": top.inode, "born_ns": top.born_ns}) + "\n"]
        lines += [created_line(path, self._held.known(entry), top) for path, entry in made.items()]
        write_durably(meta_fd, RECORD, "".join(lines).encode("ascii"))

    def _read(self) -> array[int]:
        keys = array("q")
        top = self._held.top
        try:
            meta_fd = os.open(META_DIRECTORY, OPEN_DIRECTORY, dir_fd=self._held.fd)
        except OSError:
            return keys
        try:
            fd = os.open(RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=meta_fd)
        except OSError:
            return keys
        finally:
            os.close(meta_fd)
        with os.fdopen(fd, "rb") as file:
            entry = look(fd)
            # A record written by another user could name any file.
            if not entry.is_file or entry.owner not in (os.geteuid(), self._held.top.owner):
                return keys
            try:
                head = json.loads(file.readline(_MAX_LINE))
                if (head["inode"], head["born_ns"]) != (top.inode, top.born_ns):
                    return keys  # copied here together with the directory: the inode numbers belong to other files
            except (ValueError, TypeError, KeyError):
                return keys
            while line := file.readline(_MAX_LINE):
                if (key := read_line(line, top)) is not None:
                    keys.append(key)
        return keys


def read_begun(meta_fd: int) -> Begun | None:
    """Read which generation began last; None if none is known.

    Args:
        meta_fd: descriptor of cachewatch's own directory.
    """
    return read_note(meta_fd, BEGUN, 1 << 16, _decode)


def _decode(found: Any) -> Begun:
    begun = Begun(str(found["key"]), str(found["build_id"]))
    if found.get("since_ns") is None:
        return begun  # from an earlier version
    until_ns, directory = found["until_ns"], found["directory"]
    return replace(
        begun,
        since_ns=int(found["since_ns"]),
        until_ns=None if until_ns is None else int(until_ns),
        grace_s=float(found["grace_s"]),
        boot_id=str(found["boot_id"]),
        directory=(int(directory[0]), directory[1]),
        doubts=tuple(Doubt(int(since), None if until is None else int(until)) for since, until in found["doubts"]),
    )


def find_doubts(meta_fd: int, build_fd: int, begun: Begun | None, whole_id: str | None) -> tuple[Doubt, ...]:
    """Return the periods in which a generator wrote files that were not shown to be whole since.

    Args:
        meta_fd: descriptor of cachewatch's own directory, with the record as the last run left it.
        build_fd: descriptor of the cache directory.
        begun: the last generation that began.
        whole_id: the build that was published last.

    Returns:
        The periods; none if the last generation was published, or no generation is known.
    """
    if begun is None or begun.since_ns is None or begun.build_id == whole_id:
        return ()
    top, now_ns = look(build_fd), make_stamp(meta_fd).changed_ns
    if begun.directory != (top.inode, top.born_ns) or now_ns < begun.since_ns:
        return (Doubt(0, None),)  # copied, or the clock was set back: dates prove nothing
    until_ns = begun.until_ns
    if until_ns is None:  # the run was killed
        try:
            alive_ns = look(meta_fd, RECORD).changed_ns
        except OSError:
            return (*begun.doubts, Doubt(begun.since_ns, None))
        after_ns = _AFTER_NS if begun.boot_id == boot_id() else _AFTER_CRASH_NS
        until_ns = max(alive_ns, begun.since_ns) + after_ns + int(begun.grace_s * 1e9)
    return (*begun.doubts, Doubt(begun.since_ns, until_ns))


def _next_tick(meta_fd: int) -> int:
    # Everything written in one tick of the kernel's clock has the same date: wait, so that files that existed before
    # have an earlier one.
    first_ns = now_ns = make_stamp(meta_fd).changed_ns
    until_s = time.monotonic() + _TICK_MAX_S
    while now_ns == first_ns and time.monotonic() < until_s:
        time.sleep(0.001)
        now_ns = make_stamp(meta_fd).changed_ns
    return now_ns


def write_begun(meta_fd: int, build_fd: int, begun: Begun, *, ended: bool = False) -> Begun:
    """Record durably which generation begins, or that it has ended and all its files are in the record.

    Args:
        meta_fd: descriptor of cachewatch's own directory.
        build_fd: descriptor of the cache directory.
        begun: the generation.
        ended: whether it has ended.

    Returns:
        The generation, with the time of the file system's clock.
    """
    top = look(build_fd)
    if ended:
        begun = replace(begun, until_ns=make_stamp(meta_fd).changed_ns)
    else:
        since_ns = _next_tick(meta_fd)
        begun = replace(begun, since_ns=since_ns, boot_id=boot_id(), directory=(top.inode, top.born_ns))
    data = {"schema_version": 1, **asdict(begun)}
    data["doubts"] = [[doubt.since_ns, doubt.until_ns] for doubt in begun.doubts]
    write_durably(meta_fd, BEGUN, json.dumps(data).encode("ascii") + b"\n")
    return begun


def begin_record(path: str | os.PathLike[str]) -> Creation:
    """Record the existing files as not this generation's; its beginning is already recorded.

    Args:
        path: of the cache directory.

    Returns:
        An object that later finds the new files; the caller closes it.

    Raises:
        StoreError: the directory has been replaced.
    """
    creation = Creation([str(Path(path))])
    try:
        creation.remember()
    except Refusal as refusal:
        creation.close()
        raise StoreError(f"{for_terminal(str(refusal), 1000)}: begin again", path=str(path)) from None
    except BaseException:
        creation.close()
        raise
    return creation


def append_record(meta_fd: int, lines: list[str]) -> None:
    """Append lines to the record.

    Args:
        meta_fd: descriptor of cachewatch's own directory, where the record is.
        lines: from `creation.created_line`.
    """
    with Opened(os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=meta_fd)) as fd:
        write_all(fd, "".join(lines).encode("ascii"))


def describe_others(others: Collection[str]) -> str:
    """Say which files stay, since no run is known to have made them.

    Example:
        >>> describe_others(["a", "b"])
        '2 files are not known to be made by a run, and stay: a, b'
    """
    names = ", ".join(for_terminal(path, 100) for path in list(others)[:_NAMED])
    count = "1 file is" if len(others) == 1 else f"{len(others):,} files are"
    verb = "stays" if len(others) == 1 else "stay"
    return f"{count} not known to be made by a run, and {verb}: {names}{', ...' if len(others) > _NAMED else ''}"
