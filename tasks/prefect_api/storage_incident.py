"""One storage that is suspected is one incident: one run tells of it, holds its slots back, and gives them back in steps.

The run is whoever made the incident's variable first, or took it over. The variable says who that is, whether the incident
was told, and the limit as it was; it is renewed while somebody looks after it. A run that ends gives all slots back, and another silent one takes over; if all were killed, the next run on
the storage gives them back. No request is made while nothing is suspected, but one at the start of a run with a `storage`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate, VariableCreate, VariableUpdate
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.urls import url_for

from prefect_cachewatch.common.text import for_markdown, slugify
from prefect_cachewatch.tasks.prefect_api.artifact_requests import create_artifact
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.events import emit_storage_event
from prefect_cachewatch.watching.suspicion import Standing, Suspected

__all__ = ["StorageIncident", "give_back_abandoned", "limit_before", "slots_that_move", "storage_label"]

_ADVICE = "Look at the storage and the way to it: its server, the network, the mounts of these machines. Leave the runs alone."
_STEPS = 8  # additive increase: an eighth of the limit at a time
_RENEWALS = 4  # a window: how often an incident is renewed, and slots are changed
_LEAST_PAUSE_S = 2.0
_ABANDONED_S = 120.0
_UNSEEN_S = 30.0  # events of a run may come late

Record = dict[str, Any]


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
        self._name = _variable(label)
        self._record: Record | None = None  # of an incident that this run looks after
        self._is_told, self._count = False, 0
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
        if suspected is not None and self._record is not None:
            self._tell(suspected)
        if time.monotonic() < self._again_s:
            return True
        self._again_s = time.monotonic() + max(window_s / _RENEWALS, _LEAST_PAUSE_S)
        with get_client(sync_client=True) as client:
            if self._record is not None and not self._is_mine(client):
                self._record = None  # nobody had heard of this run for long, and another one has taken over
            if self._record is None:
                self.concerns = self._take_over(client, standings, window_s, opens=suspected is not None)
            elif suspected is None and not _are_silent(standings):
                self.concerns = not self._give_back(client)
            else:
                self._hold_back(client, standings)
        return self.concerns

    def leave(self) -> None:
        """Give all slots back; another run that is silent holds them back again, and looks after the incident."""
        if self._record is None:
            return
        with get_client(sync_client=True) as client:
            if not self._is_mine(client):
                self._record, self.concerns = None, False
                return
            if (before := self._record["limit"]) is not None:
                now = self._limit_now(client).limit
                if _is_ours(self._record, now):
                    self._set_limit(client, before, now)
            # Not removed: a next attempt that finds the storage as it was is the same incident.
            tells = not self._is_told and self._last is not None
            self._renew(client, {"by": "", "limit": None, "set": None, "told": self._is_told or tells})
        self._record, self.concerns = None, False
        if tells and self._last is not None:
            self._say(self._last)

    def _is_mine(self, client: SyncPrefectClient) -> bool:
        found = _read(client, self._name)
        return found is not None and found.get("by") == self._run

    def _take_over(
        self, client: SyncPrefectClient, standings: Sequence[Standing], window_s: float, *, opens: bool
    ) -> bool:
        """Make the incident this run's, if it is nobody's; returns whether there is one."""
        found = _read(client, self._name)
        if found is None and not opens:
            return False
        record: Record = {
            "by": self._run,
            "seen_s": time.time(),
            "window_s": window_s,
            "limit": None,
            "set": None,
            "told": False,
        }
        if found is None:
            try:
                client.create_variable(VariableCreate(name=self._name, value=record))
            except ObjectAlreadyExists:
                return True
            self._record, self._is_told, self._count = record, False, 0
        elif self._is_without(found, standings):
            self._is_told = bool(found.get("told")) and not (opens and is_abandoned(found))
            kept = {key: found.get(key) for key in ("limit", "set", "was")}
            self._record = {**record, **kept, "told": self._is_told}
        else:
            return True
        self._hold_back(client, standings)
        return True

    def _is_without(self, found: Record, standings: Sequence[Standing]) -> bool:
        """Say whether nobody looks after an incident: its run has left it, or is not seen and does not renew it."""
        by = found.get("by")
        is_seen = by in {one.run for one in standings}
        late_s = max(_number(found.get("window_s")) / 2, _UNSEEN_S)
        return by in ("", self._run) or is_abandoned(found) or (not is_seen and _age_s(found) > late_s)

    def _hold_back(self, client: SyncPrefectClient, standings: Sequence[Standing]) -> None:
        """Lower the limit to what still moves, and renew the incident."""
        assert self._record is not None
        if self._limit is not None:
            now = self._limit_now(client)
            if self._record["limit"] is None and self._record["set"] is None:
                self._record["limit"] = now.limit
                self._renew(client, {"set": now.limit})  # first of all, so that it is known whatever happens next
            slots = max(self._floor, slots_that_move(now.active_slots, standings))
            if slots < now.limit and _is_ours(self._record, now.limit):
                self._set_limit(client, slots, now.limit)
                self._logger.warning("the limit of %s is lowered from %s to %s slots", self._told, now.limit, slots)
        self._renew(client, {})

    def _give_back(self, client: SyncPrefectClient) -> bool:
        """Give back a part of the slots; returns whether all are, which ends the incident."""
        assert self._record is not None
        before = self._record["limit"]
        has = ""
        if before is not None:
            now = self._limit_now(client).limit
            if _is_ours(self._record, now):  # else a person has set it meanwhile
                slots = min(before, now + math.ceil(before / _STEPS))
                self._set_limit(client, slots, now)
                if slots < before:
                    self._renew(client, {})
                    return False
                has = ", and has all of its slots"
            else:
                has = f"; its limit was set to {now} slots meanwhile, and stays"
        with contextlib.suppress(ObjectNotFound):
            client.delete_variable_by_name(self._name)
        self._record = None
        sentence = f"storage {self._told} moves again{has}"
        self._logger.info(sentence)
        emit_storage_event("recovered", self._label, self._told, {"message": sentence})
        self._publish(f"## {for_markdown(self._told, 200)} moves again\n", sentence)
        return True

    def _limit_now(self, client: SyncPrefectClient) -> GlobalConcurrencyLimitResponse:
        assert self._limit is not None
        return client.read_global_concurrency_limit_by_name(self._limit)

    def _set_limit(self, client: SyncPrefectClient, slots: int, now: int) -> None:
        assert self._limit is not None and self._record is not None
        self._renew(client, {"was": now, "set": slots})  # if this run dies now, the limit is one of both
        client.update_global_concurrency_limit(self._limit, GlobalConcurrencyLimitUpdate(limit=slots))
        self._record["was"] = None

    def _renew(self, client: SyncPrefectClient, changed: Mapping[str, Any]) -> None:
        assert self._record is not None
        self._record |= {"seen_s": time.time(), **changed}
        client.update_variable(VariableUpdate(name=self._name, value=self._record))

    def _tell(self, suspected: Suspected) -> None:
        """Tell of the incident once the group has stopped growing; later runs come into the artifact."""
        count, before = len(suspected.silent), self._count
        self._count = max(count, before)
        if self._is_told and (count <= before or not before):
            return
        if not self._is_told and count > before:
            return
        self._say(suspected)

    def _say(self, suspected: Suspected) -> None:
        if not self._is_told:
            self._is_told = True
            if self._record is not None:
                self._record["told"] = True  # whoever takes over tells of it no more, once this is renewed
            payload = {
                "message": f"{suspected.sentence}.", "next": _ADVICE, "silent": len(suspected.silent),
                "active": suspected.active, "probed": suspected.probed,
                "jobs": [one.job for one in suspected.silent], "runs": [one.run for one in suspected.silent],
            }  # fmt: skip
            emit_storage_event("suspected", self._label, self._told, payload)
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


def is_abandoned(record: Mapping[str, Any]) -> bool:
    """Say whether nobody has looked after an incident for long."""
    return _age_s(record) > _number(record.get("window_s")) + _ABANDONED_S


def limit_before(label: str) -> int | None:
    """Return a storage's limit as it was before an incident; None if there is none."""
    with get_client(sync_client=True) as client:
        found = _read(client, _variable(label))
    limit = found.get("limit") if found is not None else None
    return limit if isinstance(limit, int) else None


def give_back_abandoned(label: str, limit: str, logger: AnyLogger) -> None:
    """Give back the slots of a storage whose incident nobody looks after any more.

    Args:
        label: of the storage.
        limit: name of its concurrency limit.
        logger: told of it.
    """
    with get_client(sync_client=True) as client:
        found = _read(client, _variable(label))
        if found is None or not is_abandoned(found):
            return
        before = found.get("limit")
        if isinstance(before, int) and _is_ours(found, client.read_global_concurrency_limit_by_name(limit).limit):
            client.update_global_concurrency_limit(limit, GlobalConcurrencyLimitUpdate(limit=before))
            logger.warning("the limit of %s is %s slots again: nobody looked after its incident", limit, before)
        with contextlib.suppress(ObjectNotFound):  # another run was faster
            client.delete_variable_by_name(_variable(label))


def _age_s(record: Mapping[str, Any]) -> float:
    return time.time() - _number(record.get("seen_s"))


def _is_ours(record: Mapping[str, Any], limit: int) -> bool:
    """Say whether an incident has set a limit, and not a person; who died while setting it left it as it `was`."""
    return limit in (record.get("set"), record.get("was"))


def _are_silent(standings: Sequence[Standing]) -> bool:
    return 2 * sum(one.silent_since_s is not None for one in standings) > len(standings)


def _variable(label: str) -> str:
    return f"cachewatch-incident-{label}"


def _read(client: SyncPrefectClient, name: str) -> Record | None:
    found = client.read_variable_by_name(name)
    return dict(found.value) if found is not None and isinstance(found.value, dict) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
