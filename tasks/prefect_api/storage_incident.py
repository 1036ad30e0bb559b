"""One storage that is suspected is one incident: one run tells of it, holds its slots back, and gives them back in steps.

The run is whoever took the incident's record first, or from one that did not renew it. The record says who that is, whether
the incident was told, the limit as it was, and what it may have been set to. A run that ends gives all slots back, and
another silent one takes over; if all were killed, the next run on the storage gives them back. No request is made while
nothing is suspected, but one at the start of a run with a `storage`.

The API sets a limit without a condition. So who sets it says to what first, looks then whether the record is still its own,
and looks again afterwards: what was set too late, by a run that had been away, is undone by it or known to its successor.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4, uuid5

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectNotFound
from prefect.utilities.urls import url_for

from prefect_cachewatch.common.text import for_markdown, slugify
from prefect_cachewatch.tasks.prefect_api.artifact_requests import create_artifact
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.events import emit_storage_event
from prefect_cachewatch.tasks.prefect_api.incident_record import Facts, Found, IncidentRecord
from prefect_cachewatch.tasks.prefect_api.limits import read_limit, set_limit
from prefect_cachewatch.watching.suspicion import Standing, Suspected

_ADVICE = "Look at the storage and the way to it: its server, the network, the mounts of these machines. Leave the runs alone."
_STEPS = 8  # additive increase: an eighth of the limit at a time
_RENEWALS = 4  # a window: how often an incident is renewed, and slots are changed
_LEAST_PAUSE_S = 2.0
_ABANDONED_S = 120.0
_UNSEEN_S = 30.0  # events of a run may come late


class _Lost(Exception):
    """Another run looks after the incident now."""


@dataclass(frozen=True)
class _Set:
    """A limit that this run has begun to set, and has not seen done while the record was its own."""

    slots: int
    before: int


class StorageIncident:
    """What one run does about its storage; made for one attempt.

    Args:
        label: of the storage.
        told: what people are told of it.
        limit: name of its concurrency limit; None: it has none.
        floor: slots that the limit must leave, so that the heaviest job can run at all.
        run: this flow run.
        logger: its logger.
    """

    def __init__(self, label: str, told: str, limit: str | None, floor: int, run: str, logger: AnyLogger) -> None:
        self._label, self._told, self._limit, self._floor, self._run = label, told, limit, max(1, floor), run
        self._logger = logger
        self._record = IncidentRecord(label)
        self._facts: Facts | None = None  # of an incident that this run looks after
        self._earlier: list[int] = []  # what those before it may have set the limit to, or may do late
        self._unsure: _Set | None = None
        self._count, self._is_new = 0, False
        self._last: Suspected | None = None
        self._again_s = 0.0
        self.concerns = False
        """Whether there may be something to do: this run has suspected its storage, and the incident is not over."""

    def follow(self, suspected: Suspected | None, standings: Sequence[Standing], window_s: float) -> bool:
        """Do what is this run's turn after a look, and say whether the incident goes on; see `Board.follow`.

        Args:
            suspected: what this run suspects; None if it moves, or suspects nothing.
            standings: of the runs on the storage.
            window_s: the run's stall window.
        """
        self.concerns = self.concerns or suspected is not None
        if not self.concerns:
            return False
        self._last = suspected or self._last
        is_due = suspected is not None and self._facts is not None and self._is_to_tell(suspected)
        if not is_due and time.monotonic() < self._again_s:
            return True
        self._again_s = time.monotonic() + max(window_s / _RENEWALS, _LEAST_PAUSE_S)
        with get_client(sync_client=True) as client:
            try:
                found = self._look(client)
                if self._facts is None:
                    opens = suspected is not None
                    self.concerns = self._take_over(client, found, standings, window_s, opens=opens)
                    return self.concerns
                if is_due and suspected is not None:
                    self._say(suspected)
                if suspected is None and not _are_silent(standings):
                    self.concerns = not self._give_back(client)
                else:
                    self._hold_back(client, standings)
            except _Lost:
                self._facts = None
        return self.concerns

    def leave(self) -> None:
        """Give all slots back; another run that is silent holds them back again, and looks after the incident."""
        if self._facts is None and self._unsure is None:
            return
        with get_client(sync_client=True) as client:
            try:
                self._look(client)
                if self._facts is None:
                    return
                self._give_all_back(client)
                # Not removed: a next attempt that finds the storage as it was is the same incident.
                tells = not self._facts.get("told") and self._last is not None
                told = bool(self._facts.get("told")) or tells
                self._renew(client, {"by": "", "limit": None, "limit_id": None, "set": [], "told": told})
            except _Lost:
                return
            finally:
                facts, self._facts, self.concerns = self._facts, None, False
        if tells and self._last is not None and facts is not None:
            self._tell_suspected(self._last, {**facts, "told": False})

    def end_abandoned(self) -> None:
        """Give all slots back and end the incident, if nobody has looked after it for long."""
        with get_client(sync_client=True) as client:
            found = self._record.read(client)
            if found is None:
                return
            if found.is_over:  # who ended it was killed before its last request
                self._record.sweep(client)
            elif is_abandoned(found) and self._take(client, found, _number(found.facts.get("window_s"))):
                try:
                    before = self._give_all_back(client)
                    if self._record.release(client):
                        self._record.sweep(client)
                except _Lost:
                    return
                if before is not None:
                    self._logger.warning(
                        "the limit of %s is %s slots again: nobody looked after its incident", self._limit, before
                    )

    def _look(self, client: SyncPrefectClient) -> Found | None:
        """Read the record, and see whether it is this run's."""
        found = self._record.read(client)
        if self._facts is not None and not self._record.holds(found):
            self._facts = None  # nobody had heard of this run for long, and another one has taken over
        if self._unsure is not None:
            if self._facts is None and (found is None or found.is_over):
                self._undo(client, self._unsure)
            self._unsure = None  # else who looks after it knows that the limit may be set to that
        return found

    def _undo(self, client: SyncPrefectClient, done: _Set) -> None:
        """Take back what was set after the incident had ended without this run."""
        now = self._limit_now(client)
        if now is not None and now.limit == done.slots != done.before:
            set_limit(client, now, done.before)

    def _take_over(
        self,
        client: SyncPrefectClient,
        found: Found | None,
        standings: Sequence[Standing],
        window_s: float,
        *,
        opens: bool,
    ) -> bool:
        """Make the incident this run's, if it is nobody's; returns whether there is one."""
        is_there = found is not None and not found.is_over
        if not is_there and not opens:
            return False
        if found is not None and is_there and not self._is_without(found, standings):
            return True
        self._is_new = not is_there or (opens and found is not None and is_abandoned(found))
        if not self._take(client, found, window_s):
            return True
        assert self._facts is not None
        if self._is_new:
            self._facts |= {"told": False, "incident": uuid4().hex}
            self._count = 0
        if opens or _are_silent(standings):
            self._hold_back(client, standings)
        else:
            self._renew(client, {})
        return True

    def _take(self, client: SyncPrefectClient, found: Found | None, window_s: float) -> bool:
        self._facts = self._record.take(client, found, {"by": self._run, "window_s": window_s})
        if self._facts is None:
            return False
        # A request of a run that was cut off may still lower the limit; who raises it to what it was is a person.
        self._earlier = [slots for slots in _whole(self._facts.get("set")) if slots != self._before()]
        return True

    def _is_without(self, found: Found, standings: Sequence[Standing]) -> bool:
        """Say whether nobody looks after an incident: its run has left it, or is not seen and does not renew it."""
        by = str(found.facts.get("by") or "")
        is_seen = by in {one.run for one in standings}
        late_s = max(_number(found.facts.get("window_s")) / 2, _UNSEEN_S)
        return by in ("", self._run) or is_abandoned(found) or (not is_seen and found.age_s > late_s)

    def _hold_back(self, client: SyncPrefectClient, standings: Sequence[Standing]) -> None:
        """Lower the limit to what still moves, and renew the incident."""
        assert self._facts is not None
        now = self._limit_now(client)
        if now is not None and now.active:  # one that is switched off holds nobody back
            is_first = self._facts.get("limit") is None and not self._facts.get("set")
            if is_first or (self._is_new and not self._is_ours(now)):
                self._earlier = []
                # First of all, so that it is known whatever happens next.
                self._renew(client, {"limit": now.limit, "limit_id": str(now.id), "set": [now.limit]})
            slots = max(self._floor, slots_that_move(now.active_slots, standings))
            is_ours = self._is_ours(now)
            if is_ours:
                self._facts["set"] = [*self._earlier, now.limit]
            if is_ours and slots < now.limit and self._set_limit(client, slots, now):
                self._logger.warning("the limit of %s is lowered from %s to %s slots", self._told, now.limit, slots)
        self._is_new = False
        self._renew(client, {})

    def _give_back(self, client: SyncPrefectClient) -> bool:
        """Give back a part of the slots; returns whether all are, which ends the incident."""
        assert self._facts is not None
        before = self._before()
        has = ""
        if before is not None:
            now = self._limit_now(client)
            if now is None:
                has = "; its limit was removed meanwhile"
            elif now.limit == before or self._is_ours(now):
                slots = min(before, now.limit + math.ceil(before / _STEPS))
                if slots != now.limit:
                    self._set_limit(client, slots, now)
                    if slots < before:
                        self._renew(client, {})
                        return False
                has = ", and has all of its slots"
            else:  # a person has set it meanwhile
                has = f"; its limit was set to {now.limit} slots meanwhile, and stays"
        incident = self._facts
        if not self._record.release(client):
            raise _Lost
        self._facts = None
        sentence = f"storage {self._told} moves again{has}"
        self._logger.info(sentence)
        emit_storage_event("recovered", self._label, self._told, {"message": sentence}, _event(incident, "recovered"))
        self._record.sweep(client)
        self._publish(f"## {for_markdown(self._told, 200)} moves again\n", sentence)
        return True

    def _give_all_back(self, client: SyncPrefectClient) -> int | None:
        """Set the limit to what it was; returns that, None if it was not for this run to set."""
        before, now = self._before(), self._limit_now(client)
        if before is None or now is None or now.limit == before or not self._is_ours(now):
            return None
        return before if self._set_limit(client, before, now) else None

    def _before(self) -> int | None:
        assert self._facts is not None
        return next(iter(_whole([self._facts.get("limit")])), None)

    def _limit_now(self, client: SyncPrefectClient) -> GlobalConcurrencyLimitResponse | None:
        return read_limit(client, self._limit) if self._limit is not None else None

    def _is_ours(self, now: GlobalConcurrencyLimitResponse) -> bool:
        """Say whether an incident has set a limit, and not a person; who died while setting it left both values."""
        assert self._facts is not None
        return str(now.id) == self._facts.get("limit_id") and now.limit in _whole(self._facts.get("set"))

    def _set_limit(self, client: SyncPrefectClient, slots: int, now: GlobalConcurrencyLimitResponse) -> bool:
        """Set the limit, if it is still as it was found; returns whether it was set."""
        self._renew(client, {"set": [*self._earlier, now.limit, slots]})
        again = self._limit_now(client)
        if again is None or (again.id, again.limit) != (now.id, now.limit):
            return False  # a person was faster
        if not self._record.holds(self._record.read(client)):
            raise _Lost
        before = self._before()
        self._unsure = _Set(slots, now.limit if before is None else before)
        try:
            set_limit(client, now, slots)
        except ObjectNotFound:
            self._unsure = None
            return False
        self._look(client)
        if self._facts is None:
            raise _Lost
        self._facts["set"] = [*self._earlier, slots]
        return True

    def _renew(self, client: SyncPrefectClient, changed: Mapping[str, Any]) -> None:
        assert self._facts is not None
        self._facts |= changed
        if not self._record.renew(client, self._facts):
            raise _Lost

    def _is_to_tell(self, suspected: Suspected) -> bool:
        """Say whether the group has stopped growing, or grows after it was told of."""
        assert self._facts is not None
        count, before = len(suspected.silent), self._count
        self._count = max(count, before)
        return count > before > 0 if self._facts.get("told") else count <= before

    def _say(self, suspected: Suspected) -> None:
        assert self._facts is not None
        facts = dict(self._facts)
        self._facts["told"] = True  # whoever takes over tells of it no more, once this is renewed
        self._tell_suspected(suspected, facts)

    def _tell_suspected(self, suspected: Suspected, facts: Facts) -> None:
        if not facts.get("told"):
            payload = {
                "message": f"{suspected.sentence}.", "next": _ADVICE, "silent": len(suspected.silent),
                "active": suspected.active, "probed": suspected.probed,
                "jobs": [one.job for one in suspected.silent], "runs": [one.run for one in suspected.silent],
            }  # fmt: skip
            emit_storage_event("suspected", self._label, self._told, payload, _event(facts, "suspected"))
        self._publish(incident_markdown(suspected), suspected.sentence)

    def _publish(self, markdown: str, description: str) -> None:
        create_artifact("markdown", f"cachewatch-storage-{self._label}", markdown, for_markdown(description, 500))


def storage_label(key: str) -> str:
    """Name a storage in labels, resources, artifacts and variables of Prefect; different keys have different names.

    Example:
        >>> storage_label("fast-ssd"), storage_label("fast_ssd")
        ('fast-ssd', 'fast-ssd-30939d')
    """
    slug = slugify(key, most=200, other="storage")
    return slug if slug == key else f"{slug}-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"


def incident_markdown(suspected: Suspected) -> str:
    """Write the page of an incident: what is suspected, what to do, the runs."""
    lines = [
        f"## {for_markdown(suspected.storage, 200)} is suspected",
        "",
        f"{for_markdown(suspected.sentence, 2000)}.",
        "",
        f"**Next:** {_ADVICE}",
        "",
        "| job | run | silent since |",
        "|---|---|---|",
    ]
    for one in suspected.silent:
        link = url_for("flow-run", obj_id=one.run) if _is_id(one.run) else None
        since = datetime.fromtimestamp(one.silent_since_s or 0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        lines.append(f"| {for_markdown(one.job, 100)} | {f'[run]({link})' if link else one.run} | {since} |")
    return "\n".join(lines) + "\n"


def slots_that_move(active_slots: int, standings: Sequence[Standing]) -> int:
    """Return the share of the occupied slots that runs hold which move, rounded up.

    Example:
        >>> slots_that_move(12, [Standing("a", "x", 1.0), Standing("b", "y", 1.0), Standing("c", "z")])
        4
    """
    moving = sum(one.silent_since_s is None for one in standings)
    return math.ceil(active_slots * moving / len(standings)) if standings else active_slots


def is_abandoned(found: Found) -> bool:
    """Say whether nobody has looked after an incident for long."""
    return found.age_s > _number(found.facts.get("window_s")) + _ABANDONED_S


def limit_before(label: str) -> int | None:
    """Return a storage's limit as it was before an incident; None if there is none."""
    with get_client(sync_client=True) as client:
        found = IncidentRecord(label).read(client)
    return next(iter(_whole([found.facts.get("limit")])), None) if found is not None else None


def give_back_abandoned(label: str, limit: str, run: str, logger: AnyLogger) -> None:
    """Give back the slots of a storage whose incident nobody looks after any more.

    Args:
        label: of the storage.
        limit: name of its concurrency limit.
        run: this flow run.
        logger: told of it.
    """
    StorageIncident(label, limit, limit, 1, run, logger).end_abandoned()


def _event(facts: Facts, kind: str) -> UUID:
    """Return the id of an incident's event: two runs that tell of it send the same one."""
    incident = str(facts.get("incident") or "")
    return uuid5(UUID(incident), kind) if _is_id(incident) else uuid4()


def _are_silent(standings: Sequence[Standing]) -> bool:
    return 2 * sum(one.silent_since_s is not None for one in standings) > len(standings)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else 0.0


def _whole(values: Any) -> list[int]:
    """Return the numbers of slots among values that anybody may have changed."""
    found: Iterable[Any] = values if isinstance(values, list) else ()
    return [value for value in found if type(value) is int and value >= 0]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
