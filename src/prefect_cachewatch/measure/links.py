"""Looks where the symbolic links below the watched directories lead.

A link to a regular file outside them stands for that file: some programs keep their blobs beside the directory and link
them. A link to a directory is not followed, and is told of. Links are looked at in a thread of their own, since one may
lead to a file system that hangs while the watched ones answer. Nothing is opened. Standard library only, since it runs in
the scan process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from prefect_cachewatch.common.tuples import NamedTuple

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    import threading

LINKS_MAX = 100_000
_DIRECTORIES_MAX = 20
# The first look is waited for longer: a file that it misses would be taken for a new one.
_FIRST_S, _WAIT_S = 10.0, 1.0


class Linked(NamedTuple):
    """Where links lead: the paths and stat results of files outside, each once, and the directories outside by link."""

    files: Sequence[tuple[str, os.stat_result]] = ()
    directories: Sequence[tuple[str, str]] = ()


class Links:
    """Looks at links, and keeps the last result for as long as a look hangs.

    Args:
        roots: the watched directories, absolute.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._last = Linked()
        self._wait_s = _FIRST_S
        self._thread: threading.Thread | None = None

    def look(self, links: Sequence[str]) -> Linked:
        """Look where some links lead.

        Args:
            links: their absolute paths.

        Returns:
            What was found; what the look before found if this one takes too long or an earlier one still hangs.
        """
        if not links:
            self._last = Linked()
        elif self._thread is None or not self._thread.is_alive():
            import threading  # noqa: PLC0415 - most trees have no links

            self._thread = threading.Thread(target=self._look, args=(links,), name="links", daemon=True)
            self._thread.start()
            self._thread.join(self._wait_s)
        self._wait_s = _WAIT_S
        return self._last

    def _look(self, links: Sequence[str]) -> None:
        self._last = follow(links, self._roots)


def follow(links: Sequence[str], roots: Sequence[str]) -> Linked:
    """Find where links lead; may block.

    Args:
        links: absolute paths.
        roots: the watched directories: what lies in them is found without its links.

    Returns:
        What lies outside. A link to nothing, in a loop, or to a device or pipe is left out.

    Example:
        >>> follow(["/proc/self/exe", "/proc/self/cwd"], ["/nowhere"]).directories[0][0]
        '/proc/self/cwd'
    """
    devices = {root: os.stat(root).st_dev for root in roots if os.path.isdir(root)}
    resolved: dict[str, str] = {}
    files: dict[tuple[int, int], tuple[str, os.stat_result]] = {}
    directories: list[tuple[str, str]] = []
    for link in links:
        try:
            status = os.stat(link)
            if stat.S_ISREG(status.st_mode):
                path = _resolve(link, resolved)
                if not any(_is_in(path, root) and status.st_dev == device for root, device in devices.items()):
                    files.setdefault((status.st_dev, status.st_ino), (path, status))
            elif stat.S_ISDIR(status.st_mode) and len(directories) < _DIRECTORIES_MAX:
                path = os.path.realpath(link)
                if not any(_is_in(path, root) for root in roots):
                    directories.append((link, path))
        except OSError:
            continue
    return Linked(list(files.values()), directories)


def _resolve(link: str, resolved: dict[str, str]) -> str:
    """Resolve a link to a file; many links lead into few directories, which are resolved once."""
    directory, name = os.path.split(os.path.join(os.path.dirname(link), os.readlink(link)))
    if directory not in resolved:
        resolved[directory] = os.path.realpath(directory)
    path = os.path.join(resolved[directory], name)
    return os.path.realpath(link) if os.path.islink(path) else path


def _is_in(path: str, root: str) -> bool:
    return f"{path}/".startswith(root.rstrip("/") + "/")
