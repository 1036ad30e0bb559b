"""What `cachewatch doctor` finds out about a cache directory: whether it takes files, and how its file system behaves.

`examine` runs in a helper process. What it makes to try the file system, it removes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect_cachewatch.cli.doctor_checks import Check
from prefect_cachewatch.common.aside import AHEAD_S, Files
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.measure.space import look_at_storage
from prefect_cachewatch.run.places import try_to_write
from prefect_cachewatch.store.layout import find_lacking
from prefect_cachewatch.watching.refusal import find_refusal
from prefect_cachewatch.watching.site import CacheDirectories

_LEAST_BYTES = 1 << 20
_EVERY = "every run there"


def check_directory(files: Files, directory: str) -> list[Check]:
    """Check one cache directory.

    Args:
        files: the helper process that looks.
        directory: as the user named it.

    Returns:
        What was found; the first is about the directory as a whole.
    """
    path = os.path.abspath(directory)
    shown = for_terminal(path, 1000)
    try:
        facts = files.run(examine, path, timeout_s=AHEAD_S)
    except TimeoutError:
        said = f"{shown} does not answer within {AHEAD_S:.0f} s: its file system hangs"
        return [Check("cache", "missing", said, _EVERY, "check the mount", {"path": path, "answers": False})]
    except OSError as error:
        said = f"{shown} cannot be written to: {error.strerror}"
        return [Check("cache", "missing", said, _EVERY, "make it writable, or name another", {"path": path})]
    refused = "" if facts["missing"] else _refusal_of_a_run(files, path)
    if refused:
        return [Check("cache", "missing", refused, _EVERY, facts={"path": path, **facts})]
    return judge(path, facts)


def _refusal_of_a_run(files: Files, path: str) -> str:
    """Return the sentence with which a run refuses the directory; empty if it does not. Locks nothing."""
    try:
        with CacheDirectories([Path(path)], create=False, lock=False, files=files) as site:
            answer = site.scanner.request("check", AHEAD_S, path=path, create=False, writable=True)
            return for_terminal(str(answer["error"] or ""), 1000)
    except CachewatchError as error:
        return error.message


def examine(path: str) -> dict[str, Any]:
    """Look at a directory; may hang with its file system.

    Args:
        path: absolute.

    Returns:
        Its storage, and what a store would lack there.

    Raises:
        OSError: it cannot be written to, or be made.
    """
    resolved = os.path.realpath(path)
    missing, lacking = not os.path.lexists(resolved), None
    if missing or os.path.isdir(resolved):
        try_to_write(resolved, 0)
    if not missing and os.path.isdir(resolved):
        lacking = find_lacking(resolved)
    while not os.path.lexists(resolved):
        resolved = os.path.dirname(resolved)
    mount = mount_of(resolved, read_mounts())
    storage = look_at_storage([resolved])[0]
    return {"missing": missing, "filesystem": mount.type if mount else "unknown", "store": lacking, **storage}


def judge(path: str, facts: Mapping[str, Any]) -> list[Check]:
    """Judge what was seen of a directory that a run takes.

    Args:
        path: absolute.
        facts: from `examine`.
    """
    shown, facts = for_terminal(path, 1000), {"path": path, **facts}
    if "error" in facts:
        return [Check("cache", "missing", f"{shown}: {facts['error']}", _EVERY, "name another directory", facts)]
    full = find_refusal([path], [facts], [facts], _LEAST_BYTES)
    if full is not None:
        return [Check("cache", "missing", full.text, _EVERY, "make room first", facts)]
    inodes = "" if facts["free_inodes"] is None else f" and {facts['free_inodes']:,} inodes"
    made = ", is made by the run" if facts["missing"] else ""
    said = f"{shown}{made}: {facts['filesystem']}, {format_bytes(facts['free_bytes'])}{inodes} free"
    whole = Check("cache", "ok", said, facts=facts)
    if lacking := facts["store"]:
        return [whole, Check("store", "warning", lacking, "--store there", "take another directory for --store")]
    return [whole]
