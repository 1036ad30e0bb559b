"""Where a run gets this package from: its directory, or a copy in memory once that has been replaced.

An upgrade removes the package's files, or puts other ones in their place, while a run that began before goes on. Helper
processes that are started after that (a scan process, the guards of the next attempt, the listing of a bundle), and
modules that the run itself imports after that, have to fit the run: they are those that it began with. Standard library
only.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

TYPE_CHECKING = False  # importing typing costs the helper processes a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_PARENT = str(Path(__file__).resolve().parents[2])
_NAME = __name__.partition(".")[0]
_MARKS = ("__init__.py", "common/sources.py", "supervise/guard.py")

Identity = tuple[tuple[int, int, int, int], ...]


def _identify() -> Identity | None:
    """Identify the files of this installation; None if they are not there."""
    try:
        stats = [os.stat(f"{_PARENT}/{_NAME}/{mark}") for mark in _MARKS]
    except OSError:
        return None
    return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)


_BEGAN_WITH = _identify()
# Descriptor of the copy, and the path at which every process of this user can open it while this process lives.
_copy: tuple[int, str] | None = None


def reserve_copy() -> int:
    """Make room for the copy, if there is none yet.

    Returns:
        Descriptor of a file in memory, to be passed to the process that calls `fill_copy`; closed on exec. -1 if it cannot
        be made.
    """
    if _copy is None:
        with contextlib.suppress(OSError):
            adopt_copy(os.memfd_create("cachewatch-sources"))
    return -1 if _copy is None else _copy[0]


def adopt_copy(fd: int) -> None:
    """Use a file in memory that another process has reserved, also for what this process imports itself.

    Args:
        fd: its descriptor, inherited.
    """
    global _copy  # noqa: PLW0603 - one for the process, as its modules are
    _copy = (fd, f"/proc/{os.getpid()}/fd/{fd}")
    if _CopyFinder not in sys.meta_path:
        # Directly before what looks on disk: modules that are held in memory need no look at files, which may hang.
        names = [getattr(finder, "__name__", "") for finder in sys.meta_path]
        sys.meta_path.insert(names.index("PathFinder") if "PathFinder" in names else 0, _CopyFinder)


class _CopyFinder:
    """Finds modules of this package in the copy once that is to be used; see importlib.abc.MetaPathFinder."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a module in the copy."""
        if not name.startswith(f"{_NAME}.") or (parent := package_parent()) == _PARENT:
            return None
        import zipimport  # noqa: PLC0415 - only after an upgrade

        return zipimport.zipimporter(f"{parent}/{name.rpartition('.')[0].replace('.', '/')}").find_spec(name)


def fill_copy() -> None:
    """Copy this package's modules, unless that is done, or they have been replaced since this process began."""
    if _copy is None or os.fstat(_copy[0]).st_size or was_replaced():
        return
    import zipfile  # noqa: PLC0415 - two megabytes, and the caller is a fork for this alone

    packed, top = io.BytesIO(), Path(_PARENT, _NAME)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(top.rglob("*.py")):
            archive.writestr(f"{_NAME}/{path.relative_to(top)}", path.read_bytes())
    if not was_replaced():
        os.pwrite(_copy[0], packed.getvalue(), 0)  # in one piece: the directory of an archive is its end


def was_replaced() -> bool:
    """Say whether the files that this process began with are gone, or are others now."""
    return _BEGAN_WITH is None or _identify() != _BEGAN_WITH


def package_parent() -> str:
    """Return what a helper process puts on its path to import this package from: a directory, or the copy.

    Example:
        >>> os.path.isdir(f"{package_parent()}/prefect_cachewatch")
        True
    """
    if _copy is not None and was_replaced() and os.fstat(_copy[0]).st_size:
        return _copy[1]
    return _PARENT
