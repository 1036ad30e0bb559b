"""`cachewatch store list ROOT`: the caches of a store, one line each."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass

from prefect_cachewatch.cli.tables import aligned
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, short_moment
from prefect_cachewatch.errors import StoreError
from prefect_cachewatch.store.store import CacheStore


@dataclass(frozen=True)
class CacheSummary:
    """One cache of a store; what is not known is None, and `note` says what is wrong."""

    name: str
    #: Id of the current build; None if none was ever activated.
    current: str | None
    #: Of the current build: active, or damaged.
    state: str | None
    total_bytes: int | None
    total_files: int | None
    finished_at: str | None
    #: How many builds lie there, also unfinished and refused ones.
    builds: int
    note: str = ""


def summarize_cache(store: CacheStore, name: str) -> CacheSummary:
    """Look at one cache; one that cannot be read is a note, since the others are to be listed all the same."""
    try:
        builds = store.list_builds(name)
    except StoreError as error:
        return CacheSummary(name, None, None, None, None, None, 0, error.message)
    linked = ""
    with contextlib.suppress(OSError):
        linked = os.path.basename(os.readlink(store.current_path(name)))
    for build in builds:
        if build.state == "active" or (build.build_id == linked and build.state == "damaged"):
            size = build.total_bytes, build.total_files, build.finished_at
            return CacheSummary(name, build.build_id, build.status or build.state, *size, len(builds), build.note)
    return CacheSummary(name, None, None, None, None, None, len(builds))


def show_caches(root: str, as_json: bool) -> None:
    """Print the caches of a store.

    Args:
        root: of the store.
        as_json: print a JSON array.

    Raises:
        StoreError: it is no store.
    """
    store = CacheStore(root)
    found = [summarize_cache(store, name) for name in store.names()]
    if as_json:
        print(json.dumps([asdict(cache) for cache in found], indent=1))
        return
    if not found:
        print(f"no cache in {for_terminal(root, 1000)}")
        return
    rows, below = [["NAME", "CURRENT", "SIZE", "FINISHED (UTC)", "BUILDS"]], [""]
    for cache in found:
        size = format_bytes(cache.total_bytes) if cache.total_bytes is not None else "-"
        when = short_moment(cache.finished_at)
        rows.append([for_terminal(cache.name), cache.current or "-", size, when, str(cache.builds)])
        below.append(for_terminal(cache.note, 1000))
    for line, note in zip(aligned(rows, right={2, 4}), below, strict=True):
        print(line)
        if note:
            print(f"    {note}")
