"""Looks whether a file that changes in place is being filled: whether more of it holds data than at the last look.

A file that was reserved as a whole (fallocate) has its size and its blocks from the first moment on. What has been written
of it shows in its extents: the file system reports the rest as holes. A file that is only touched, or written again at the
same places, is not being filled. Standard library only, since it runs in the scan process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from prefect_cachewatch.measure.ledger import Changed

_FILES_MAX = 1000
_EXTENTS_MAX = 10_000
_BUDGET_S = 0.2
_LEAST_BYTES = 1 << 20  # many small files are not reserved first
# Not to follow a link or wait: for the writer of a FIFO, or for a holder of a lease.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Filling:
    """How much data files of a fixed size held at the last look."""

    def __init__(self) -> None:
        self._data: dict[str, int] = {}

    def look(self, changed: Iterable[Changed], grown: Iterable[Changed] = ()) -> int | None:
        """Look at files that changed without growing.

        Args:
            changed: their records, of one scan.
            grown: of files that grew in that scan: a reserved file is seen before it is filled.

        Returns:
            The latest change time of those that hold more data than ever before; None if none does. The first look at a
            file proves nothing.
        """
        end_s = time.monotonic() + _BUDGET_S
        filled_ns: int | None = None
        for record in changed:
            if time.monotonic() > end_s:
                break
            found = data_bytes(record.path)
            if found is None:
                continue
            before = self._data.pop(record.path, found)
            self._data[record.path] = max(found, before)
            if found > before:
                filled_ns = max(filled_ns or record.changed_ns, record.changed_ns)
        for record in grown:
            if time.monotonic() > end_s:
                break
            if record.size_bytes >= _LEAST_BYTES and (found := data_bytes(record.path)) is not None:
                self._data[record.path] = found
        while len(self._data) > _FILES_MAX:
            del self._data[next(iter(self._data))]
        return filled_ns


def data_bytes(path: str) -> int | None:
    """Add up the extents of a file that hold data.

    Args:
        path: of a regular file.

    Returns:
        Bytes; the whole size where the file system tells no holes. None if the file cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = file.write(b"x" * 100), file.flush()
        ...     data_bytes(file.name)
        100
    """
    try:
        fd = os.open(path, _OPEN)
    except OSError:
        return None
    total = end = 0
    try:
        for _ in range(_EXTENTS_MAX):
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
            total += end - start
    except OSError:  # ENXIO: no data beyond the last hole
        pass
    finally:
        os.close(fd)
    return total
