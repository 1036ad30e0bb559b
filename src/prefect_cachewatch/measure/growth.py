"""The totals of a scan, and what became of older files, as types shared by the scan process and the watch; standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from prefect_cachewatch.common.tuples import NamedTuple


class Growth(NamedTuple):
    """The ledger's totals after a scan; all bytes.

    `bytes_written` and `allocated_written` count growth since the start and never fall; `bytes_kept` and
    `allocated_kept` are their part in files that still exist. `newest_changed_ns` is the change time of the file that
    grew last in this scan, None if none grew. `overwriting_ns` is the change time of the last file that existed at the
    start and is being overwritten, each file once, or that has its size and is being filled.
    """

    bytes_written: int = 0
    allocated_written: int = 0
    bytes_kept: int = 0
    allocated_kept: int = 0
    bytes_present: int = 0
    allocated_present: int = 0
    files_present: int = 0
    touched_ns: int | None = None
    newest_changed_ns: int | None = None
    last_path: str | None = None
    overwriting_ns: int | None = None


class Rewriting(NamedTuple):
    """What became of the files of the start: those that were written again under their names, by their size at the start.

    A file that was only touched or renamed is none of them.
    """

    scan_files: int = 0  # at the start, in all directories: tells a scan process that was started anew
    start_bytes: int = 0
    rewritten_bytes: int = 0
