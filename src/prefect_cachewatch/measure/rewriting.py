"""What became of the files that a run found at its start: written anew, gone, or joined by new ones. Pure.

Standard library only, since it runs in the scan process.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from prefect_cachewatch.measure.growth import Rewriting

TYPE_CHECKING = False  # importing typing costs each scan process a megabyte; type checkers take this name for true
if TYPE_CHECKING:
    from prefect_cachewatch.measure.folder import FileRecord, Folder

    # Directory, file names joined by slashes, sizes in bytes.
    StartListing = list[tuple[str, str, array[int]]]


def take_start(folders: Iterable[Folder]) -> StartListing:
    """Keep names and sizes of the files that are there; the names are shared with the ledger."""
    return [(folder.directory, folder.names, folder.sizes()) for folder in folders]


def find_rewriting(
    start: StartListing, folders: Iterable[Folder], limit: int, leave_out: Sequence[str] = ()
) -> Rewriting:
    """Compare the files of the start with those of now.

    Args:
        start: from `take_start`.
        folders: the ledger's, now.
        limit: how many of the largest are named.
        leave_out: directories that do not count, with all below them.

    Example:
        >>> find_rewriting([], [], 5)[:5]
        (0, 0, 0, 0, 0)
    """
    tops = tuple(path.rstrip("/") + "/" for path in leave_out)
    judged = [each for each in start if not each[0].startswith(tops)] if tops else start
    now: dict[str, list[Folder]] = {}
    for folder in folders:
        if not (tops and folder.directory.startswith(tops)):
            now.setdefault(folder.directory, []).append(folder)
    before: dict[str, StartListing] = {}
    for each in judged:
        before.setdefault(each[0], []).append(each)
    counts: dict[str, int] = dict.fromkeys(
        ("rewritten_files", "rewritten_bytes", "same_bytes", "new_files", "new_bytes"), 0
    )
    written: list[tuple[str, int]] = []
    for directory, here in now.items() if judged else ():
        found = _count(dict(_sizes(before.get(directory, ()))), _written(here), counts)
        written = heapq.nlargest(limit, [*written, *found], key=itemgetter(1))
    return Rewriting(
        scan_files=sum(len(sizes) for _, _, sizes in start),
        start_files=sum(len(sizes) for _, _, sizes in judged),
        start_bytes=sum(sum(sizes) for _, _, sizes in judged),
        present_files=sum(len(folder) for here in now.values() for folder in here),
        present_bytes=sum(folder.bytes_present for here in now.values() for folder in here),
        largest=written,
        **counts,
    )


def _sizes(listings: Iterable[tuple[str, str, array[int]]]) -> Iterator[tuple[str, int]]:
    for _, names, sizes in listings:
        yield from zip(names.split("/"), sizes, strict=True)


def _written(folders: Iterable[Folder]) -> Iterator[FileRecord]:
    for folder in folders:
        if not folder.is_original:
            yield from (record for record in folder.records() if not record.original)


def _count(before: dict[str, int], written: Iterable[FileRecord], counts: dict[str, int]) -> Iterator[tuple[str, int]]:
    for record in written:
        size = before.get(record.name)
        if size is None:
            counts["new_files"] += 1
            counts["new_bytes"] += record.size_bytes
        else:
            counts["rewritten_files"] += 1
            counts["rewritten_bytes"] += size
            counts["same_bytes"] += size if size == record.size_bytes else 0
        yield record.path, record.size_bytes
