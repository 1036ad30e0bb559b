"""Chooses the directories of a cache from the files that a generator was seen to write. Pure: no file is looked at."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from prefect_cachewatch.common.mounts import is_in

_DIRECTORIES_MAX = 4
_LEAST_SHARE = 0.05
_CLIMB_MAX = 3
# Directories of the system: no cache is in them, or they are everybody's.
_TREES = ("/proc", "/sys", "/dev", "/run", "/etc", "/boot", "/bin", "/sbin", "/lib", "/lib64", "/var/log", "/var/run")
# ruff: noqa: S108
_SHARED = ("/", "/tmp", "/var", "/var/tmp", "/home", "/root", "/mnt", "/media", "/srv", "/opt", "/usr", "/usr/local",
           "/dev/shm", "/var/lib", "/var/cache", "/data", "/scratch")  # fmt: skip
_LOG_PARTS = frozenset({"log", "logs", "__pycache__", ".git", "site-packages"})
_LOG_FILE = re.compile(
    r"\.(?:log|out|err|jsonl|pid|sock|lock|tmp\.lock|swp|db-wal|db-journal)(?:\.\d+)?$|^core(?:\.\d+)?$"
)
# One of many like it: a layer, a rank, a hash.
_NUMBERED = re.compile(r"\d|^(?:blobs|snapshots|refs|objects|tmp|temp|partial|incomplete|shards?|layers?)$")
_NO_VARIABLES = ("HOME", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "_", "SHELL")


@dataclass(frozen=True)
class Surroundings:
    """What is known of the generator's places.

    Attributes:
        home: the user's home directory.
        cwd: working directory of the command.
        command: argv.
        env: its environment.
        mounts: mount points; a cache is below one, never one itself.
    """

    home: str = "/root"
    cwd: str = "/"
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Collection[str] = ()

    @property
    def named(self) -> set[str]:
        """Directories that the command line and the environment name."""
        words = [part for word in self.command for part in (word, word.partition("=")[2])]
        words += [value for name, value in self.env.items() if name not in _NO_VARIABLES and ":" not in value]
        at = (os.path.expanduser(word) if word.startswith("~") else word for word in words if "/" in word)
        return {os.path.normpath(os.path.join(self.cwd, word)) for word in at if "\0" not in word} - {self.cwd}

    @property
    def cache_home(self) -> str:
        """The directory that holds the caches of all the user's programs."""
        return os.path.normpath(self.env.get("XDG_CACHE_HOME") or os.path.join(self.home, ".cache"))

    def is_shared(self, path: str) -> bool:
        """Whether a directory is other programs' as well, or cannot be watched as a cache's own."""
        above_home = is_in(self.home, path)
        return path in _SHARED or path in self.mounts or above_home or path in (self.cache_home, self.env.get("TMPDIR"))


def choose_directories(written: Mapping[str, int], around: Surroundings) -> dict[str, int]:
    """Choose the directories to watch.

    A directory that the command or its environment names comes first, then the program's own one among the user's
    caches; else the file's directory, without the levels that are one of many (`layer7`, `blobs`). Siblings make their
    parent. Never a shared directory (/, /tmp, $HOME, a mount's root); logs, locks and the system's files are no cache.

    Args:
        written: bytes by file, absolute.
        around: home, command, environment, mounts.

    Returns:
        Bytes by directory, the most first, at most four with a twentieth of the bytes each; empty if there is none.

    Example:
        >>> choose_directories({"/mnt/x/llama/layer1/w.bin": 900, "/home/u/run.log": 5000}, Surroundings(home="/home/u"))
        {'/mnt/x/llama': 900}
    """
    named = around.named
    found: Counter[str] = Counter()
    for path, size in written.items():
        if _may_be_cache(path) and (directory := _directory_of(path, named, around)):
            found[directory] += max(size, 1)
    found = _joined(found, around)
    total = sum(found.values())
    return {path: size for path, size in found.most_common(_DIRECTORIES_MAX) if size >= _LEAST_SHARE * total}


def _may_be_cache(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    in_system = any(is_in(path, tree) for tree in _TREES) and not path.startswith("/dev/shm/")
    is_log = _LOG_FILE.search(name) is not None or not _LOG_PARTS.isdisjoint(directory.lower().split("/"))
    return path.startswith("/") and not (in_system or is_log or path.endswith(" (deleted)"))


def _directory_of(path: str, named: Collection[str], around: Surroundings) -> str | None:
    directory = os.path.dirname(path)
    above = [directory]
    while above[-1] != "/":
        above.append(os.path.dirname(above[-1]))
    if fitting := next((each for each in above if each in named and not around.is_shared(each)), None):
        return fitting
    if around.cache_home in above[1:]:
        return above[above.index(around.cache_home) - 1]
    if around.is_shared(directory):
        return None
    for _ in range(_CLIMB_MAX):
        parent = os.path.dirname(directory)
        if not _NUMBERED.search(os.path.basename(directory)) or around.is_shared(parent) or parent == around.cwd:
            break
        directory = parent
    return directory


def _joined(found: Counter[str], around: Surroundings) -> Counter[str]:
    """Join directories below another one, and siblings in a parent that may be watched."""
    while True:
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for path in found:
            outer = next((other for other in found if other != path and is_in(path, other)), None)
            groups[outer or os.path.dirname(path)].append(path)
        target = next(
            (
                parent
                for parent, paths in groups.items()
                if parent in found or (len(paths) > 1 and not around.is_shared(parent) and parent != around.cwd)
            ),
            None,
        )
        if target is None:
            return found
        for path in groups[target]:
            found[target] += found.pop(path)
