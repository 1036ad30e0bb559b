"""The board of the runs on one storage, on all workers: their events, read back through the API.

Each run says every minute that it is measured (`cachewatch.run.sampled`), and at its end that it is not any more
(`cachewatch.run.paused`), for other reasons too; a label of the run's resource names the storage. Only a run that is silent
adds events, `cachewatch.storage.silent` and `.moving`, and reads. All times are the server's, at which it got the events.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.config import StallPolicy
from prefect_cachewatch.tasks.prefect_api.admission import StorageSlots
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.events import emit_silence
from prefect_cachewatch.tasks.prefect_api.origin import this_run
from prefect_cachewatch.tasks.prefect_api.server_clock import note_time, server_now
from prefect_cachewatch.tasks.prefect_api.storage_incident import StorageIncident, storage_label
from prefect_cachewatch.watching.neighbours import Neighbours, probe_with, storage_of
from prefect_cachewatch.watching.suspicion import Standing, Suspected

STORAGE_LABEL = "cachewatch.storage"
_SAMPLED, _PAUSED = "cachewatch.run.sampled", "cachewatch.run.paused"
_SILENT, _MOVING = "cachewatch.storage.silent", "cachewatch.storage.moving"
# A run speaks once a minute: who has not spoken for longer is gone.
_ALIVE = timedelta(seconds=150)
_PAGE, _PAGES = 50, 20
_RUN = "prefect.flow-run."


class RunBoard:
    """The board for one flow run; made in its context, and used by one thread.

    Args:
        run: the flow run.
        label: of the storage.
        job: name of the job.
        incident: what follows from a suspicion.
    """

    def __init__(self, run: FlowRun, label: str, job: str, incident: StorageIncident) -> None:
        self.me = str(run.id)
        self._run, self._label, self._job, self._incident = run, label, job, incident
        self._context = contextvars.copy_context()
        self._seen: list[Standing] = []
        self._silent_since: datetime | None = None

    def say(self, silent_s: float | None) -> None:
        """Emit how this run stands; one that has moved all the time has said so already."""
        if silent_s is None and self._silent_since is None:
            return
        self._silent_since = None if silent_s is None else server_now() - timedelta(seconds=silent_s)
        kind = "moving" if silent_s is None else "silent"
        payload = {"job": self._job, "silent_s": silent_s}
        self._context.run(emit_silence, kind, self._run, {STORAGE_LABEL: self._label}, payload)

    def read(self) -> Sequence[Standing]:
        """Return how the active runs stand."""
        standings = {one.run: one for one in self._context.run(_read, self._label)}
        if self.me not in standings and self._silent_since is not None:  # the server has not filed its event yet
            standings[self.me] = Standing(self.me, self._job, self._silent_since.timestamp())
        self._seen = list(standings.values())
        return self._seen

    def follow(self, suspected: Suspected | None, window_s: float) -> bool:
        """Tell of the incident and hold slots back, where that is this run's turn; give them back when the storage moves."""
        if suspected is None and self._incident.concerns:
            self.read()
        return self._context.run(self._incident.follow, suspected, self._seen, window_s)

    def leave(self) -> None:
        """Give back what this run has held back, and leave the incident to the others."""
        self._context.run(self._incident.leave)


def neighbours_in_prefect(
    files: Files, paths: Sequence[str], stall: StallPolicy, job: str, storage: StorageSlots | None, logger: AnyLogger
) -> tuple[Neighbours | None, dict[str, str]]:
    """Return what knows the other runs on the storage of this flow run, and the run's labels.

    Args:
        files: the helper process.
        paths: the run's directories; the storage of the first one counts where the run names none.
        stall: the run's policy.
        job: its name.
        storage: the run's share of a storage that it names.
        logger: told of a suspicion.

    Returns:
        Nothing and no label where nobody is to know them.
    """
    run = this_run()
    if run is None or not paths or stall.storage_patience_s == 0:
        return None, {}
    name = storage.storage if storage is not None else None
    key, told = (name, name) if name is not None else storage_of(paths[0], os.uname().nodename)
    label = storage_label(key)
    incident = StorageIncident(label, told, name, storage.weight if storage is not None else 1, str(run.id), logger)
    board = RunBoard(run, label, job, incident)

    def tell(sentence: str) -> None:
        logger.warning(sentence)
        if storage is not None:
            storage.suspected = True

    neighbours = Neighbours(told, board, probe_with(files, paths[0]), tell)
    return neighbours, {STORAGE_LABEL: label}


def _read(label: str) -> list[Standing]:
    asked: dict[str, Any] = {
        "event": {"name": [_SAMPLED, _PAUSED, _SILENT, _MOVING]},
        "resource": {"labels": {STORAGE_LABEL: [label]}},
    }
    found: dict[str, Mapping[str, Any]] = {}
    with get_client(sync_client=True) as client:
        for _ in range(_PAGES):
            if "occurred" not in asked:
                now = server_now()
                asked["occurred"] = {"since": (now - _ALIVE).isoformat(), "until": (now + _ALIVE).isoformat()}
            answer = client.request("POST", "/events/filter", json={"filter": asked, "limit": _PAGE})
            if note_time(answer):
                del asked["occurred"]  # it was asked for other minutes than these
                continue
            page = answer.json()["events"]
            new = {event["id"]: event for event in page if event["id"] not in found}
            found |= new
            if len(page) < _PAGE or not new:
                break
            asked["occurred"]["until"] = page[-1]["occurred"]  # the newest come first
    return standings_of(list(found.values()))


def standings_of(events: Sequence[Mapping[str, Any]]) -> list[Standing]:
    """Say how runs stand by their events of the last minutes.

    Args:
        events: as the API returns them, in any order.

    Returns:
        One entry for each run that has written and has not ended its attempt; one that is measured and has said nothing
        else moves.
    """
    states: dict[str, Mapping[str, Any]] = {}
    for event in sorted(events, key=_received):
        run = str(event["resource"]["prefect.resource.id"])
        if event["event"] != _SAMPLED or run not in states or states[run]["event"] in (_SAMPLED, _PAUSED):
            states[run] = event
    return [_standing(run, event) for run, event in sorted(states.items()) if _counts(event)]


def _counts(event: Mapping[str, Any]) -> bool:
    begins = event["event"] == _SAMPLED and (event.get("payload") or {}).get("writing") is False
    return event["event"] != _PAUSED and not begins


def _standing(run: str, event: Mapping[str, Any]) -> Standing:
    payload = event.get("payload") or {}
    job = str(payload.get("job") or event["resource"].get("prefect.resource.name") or run)
    silent_s = payload.get("silent_s")
    since_s = None
    if event["event"] == _SILENT and isinstance(silent_s, int | float):
        since_s = _received(event).timestamp() - silent_s
    return Standing(run.removeprefix(_RUN), job, since_s)


def _received(event: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(event.get("received") or event["occurred"]).replace("Z", "+00:00"))
