"""The totals of a scan, as a type shared by the scan process and the watch; standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from prefect_cachewatch.common.tuples import NamedTuple

__all__ = ["NO_NAME", "Growth"]

NO_NAME = " (no name)"  # ends the displayed path of a file that has no name


class Growth(NamedTuple):
    """The ledger's totals after a scan; all bytes.

    `bytes_written` and `allocated_written` count growth since the start and never fall; `bytes_kept` and
    `allocated_kept` are their part in files that still exist. `newest_changed_ns` is the change time of the file that
    grew last in this scan, None if none grew. `overwriting_ns` is the change time of the last file that existed at the
    start and is being overwritten; each file counts once.
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
