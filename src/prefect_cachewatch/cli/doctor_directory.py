"""What `cachewatch doctor` finds out about a cache directory: whether it takes files, and how its file system behaves.

`examine` runs in a helper process. It writes one empty file of a name of its own, and removes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect_cachewatch.cli.doctor_checks import Check
from prefect_cachewatch.common.aside import AHEAD_S, Files
from prefect_cachewatch.common.mounts import mount_of, read_mounts
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.units import format_bytes, format_duration
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.measure.space import look_at_storage
from prefect_cachewatch.run.places import try_to_write
from prefect_cachewatch.store.layout import find_lacking
from prefect_cachewatch.watching.refusal import find_refusal
from prefect_cachewatch.watching.site import CacheDirectories

PREFIX = ".cachewatch-doctor-"
_LEAST_BYTES = 1 << 20
_LISTED_MAX = 10_000
_SLOW_S, _SKEW_S = 1.0, 2.0
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
        Its storage and, if it is a directory that this user may write to, how it behaves.

    Raises:
        OSError: it does not exist, and cannot be made either.
    """
    resolved = os.path.realpath(path)
    missing = not os.path.lexists(resolved)
    if missing:
        try_to_write(resolved, 0)
        while not os.path.lexists(resolved):
            resolved = os.path.dirname(resolved)
    mount = mount_of(resolved, read_mounts())
    facts: dict[str, Any] = {
        "missing": missing,
        "filesystem": mount.type if mount else "unknown",
        **look_at_storage([resolved])[0],
    }
    if os.path.isdir(resolved) and not missing and os.access(resolved, os.R_OK | os.X_OK):
        facts |= _list(resolved)
        if os.access(resolved, os.W_OK):
            facts |= _try_file(resolved)
    return facts


def _list(path: str) -> dict[str, Any]:
    began_s = time.monotonic()
    names = 0
    with os.scandir(path) as entries:
        for entry in itertools.islice(entries, _LISTED_MAX):
            with contextlib.suppress(FileNotFoundError):
                entry.stat(follow_symlinks=False)
            names += 1
    return {"listed": names, "list_s": time.monotonic() - began_s}


def _try_file(path: str) -> dict[str, Any]:
    """Make an empty file and remove it: which clock dates it."""
    before_s = time.time()
    try:
        fd, name = tempfile.mkstemp(prefix=PREFIX, dir=path)
    except OSError as error:
        return {"refused": error.strerror}
    try:
        first = os.fstat(fd)
        after_s = time.time()
        os.close(fd)
    except OSError as error:
        return {"refused": error.strerror}
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
    # A file's date is that of the last tick, so up to 10 ms old.
    late_s, early_s = first.st_ctime - after_s, first.st_ctime - before_s + 0.02
    lacking = {"store": said} if (said := find_lacking(path)) is not None else {}
    return lacking | {"clock_ahead_s": round(max(0.0, late_s) + min(0.0, early_s), 3)}


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
    if facts["read_only"] or "refused" in facts:
        why = "its file system is read-only" if facts["read_only"] else facts["refused"]
        said = f"{shown} cannot be written to: {why}"
        return [Check("cache", "missing", said, _EVERY, "make it writable, or name another", facts)]
    inodes = "" if facts["free_inodes"] is None else f" and {facts['free_inodes']:,} inodes"
    made = ", is made by the run" if facts["missing"] else ""
    said = f"{shown}{made}: {facts['filesystem']}, {format_bytes(facts['free_bytes'])}{inodes} free"
    whole = Check("cache", "ok", said, facts=facts)
    more = _behaviour(facts)
    if more or facts["missing"]:
        return [whole, *more]
    seen = f"; {facts['listed']:,} names in {facts['list_s'] * 1000:.0f} ms, inodes stay, clock agrees"
    return [replace(whole, found=said + seen)]


def _behaviour(facts: Mapping[str, Any]) -> list[Check]:
    found = []
    if facts.get("list_s", 0.0) > _SLOW_S:
        said = f"{facts['listed']:,} names took {format_duration(facts['list_s'])} to list and stat"
        found.append(Check("scans", "warning", said, "stalls are seen late", "take a longer --poll and --stall-after"))
    if abs(ahead_s := facts.get("clock_ahead_s", 0.0)) > _SKEW_S:
        how = f"{format_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
        said = f"the file system's clock is {how}"
        found.append(
            Check("clock", "warning", said, "dates and ages of files are off by that", "run NTP on both machines")
        )
    if lacking := facts.get("store"):
        found.append(Check("store", "warning", lacking, "--store there", "take another directory for --store"))
    return found
