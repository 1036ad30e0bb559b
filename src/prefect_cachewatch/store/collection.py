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
from prefect_cachewatch.store.files import empty_trash, exists, move_to_trash, remove_file, sync_directory
from prefect_cachewatch.store.folder import CacheFolder, hold_switch, open_build, read_current
from prefect_cachewatch.store.locks import hold_exclusive
from prefect_cachewatch.store.records import BAD, BEGUN, MANIFEST
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
        now_s = time.time()
        try:
            skew_s = now_s - make_stamp(folder.fd).changed_ns / 1e9
        except OSError:  # a look needs no write permission
            skew_s = 0
        decisions = plan_collection(
            [_candidate(folder, build, skew_s) for build in list_builds(folder)],
            keep=keep, keep_quarantined=keep_quarantined, now_s=now_s, grace_s=grace_s,
        )  # fmt: skip
        if not dry_run:
            decisions = [_move_aside(folder, decision, problems) for decision in decisions]
    # Without the lock: removing 100 GB takes minutes, and no reader can reach it any more.
    if not dry_run:
        problems += empty_trash(folder.builds_fd)
    freed = sum(decision.size_bytes for decision in decisions if decision.remove)
    return Collected(tuple(decisions), freed, dry_run, tuple(problems))


@dataclass(frozen=True)
class Candidate:
    """A build as the rule sees it, and since when nobody has used it, in wall seconds."""

    build: BuildInfo
    idle_since_s: float
    size_bytes: int = 0


def _candidate(folder: CacheFolder, build: BuildInfo, skew_s: float) -> Candidate:
    changed_ns, size = [0], build.total_bytes or 0
    for name in (build.build_id, *(build.build_id + ending for ending in (BEGUN, MANIFEST, BAD))):
        with contextlib.suppress(OSError):
            changed_ns.append(os.stat(name, dir_fd=folder.builds_fd, follow_symlinks=False).st_ctime_ns)
    if not build.is_whole:
        with contextlib.suppress(StoreError, OSError), open_build(folder, build.build_id) as fd:
            tree = scan_build(fd)
            size = tree.total_bytes
            changed_ns += [file.changed_ns for file in tree.files]
    return Candidate(build, max(changed_ns) / 1e9 + skew_s, size)


def _move_aside(folder: CacheFolder, decision: GcDecision, problems: list[str]) -> GcDecision:
    if not decision.remove:
        return decision
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
    candidates: Sequence[Candidate], *, keep: int | None, keep_quarantined: int, now_s: float, grace_s: float
) -> list[GcDecision]:
    """Decide which builds to remove.

    Never removed are: the active build, one that is being written, one that a reader has pinned, and one that was
    finished, active or written to within the grace time. Damaged builds are left for a person to look at.

    Args:
        candidates: every build of one cache.
        keep: how many whole builds stay, including the active one: then the targets of a roll-back, then the newest, and
            last those that something is known against. None: all but refused ones stay.
        keep_quarantined: how many refused builds stay, the newest.
        now_s: wall time. If the clock was set back, every build counts as young and stays.
        grace_s: the grace time, in seconds.

    Returns:
        One decision for each build, in the order given.

    Example:
        >>> builds = [BuildInfo(name, state, "/", None) for name, state in (("a", "published"), ("b", "active"))]
        >>> found = [Candidate(build, 0) for build in builds]
        >>> [d.reason for d in plan_collection(found, keep=1, keep_quarantined=0, now_s=99, grace_s=9)]
        ['surplus', 'active']
    """
    builds = [candidate.build for candidate in candidates]
    current = max((build.age for build in builds if build.state == "active"), default=None)

    def rank(build: BuildInfo) -> tuple[bool, bool, bool]:
        earlier = build.was_current and (current is None or build.age < current)
        return build.state != "active", build.status is not None, not earlier

    whole = sorted((build for build in builds if build.is_whole), key=lambda build: build.age, reverse=True)
    whole.sort(key=rank)
    refused = sorted((b.build_id for b in builds if b.state == "quarantined"), reverse=True)
    stays = {build.build_id for build in whole[:keep]} | set(refused[:keep_quarantined])
    decisions: list[GcDecision] = []
    for candidate in candidates:
        build = candidate.build
        if build.state in ("active", "damaged"):  # a damaged one was edited or cut: the rest may be all there is
            reason = build.state
        elif build.state == "staging":
            reason = "writing"
        elif build.pinned:
            reason = "pinned"
        elif now_s - candidate.idle_since_s < grace_s:
            reason = "young"
        else:
            is_kept = build.build_id in stays or (keep is None and build.state != "quarantined")
            reason = "kept" if is_kept else "surplus"
        decisions.append(GcDecision(build.build_id, build.state, reason == "surplus", reason, candidate.size_bytes))
    return decisions
