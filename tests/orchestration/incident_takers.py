"""Runs that look after one storage's incident, each a process: `python -m tests.orchestration.incident_takers WHAT ...`.

Prefect is imported once, and each run is a fork. A run may be stopped or killed before any of its requests, by a hook in
its HTTP transport; what it had asked for by then is done. Prints JSON.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_cachewatch.tasks.prefect_api import incident_record, storage_incident
from prefect_cachewatch.tasks.prefect_api.incident_record import IncidentRecord
from prefect_cachewatch.tasks.prefect_api.storage_board import RunBoard
from prefect_cachewatch.tasks.prefect_api.storage_incident import StorageIncident, is_abandoned
from prefect_cachewatch.watching.suspicion import Standing, Suspected, fell_silent

LOGGER = logging.getLogger("takers")
LOGGER.setLevel(logging.ERROR)
SLOTS, RUNS = 3, 4
W = 1e-6  # a window; what is done each quarter of it is done each time
NEVER = 10_000
PR_SET_PDEATHSIG = 1


class Storage:
    """A storage with a limit of 3 slots, all in use by 4 runs; what the runs do is noted in a file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory()
        self.notes = Path(self._folder.name) / "notes"
        self.notes.touch()
        with get_client(sync_client=True) as client:
            client.create_global_concurrency_limit(
                GlobalConcurrencyLimitCreate(name=name, limit=SLOTS, active_slots=SLOTS)
            )

    def run(self, number: int) -> StorageIncident:
        return StorageIncident(self.name, self.name, self.name, 1, f"r{number}", LOGGER)

    def note(self, *words: object) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps(words, default=str) + "\n")

    def noted(self, kind: str) -> list[list[Any]]:
        return [words for line in self.notes.read_text().splitlines() if (words := json.loads(line))[0] == kind]

    @property
    def holder(self) -> str | None:
        with get_client(sync_client=True) as client:
            found = IncidentRecord(self.name).read(client)
        return None if found is None or found.is_over else str(found.facts.get("by"))

    def state(self) -> list[Any]:
        """The limit, and whose incident there is."""
        with get_client(sync_client=True) as client:
            return [client.read_global_concurrency_limit_by_name(self.name).limit, self.holder]


def standings(silent: int) -> list[Standing]:
    return [Standing(f"r{n}", f"job {n}", 10.0 if n < silent else None) for n in range(RUNS)]


def follow(one: StorageIncident, suspected: Suspected | None, seen: list[Standing]) -> bool:
    """Follow as a board does: what a request's failure leaves undone is for the next look."""
    while True:
        try:
            return one.follow(suspected, seen, W)
        except httpx.HTTPError:
            continue


def suspect(one: StorageIncident, storage: Storage, seen: int = 0) -> None:
    """Have a run suspect its storage in three looks; `seen` is the first run of which events come."""
    silent = standings(3)
    for _ in range(3):
        follow(one, Suspected(storage.name, tuple(silent[:3]), RUNS, "dead"), silent[seen:])


def recover(one: StorageIncident, times: int = 50) -> None:
    """Have a run see that all move, until the incident is over."""
    for _ in range(times):
        if not follow(one, None, standings(0)):
            return
    raise AssertionError("the incident does not end")


def be_away() -> None:
    raise httpx.ConnectError("refused")


INTERRUPTS: dict[str, Callable[[], None]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "away": be_away,
    "mute": lambda: None,
}


def in_fork(act: Callable[[], None]) -> int:
    """Act in a fork that leaves by itself."""
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # one that is stopped does not stay either
        try:
            act()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    return pid


def listen(storage: Storage, me: str, at: int = NEVER, how: str = "") -> None:
    """Note what this process tells and sets, and have one of its requests interrupted."""
    real = httpx.HTTPTransport.handle_request
    sent = [0]
    if how in ("away", "mute"):  # else the client makes such a request again by itself
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}).__enter__()

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        if "/admin/version" in request.url.path or "/csrf-token" in request.url.path:
            return real(transport, request)
        sent[0] += 1
        if sent[0] == at:
            storage.note("acted", me)
            INTERRUPTS[how]()
        if sent[0] == at and how == "mute":
            real(transport, request).close()
            raise httpx.ReadError("the answer is lost")
        if request.method == "PATCH" and "/concurrency_limits/" in request.url.path:
            httpx.HTTPTransport.handle_request = real  # type: ignore[method-assign]
            storage.note("sets", me, storage.holder, sent[0], json.loads(request.content)["limit"])
            httpx.HTTPTransport.handle_request = handle  # type: ignore[method-assign,assignment]
        return real(transport, request)

    def emit(kind: str, label: str, told: str, payload: Any, event_id: UUID) -> bool:
        storage.note("event", kind, event_id, me)
        return True

    httpx.HTTPTransport.handle_request = handle  # type: ignore[method-assign,assignment]
    storage_incident.emit_storage_event = emit
    storage_incident.create_artifact = lambda *words: storage.note("page", me)  # type: ignore[assignment,return-value]
    storage_incident._LEAST_PAUSE_S = 0.0


def grow_old(age_s: float) -> None:
    incident_record._age_s = lambda *_: age_s  # type: ignore[assignment]


def many(name: str, takers: int) -> Any:
    """Many runs suspect their storage in one moment, look twice more, and see it recover."""
    storage = Storage(name)
    ready, go = os.pipe(), os.pipe()

    def take(number: int) -> None:
        listen(storage, f"r{number}")
        one = storage.run(number)
        os.close(go[1])
        os.write(ready[1], b".")
        os.read(go[0], 1)
        suspect(one, storage)

    pids = [in_fork(lambda number=number: take(number)) for number in range(takers)]  # type: ignore[misc]
    for _ in pids:
        os.read(ready[0], 1)
    os.close(go[1])
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    held = storage.state()
    listen(storage, "last")
    grow_old(60.0)
    last = storage.run(0)
    suspect(last, storage, seen=RUNS)  # whoever it is, no event of it comes
    recover(last)
    return {"ends": ends, "held": held, "sets": storage.noted("sets"), "events": storage.noted("event"),
            "end": storage.state()}  # fmt: skip


def boundaries(name: str, how: str, first: int, step: int) -> list[Any]:
    """Interrupt the holder before each of its requests, in turn; another one takes over and sees the storage recover.

    Args:
        name: of the storages, with a number each.
        how: killed; stopped: then it goes on when all is over; away: the server is, for one request;
            mute: it does what it is asked to, and its answer is lost.
        first: the first request.
        step: how far apart they are.
    """
    found = []
    for at in range(first, NEVER, step):
        storage = Storage(f"{name}-{how}-{at}")

        def live(storage: Storage = storage, at: int = at) -> None:
            listen(storage, "r0", at, how)
            one = storage.run(0)
            suspect(one, storage)
            recover(one)

        def survive(storage: Storage = storage) -> None:
            listen(storage, "r1")
            grow_old(60.0)
            one = storage.run(1)
            suspect(one, storage, seen=1)
            recover(one)

        pid = in_fork(live)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            found.append({"at": at, "finished": os.WEXITSTATUS(status), "end": storage.state()})
            if storage.noted("acted"):
                continue
            return found
        is_over = storage.holder is None
        survivor = in_fork(survive)
        code = os.waitstatus_to_exitcode(os.waitpid(survivor, 0)[1])
        end = storage.state()
        if how == "stopped":
            os.kill(pid, signal.SIGCONT)
            code = code or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ids = {words[2] for words in storage.noted("event") if words[1] == "suspected"}
        strange = [
            words for words in storage.noted("sets") if words[1] != words[2] and words[3] != at and words[4] != SLOTS
        ]
        found.append({"at": at, "code": code, "end": end, "last": storage.state(), "told": len(ids), "over": is_over,
                      "strange": strange})  # fmt: skip
    return found


def look(name: str, number: int) -> None:
    """Stand on the board, silent for 20 s; at each line of stdin say how old the incident is, and take it if it is abandoned."""
    record = IncidentRecord(name)
    run = FlowRun(id=UUID(int=number), name=f"run {number}", flow_id=UUID(int=0))
    board = RunBoard(run, name, f"job {number}", StorageIncident(name, name, None, 1, str(run.id), LOGGER))
    board.read()
    board.say(20.0)
    with get_client(sync_client=True) as client:
        for _ in sys.stdin:
            found = record.read(client)
            assert found is not None
            taken = record.take(client, found, {"by": str(run.id)}) if is_abandoned(found) else None
            said = {
                "age_s": found.age_s, "abandoned": is_abandoned(found), "took": taken is not None, "now": time.time(),
                "group": len(fell_silent(board.me, board.read(), 300.0)),
            }  # fmt: skip
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "many":
        print(json.dumps(many(words[0], int(words[1]))))
    elif what == "look":
        look(words[0], int(words[1]))
    else:
        print(json.dumps(boundaries(words[0], what, int(words[1]), int(words[2]))))
