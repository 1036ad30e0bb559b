"""Whether storage refuses every write: full, without inodes, read-only. Pure; values in, a fault out.

A silent tree on such storage cannot go on, whatever it waits for. The kinds are categories of the post-mortem, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes

RefusalKind = Literal["disk_full", "inodes_exhausted", "read_only_filesystem"]


@dataclass(frozen=True)
class Refusal:
    """Why no write can succeed; `text` is a clause."""

    kind: RefusalKind
    text: str


def find_refusal(
    paths: Sequence[str],
    now: Sequence[Mapping[str, Any]],
    at_start: Sequence[Mapping[str, Any]],
    least_bytes: int,
    *,
    as_root: bool = False,
) -> Refusal | None:
    """Find out whether every one of some directories refuses all writes.

    Args:
        paths: the directories.
        now: what `look_at_storage` has seen of each.
        at_start: the same before the start; a view that was read-only then says nothing about the generator's.
        least_bytes: growth below this is none, so less free space than this is none either.
        as_root: whether the generator may use what is reserved for root, though this user may not.

    Returns:
        The fault of the first directory; None if one of them takes writes, or was not seen.

    Example:
        >>> full = {"free_bytes": 0, "root_bytes": 0, "total_bytes": 4 << 20, "block_bytes": 4096, "read_only": False}
        >>> find_refusal(["/c"], [full], [full], 4096).text
        'the file system under /c is full (0 B of 4.00 MiB free)'
        >>> find_refusal(["/c"], [full | {"root_bytes": 1 << 20}], [full], 4096, as_root=True) is None
        True
    """
    if not (len(paths) == len(now) == len(at_start)):
        return None
    found = [_refusal(*each, least_bytes, as_root) for each in zip(paths, now, at_start, strict=True)]
    return found[0] if found and all(found) else None


def _refusal(
    path: str, now: Mapping[str, Any], at_start: Mapping[str, Any], least_bytes: int, as_root: bool
) -> Refusal | None:
    if now.get("free_bytes") is None or at_start.get("free_bytes") is None:
        return None
    shown = for_terminal(path)
    if now["read_only"] and not at_start["read_only"]:
        return Refusal("read_only_filesystem", f"the file system under {shown} has become read-only")
    free_bytes = now["root_bytes"] if as_root or now.get("is_root") else now["free_bytes"]
    if free_bytes < max(least_bytes, now["block_bytes"]):
        size = f"{format_bytes(free_bytes)} of {format_bytes(now['total_bytes'])} free"
        return Refusal("disk_full", f"the file system under {shown} is full ({size})")
    if now.get("total_inodes") and now["free_inodes"] is not None and now["free_inodes"] < 1:
        return Refusal("inodes_exhausted", f"no inode is free under {shown}")
    return None
