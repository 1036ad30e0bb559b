"""Counts what a stretch of work asked of the server and left in its database."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

_LINE = re.compile(r'- "(?P<method>[A-Za-z]+) (?P<path>\S+)(?: HTTP/[\d.]+)?" (?P<status>\d{3}|\[accepted\])')
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Asked at intervals by each worker, runs or none; everything else comes with the runs.
_POLLING = ("/get_scheduled_flow_runs", "/workers/heartbeat", "/work_pools/", "/health", "/api/work_pools")
_EVENTS = "SELECT event, count(*) AS count FROM events GROUP BY event"


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
    """Sizes in bytes; a table's has its indexes and its long values in it."""

    total_bytes: int
    wal_bytes: int  # written since the cluster was made
    tables: dict[str, int]
    rows: dict[str, int]
    events: dict[str, int] = field(default_factory=dict)  # by name


def measure_database(url: str) -> DatabaseSize:
    """Ask PostgreSQL or SQLite how big its database is, and how many rows each table has.

    Args:
        url: of the database.

    Returns:
        The sizes.
    """
    if url.startswith("sqlite:"):
        return _measure_sqlite(url.removeprefix("sqlite:///"))
    return asyncio.run(_measure(url))


def _measure_sqlite(path: str) -> DatabaseSize:
    """Sizes of tables are not asked for, since that would read all of them."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as connection:
        [(size,)] = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: int(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]) for name in names}
        events = dict(connection.execute(_EVENTS).fetchall())
    return DatabaseSize(int(size), 0, {}, rows, events)


async def _measure(url: str) -> DatabaseSize:
    connection = await asyncpg.connect(url)
    try:
        tables: dict[str, int] = {}
        rows: dict[str, int] = {}
        query = "SELECT relname, pg_total_relation_size(relid) AS size FROM pg_stat_user_tables ORDER BY relname"
        for record in await connection.fetch(query):
            tables[record["relname"]] = int(record["size"])
            count: Any = await connection.fetchval(f'SELECT count(*) FROM "{record["relname"]}"')
            rows[record["relname"]] = int(count)
        total = await connection.fetchval("SELECT pg_database_size(current_database())")
        wal = await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")
        events = {record["event"]: int(record["count"]) for record in await connection.fetch(_EVENTS)}
        return DatabaseSize(int(total), int(wal), tables, rows, events)
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
    tables = {name: size - before.tables.get(name, 0) for name, size in after.tables.items()}
    rows = {name: count - before.rows.get(name, 0) for name, count in after.rows.items()}
    events = {name: count - before.events.get(name, 0) for name, count in after.events.items()}
    return {
        "total_bytes": after.total_bytes - before.total_bytes,
        "wal_bytes": after.wal_bytes - before.wal_bytes,
        "tables_bytes": {n: s for n, s in sorted(tables.items(), key=lambda i: -i[1]) if s > 0},
        "rows": {n: c for n, c in sorted(rows.items(), key=lambda i: -i[1]) if c > 0},
        "events": {n: c for n, c in sorted(events.items(), key=lambda i: -i[1]) if c > 0},
    }
