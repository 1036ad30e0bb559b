"""The record of a storage's incident: variables of Prefect, of which one run at a time holds the newest.

Each term of a holder is a variable of its own, `cachewatch-incident-<storage>_<term>`. A variable's name is unique, so of
many who create the next term one has it: nothing else of the API is a compare-and-set, since two renamings or removals
of one variable both succeed on PostgreSQL. Only the holder writes to its row, by id. Ages are of the server's clock. What
the facts mean is not known here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient

from prefect_cachewatch.tasks.prefect_api.server_clock import time_of

Facts = dict[str, Any]

_PAGE = 200
_OVER, _TOKEN = "over", "token"


@dataclass(frozen=True)
class Found:
    """What the record says: its facts, how old they are by the server's clock, and whether the incident is over."""

    facts: Facts
    age_s: float
    is_over: bool
    term: int
    rows: tuple[str, ...]
    """Ids of its variables, the newest last."""


class IncidentRecord:
    """The record of one storage's incident, for one run.

    Args:
        label: of the storage.
    """

    def __init__(self, label: str) -> None:
        self._prefix = f"cachewatch-incident-{label}_"
        self._row: str | None = None
        self._term = 0

    def read(self, client: SyncPrefectClient) -> Found | None:
        """Return what the record says; None if there is none."""
        rows: dict[int, Mapping[str, Any]] = {}
        asked = {"variables": {"name": {"like_": self._prefix}}, "limit": _PAGE}  # it finds too much: _ is any letter
        at, answer = 0, None
        while answer is None or len(answer.json()) == _PAGE:
            answer = client.request("POST", "/variables/filter", json={**asked, "offset": at})
            at += _PAGE
            rows |= {term: row for row in answer.json() if (term := self._term_of(row["name"]))}
        if not rows:
            return None
        facts: Facts = {}
        for _, row in sorted(rows.items()):  # a holder that was killed as it began has not copied them yet
            value = row["value"] if isinstance(row["value"], dict) else {}
            facts = dict(value) if facts.get(_OVER) or value.get(_OVER) else {**facts, **value}
        last = max(rows)
        age_s = _age_s(answer, rows[last])
        return Found(
            facts, age_s, facts.get(_OVER) is True, last, tuple(str(rows[term]["id"]) for term in sorted(rows))
        )

    def take(self, client: SyncPrefectClient, found: Found | None, facts: Facts) -> Facts | None:
        """Hold the record from now on, if it is still what was found.

        Args:
            client: a client.
            found: from `read`.
            facts: what the new holder says of itself; the others stay as they are, but not those of one that is over.

        Returns:
            All facts; None if another one was faster.
        """
        term = found.term + 1 if found is not None else 1
        row = self._create(client, term, facts)
        if row is None:
            return None
        # Read after it was created: a holder that has lost it writes what it is about to do first, and then looks whose
        # it is. So either it sees this term and does nothing, or what it said is seen here.
        now = self.read(client)
        is_newest = now is not None and now.rows[-1] == row
        if now is None or not is_newest or (found is not None and found.rows[-1] not in now.rows):
            _delete(client, row)  # the incident that was found is over, and its variables are gone
            return None
        self._row, self._term = row, term
        merged = {**now.facts, **facts}
        if not self.renew(client, merged):
            return None
        for one in now.rows[:-1]:
            _delete(client, one)
        return merged

    def holds(self, found: Found | None) -> bool:
        """Say whether this run held the record when it was read."""
        return self._row is not None and found is not None and found.rows[-1] == self._row

    def renew(self, client: SyncPrefectClient, facts: Facts) -> bool:
        """Write the facts; returns whether that was possible, which says that the record was not lost long ago."""
        if self._row is None:
            return False
        try:
            client.request("PATCH", "/variables/{id}", path_params={"id": self._row}, json={"value": facts})
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            self._row = None
            return False
        return True

    def release(self, client: SyncPrefectClient) -> bool:
        """End the incident and remove its variables; returns whether it was this run's to end."""
        if self._row is None:
            return False
        end = self._create(client, self._term + 1, {_OVER: True})  # from now on nobody can take it over
        self._row = None
        return end is not None

    def sweep(self, client: SyncPrefectClient) -> None:
        """Remove the variables of an incident that is over."""
        found = self.read(client)
        if found is not None and found.is_over:
            for one in found.rows:
                _delete(client, one)

    def _create(self, client: SyncPrefectClient, term: int, facts: Facts) -> str | None:
        token = uuid4().hex
        body = {"name": f"{self._prefix}{term}", "value": {**facts, _TOKEN: token}}
        try:
            return str(client.request("POST", "/variables/", json=body).json()["id"])
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
        found = self.read(client)
        # Created after all, by a request whose answer was lost, and that the client has sent again.
        is_mine = found is not None and found.term == term and found.facts.get(_TOKEN) == token
        return found.rows[-1] if found is not None and is_mine else None

    def _term_of(self, name: str) -> int:
        match = re.fullmatch(r"([1-9][0-9]{0,8})", name.removeprefix(self._prefix))
        return int(match[1]) if match and name.startswith(self._prefix) else 0


def _delete(client: SyncPrefectClient, row: str) -> None:
    with contextlib.suppress(httpx.HTTPStatusError):  # it is gone
        client.request("DELETE", "/variables/{id}", path_params={"id": row})


def _age_s(answer: httpx.Response, row: Mapping[str, Any]) -> float:
    """Return how long ago a row was written when the server answered; 0 where the server does not tell the time."""
    now = time_of(answer)
    try:
        written = datetime.fromisoformat(str(row["updated"]).replace("Z", "+00:00"))
    except (KeyError, ValueError):
        return 0.0
    return max(0.0, (now - written).total_seconds()) if now is not None else 0.0
