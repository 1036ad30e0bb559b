"""Clean-up of builds that nobody needs: looks, asks `retention`, moves aside, removes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.publish.activation import read_history, rollback_order
from prefect_cachewatch.publish.builds import MANIFEST, PIN, BuildInfo, list_builds, open_build
from prefect_cachewatch.publish.durable import move_to_trash, remove_leftovers
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch, open_subdirectory, read_current
from prefect_cachewatch.publish.locks import hold_exclusive
from prefect_cachewatch.publish.names import META_DIRECTORY
from prefect_cachewatch.publish.retention import Candidate, GcDecision, plan_collection
from prefect_cachewatch.publish.tree import scan_build

__all__ = ["Collected", "collect_builds"]


@dataclass(frozen=True)
class Collected:
    """What a clean-up decided about each build, and how many bytes it freed."""

    decisions: tuple[GcDecision, ...]
    freed_bytes: int
    dry_run: bool

    @property
    def removed(self) -> tuple[GcDecision, ...]:
        """The builds that went, or would go."""
        return tuple(decision for decision in self.decisions if decision.remove)


def collect_builds(
    folder: CacheFolder,
    writing: Callable[[], str | None],
    *,
    keep: int,
    keep_quarantined: int = 1,
    grace_s: float = 3600,
    dry_run: bool = False,
    now: Callable[[], float] = time.time,
) -> Collected:
    """Remove surplus builds, never one that somebody uses.

    Args:
        folder: the open cache.
        writing: asks for the staging build of a live publisher.
        keep: how many whole builds stay, the active one among them.
        keep_quarantined: how many refused builds stay.
        grace_s: what was finished, active or written to less than this ago stays.
        dry_run: decide only.
        now: wall seconds.

    Returns:
        The decisions and the bytes.

    Raises:
        StoreError: if `current` or the history was tampered with; nothing is removed then.
    """
    with hold_switch(folder, "clean up"):
        # Before anything goes: a tampered link must not make every build look unused.
        current = read_current(folder)
        history = read_history(folder)
        builds = list_builds(folder, writing())
        candidates = [_candidate(folder, build, history.released_at(build.build_id)) for build in builds]
        decisions = plan_collection(
            candidates,
            keep=keep,
            keep_quarantined=keep_quarantined,
            now_s=now(),
            grace_s=grace_s,
            rollback_order=rollback_order(history.entries, current),
        )
        if not dry_run:
            decisions = [_move_aside(folder, decision) for decision in decisions]
    freed = sum(decision.size_bytes for decision in decisions if decision.remove)
    if not dry_run:
        # Without the lock: removing 100 GB takes minutes, and nobody can reach it any more.
        for fd in (folder.builds_fd, folder.quarantine_fd):
            remove_leftovers(fd)
    return Collected(tuple(decisions), freed, dry_run)


def _candidate(folder: CacheFolder, build: BuildInfo, released_s: float) -> Candidate:
    quarantined = build.state == "quarantined"
    idle_s, size = released_s, build.total_bytes or 0
    with contextlib.suppress(StoreError, OSError), contextlib.ExitStack() as stack:
        if quarantined:
            fd = stack.enter_context(open_subdirectory(folder.quarantine_fd, build.build_id, build.path))
        else:
            fd = stack.enter_context(open_build(folder, build.build_id))
        idle_s = max(idle_s, os.fstat(fd).st_mtime)
        if build.state in ("active", "published"):
            stamp = os.stat(f"{META_DIRECTORY}/{MANIFEST}", dir_fd=fd, follow_symlinks=False)
            idle_s = max(idle_s, stamp.st_mtime)
        else:
            tree = scan_build(fd)
            size = tree.total_bytes
            idle_s = max([idle_s, *(file.mtime_ns / 1e9 for file in tree.files)])
    return Candidate(build.build_id, build.state, idle_s, size, build.pinned)


def _move_aside(folder: CacheFolder, decision: GcDecision) -> GcDecision:
    if not decision.remove:
        return decision
    if decision.state == "quarantined":
        move_to_trash(folder.quarantine_fd, decision.build_id)
        return decision
    try:
        with _own_pin(folder, decision.build_id):
            move_to_trash(folder.builds_fd, decision.build_id)
    except StoreBusy:
        # A reader came between the listing and now.
        return replace(decision, remove=False, reason="pinned")
    return decision


@contextlib.contextmanager
def _own_pin(folder: CacheFolder, build_id: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(open_build(folder, build_id))
        try:
            meta_fd = stack.enter_context(open_subdirectory(fd, META_DIRECTORY, META_DIRECTORY))
            os.stat(PIN, dir_fd=meta_fd, follow_symlinks=False)
        except (StoreError, FileNotFoundError):
            pass  # never published: nobody can have pinned it
        else:
            stack.enter_context(hold_exclusive(meta_fd, PIN, "remove a build"))
        yield
