"""Detects a cache that was empty before the generator and is empty after it: a failure, whatever the exit code says.

Most often `--cache-dir` is mistyped. The message therefore names where the tree wrote, as far as that can be found at
little cost: while the cache is empty, by the files that its processes have open for writing; at the end, by new files
at the places that the command names. `attempt` draws the conclusion. Open files are read from /proc alone, never from
a file system that may hang; only root sees the processes of other users.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prefect_cachewatch.common.statedir import state_home
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import ScanError
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.measure.scanner import DirectoryScanner
from prefect_cachewatch.measure.walk import DEFAULT_IGNORE, IgnoreTest
from prefect_cachewatch.supervise.open_files import list_open_files
from prefect_cachewatch.supervise.proc import descendants

if TYPE_CHECKING:
    from prefect_cachewatch.config import CacheJob
    from prefect_cachewatch.supervise.supervisor import Supervisor

_LOOKS_OFTEN, _OFTEN_S, _SELDOM_S = 40, 0.4, 5.0
_PROCESSES_MAX = 64
_SHOWN_MAX = 3
_PLACES_MAX = 10
_SEARCH_S, _PLACE_S = 4.0, 1.5
_MARKERS_BYTES = 1000
_CLOCK_ERROR_S = 1.0
# Directories shared by all programs: a new file there proves nothing about this run, and a search may take long.
_NO_PLACES = ("", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/proc", "/sys", "/run", "/usr", "/etc", "/var", "/home")  # noqa: S108


#: Names of files that are clearly not a cache: logs, locks, files that Python and version control write by themselves.
NO_CACHE = (*DEFAULT_IGNORE, "*.pyc", "*.pyc.*", "*.pyo", "*.pid", "*.sock", ".git/*", "*/.git/*")

_NOT_CACHES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/run/", "/SYSV")


class Emptiness:
    """Detects an empty cache, and finds where the tree wrote instead.

    Args:
        job: the job; its command, directory and environment say where else it may write.
        paths: the cache directories, resolved.
        cwd: working directory of the command.
        baseline: the scan process's answer at the start.
        own: files and directories that cachewatch itself writes.

    Example:
        >>> from prefect_cachewatch.config import CacheJob
        >>> job = CacheJob(name="x", command=["true"], cache_dirs=["/mnt/x"])
        >>> Emptiness(job, ["/mnt/x"], "/", {"growth": {"files_present": 0, "bytes_present": 0}}).is_empty(Growth())
        True
    """

    def __init__(
        self,
        job: CacheJob,
        paths: Sequence[str],
        cwd: str,
        baseline: Mapping[str, Any],
        own: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        self._job, self._paths, self._cwd = job, list(paths), cwd
        self._own = [*paths, *(os.path.realpath(os.fspath(path)) for path in own)]
        self._markers = (
            sum(name is not None for name in (job.markers.started, job.markers.completed)) if job.markers else 0
        )
        self._began = holds_nothing(Growth(**baseline["growth"]), self._markers)
        self._seen: Counter[str] = Counter()
        self._looks = 0
        self._ours = own_files(())

    def is_empty(self, growth: Growth) -> bool:
        """Say whether there was no file at the start and is none now, apart from our own markers.

        Args:
            growth: growth as of the last scan.
        """
        return self._began and holds_nothing(growth, self._markers)

    def watch_over(
        self, wait: Callable[[float], bool], growth: Callable[[], Growth], supervisor: Supervisor
    ) -> Callable[[float], bool]:
        """Make a wait that, while the cache is empty, looks where the tree has files open for writing.

        Args:
            wait: waits at most so many seconds; true once the tree has gone.
            growth: returns the growth as of the last scan.
            supervisor: supervisor of the tree.

        Returns:
            A wait of the same kind and length; a look costs some reads of /proc.
        """

        def wait_and_look(seconds: float) -> bool:
            end_s = time.monotonic() + seconds
            while self.is_empty(growth()):
                self._look(supervisor)  # before a wait, which must not end late
                pause_s = _OFTEN_S if self._looks < _LOOKS_OFTEN else _SELDOM_S
                if end_s - time.monotonic() <= pause_s:
                    break
                if wait(pause_s):
                    return True
            return wait(max(0.0, end_s - time.monotonic()))

        return wait_and_look

    def describe(self, started_at: float) -> str:
        """Say where the tree did write, and what to do.

        Args:
            started_at: wall time of the start.

        Returns:
            Sentences.
        """
        seen = sorted((path for path, _ in self._seen.most_common()), key=_is_scratch)[:_SHOWN_MAX]
        told = [f"It had files open for writing in {_names(seen)}."] if seen else []
        new = [path for path in self.new_files(started_at) if os.path.dirname(path) not in seen][:_SHOWN_MAX]
        if new:
            told.append(f"New since its start: {_names(new)}.")
        return " ".join(
            [
                *(told or ["Where else it wrote was not seen."]),
                "Name the directory that it writes to with --cache-dir; where an empty one is right, allow it with "
                "--allow-empty (allow_empty).",
            ]
        )

    def _look(self, supervisor: Supervisor) -> None:
        self._looks += 1
        with contextlib.suppress(OSError):
            below = descendants(os.getpid())  # before the tree: who is born between the two looks is the tree's
            pids = tree_pids(supervisor)
            self._ours |= own_files(below.keys() - {*pids})  # at the end they may be closed
            for path in directories_written(pids[:_PROCESSES_MAX]):
                if not self._is_ours(path):
                    self._seen[path] += 1

    def _is_ours(self, path: str) -> bool:
        return path in self._ours or any(path == own or path.startswith(own + "/") for own in self._own)

    def _places(self) -> list[str]:
        """Directories that the command refers to: arguments, environment, working directory, the cache's parent."""
        words = [word.partition("=")[2] or word for word in self._job.command[1:]]
        named = [word for word in (*words, *self._job.env.values()) if "/" in word and "\0" not in word]
        at = [os.path.normpath(os.path.join(self._cwd, os.path.expanduser(word))) for word in named]
        candidates = [*at, *map(os.path.dirname, at), *map(os.path.dirname, self._paths), self._cwd]
        home = os.path.expanduser("~")
        return [
            path
            for path in dict.fromkeys(candidates)
            if path.rstrip("/") not in _NO_PLACES and path != home and not path.startswith(("/proc/", "/sys/", "/dev/"))
        ][:_PLACES_MAX]

    def new_files(self, started_at: float) -> list[str]:
        """List files that are new since the start at the places that the command refers to; takes some seconds at most."""
        # In a process of its own: one of these places may be on a file system that hangs.
        if self._job.container is not None:
            return []
        found: list[str] = []
        end_s = time.monotonic() + _SEARCH_S
        for place in self._places():
            left_s = min(_PLACE_S, end_s - time.monotonic())
            if found or left_s <= 0:
                break
            scanner = DirectoryScanner()
            try:
                answer = scanner.request("begin", left_s, roots=[place], ignore=[*self._job.ignore, *NO_CACHE])
                if answer["roots"][0]["missing"] or answer["roots"][0]["error"]:
                    continue
                left_s = max(0.1, end_s - time.monotonic())
                newest = scanner.request("listing", left_s, limit=20)["entries"]
            except ScanError:
                continue
            finally:
                scanner.close()
            found = [
                entry["path"]
                for entry in newest
                if entry["changed_ns"] / 1e9 >= started_at - _CLOCK_ERROR_S
                and not (self._is_ours(entry["path"]) or is_no_cache(entry["path"]))
            ]
        return found


def holds_nothing(growth: Growth, markers: int = 0) -> bool:
    """Say whether there is no cache: no file except our own markers.

    Args:
        growth: growth of a scan.
        markers: how many of our own files there may be.

    Example:
        >>> holds_nothing(Growth()), holds_nothing(Growth(files_present=1, bytes_present=2))
        (True, False)
    """
    return growth.files_present == 0 or (growth.files_present <= markers and growth.bytes_present <= _MARKERS_BYTES)


def _is_scratch(path: str) -> bool:
    """Whether a directory is for temporary files; such directories are named last."""
    return f"{path}/".startswith(("/tmp/", "/var/tmp/", f"{os.path.realpath(os.environ.get('TMPDIR') or '/tmp')}/"))  # noqa: S108


def _names(paths: Sequence[str]) -> str:
    return ", ".join(for_terminal(path, 200) for path in paths)


@functools.cache
def _no_cache() -> IgnoreTest:  # made when it is asked for: most runs never do
    return IgnoreTest(NO_CACHE)


def is_no_cache(path: str) -> bool:
    """Say whether a file is clearly not a cache's: noise by its name, not a file on a disk, or our own state.

    Args:
        path: absolute.

    Example:
        >>> [is_no_cache(path) for path in ("/a/__pycache__/m.cpython-311.pyc", "/proc/7/fd", "/a/layer0.bin")]
        [True, True, False]
    """
    directory, _, name = path.rpartition("/")
    noise = _no_cache()(name, directory[1:] + "/")
    return noise or path.startswith((*_NOT_CACHES, f"{os.path.realpath(state_home())}/"))


def tree_pids(supervisor: Supervisor) -> list[int]:
    """List the generator's processes, without the guards, which write into our own files."""
    roots = list(supervisor.root_pids)
    found = dict.fromkeys(pid for root in roots for pid in descendants(root))
    return [pid for pid in found if pid not in roots] + (roots if supervisor.includes_roots else [])


def own_files(helpers: Iterable[int]) -> set[str]:
    """List the files that this process and its helpers have open for writing: the log, the recording, the report.

    Args:
        helpers: their pids.
    """
    return {
        file.target
        for pid in (os.getpid(), *helpers)
        for file in list_open_files(pid, ())[0]
        if file.access in ("w", "rw")
    }


def directories_written(pids: Iterable[int]) -> list[str]:
    """List the directories in which processes have files open for writing.

    Args:
        pids: pids of the processes.

    Returns:
        Directories, the one with the most files first.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     os.path.dirname(os.path.realpath(file.name)) in directories_written([os.getpid()])
        True
    """
    found: Counter[str] = Counter()
    for pid in pids:
        for file in list_open_files(pid, ())[0]:
            gone = file.target.endswith(" (deleted)")
            if file.fd > 2 and file.kind == "file" and file.access in ("w", "rw") and not gone:  # output is no cache
                found[os.path.dirname(file.target)] += not is_no_cache(file.target)
    return [path for path, count in found.most_common() if count]
