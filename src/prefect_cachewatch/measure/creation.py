"""Lists the files that an attempt created below some directories: only these may be removed again.

Two looks make the list: `remember` before the generator starts, `sight` after its tree is gone. A file is the attempt's
if only the second look shows it, by name and by inode; if it was born between the looks by the file system's own clock;
and if it belongs to the owner that the file system gives this process's files. Files of unknown origin are kept.
Standard library only, since it runs in the scan process; the removal itself is `common.removal`.
"""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prefect_cachewatch.common.directories import OPEN_DIRECTORY
from prefect_cachewatch.common.mounts import read_mounts
from prefect_cachewatch.common.removal import (
    Entry,
    list_entries,
    look,
    look_path,
    make_stamp,
    open_below,
    remove_judged,
    walk,
)

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import Any

# Files whose status is kept as a sample, to detect whether the file system gives them other inode numbers.
_SAMPLED = 4096
_NAMED = 20
# cachewatch's own names, and the name under which an NFS client keeps a removed file that is still open.
_OWN_DIRECTORY, _OWN_NAMES = ".cachewatch/", (".cachewatch-new-", ".cachewatch.lock", ".nfs")
_TICK_S = 2.5
_LAYERED = ("overlay", "aufs")


class Refusal(Exception):
    """Why nothing at all is removed, as one sentence."""


class Held:
    """A directory that is held open from the start, so that a later one of the same path is not mistaken for it.

    Args:
        path: absolute, resolved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, OPEN_DIRECTORY)
        top = look(self.fd)
        self.layered = _is_layered(top.mount)
        self.top = self.known(top)

    def require_in_place(self) -> None:
        """Check that the path still leads to it; raises Refusal."""
        try:
            now = self.known(look_path(self.path))
        except FileNotFoundError:
            raise Refusal(f"cache directory {self.path} is gone") from None
        if now.mount != self.top.mount or not now.is_same(self.top):
            raise Refusal(
                f"cache directory {self.path} is not the one that it was at the start: it was moved or replaced, or another "
                "file system was mounted over it"
            )

    def look(self, fd: int, name: str) -> Entry:
        return self.known(look(fd, name))

    def known(self, entry: Entry) -> Entry:
        """Return the entry, without the birth if the file system is layered: there a mere write changes it."""
        return entry._replace(born_ns=None) if self.layered else entry

    def close(self) -> None:
        os.close(self.fd)


class Creation:
    """The files that one attempt makes below some directories.

    It takes 16 bytes of memory for each file that existed before, and 8 for each one made.

    Args:
        roots: absolute, resolved paths.

    Raises:
        OSError: one of them cannot be opened.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self.held: list[Held] = []
        self.sighted = False
        self._complete = True
        self._stamps: list[Entry] = []
        self._names = self._inodes = self._made = array("q")
        self._samples: dict[tuple[int, str], tuple[int, int, int]] = {}
        self._problem: str | None = None
        try:
            for root in roots:
                self.held.append(Held(root))
        except OSError:
            self.close()
            raise

    def remember(self) -> None:
        """Record the existing files as not the attempt's, and forget what was sighted before.

        Raises:
            Refusal: a directory has been replaced by another one.
            OSError: no file can be made in a directory, so the file system's clock and owner are unknown.
        """
        for held in self.held:
            held.require_in_place()
        self.sighted, self._complete, self._problem = False, True, None
        self._samples = {}
        names, inodes = array("q"), array("q")
        for index, held in enumerate(self.held):
            for path, _, entry in self._entries(held):
                names.append(hash((index, path)))
                inodes.append(_identity(entry))
                self._sample(index, path, entry)
        self._names, self._inodes, self._made = _sort(names), _sort(inodes), array("q")
        # Last of all, so that everything that came during the look is older.
        self._stamps = [make_stamp(held.fd) for held in self.held]
        for held, stamp in zip(self.held, self._stamps, strict=True):
            _wait_for_tick(held.fd, stamp)

    def sight(self) -> dict[str, Any]:
        """Record the files that came since as the attempt's, as far as that is known; its tree must be gone.

        Returns:
            `made`: how many files, directories and others.

        Raises:
            OSError: a directory cannot be read.
        """
        self.sighted, self._problem = False, None
        self._check_samples()
        made = array("q")
        for index, held in enumerate(self.held):
            now = make_stamp(held.fd)
            for path, name, entry in self._entries(held):
                if self._is_made(index, path, name, entry, now):
                    made.append(_as_sighted(index, path, entry))
                    self._sample(index, path, entry)
        self._made, self.sighted = _sort(made), True
        return {"made": len(made)}

    def _is_made(self, index: int, path: str, name: str, entry: Entry, now: Entry) -> bool:
        """Say whether an entry is known to have been created since `remember`.

        Args:
            index: of the directory.
            path: relative to it.
            name: last part of it.
            entry: as it is now, by `Held.look`.
            now: a later stamp; the origin of an entry dated after it is unknown.
        """
        stamp = self._stamps[index]
        if entry.owner != stamp.owner or _is_own(path, name):
            return False
        if not (entry.is_file or entry.is_directory or entry.is_link):
            return False  # a pipe or a socket holds no bytes, and another process may be at its other end
        if _holds(self._names, hash((index, path))) or _holds(self._inodes, _identity(entry)):
            return False
        if entry.born_ns is not None:
            return stamp.changed_ns < entry.born_ns <= now.changed_ns
        # No birth time is recorded. A file that was moved here keeps its modification time; one that was not listed may
        # have been here before.
        if not self._complete or (entry.links > 1 and not entry.is_directory):
            return False
        return stamp.changed_ns < entry.changed_ns and (entry.is_directory or stamp.changed_ns < entry.modified_ns)

    def clean(self) -> dict[str, Any]:
        """Remove what `sight` recorded as the attempt's and is unchanged since; directories when they are empty.

        Returns:
            `removed` (files), `directories`, `freed_bytes`; `kept`, files that came since the start but may not be the
            attempt's, with the first `kept_paths`; `failed` and `problems`, removals that failed.

        Raises:
            Refusal: no file was touched.
        """
        for held in self.held:
            held.require_in_place()
        if not self.sighted:
            raise Refusal("what the attempt made was not listed at its end")
        self._check_samples()
        if self._problem is not None:
            raise Refusal(f"{self._problem}, so what the attempt made cannot be told from what was there before")
        answer: dict[str, Any] = {"removed": 0, "directories": 0, "freed_bytes": 0, "kept": 0, "failed": 0}
        kept: list[str] = []
        problems: list[str] = []

        def keep(held: Held, path: str) -> None:
            answer["kept"] += 1
            if len(kept) < _NAMED:
                kept.append(f"{held.path}/{path}")

        for index, held in enumerate(self.held):

            def may_go(path: str, name: str, entry: Entry, index: int = index, held: Held = held) -> bool:
                entry = held.known(entry)
                if _holds(self._made, _as_sighted(index, path + name, entry)):
                    return True
                if not (
                    entry.is_directory
                    or _is_own(path + name, name)
                    or _holds(self._names, hash((index, path + name)))
                    or _holds(self._inodes, _identity(entry))
                ):
                    keep(held, path + name)
                return False

            done = remove_judged(held.fd, may_go)
            for path in done.unread:
                keep(held, path)
            answer["removed"] += done.files
            answer["directories"] += done.directories
            answer["freed_bytes"] += done.freed_bytes
            answer["failed"] += done.failed
            problems += [f"{held.path}/{problem}" for problem in done.problems]
        return answer | {"kept_paths": kept, "problems": problems[:_NAMED]}

    def close(self) -> None:
        while self.held:
            self.held.pop().close()

    def _entries(self, held: Held) -> Iterator[tuple[str, str, Entry]]:
        for fd, path, _ in walk(held.fd, self._unread):
            for name, entry in list_entries(fd, self._unread):
                if entry.is_beside(held.top):
                    yield path + name, name, held.known(entry)
                else:
                    self._complete = False

    def _unread(self, path: str) -> None:
        self._complete = False

    def _sample(self, index: int, path: str, entry: Entry) -> None:
        if entry.is_file and len(self._samples) < _SAMPLED:
            self._samples[index, path] = (entry.inode, entry.size_bytes, entry.changed_ns)

    def _check_samples(self) -> None:
        """Look for a sample file that has another inode and has not changed: then inode numbers prove nothing."""
        for (index, path), (inode, size_bytes, changed_ns) in self._samples.items():
            held = self.held[index]
            directory, _, name = path.rpartition("/")
            try:
                fd = open_below(held.fd, directory)
            except OSError:
                continue
            try:
                now = look(fd, name)
            except OSError:
                continue
            finally:
                os.close(fd)
            if now.inode != inode and (now.size_bytes, now.changed_ns) == (size_bytes, changed_ns):
                self._problem = (
                    f"inode numbers do not last on this file system ({held.path}/{path} has another one, unchanged)"
                )
                return


def _wait_for_tick(fd: int, stamp: Entry) -> None:
    """Wait until the file system's clock advances: it moves in steps of some milliseconds, at most two seconds."""
    pause_s, end_s = 0.001, time.monotonic() + _TICK_S
    while make_stamp(fd).changed_ns == stamp.changed_ns and time.monotonic() < end_s:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


def _identity(entry: Entry) -> int:
    return hash((entry.device, entry.inode, entry.born_ns))


def _as_sighted(index: int, path: str, entry: Entry) -> int:
    # Without a birth time a file must not have changed since. For a directory that is not required: removing its
    # entries changes it.
    since = entry.born_ns if entry.born_ns is not None else 0 if entry.is_directory else entry.changed_ns
    return hash((index, path, entry.device, entry.inode, entry.mode & 0o170000, since))


def _is_own(path: str, name: str) -> bool:
    return f"{path}/".startswith(_OWN_DIRECTORY) or name.startswith(_OWN_NAMES)


def _sort(values: array[int]) -> array[int]:
    """Sort numbers, for `_holds`."""
    return array("q", sorted(values))


def _holds(values: array[int], value: int) -> bool:
    """Say whether sorted numbers contain a value."""
    place = bisect_left(values, value)
    return place < len(values) and values[place] == value


def _is_layered(number: int | None) -> bool:
    return any(mount.number == str(number) and mount.type in _LAYERED for mount in read_mounts())
