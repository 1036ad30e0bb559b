"""Judges `.weights_complete` of tt-metal (`models/common/weight_cache.py`): a marker that vouches for the files beside it.

From format 3 on it lists them. With an older one, or a list that is not checked, tt-metal takes a cache for whole and writes
placeholders in place of what is missing.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection
from typing import BinaryIO

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.store.formats.inspection import Finding

_NAME = "tt-metal marker"
_MAX_BYTES = 32 << 20


def read_marker(file: BinaryIO) -> list[str] | Finding:
    """Read the paths that a marker lists, relative to its directory; or what is wrong with it."""
    raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        return Finding("unknown", "is too large to be read", _NAME)
    try:
        listed = json.loads(raw).get("cache_files")
    except (ValueError, AttributeError, RecursionError):
        return Finding("broken", "is cut off or no JSON, and should list the files of the cache", _NAME)
    if not isinstance(listed, list) or not listed:
        return Finding("suspicious", "vouches for a whole cache and lists no files (before format 3)", _NAME)
    return [str(path) for path in listed]


def judge_marker(marker: str, listed: Collection[str], present: Collection[str]) -> Finding:
    """Compare what a marker lists with what is there.

    Args:
        marker: its path in the build.
        listed: what it lists.
        present: paths of all files of the build.

    Example:
        >>> judge_marker("a/.weights_complete.none", ["b.tensorbin"], {"a/b.tensorbin"}).verdict
        'whole'
    """
    above = posixpath.dirname(marker)
    gone = [path for path in listed if posixpath.join(above, path) not in present]
    if gone:
        shown = for_terminal(gone[0][:100], 80)
        return Finding("broken", f"lists {len(gone):,} files that are not there, the first '{shown}'", _NAME)
    return Finding("whole", "lists files that are all there", _NAME)
