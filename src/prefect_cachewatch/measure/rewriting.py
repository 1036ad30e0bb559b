"""How much of what a run found at its start was written anew. Pure.

Standard library only, since it runs in the scan process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from prefect_cachewatch.measure.growth import Rewriting

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from prefect_cachewatch.measure.folder import Folder

    # Directory, file names joined by slashes, sizes in bytes.
    StartListing = list[tuple[str, str, array[int]]]


def take_start(folders: Iterable[Folder]) -> StartListing:
    """Keep names and sizes of the files that are there; the names are shared with the ledger."""
    return [(folder.directory, folder.names, folder.sizes()) for folder in folders]


def find_rewriting(start: StartListing, folders: Iterable[Folder], leave_out: Sequence[str] = ()) -> Rewriting:
    """Compare the files of the start with those of now.

    Args:
        start: from `take_start`.
        folders: the ledger's, now.
        leave_out: directories that do not count, with all below them.

    Example:
        >>> find_rewriting([], [])
        Rewriting(scan_files=0, start_bytes=0, rewritten_bytes=0)
    """
    tops = tuple(path.rstrip("/") + "/" for path in leave_out)
    before: dict[str, StartListing] = {}
    start_bytes = 0
    for each in start:
        if not (tops and each[0].startswith(tops)):
            before.setdefault(each[0], []).append(each)
            start_bytes += sum(each[2])
    rewritten = 0
    for folder in folders:
        if folder.directory not in before or folder.is_original:
            continue
        sizes: dict[str, int] = {}
        for _, names, listed in before[folder.directory]:
            sizes.update(zip(names.split("/"), listed, strict=True))
        rewritten += sum(sizes.get(record.name, 0) for record in folder.records() if not record.original)
    return Rewriting(sum(len(sizes) for _, _, sizes in start), start_bytes, rewritten)
