"""What so many generations a day need, from the figures of a measured fleet; pure.

Little's law: the number of runs under way is their rate of arrival times the time that each takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DAY_S = 86400.0
# What a generation of minutes does beside one of seconds (tasks/prefect_api/reporter.py): requests for progress, a log
# batch and an artifact, less often from 10 minutes on and a third as often from 30 on; and events.
_REQUESTS_A_MINUTE, _UNHURRIED_S, _MOST_TIMES = 5.0, 600.0, 3.0
_EVENTS_A_MINUTE = 2.0
_EVENT_TABLES = ("events", "event_resources")
BUSY = 0.6  # share of a core that is planned for; above it waiting times grow steeply
EVENTS_KEPT_DAYS = 7  # Prefect's default
RUNS_KEPT_DAYS = 30  # what docs/scale.md advises; Prefect's default is for ever


@dataclass(frozen=True)
class Need:
    """What a number of generations a day needs, if they come evenly over the day."""

    per_day: int
    duration_s: float
    at_once: float
    workers: int
    worker_cores: float
    worker_memory_bytes: float
    server_cores: float
    requests_per_s: float
    database_bytes_per_day: float
    wal_bytes_per_day: float
    database_bytes_kept: float


def work_out(figures: Mapping[str, Any], per_day: int, duration_s: float, limit: int = 16) -> Need:
    """Scale a measured fleet to a number of generations a day.

    Args:
        figures: of `Campaign`.
        per_day: generations a day.
        duration_s: of one, from the worker's taking it to its end.
        limit: runs at once of a worker.

    Returns:
        The need. Processor time is taken as measured, on the measured machine's cores; cores are planned to be
        `BUSY`, and arrivals to be even: a fleet that starts all at once at night needs its own arithmetic.

    Example:
        >>> figures = {
        ...     "processor_s_per_run": {"worker": 0.2, "flow": 3.6, "guard": 0, "scanner": 0, "server": 1.2, "postgres": 0.2, "redis": 0.1},
        ...     "watch_share_of_a_core": {"flow": 0.01, "guard": 0.0, "scanner": 0.01},
        ...     "watch_s_per_run": 20.0,
        ...     "memory_bytes": {"worker": {"median": 1e8}, "run": {"median": 1.5e8}},
        ...     "requests_per_run": 50.0, "requests_of_a_worker_per_minute": 6.0,
        ...     "database": {"total_bytes": 2e6, "wal_bytes": 3e6, "tables_bytes": {"events": 1e6}}, "plan": {"runs": 10},
        ... }
        >>> need = work_out(figures, 8640, 1000.0)
        >>> need.at_once, need.workers, round(need.requests_per_s, 2), need.database_bytes_per_day
        (100.0, 7, 13.09, 1728000000.0)
    """
    rate_per_s = per_day / _DAY_S
    at_once = rate_per_s * duration_s
    workers = max(2, math.ceil(at_once / limit))  # two: one may die
    spent, share = figures["processor_s_per_run"], figures["watch_share_of_a_core"]
    watching = sum(share.values())
    # What a run costs apart from the seconds that it watches, and then those, which a longer generation has more of.
    begun_s = (
        sum(spent[role] for role in ("flow", "guard", "scanner", "worker")) - watching * figures["watch_s_per_run"]
    )
    memory = figures["memory_bytes"]
    a_run = memory["run"].get("median", 0.0)
    runs = figures["plan"]["runs"]
    database = figures["database"]
    events = sum(database["tables_bytes"].get(table, 0) for table in _EVENT_TABLES) / runs
    an_event = events * runs / database["rows"]["events"] if database.get("rows") else 0.0
    longer = an_event * _EVENTS_A_MINUTE * max(0.0, duration_s - figures["watch_s_per_run"]) / 60
    events, a_run_bytes = events + longer, database["total_bytes"] / runs + longer
    requests = figures["requests_per_run"] + _progress(duration_s) - _progress(figures["watch_s_per_run"])
    return Need(
        per_day=per_day,
        duration_s=duration_s,
        at_once=at_once,
        workers=workers,
        worker_cores=(rate_per_s * max(0.0, begun_s) + at_once * watching) / BUSY,
        worker_memory_bytes=at_once * a_run + workers * memory["worker"].get("median", 0.0),
        server_cores=rate_per_s * sum(spent[role] for role in ("server", "postgres", "redis")) / BUSY,
        requests_per_s=rate_per_s * requests + workers * figures["requests_of_a_worker_per_minute"] / 60,
        database_bytes_per_day=a_run_bytes * per_day,
        wal_bytes_per_day=database["wal_bytes"] / database["total_bytes"] * a_run_bytes * per_day,
        database_bytes_kept=per_day * (events * EVENTS_KEPT_DAYS + (a_run_bytes - events) * RUNS_KEPT_DAYS),
    )


def _progress(duration_s: float) -> float:
    """Count the requests for progress of a generation that takes so long."""
    slowest_s = _UNHURRIED_S * _MOST_TIMES
    minutes = min(duration_s, _UNHURRIED_S) / 60
    if duration_s > _UNHURRIED_S:
        minutes += _UNHURRIED_S / 60 * math.log(min(duration_s, slowest_s) / _UNHURRIED_S)
    return _REQUESTS_A_MINUTE * (minutes + max(0.0, duration_s - slowest_s) / 60 / _MOST_TIMES)
