"""Removes builds that are no longer needed: looks, applies a pure rule, moves aside, removes.

How long ago a build was in use follows from the store's own history and from change times, which no generator can set,
on the clock of the file system that holds them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prefect_cachewatch.common.removal import make_stamp
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import StoreBusy, StoreError
from prefect_cachewatch.publish.activation import read_history, rollback_order
from prefect_cachewatch.publish.builds import MANIFEST, PIN, BuildInfo, list_builds, open_build, quarantined_builds
from prefect_cachewatch.publish.durable import move_to_trash, remove_leftovers
from prefect_cachewatch.publish.layout import CacheFolder, hold_switch, open_subdirectory, read_current
from prefect_cachewatch.publish.locks import hold_exclusive
from prefect_cachewatch.publish.names import META_DIRECTORY
from prefect_cachewatch.publish.tree import scan_build


@dataclass(frozen=True)
class Collected:
    """The decisions of a clean-up about each build, and how many bytes it freed."""

    decisions: tuple[GcDecision, ...]
    freed_bytes: int
    dry_run: bool
    #: What could not be removed, each with path and reason; it has lost its name, and the next clean-up tries again.
    problems: tuple[str, ...] = ()

    @property
    def removed(self) -> tuple[GcDecision, ...]:
        """The builds that were removed, or would be in a dry run."""
        return tuple(decision for decision in self.decisions if decision.remove)


def collect_builds(
    folder: CacheFolder,
    writing: Callable[[], str | None],
    *,
    keep: int,
    keep_quarantined: int = 3,
    grace_s: float = 3600,
    dry_run: bool = False,
    now: Callable[[], float] = time.time,
) -> Collected:
    """Remove surplus builds, never one that is in use.

    Args:
        folder: the open cache.
        writing: returns the id of the staging build of a live publisher, if any.
        keep: how many whole builds stay, including the active one.
        keep_quarantined: how many refused builds stay.
        grace_s: a build that was finished, active or written to within this time stays.
        dry_run: decide only.
        now: wall seconds.

    Returns:
        The decisions and the bytes freed.

    Raises:
        StoreError: `current` or the history was tampered with; nothing is removed then.
    """
    with hold_switch(folder, "clean up"):
        # Before any removal: with a tampered link every build would look unused.
        current = read_current(folder)
        history = read_history(folder)
        builds = list_builds(folder, writing())
        now_s = now()
        skew_s = now_s - _file_system_now(folder, now_s)
        candidates = [_candidate(folder, build, history.released_at(build.build_id), skew_s) for build in builds]
        statuses = {build.build_id for build in builds if build.status}
        decisions = plan_collection(
            candidates,
            keep=keep,
            keep_quarantined=keep_quarantined,
            now_s=now_s,
            grace_s=grace_s,
            rollback_order=[b for b in rollback_order(history.entries, current) if b not in statuses],
        )
        problems: list[str] = []
        if not dry_run:
            decisions = [_move_aside(folder, decision, problems) for decision in decisions]
    freed = sum(decision.size_bytes for decision in decisions if decision.remove)
    # Without the lock: removing 100 GB takes minutes, and no reader can reach it any more.
    if not dry_run:
        problems += _empty_trash(folder.builds_fd, folder.quarantine_fd)
    return Collected(tuple(decisions), freed, dry_run, tuple(problems))


def prune_quarantine(folder: CacheFolder, *, keep: int) -> list[str]:
    """Remove the oldest refused builds after a new one, so that repeated refusals do not fill the disk.

    Args:
        folder: the open cache.
        keep: how many stay; the newest always does.

    Returns:
        What could not be removed, each with path and reason.

    Raises:
        StoreBusy: another process holds the switch's lock for longer than a minute; nothing is removed.
    """
    problems = []
    with hold_switch(folder, "remove refused builds"):
        for build_id in reversed(quarantined_builds(folder)[max(1, keep) :]):
            try:
                move_to_trash(folder.quarantine_fd, build_id)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(_cannot_remove(folder.quarantine_path(build_id), error))
    return problems + _empty_trash(folder.quarantine_fd)


def _file_system_now(folder: CacheFolder, now_s: float) -> float:
    try:
        return make_stamp(folder.fd).changed_ns / 1e9
    except OSError:  # a look needs no write permission
        return now_s


def _candidate(folder: CacheFolder, build: BuildInfo, released_s: float, skew_s: float) -> Candidate:
    changed_ns, size = [0], build.total_bytes or 0
    directory_fd = folder.quarantine_fd if build.state == "quarantined" else folder.builds_fd
    with contextlib.suppress(StoreError, OSError), contextlib.ExitStack() as stack:
        changed_ns.append(os.stat(build.build_id, dir_fd=directory_fd, follow_symlinks=False).st_ctime_ns)
        fd = stack.enter_context(open_subdirectory(directory_fd, build.build_id, build.path))
        if build.state in ("active", "published"):
            stamp = os.stat(f"{META_DIRECTORY}/{MANIFEST}", dir_fd=fd, follow_symlinks=False)
            changed_ns.append(stamp.st_ctime_ns)
        else:
            tree = scan_build(fd)
            size = tree.total_bytes
            changed_ns += [file.changed_ns for file in tree.files]
    idle_s = max(released_s, max(changed_ns) / 1e9 + skew_s)
    return Candidate(build.build_id, build.state, idle_s, size, build.pinned, build.status is not None)


def _move_aside(folder: CacheFolder, decision: GcDecision, problems: list[str]) -> GcDecision:
    if not decision.remove:
        return decision
    try:
        if decision.state == "quarantined":
            move_to_trash(folder.quarantine_fd, decision.build_id)
        elif decision.state == "abandoned":
            # Never published: no reader can have pinned it, and it may not even be a directory.
            move_to_trash(folder.builds_fd, decision.build_id)
        else:
            with _own_pin(folder, decision.build_id):
                move_to_trash(folder.builds_fd, decision.build_id)
    except StoreBusy:
        # A reader pinned it between the listing and now.
        return replace(decision, remove=False, reason="pinned")
    except OSError as error:
        # One failure must not keep the others: the build keeps its name and is whole.
        of = folder.quarantine_path if decision.state == "quarantined" else folder.build_path
        problems.append(_cannot_remove(of(decision.build_id), error))
        return replace(decision, remove=False)
    return decision


def _cannot_remove(path: str, error: OSError) -> str:
    # A directory in a lower layer of an overlay cannot be moved in one step, and no reader may see it half removed.
    layer = " (it may lie in a lower layer of an overlay)" if error.errno == errno.EXDEV else ""
    return f"cannot remove {for_terminal(path, 1000)}: {os.strerror(error.errno or 0)}{layer}"


def _empty_trash(*directory_fds: int) -> list[str]:
    problems = []
    for fd in directory_fds:
        try:
            remove_leftovers(fd)
        except StoreError as error:
            problems.append(error.message)
    return problems


@contextlib.contextmanager
def _own_pin(folder: CacheFolder, build_id: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(open_build(folder, build_id))
        try:
            meta_fd = stack.enter_context(open_subdirectory(fd, META_DIRECTORY, META_DIRECTORY))
            os.stat(PIN, dir_fd=meta_fd, follow_symlinks=False)
        except (StoreError, FileNotFoundError):
            pass  # never published: no reader can have pinned it
        else:
            stack.enter_context(hold_exclusive(meta_fd, PIN, "remove a build", past_readers=False))
        yield


@dataclass(frozen=True)
class Candidate:
    """A build as the rule sees it; times are wall seconds."""

    build_id: str
    state: str
    idle_since_s: float
    size_bytes: int = 0
    pinned: bool = False
    #: Whether it has a status against it: it was unhealthy, or rolled back from.
    marked: bool = False


@dataclass(frozen=True)
class GcDecision:
    """The decision about a build and its reason: active, writing, damaged, pinned, young, kept or surplus."""

    build_id: str
    state: str
    remove: bool
    reason: str
    size_bytes: int = 0


def plan_collection(
    builds: Sequence[Candidate],
    *,
    keep: int,
    keep_quarantined: int,
    now_s: float,
    grace_s: float,
    rollback_order: Sequence[str] = (),
) -> list[GcDecision]:
    """Decide which builds to remove.

    Never removed are: the active build, one that is being written, one that a reader has pinned, and one that was
    finished, active or written to within the grace time. Damaged builds are left for a person to look at.

    Args:
        builds: every build of one cache; `state` is active, published, staging, abandoned, damaged or quarantined.
        keep: how many whole builds stay, including the active one.
        keep_quarantined: how many refused builds stay, the newest.
        now_s: wall time. If the clock was set back, every build counts as young and stays.
        grace_s: the grace time, in seconds.
        rollback_order: the targets of a roll-back, first choice first; they fill `keep` before newer builds do.

    Returns:
        One decision for each build, in the order given.

    Raises:
        ValueError: `keep` is less than 1.

    Example:
        >>> builds = [Candidate("a", "published", 0), Candidate("b", "active", 5), Candidate("c", "published", 3)]
        >>> [d.build_id for d in plan_collection(builds, keep=2, keep_quarantined=0, now_s=99, grace_s=9) if d.remove]
        ['a']
    """
    if keep < 1:
        raise ValueError("keep must be at least 1: the active build always stays")
    rank = {build_id: place for place, build_id in enumerate(rollback_order)}
    whole = [build for build in builds if build.state in ("active", "published")]
    # Active first, then roll-back targets in order, then the newest, bad ones last; ids sort by age.
    whole.sort(key=lambda b: b.build_id, reverse=True)
    whole.sort(key=lambda b: (b.state != "active", b.marked, rank.get(b.build_id, len(rank))))
    refused = sorted((b for b in builds if b.state == "quarantined"), key=lambda b: b.build_id, reverse=True)
    kept = {build.build_id for build in whole[:keep]}
    kept_refused = {build.build_id for build in refused[:keep_quarantined]}
    decisions: list[GcDecision] = []
    for build in builds:
        stays = kept_refused if build.state == "quarantined" else kept
        if build.state == "active":
            reason = "active"
        elif build.state == "staging":
            reason = "writing"
        elif build.state == "damaged":
            # It was edited or cut: the rest may be all there is, so a person decides.
            reason = "damaged"
        elif build.pinned:
            reason = "pinned"
        elif now_s - build.idle_since_s < grace_s:
            reason = "young"
        else:
            reason = "kept" if build.build_id in stays else "surplus"
        decisions.append(GcDecision(build.build_id, build.state, reason == "surplus", reason, build.size_bytes))
    return decisions
