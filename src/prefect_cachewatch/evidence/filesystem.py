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
    owner = {"owner_uid": facts.st_uid, "mode": stat.S_IMODE(facts.st_mode)}
    return {**space, **owner, "changed_age_s": max(0.0, time.time() - facts.st_ctime)}


def probe_file(path: str) -> dict[str, Any]:
    """Return the kind of a file, its size, and how long ago it was last written.

    Example:
        >>> probe_file("/dev/null")["kind"]
        'device'
    """
    try:
        facts = os.stat(path)
    except OSError:
        return {}
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "file")
    return {"kind": kind, "size_bytes": facts.st_size, "changed_age_s": max(0.0, time.time() - facts.st_ctime)}


class Asking(threading.Thread):
    """Asks about paths, one after the other, from the start on; without a thread nothing is known.

    Args:
        ask: asks about a path.
        paths: key to path.
    """

    def __init__(self, ask: Callable[[str], dict[str, Any]], paths: Mapping[str, str]) -> None:
        super().__init__(name="cachewatch-asking", daemon=True)
        self.answers: dict[str, dict[str, Any]] = {}
        self._ask, self._paths = ask, paths
        with contextlib.suppress(RuntimeError):  # there may be no further thread
            self.start()

    def run(self) -> None:
        """Ask."""
        for key, path in self._paths.items():
            self.answers[key] = self._ask(path)

    def wait(self, deadline_s: float) -> None:
        """Wait for its end until a moment of the monotonic clock."""
        if self.ident is not None:
            self.join(max(0.0, deadline_s - time.monotonic()))

    def hangs(self) -> bool:
        """Whether it waits for a file system, rather than for a processor or for the other threads."""
        here = f"/proc/self/task/{self.native_id}"
        fields = stat_fields(f"{here}/stat") if self.is_alive() else []
        return bool(fields) and fields[0] != b"R" and b"futex" not in read_proc(f"{here}/wchan")


class FilesystemProbe:
    """Asks about directories, all mounts at the same time.

    Args:
        dirs: absolute directories, not resolved: resolving would touch them.
    """

    def __init__(self, dirs: Sequence[str]) -> None:
        mounts, by_mount = read_mounts(), dict[str, dict[str, str]]()
        self._facts: list[FilesystemFacts] = []
        for path in dirs:
            mount = mount_of(path, mounts)
            facts = FilesystemFacts(path)
            if mount is not None:
                facts = FilesystemFacts(path, mount.type, mount.source, mount.mount_point, mount.options)
            self._facts.append(facts)
            by_mount.setdefault(facts.mount_point, {})[path] = path
        self._asking = {point: Asking(probe_directory, paths) for point, paths in by_mount.items()}

    def wait(self, deadline_s: float) -> None:
        """Wait for all answers until a moment of the monotonic clock."""
        for asking in self._asking.values():
            asking.wait(deadline_s)

    def facts(self) -> dict[str, FilesystemFacts]:
        """Join mount table and answers, by directory; one without an answer did not respond, unless its thread was late."""
        joined = {}
        for facts in self._facts:
            asking = self._asking[facts.mount_point]
            silence = {"responded": False, "error": "no answer in time"} if asking.hangs() else {"error": _LATE}
            joined[facts.path] = replace(facts, **asking.answers.get(facts.path, silence))
        return joined


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
    own = {mount.mount_point for path in cache_dirs if (mount := mount_of(path, mounts))}
    found = (mount_of(path, mounts) for path in places if path.startswith("/"))
    others = dict.fromkeys(mount.mount_point for mount in found if mount and not mount.read_only)
    return [point for point in others if point not in own][:_OTHERS_MAX]
