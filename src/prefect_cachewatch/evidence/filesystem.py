"""Facts about file systems, read in threads that can be left behind where one does not answer.

The mount table is read here, since /proc/self/mountinfo never blocks. Each mount is asked in a thread of its own, and open
files in another one, so that a hang costs only what follows it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.evidence.model import FilesystemFacts
from prefect_cachewatch.measure.space import read_space
from prefect_cachewatch.supervise.proc import read_proc, stat_fields

_OTHERS_MAX = 6
_LATE = "not known: the thread that asks was late"
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFCHR: "device"}


def probe_directory(path: str) -> dict[str, Any]:
    """Ask statvfs and stat about a directory.

    Example:
        >>> probe_directory("/")["total_bytes"] > 0
        True
    """
    try:
        space, facts = read_space(path), os.stat(path)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    owner = {"owner_uid": facts.st_uid, "owner_gid": facts.st_gid, "mode": stat.S_IMODE(facts.st_mode)}
    return {**space, **owner, "changed_age_s": max(0.0, time.time() - facts.st_ctime)}


def probe_file(path: str) -> dict[str, Any]:
    """Return the kind of a file, its size, and when it was last written.

    Example:
        >>> probe_file("/dev/null")["kind"]
        'device'
    """
    try:
        facts = os.stat(path)
    except OSError:
        return {}
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "file")
    return {"kind": kind, "size_bytes": facts.st_size, "changed_at": facts.st_ctime}


class _Asking(threading.Thread):
    """Asks about paths, one after the other."""

    def __init__(self, ask: Callable[[str], dict[str, Any]], paths: Mapping[str, str]) -> None:
        super().__init__(name="cachewatch-asking", daemon=True)
        self.answers: dict[str, dict[str, Any]] = {}
        self._ask, self._paths = ask, paths

    def run(self) -> None:
        for key, path in self._paths.items():
            self.answers[key] = self._ask(path)

    def begin(self) -> None:
        """Start, if there may be a further thread; without one nothing is known."""
        with contextlib.suppress(RuntimeError):
            self.start()

    def wait(self, seconds: float) -> None:
        """Wait for its end."""
        if self.ident is not None:
            self.join(max(0.0, seconds))

    def hangs(self) -> bool:
        """Whether it waits for a file system, rather than for a processor or for the other threads."""
        if not self.is_alive():
            return False
        here = f"/proc/self/task/{self.native_id}"
        fields = stat_fields(f"{here}/stat")
        return bool(fields) and fields[0] != b"R" and b"futex" not in read_proc(f"{here}/wchan")


class FilesystemProbe:
    """Asks about directories and open files, all mounts at the same time.

    Args:
        dirs: absolute directories, not resolved: resolving would touch them.
    """

    def __init__(self, dirs: Sequence[str]) -> None:
        mounts = read_mounts()
        self._facts: dict[str, FilesystemFacts] = {}
        for path in dirs:
            mount = mount_of(path, mounts)
            self._facts[path] = (
                FilesystemFacts(path, mount.type, mount.source, mount.mount_point, mount.options)
                if mount is not None
                else FilesystemFacts(path)
            )
        self._by_mount: dict[str, _Asking] = {}
        self._files = _Asking(probe_file, {})

    def start(self) -> None:
        """Start to ask about the directories."""
        for point in dict.fromkeys(facts.mount_point for facts in self._facts.values()):
            dirs = {path: path for path, facts in self._facts.items() if facts.mount_point == point}
            self._by_mount[point] = _Asking(probe_directory, dirs)
        for asking in self._by_mount.values():
            asking.begin()

    def start_files(self, files: Mapping[str, str]) -> None:
        """Start to ask about files, key to path."""
        self._files = _Asking(probe_file, files)
        self._files.begin()

    def wait_dirs(self, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for what is known of the directories until a moment of the clock."""
        for asking in self._by_mount.values():
            asking.wait(deadline_s - clock())

    def wait(self, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait for all answers until a moment of the clock."""
        self.wait_dirs(deadline_s, clock)
        self._files.wait(deadline_s - clock())

    def facts(self) -> dict[str, FilesystemFacts]:
        """Join mount table and answers, by directory; one without an answer did not respond, unless its thread was late."""
        joined = {}
        for path, facts in self._facts.items():
            asking = self._by_mount.get(facts.mount_point)
            if asking is not None and path in asking.answers:
                joined[path] = replace(facts, **asking.answers[path])
            elif asking is not None and asking.hangs():
                joined[path] = replace(facts, responded=False, error="no answer in time")
            else:
                joined[path] = replace(facts, error=_LATE)
        return joined

    def answers(self) -> dict[str, dict[str, Any]]:
        """Return what is known of the files, by their keys."""
        return dict(self._files.answers)


def find_other_mounts(places: Sequence[str], cache_dirs: Sequence[str]) -> list[str]:
    """Find the mount points of some places that are on other file systems than the cache directories; none is touched.

    Args:
        places: absolute paths.
        cache_dirs: likewise.

    Returns:
        Mount points, a few at most; of file systems that can be written to.

    Example:
        >>> find_other_mounts(["/", "/proc/self"], ["/"])
        ['/proc']
    """
    mounts = read_mounts()
    own = {mount.mount_point for path in cache_dirs if (mount := mount_of(path, mounts)) is not None}
    found = (mount_of(path, mounts) for path in places if path.startswith("/"))
    others = dict.fromkeys(mount.mount_point for mount in found if mount is not None and not mount.read_only)
    return [point for point in others if point not in own][:_OTHERS_MAX]
