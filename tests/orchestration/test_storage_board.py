"""How runs stand by their events, and what is made of an incident: as functions of values, and on a server."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate

from prefect_cachewatch.tasks.prefect_api import incident_record, storage_incident
from prefect_cachewatch.tasks.prefect_api.incident_record import IncidentRecord
from prefect_cachewatch.tasks.prefect_api.storage_board import standings_of
from prefect_cachewatch.tasks.prefect_api.storage_incident import (
    StorageIncident,
    give_back_abandoned,
    incident_markdown,
    limit_before,
    slots_that_move,
    storage_label,
)
from prefect_cachewatch.tasks.prefect_api.storage_slots import require_limit
from prefect_cachewatch.watching.suspicion import Standing, Suspected

LOGGER = logging.getLogger("test")
W = 0.01  # a window; what is done each quarter of it is done each time


def event(run: str, kind: str, second: int, **payload: Any) -> dict[str, Any]:
    at = f"2026-05-01T12:00:{second:02}.5Z"
    resource = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.name": f"name of {run}"}
    return {"id": f"{run}-{kind}-{second}", "event": f"cachewatch.{kind}", "received": at, "occurred": at,
            "resource": resource, "payload": payload}  # fmt: skip


def test_a_run_moves_if_it_is_measured_is_silent_if_it_said_so_last_and_is_gone_after_its_attempt() -> None:
    events = [
        event("moves", "run.sampled", 1),
        event("silent", "run.sampled", 1),
        event("silent", "storage.silent", 30, silent_s=20.0, job="llama"),
        event("silent", "run.sampled", 40),  # being measured is no movement
        event("again", "storage.silent", 10, silent_s=5.0),
        event("again", "storage.moving", 20, silent_s=None),
        event("gone", "run.sampled", 1),
        event("gone", "run.paused", 30),
        event("begins", "run.sampled", 1, writing=False),  # nothing is known of its storage
        event("wrote", "run.sampled", 1, writing=False),
        event("wrote", "run.sampled", 30, writing=True),
        event("retried", "run.paused", 20),
        event("retried", "run.sampled", 30),
    ]
    found = {one.run: one for one in standings_of(list(reversed(events)))}
    assert sorted(found) == ["again", "moves", "retried", "silent", "wrote"]
    assert [run for run, one in found.items() if one.silent_since_s is not None] == ["silent"]
    assert found["silent"].job == "llama"
    assert standings_of([]) == []


def test_two_storages_have_two_labels_whatever_their_names() -> None:
    names = ["nas", "fast_ssd", "fast-ssd", "Fast-SSD", "filer:/vol1", "filer:/vol/1", "x" * 300, "x" * 301, "/", ":"]
    labels = [storage_label(name) for name in names]
    assert len(set(labels)) == len(names) and labels[0] == "nas"
    assert all(re.fullmatch(r"[a-z0-9-]{1,210}", label) for label in labels)


def test_slots_are_the_share_of_what_moves() -> None:
    runs = [Standing(str(n), "j", 1.0 if n < 9 else None) for n in range(12)]
    assert slots_that_move(12, runs) == 3
    assert slots_that_move(0, runs) == 0
    assert slots_that_move(5, []) == 5


def test_the_page_of_an_incident_escapes_what_people_wrote() -> None:
    page = incident_markdown(Suspected("nas", (Standing("r", "<b>|x", 0.0), Standing("s", "b", 1.0)), 2, "dead"))
    assert "<b>" not in page and "| job | run | silent since |" in page and "a write to it does not return" in page


class Incident:
    """One storage with 8 slots in use, on a server; as many runs as are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = f"nas-{time.monotonic_ns()}"
        self.events: list[str] = []
        self.pages: list[str] = []
        monkeypatch.setattr(storage_incident, "_LEAST_PAUSE_S", 0.0)
        monkeypatch.setattr(storage_incident, "emit_storage_event", lambda kind, *_: self.events.append(kind))
        monkeypatch.setattr(
            storage_incident, "create_artifact", lambda kind, key, page, description: self.pages.append(page)
        )
        with get_client(sync_client=True) as client:
            client.create_global_concurrency_limit(
                GlobalConcurrencyLimitCreate(name=self.name, limit=8, active_slots=8)
            )

    def of(self, run: str) -> StorageIncident:
        return StorageIncident(self.name, self.name, self.name, 1, run, LOGGER)

    @property
    def limit(self) -> int:
        with get_client(sync_client=True) as client:
            return client.read_global_concurrency_limit_by_name(self.name).limit

    def set(self, **values: Any) -> None:
        """Change the limit, as a person does."""
        with get_client(sync_client=True) as client:
            client.update_global_concurrency_limit(self.name, GlobalConcurrencyLimitUpdate(**values))

    @property
    def record(self) -> Any:
        with get_client(sync_client=True) as client:
            found = IncidentRecord(self.name).read(client)
        return found.facts if found is not None else None

    def standings(self, silent: int, of: int = 4) -> list[Standing]:
        return [Standing(f"r{n}", f"job {n}", 10.0 if n < silent else None) for n in range(of)]

    def suspected(self, silent: int) -> Suspected:
        standings = self.standings(silent)
        return Suspected(self.name, tuple(standings[:silent]), 4, "dead")


@pytest.fixture
def incident(prefect_harness: None, monkeypatch: pytest.MonkeyPatch) -> Incident:
    return Incident(monkeypatch)


def follow(one: StorageIncident, suspected: Suspected | None, standings: list[Standing]) -> bool:
    time.sleep(W)
    return one.follow(suspected, standings, W)


def test_one_of_the_runs_tells_of_the_incident_lowers_the_limit_and_gives_it_back_in_steps(incident: Incident) -> None:
    first, second = incident.of("r0"), incident.of("r1")
    assert not first.follow(None, incident.standings(0), W)  # nothing is suspected: nothing is asked
    for _ in range(3):
        for one in (first, second):
            assert follow(one, incident.suspected(3), incident.standings(3))
    assert (incident.events, len(incident.pages), incident.limit) == (["suspected"], 1, 2)
    assert incident.record["limit"] == 8 and incident.record["by"] == "r0"
    assert require_limit(incident.name, 8).limit == 2  # a job that occupies more waits, and is not refused
    assert follow(first, incident.suspected(4), incident.standings(4))
    assert (incident.events, len(incident.pages), incident.limit) == (["suspected"], 2, 1)  # never below 1
    limits = []
    while follow(first, None, incident.standings(0)):
        limits.append(incident.limit)
        assert follow(second, None, incident.standings(0))
    assert limits == [2, 3, 4, 5, 6, 7]
    assert (incident.limit, incident.record, incident.events) == (8, None, ["suspected", "recovered"])
    assert not follow(second, None, incident.standings(0))


def test_a_run_that_ends_gives_all_back_and_another_one_that_is_silent_goes_on(incident: Incident) -> None:
    first, second = incident.of("r0"), incident.of("r1")
    follow(first, incident.suspected(4), incident.standings(4))
    assert incident.limit == 1
    first.leave()
    assert incident.limit == 8
    for _ in range(2):
        follow(second, incident.suspected(3), incident.standings(4)[1:])
    assert incident.limit == 1 and incident.record["by"] == "r1" and incident.record["limit"] == 8
    second.leave()
    assert incident.limit == 8
    assert incident.events == ["suspected"]  # told at the end of the first, if not before
    again = incident.of("r1")  # its next attempt finds the storage as it was: the same incident
    for _ in range(4):
        follow(again, incident.suspected(3), incident.standings(3))
    assert incident.limit == 2 and incident.record["limit"] == 8 and incident.events == ["suspected"]


def test_a_run_that_was_not_heard_of_for_long_looks_after_nothing_that_another_one_has_taken_over(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = incident.of("r0"), incident.of("r1")
    for _ in range(3):
        follow(first, incident.suspected(3), incident.standings(3))
    assert (incident.events, incident.record["told"]) == (["suspected"], True)
    for _ in range(3):
        follow(second, incident.suspected(3), incident.standings(3)[1:])  # events of the first do not come
    assert incident.record["by"] == "r0"  # but it has renewed the incident a moment ago
    monkeypatch.setattr(incident_record, "_age_s", lambda *_: 60.0)
    for _ in range(3):
        follow(second, incident.suspected(3), incident.standings(3)[1:])
    assert incident.record["by"] == "r1" and incident.limit == 2
    for _ in range(3):
        assert follow(first, incident.suspected(4), incident.standings(4))
    first.leave()
    assert incident.record["by"] == "r1" and incident.limit == 2
    while follow(second, None, incident.standings(0)):
        pass
    assert (incident.limit, incident.record, incident.events) == (8, None, ["suspected", "recovered"])
    for _ in range(3):
        follow(second, incident.suspected(3), incident.standings(3))
    assert incident.events == ["suspected", "recovered", "suspected"]  # another incident


def test_a_limit_that_a_person_has_set_meanwhile_stays(incident: Incident) -> None:
    first = incident.of("r0")
    follow(first, incident.suspected(4), incident.standings(4))
    incident.set(limit=5)
    follow(first, incident.suspected(4), incident.standings(4))
    assert not follow(first, None, incident.standings(0))
    assert (incident.limit, incident.record) == (5, None)
    follow(first, incident.suspected(4), incident.standings(4))  # another incident, of what the limit is now
    assert (incident.limit, incident.record["limit"]) == (1, 5)
    first.leave()
    assert incident.limit == 5


def test_a_person_who_sets_the_limit_between_two_requests_wins(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = IncidentRecord.renew

    def renew(record: IncidentRecord, client: SyncPrefectClient, facts: Any) -> bool:
        if len(facts.get("set", ())) == 2:  # it is about to lower the limit
            incident.set(limit=6)
        return real(record, client, facts)

    first = incident.of("r0")
    with monkeypatch.context() as patch:
        patch.setattr(IncidentRecord, "renew", renew)
        follow(first, incident.suspected(4), incident.standings(4))
    while follow(first, None, incident.standings(0)):
        pass
    assert (incident.limit, incident.record) == (6, None)


@pytest.mark.parametrize("again", [None, 1, 8])
def test_a_limit_that_is_deleted_or_made_anew_meanwhile_is_left_alone_and_the_incident_ends(
    incident: Incident, again: int | None
) -> None:
    first = incident.of("r0")
    follow(first, incident.suspected(4), incident.standings(4))
    with get_client(sync_client=True) as client:
        client.delete_global_concurrency_limit_by_name(incident.name)
        for _ in range(2):
            assert follow(first, incident.suspected(4), incident.standings(4))
        if again is not None:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=incident.name, limit=again))
    for _ in range(3):
        assert follow(first, incident.suspected(4), incident.standings(4))
    while follow(first, None, incident.standings(0)):
        pass
    assert incident.record is None and incident.events == ["suspected", "recovered"]
    assert again is None or incident.limit == again


@pytest.mark.parametrize("before", [{"limit": 0}, {"limit": 1}, {"active": False}])
def test_a_limit_that_lets_nobody_or_everybody_in_is_not_touched(incident: Incident, before: Any) -> None:
    incident.set(**before)
    limit = incident.limit
    first = incident.of("r0")
    for _ in range(3):
        follow(first, incident.suspected(4), incident.standings(4))
        assert incident.limit == limit
    first.leave()
    second = incident.of("r1")
    follow(second, incident.suspected(4), incident.standings(4))
    while follow(second, None, incident.standings(0)):
        assert incident.limit == limit
    assert (incident.limit, incident.record, incident.events) == (limit, None, ["suspected", "recovered"])


def test_a_limit_that_is_switched_off_in_an_incident_is_given_back_all_the_same(incident: Incident) -> None:
    first = incident.of("r0")
    follow(first, incident.suspected(4), incident.standings(4))
    incident.set(active=False)
    follow(first, incident.suspected(4), incident.standings(4))
    while follow(first, None, incident.standings(0)):
        pass
    assert (incident.limit, incident.record) == (8, None)


def test_a_record_that_a_person_has_written_into_is_nobodys_and_stops_nobody(incident: Incident) -> None:
    first = incident.of("r0")
    for value in (
        "hello",
        {"by": [7], "limit": "many", "set": {"a": 1}, "window_s": "long", "incident": "x", "told": []},
    ):
        with get_client(sync_client=True) as client:
            made = {"name": f"cachewatch-incident-{incident.name}_7", "value": value}
            client.request("POST", "/variables/", json=made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(incident_record, "_age_s", lambda *_: 3600.0)
            follow(first, incident.suspected(4), incident.standings(4))
        assert (incident.limit, incident.record["by"]) == (1, "r0")
        while follow(first, None, incident.standings(0)):
            pass
        assert (incident.limit, incident.record) == (8, None)


@pytest.mark.parametrize("name", ["Größe ☃ '; --", "a?b#c d_", "x" * 300, "../.."])
def test_an_incident_of_a_storage_with_any_name_is_one(incident: Incident, name: str) -> None:
    unique = f"{name} {incident.name}" if "/" not in name else name
    label = storage_label(unique)
    limit = unique if "/" not in name else None  # Prefect refuses such a limit
    with get_client(sync_client=True) as client:
        if limit is not None:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=limit, limit=8, active_slots=8))
            assert require_limit(unique, 1).limit == 8
        first, second = (StorageIncident(label, unique, limit, 1, run, LOGGER) for run in ("r0", "r1"))
        for one in (first, second, first, first):
            follow(one, incident.suspected(4), incident.standings(4))
        found = IncidentRecord(label).read(client)
        assert found is not None and found.facts["by"] == "r0" and found.term == 1
        assert limit is None or require_limit(unique, 1).limit == 1
        while follow(first, None, incident.standings(0)):
            pass
        assert IncidentRecord(label).read(client) is None
    assert limit is None or require_limit(unique, 1).limit == 8
    assert incident.events == ["suspected", "recovered"]


def test_records_of_storages_whose_names_are_alike_are_apart(prefect_harness: None) -> None:
    names = ["alike", "alike-2", "alike-2-1", "x-alike", "alike_2"]
    with get_client(sync_client=True) as client:
        records = {name: IncidentRecord(storage_label(name)) for name in names}
        for name, record in records.items():
            assert record.read(client) is None
            assert record.take(client, None, {"by": name})
        for name, record in records.items():
            found = record.read(client)
            assert found is not None and (found.facts["by"], found.term) == (name, 1) and record.holds(found)
            assert record.release(client)
            record.sweep(client)
            assert record.read(client) is None


def test_the_next_run_gives_back_what_a_killed_one_held_back_and_not_earlier(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(incident.of("r0"), incident.suspected(4), incident.standings(4))
    give_back_abandoned(incident.name, incident.name, "next", LOGGER)
    assert incident.limit == 1 and limit_before(incident.name) == 8
    monkeypatch.setattr(incident_record, "_age_s", lambda *_: 3600.0)
    give_back_abandoned(incident.name, incident.name, "next", LOGGER)
    assert (incident.limit, incident.record) == (8, None)


@pytest.mark.parametrize("done", [False, True])
def test_who_is_killed_while_it_sets_the_limit_leaves_one_that_is_given_back(
    incident: Incident, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    real = SyncPrefectClient.update_global_concurrency_limit

    def killed(client: SyncPrefectClient, name: str, update: Any) -> None:
        if done:
            real(client, name, update)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SyncPrefectClient, "update_global_concurrency_limit", killed)
        follow(incident.of("r0"), incident.suspected(4), incident.standings(4))
    assert incident.limit == (1 if done else 8)
    monkeypatch.setattr(incident_record, "_age_s", lambda *_: 3600.0)
    give_back_abandoned(incident.name, incident.name, "next", LOGGER)
    assert (incident.limit, incident.record) == (8, None)


def test_a_person_who_sets_the_limit_back_after_a_killed_run_wins_too(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SyncPrefectClient.update_global_concurrency_limit

    def killed(client: SyncPrefectClient, name: str, update: Any) -> None:
        real(client, name, update)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SyncPrefectClient, "update_global_concurrency_limit", killed)
        follow(incident.of("r0"), incident.suspected(4), incident.standings(4))
    monkeypatch.setattr(incident_record, "_age_s", lambda *_: 60.0)
    second = incident.of("r1")
    follow(second, incident.suspected(4), incident.standings(4)[1:])
    assert (incident.limit, incident.record["by"]) == (1, "r1")
    incident.set(limit=8)
    for _ in range(2):
        follow(second, incident.suspected(4), incident.standings(4))
    assert incident.limit == 8


def test_a_limit_that_could_not_be_set_is_not_taken_for_a_persons(
    incident: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = incident.of("r0")

    def refuse(client: SyncPrefectClient, name: str, update: Any) -> None:
        raise OSError

    follow(first, incident.suspected(3), incident.standings(3))
    assert incident.limit == 2
    with monkeypatch.context() as patch:
        patch.setattr(SyncPrefectClient, "update_global_concurrency_limit", refuse)
        for _ in range(2):
            with pytest.raises(OSError):
                follow(first, incident.suspected(4), incident.standings(4))
    while follow(first, None, incident.standings(0)):
        pass
    assert (incident.limit, incident.record) == (8, None)
