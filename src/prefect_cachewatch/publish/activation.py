"""Decides which build is current: activation, its history, and the roll-back.

The history is written before the link is switched, and is interpreted by the link. So after a kill at any moment the
link shows the active build, and the history entries before it show the earlier ones.
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
from prefect_cachewatch.publish.builds import (
    read_unfinished,
    require_whole,
)
from prefect_cachewatch.publish.durable import read_record, refusing, switch_link, write_durably
from prefect_cachewatch.publish.layout import BUILDS, CURRENT, CacheFolder, hold_switch, read_current
from prefect_cachewatch.publish.manifest import Manifest
from prefect_cachewatch.publish.statuses import clear_status, mark_build, read_statuses
from prefect_cachewatch.publish.verification import Verdict

_HISTORY = ".activations.json"
_LIMIT_BYTES = 1 << 20
_KEPT = 200


@dataclass(frozen=True)
class Activation:
    """A switch of `current`: from which build, to which, and which builds were passed over."""

    build_id: str
    previous: str | None
    path: str
    manifest: Manifest
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """Builds in the order of activation, and when each former current build stopped being current (wall seconds)."""

    entries: tuple[str, ...] = ()
    released: tuple[tuple[str, float], ...] = ()

    def released_at(self, build_id: str) -> float:
        """Return when a build stopped being current; 0 if it never was."""
        return dict(self.released).get(build_id, 0.0)


def rollback_order(entries: tuple[str, ...], current: str | None) -> list[str]:
    """List the targets of a roll-back, first choice first.

    Args:
        entries: builds in the order of their activation.
        current: the active build.

    Returns:
        The builds activated before it, the latest first, each once. Builds activated after it were rolled back from.

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
    """Make a whole build the current one, in one step, and clear its status.

    Args:
        folder: the open cache.
        build_id: which build.
        verify: quick (names, sizes, and every byte of files that changed since publication) or full, before the switch;
            a build that was found damaged before is always read in full.
        now: wall seconds.

    Returns:
        The switch.

    Raises:
        BuildDamaged: the build is not whole, which is recorded; the current one stays.
        StoreError: there is no such build, or `current` was tampered with.
        StoreBusy: another process holds the switch's lock for longer than a minute.
    """
    with hold_switch(folder, "activate a build"):
        known = read_statuses(folder).get(build_id)
        manifest = _require_good(folder, build_id, "full" if known and known.status == "damaged" else verify, now())
        previous = read_current(folder)
        if previous == build_id:
            clear_status(folder, build_id)
            return Activation(build_id, previous, folder.build_path(build_id), manifest)
        history = read_history(folder)
        # Builds after the current one were rolled back from: a later roll-back must not go to one of them.
        earlier = tuple(reversed(rollback_order(history.entries, previous)))
        entries = (*earlier, *([previous] if previous else []), build_id)[-_KEPT:]
        _switch(folder, History(entries, history.released), previous, build_id, now())
        # Last: if the process dies before this, a bad build that is not current is never taken for a good one.
        with refusing("clear what is known against builds of", folder.path, f"; {build_id} is active all the same"):
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
    """Make the previous build current again; a second call goes back another step.

    The build that stops being current is recorded as rolled back, or as unhealthy.

    Args:
        folder: the open cache.
        verify: quick or full as in `activate_build`, before the switch; builds that are gone, damaged or were unhealthy
            are passed over, and the result names them.
        expected: the build to go back from; if another one is current, another process has switched meanwhile.
        unhealthy: why the current build is not healthy; it is recorded even if no roll-back is possible.
        now: wall seconds.

    Returns:
        The switch.

    Raises:
        StoreError: nothing is current, or no whole build was current before; the current one stays.
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
                # Before the switch: after a kill in between, the build is generated again, which costs only time.
                with refusing("write the record of builds of", folder.path, f"; {current} stays active"):
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
    """Read the order in which builds were activated.

    Raises:
        StoreError: the file was cut or edited.
    """
    lost = "(the way back is lost then, no build is), then activate the build you want"
    return read_record(folder.fd, _HISTORY, _LIMIT_BYTES, _decode, path=folder.path, lost=lost) or History()


def verify_build(
    folder: CacheFolder, build_id: str, depth: str, now: Callable[[], float] = time.time
) -> tuple[Manifest, Verdict]:
    """Verify a build, and record damage if permitted.

    Args:
        folder: the open cache.
        build_id: which build.
        depth: quick or full.
        now: wall seconds.

    Returns:
        Its manifest and the verdict, which says that it is whole.

    Raises:
        BuildDamaged: it is not whole; the error has the differences.
        StoreError: there is no such build.
    """
    try:
        return require_whole(folder, build_id, depth)
    except BuildDamaged as error:
        try:
            note_damage(folder, build_id, error, now)
        except StoreError as why:  # it must not be taken for noted: the next run may call the build Cached
            raise BuildDamaged(f"{error.message}. It is not noted: {why.message}", **error.data) from None
        raise


def _decode(body: Any) -> History:
    released = {str(build): float(at) for build, at in body["released"].items()}
    return History(tuple(str(build) for build in body["history"]), tuple(released.items()))


def _require_good(folder: CacheFolder, build_id: str, verify: str, now_s: float) -> Manifest:
    try:
        return require_whole(folder, build_id, "full" if verify == "full" else "changed")[0]
    except BuildDamaged as error:
        # Best effort: a full disk must not hide the damage.
        with contextlib.suppress(OSError):
            _note_damage(folder, build_id, error, now_s)
        raise


def note_damage(folder: CacheFolder, build_id: str, error: BuildDamaged, now: Callable[[], float] = time.time) -> None:
    """Record that a build is damaged.

    Raises:
        StoreError: it cannot be recorded.
    """
    with refusing("write the record of builds of", folder.path), hold_switch(folder, "note a damaged build"):
        _note_damage(folder, build_id, error, now())


def _note_damage(folder: CacheFolder, build_id: str, error: BuildDamaged, now_s: float) -> None:
    # A file that only this user cannot read is no damage; a build that was never finished is not damaged either.
    unreadable = error.data.get("kinds") == ["unreadable"]
    unfinished = build_id in read_unfinished(folder) and build_id != read_current(folder)
    if not unreadable and not unfinished:
        mark_build(folder, build_id, "damaged", "; ".join(error.data.get("problems", [error.message])[:3]), now_s)


def _switch(folder: CacheFolder, history: History, previous: str | None, build_id: str, now_s: float) -> None:
    released = dict(history.released)
    if previous:
        # Before the switch: if the process dies here, a reader that has just taken the old build still has the whole
        # grace time.
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
