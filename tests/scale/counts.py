"""Counts what a stretch of work asked of the server and left in its database."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

_LINE = re.compile(r'- "(?P<method>[A-Za-z]+) (?P<path>\S+)(?: HTTP/[\d.]+)?" (?P<status>\d{3}|\[accepted\])')
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Asked at intervals by each worker, runs or none; everything else comes with the runs.
_POLLING = ("/get_scheduled_flow_runs", "/workers/heartbeat", "/work_pools/", "/health", "/api/work_pools")


@dataclass(frozen=True)
class Requests:
    """Requests in a stretch of an access log, this test's own left out."""

    polling: dict[str, int]
    runs: dict[str, int]
    failed: dict[str, int]  # by status

    @property
    def polling_total(self) -> int:
        return sum(self.polling.values())

    @property
    def runs_total(self) -> int:
        return sum(self.runs.values())


def count_requests(log: str) -> Requests:
    """Count the requests of an access log of uvicorn by method and route.

    Args:
        log: its text; lines of another kind are passed over.

    Returns:
        The requests; those marked `by=scale` in their query are the test's own and left out.

    Example:
        >>> count_requests('INFO: 127.0.0.1:1 - "GET /api/flow_runs/2b7e1a9c-0000-4000-8000-000000000000 HTTP/1.1" 200 OK').runs
        {'GET /flow_runs/{id}': 1}
    """
    polling, runs, failed = Counter[str](), Counter[str](), Counter[str]()
    for line in log.splitlines():
        found = _LINE.search(line)
        if found is None or "by=scale" in found["path"]:
            continue
        path = _ID.sub("{id}", found["path"].partition("?")[0]).removeprefix("/api")
        route = f"{found['method']} {path}"
        kind = polling if any(word in found["path"] for word in _POLLING) else runs
        kind[route] += 1
        if found["status"].isdigit() and int(found["status"]) >= 400:
            failed[found["status"]] += 1
    return Requests(dict(polling.most_common()), dict(runs.most_common()), dict(failed.most_common()))


def read_since(path: Path, offset: int) -> str:
    """Read a log from an offset on."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")


@dataclass(frozen=True)
class DatabaseSize:
    """Bytes of the database, and rows of each table."""

    total_bytes: int
    rows: dict[str, int]


def measure_database(url: str) -> DatabaseSize:
    """Ask PostgreSQL how big its database is, and how many rows each table has.

    Args:
        url: of the database.

    Returns:
        The sizes.
    """
    return asyncio.run(_measure(url))


async def _measure(url: str) -> DatabaseSize:
    connection = await asyncpg.connect(url)
    try:
        rows: dict[str, int] = {}
        for record in await connection.fetch("SELECT relname FROM pg_stat_user_tables ORDER BY relname"):
            count: Any = await connection.fetchval(f'SELECT count(*) FROM "{record["relname"]}"')
            rows[record["relname"]] = int(count)
        total = await connection.fetchval("SELECT pg_database_size(current_database())")
        return DatabaseSize(int(total), rows)
    finally:
        await connection.close()


def growth(before: DatabaseSize, after: DatabaseSize) -> dict[str, Any]:
    """Subtract two measurements.

    Args:
        before: the earlier one.
        after: the later one.

    Returns:
        Bytes and rows added, those of tables that did not grow left out.
    """
    rows = {name: count - before.rows.get(name, 0) for name, count in after.rows.items()}
    return {
        "total_bytes": after.total_bytes - before.total_bytes,
        "rows": {n: c for n, c in sorted(rows.items(), key=lambda i: -i[1]) if c > 0},
    }
