"""Removes builds that are no longer needed: looks, applies a pure rule, moves aside, removes.

How long ago a build was in use follows from change times, which no generator can set, on the clock of the file system
that holds them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_cachewatch.common.removal import make_stamp
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.store.builds import BuildInfo, list_builds
from prefect_cachewatch.store.layout import (
    BAD,
    BEGUN,
    MANIFEST,
    CacheFolder,
    empty_trash,
    exists,
    move_to_trash,
    open_build,
    read_current,
    remove_file,
    sync_directory,
)
from prefect_cachewatch.store.locks import hold_exclusive, hold_switch
from prefect_cachewatch.store.tree import scan_build


@dataclass(frozen=True)
class GcDecision:
    """The decision about a build and its reason: active, writing, damaged, pinned, young, kept or surplus."""

    build_id: str
    state: str
    remove: bool
    reason: str
    size_bytes: int = 0


@dataclass(frozen=True)
class Collected:
    """The decisions of a clean-up about each build, and how many bytes it freed."""

    decisions: tuple[GcDecision, ...]
    freed_bytes: int
    dry_run: bool
    #: What could not be removed, each with path and reason.
    problems: tuple[str, ...] = ()

    @property
    def removed(self) -> tuple[GcDecision, ...]:
        """The builds that were removed, or would be in a dry run."""
        return tuple(decision for decision in self.decisions if decision.remove)


def collect_builds(
    folder: CacheFolder, *, keep: int | None, keep_quarantined: int = 3, grace_s: float = 3600, dry_run: bool = False
) -> Collected:
    """Remove surplus builds, never one that is in use.

    Args:
        folder: the open cache.
        keep: how many whole builds stay, including the active one; None: all but refused ones stay.
        keep_quarantined: how many refused builds stay.
        grace_s: a build that was finished, active or written to within this time stays.
        dry_run: decide only.

    Returns:
        The decisions and the bytes freed.

    Raises:
        StoreError: `current` was tampered with; nothing is removed then.
    """
    problems: list[str] = []
    with hold_switch(folder, "clean up"):
        read_current(folder)  # before any removal: with a tampered link every build would look unused
        try:
            now_ns = make_stamp(folder.fd).changed_ns
        except OSError:  # a look needs no write permission
            now_ns = time.time_ns()
        used = {build: _last_use(folder, build) for build in list_builds(folder)}
        young = {build.build_id for build, (used_ns, _) in used.items() if now_ns - used_ns < grace_s * 1e9}
        reasons = plan_collection([*used], young, keep=keep, keep_quarantined=keep_quarantined)
        decisions = [
            GcDecision(build.build_id, build.state, reason == "surplus", reason, size)
            for (build, (_, size)), reason in zip(used.items(), reasons, strict=True)
        ]
        if not dry_run:
            decisions = [_move_aside(folder, one, problems) if one.remove else one for one in decisions]
    # Without the lock: removing 100 GB takes minutes, and no reader can reach it any more.
    if not dry_run:
        problems += empty_trash(folder.builds_fd)
    freed = sum(decision.size_bytes for decision in decisions if decision.remove)
    return Collected(tuple(decisions), freed, dry_run, tuple(problems))


def _last_use(folder: CacheFolder, build: BuildInfo) -> tuple[int, int]:
    """Return when a build was last changed, made current or written to, and its size."""
    changed_ns, size = [0], build.total_bytes or 0
    for name in (build.build_id + ending for ending in ("", BEGUN, MANIFEST, BAD)):
        with contextlib.suppress(OSError):
            changed_ns.append(os.stat(name, dir_fd=folder.builds_fd, follow_symlinks=False).st_ctime_ns)
    if not build.is_whole:
        with contextlib.suppress(StoreError, OSError), open_build(folder, build.build_id) as fd:
            tree = scan_build(fd)
            size = tree.total_bytes
            changed_ns += [file.changed_ns for file in tree.files]
    return max(changed_ns), size


def _move_aside(folder: CacheFolder, decision: GcDecision, problems: list[str]) -> GcDecision:
    fd, build_id = folder.builds_fd, decision.build_id
    try:
        with contextlib.ExitStack() as stack:
            if exists(fd, build_id + MANIFEST):
                stack.enter_context(hold_exclusive(fd, build_id + MANIFEST, "remove a build", past_readers=False))
            # The files first, in one step: what is left of a build after a kill has none, and is cleaned up later. The
            # record of its begin is the last: without it, what is left would pass for somebody else's.
            move_to_trash(fd, build_id)
            for ending in (MANIFEST, BAD, BEGUN):
                remove_file(fd, build_id + ending)
            sync_directory(fd)
    except StoreBusy:
        # A reader pinned it between the listing and now.
        return replace(decision, remove=False, reason="pinned")
    except OSError as error:
        # One failure must not keep the others. A directory in a lower layer of an overlay cannot be moved in one step, and
        # no reader may see it half removed.
        layer = " (it may lie in a lower layer of an overlay)" if error.errno == errno.EXDEV else ""
        where = for_terminal(folder.build_path(build_id), 1000)
        problems.append(f"cannot remove {where}: {os.strerror(error.errno or 0)}{layer}")
        return replace(decision, remove=False)
    return decision


def plan_collection(
    builds: Sequence[BuildInfo], young: set[str], *, keep: int | None, keep_quarantined: int
) -> list[str]:
    """Decide which builds are surplus; of each of the others, why it stays.

    Damaged builds are left for a person to look at.

    Args:
        builds: every build of one cache.
        young: ids of those that were in use within the grace time.
        keep: how many whole builds stay, including the active one: then the targets of a roll-back, then the newest, and
            last those that something is known against. None: all but refused ones stay.
        keep_quarantined: how many refused builds stay, the newest.

    Example:
        >>> builds = [BuildInfo(name, state, "/", None) for name, state in (("a", "published"), ("b", "active"))]
        >>> plan_collection(builds, set(), keep=1, keep_quarantined=0)
        ['surplus', 'active']
    """
    whole = sorted((build for build in builds if build.is_whole), key=lambda build: build.age, reverse=True)
    whole.sort(key=lambda build: (build.state != "active", build.status is not None, -build.left_ns))
    refused = sorted((build.build_id for build in builds if build.state == "quarantined"), reverse=True)
    stays = {build.build_id for build in whole[:keep]} | set(refused[:keep_quarantined])

    def reason(build: BuildInfo) -> str:
        if build.state in ("active", "damaged"):  # a damaged one was edited or cut: the rest may be all there is
            return build.state
        if build.state == "staging":
            return "writing"
        if build.pinned:
            return "pinned"
        if build.build_id in young:
            return "young"
        is_kept = build.build_id in stays or (keep is None and build.state != "quarantined")
        return "kept" if is_kept else "surplus"

    return [reason(build) for build in builds]
