"""Which build is current: activation, its history, and the way back.

The history is written before the link is switched, and read from the link: whatever a kill
leaves, the link says what is active, and the entries before it say what was.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import BuildDamaged, StoreError
from prefect_cachewatch.publish.builds import clear_status, mark_build, read_statuses, read_unfinished, require_whole
from prefect_cachewatch.publish.durable import read_record, refusing, switch_link, write_durably
from prefect_cachewatch.publish.layout import BUILDS, CURRENT, CacheFolder, hold_switch, read_current
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.verification import Verdict

__all__ = ["Activation", "History", "activate_build", "read_history", "roll_back", "rollback_order", "verify_build"]

_HISTORY = ".activations.json"
_LIMIT_BYTES = 1 << 20
_KEPT = 200


@dataclass(frozen=True)
class Activation:
    """A switch of `current`: from which build, to which, and what stood in the way."""

    build_id: str
    previous: str | None
    path: str
    manifest: Manifest
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """Builds in the order they were activated, and when each that was current stopped being so (wall seconds)."""

    entries: tuple[str, ...] = ()
    released: tuple[tuple[str, float], ...] = ()

    def released_at(self, build_id: str) -> float:
        """When a build stopped being current; 0 where it never was."""
        return dict(self.released).get(build_id, 0.0)


def rollback_order(entries: tuple[str, ...], current: str | None) -> list[str]:
    """Say where a roll-back would go, first choice first.

    Args:
        entries: builds in the order of their activation.
        current: the active build.

    Returns:
        The builds activated before it, the latest first, each once. What was activated after it was rolled back from.

    Example:
        >>> rollback_order(("a", "b", "c"), "c"), rollback_order(("a", "b", "c"), "b")
        (['b', 'a'], ['a'])
    """
    if current in entries:
        place = len(entries) - 1 - entries[::-1].index(current)
        entries = entries[:place]
    return [build for build in dict.fromkeys(reversed(entries)) if build != current]


def activate_build(
    folder: CacheFolder, build_id: str, *, verify: str = "quick", now: Callable[[], float] = time.time
) -> Activation:
    """Make a whole build the current one, in one step; what was known against it is forgotten then.

    Args:
        folder: the open cache.
        build_id: which build.
        verify: quick (names, sizes, and every byte of what changed since it was published) or full, before the switch;
            one that was found damaged before is always read in full.
        now: wall seconds.

    Returns:
        What was switched.

    Raises:
        BuildDamaged: if the build is not whole, which is noted; the current one stays.
        StoreError: if there is no such build, or `current` was tampered with.
        StoreBusy: if somebody else switches for longer than a minute.
    """
    with hold_switch(folder, "activate a build"):
        known = read_statuses(folder).get(build_id)
        manifest = _require_good(folder, build_id, "full" if known and known.status == "damaged" else verify, now())
        previous = read_current(folder)
        if previous == build_id:
            clear_status(folder, build_id)
            return Activation(build_id, previous, folder.build_path(build_id), manifest)
        history = read_history(folder)
        # What lies after the current one was rolled back from: a later roll-back must not go there.
        earlier = tuple(reversed(rollback_order(history.entries, previous)))
        entries = (*earlier, *([previous] if previous else []), build_id)[-_KEPT:]
        _switch(folder, History(entries, history.released), previous, build_id, now())
        # Last: whatever dies before, a build that is not current and was bad is never taken for good.
        clear_status(folder, build_id)
        return Activation(build_id, previous, folder.build_path(build_id), manifest)


def roll_back(
    folder: CacheFolder,
    *,
    verify: str = "quick",
    expected: str | None = None,
    unhealthy: str | None = None,
    now: Callable[[], float] = time.time,
) -> Activation:
    """Make the build current again that was so before; twice goes back two steps.

    The build that is left is noted as rolled back, or as unhealthy.

    Args:
        folder: the open cache.
        verify: quick or full as in `activate_build`, before the switch; builds that are gone, damaged or were unhealthy
            are passed over, and said.
        expected: the build to go back from; where another is current, somebody has switched meanwhile.
        unhealthy: why the build that is left is not healthy; it is noted even where there is no way back.
        now: wall seconds.

    Returns:
        What was switched.

    Raises:
        StoreError: if nothing is current, or no whole build was current before it; the current one stays.
    """
    with hold_switch(folder, "roll back"):
        current = read_current(folder)
        shown = for_terminal(folder.name)
        if current is None:
            raise StoreError(
                f"'{shown}' has no active build to roll back from: activate one with cachewatch store activate"
            )
        if unhealthy is not None:
            mark_build(folder, expected or current, "unhealthy", unhealthy, now())
        if expected is not None and current != expected:
            raise StoreError(
                f"'{shown}' is not rolled back from {expected}: {current} was made current meanwhile and stays so",
                current=current,
            )
        history = read_history(folder)
        known = read_statuses(folder)
        skipped: list[str] = []
        for build_id in rollback_order(history.entries, current):
            if (status := known.get(build_id)) is not None:
                skipped.append(f"the build {build_id} was {status.sentence()}")
                continue
            try:
                manifest = _require_good(folder, build_id, verify, now())
            except BuildDamaged as error:
                skipped.append(error.message)
                continue
            except StoreError:
                skipped.append(f"the build {build_id} is gone")
                continue
            if unhealthy is None:
                # Before the switch: killed in between, it is generated anew, which costs time and nothing else.
                mark_build(folder, current, "rolled_back", f"to {build_id}", now())
            _switch(folder, history, current, build_id, now())
            return Activation(build_id, current, folder.build_path(build_id), manifest, tuple(skipped))
        why = "; ".join(skipped) if skipped else "no build was active before it"
        raise StoreError(
            f"'{shown}' cannot be rolled back from {current}: {why}; {current} stays active",
            current=current,
            skipped=skipped,
        )


def read_history(folder: CacheFolder) -> History:
    """Read in which order builds were activated.

    Raises:
        StoreError: if the file was cut or edited.
    """
    lost = "(the way back is lost then, no build is), then activate the build you want"
    return read_record(folder.fd, _HISTORY, _LIMIT_BYTES, _decode, path=folder.path, lost=lost) or History()


def verify_build(
    folder: CacheFolder, build_id: str, depth: str, now: Callable[[], float] = time.time
) -> tuple[Manifest, Verdict]:
    """Verify a build and note what comes of it, where this user may: damage, or that every byte is well again.

    Args:
        folder: the open cache.
        build_id: which build.
        depth: quick or full.
        now: wall seconds.

    Returns:
        Its manifest, and the verdict that it is whole.

    Raises:
        BuildDamaged: if it is not, with what was found.
        StoreError: if there is no such build.
    """
    try:
        found = require_whole(folder, build_id, depth)
    except BuildDamaged as error:
        with contextlib.suppress(OSError, StoreError), hold_switch(folder, "note a damaged build"):
            _note_damage(folder, build_id, error, now())
        raise
    if depth == "full" and (known := read_statuses(folder).get(build_id)) and known.status == "damaged":
        with contextlib.suppress(OSError, StoreError), hold_switch(folder, "note a build that is whole"):
            clear_status(folder, build_id)
    return found


def _decode(body: Any) -> History:
    released = {str(build): float(at) for build, at in body["released"].items()}
    return History(tuple(str(build) for build in body["history"]), tuple(released.items()))


def _require_good(folder: CacheFolder, build_id: str, verify: str, now_s: float) -> Manifest:
    try:
        return require_whole(folder, build_id, "full" if verify == "full" else "changed")[0]
    except BuildDamaged as error:
        # Best effort: a full disk must not hide what was found.
        with contextlib.suppress(OSError):
            _note_damage(folder, build_id, error, now_s)
        raise


def _note_damage(folder: CacheFolder, build_id: str, error: BuildDamaged, now_s: float) -> None:
    # What only this user cannot read is no damage; a build that was never finished is not damaged either.
    unreadable = error.data.get("kinds") == ["unreadable"]
    unfinished = build_id in read_unfinished(folder) and build_id != read_current(folder)
    if not unreadable and not unfinished:
        mark_build(folder, build_id, "damaged", "; ".join(error.data.get("problems", [error.message])[:3]), now_s)


def _switch(folder: CacheFolder, history: History, previous: str | None, build_id: str, now_s: float) -> None:
    released = dict(history.released)
    if previous:
        # Before the switch: a reader that took the old build a moment ago has the whole grace time, whatever dies here.
        released[previous] = now_s
    body = {
        "schema_version": 1,
        "history": list(history.entries),
        "released": dict(sorted(released.items())[-_KEPT:]),
        "written_at": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds"),
    }
    link = f"{folder.path}/{CURRENT}"
    named = f"{for_terminal(link, 1000)} to {build_id}"
    with refusing("switch", folder.path, f"; {previous or 'nothing'} stays active", named=named):
        write_durably(folder.fd, _HISTORY, json.dumps(body, indent=1).encode("ascii") + b"\n")
        switch_link(folder.fd, CURRENT, f"{BUILDS}/{build_id}")
