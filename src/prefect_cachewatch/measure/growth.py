"""What a scan adds up to, as the scan process and the watch both know it; standard library only."""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from prefect_cachewatch.common.tuples import NamedTuple

__all__ = ["NO_NAME", "Growth"]

NO_NAME = " (no name)"  # ends the path of a file that has none


class Growth(NamedTuple):
    """The ledger's totals after a scan; all bytes.

    `bytes_written` and `allocated_written` count growth since the start and never fall;
    `bytes_kept` and `allocated_kept` are their part in files that still exist.
    `newest_changed_ns` is the change time of the file that grew last in this scan, None if none did;
    `overwriting_ns` that of the last file that stood there at the start and is being overwritten, once.
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
