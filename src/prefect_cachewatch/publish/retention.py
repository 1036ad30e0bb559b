"""Which builds may go? A rule over values; `collection` looks and removes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "GcDecision", "plan_collection", "surplus_quarantined"]


@dataclass(frozen=True)
class Candidate:
    """A build as the rule sees it; times are wall seconds."""

    build_id: str
    state: str
    idle_since_s: float
    size_bytes: int = 0
    pinned: bool = False
    #: Whether something is known against it: it was unhealthy, or rolled back from.
    marked: bool = False


@dataclass(frozen=True)
class GcDecision:
    """What becomes of a build, and why: active, writing, damaged, pinned, young, kept or surplus."""

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

    Never the active one, one that is being written, one that a reader has pinned, and none that was finished, was
    active or was written to less than the grace time ago. Damaged builds are left for a person to look at.

    Args:
        builds: every build of one cache; `state` is active, published, staging, abandoned, damaged or quarantined.
        keep: how many whole builds stay, the active one among them.
        keep_quarantined: how many refused builds stay, the newest.
        now_s: wall time. If it ran backwards everything is young, and stays.
        grace_s: see above.
        rollback_order: what a roll-back would go to, first choice first; these fill `keep` before newer ones do.

    Returns:
        A decision a build, in the order given.

    Raises:
        ValueError: if `keep` is less than 1.

    Example:
        >>> builds = [Candidate("a", "published", 0), Candidate("b", "active", 5), Candidate("c", "published", 3)]
        >>> [d.build_id for d in plan_collection(builds, keep=2, keep_quarantined=0, now_s=99, grace_s=9) if d.remove]
        ['a']
    """
    if keep < 1:
        raise ValueError("keep must be at least 1: the active build always stays")
    rank = {build_id: place for place, build_id in enumerate(rollback_order)}
    whole = [build for build in builds if build.state in ("active", "published")]
    # Active, then roll-back targets in order, then the newest, last what was bad; ids sort by age.
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
            # Somebody edited or cut it: what is left may be all there is, so a person decides.
            reason = "damaged"
        elif build.pinned:
            reason = "pinned"
        elif now_s - build.idle_since_s < grace_s:
            reason = "young"
        else:
            reason = "kept" if build.build_id in stays else "surplus"
        decisions.append(GcDecision(build.build_id, build.state, reason == "surplus", reason, build.size_bytes))
    return decisions


def surplus_quarantined(builds: Sequence[tuple[str, int]], keep: int, max_bytes: int | None) -> list[str]:
    """Say which refused builds may go when another has come; the newest always stays.

    Args:
        builds: ids and sizes of those in quarantine.
        keep: how many stay, the newest.
        max_bytes: how many bytes they may have together; None for any number.

    Returns:
        Ids, the oldest first.

    Example:
        >>> surplus_quarantined([("a", 5), ("b", 5), ("c", 5)], 2, None), surplus_quarantined([("a", 5), ("b", 5)], 3, 9)
        (['a'], ['a'])
    """
    gone: list[str] = []
    total = 0
    for place, (build_id, size) in enumerate(sorted(builds, reverse=True)):
        total += size
        if place and (place >= keep or gone or (max_bytes is not None and total > max_bytes)):
            gone.append(build_id)
    return gone[::-1]
