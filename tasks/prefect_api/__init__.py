"""Requests of flows and tasks to Prefect's API, and what they store there; no module here has a task."""

__all__ = [
    "admission",
    "artifacts",
    "events",
    "fleet_checks",
    "fleet_rows",
    "fleet_runs",
    "logs",
    "outage",
    "reporter",
    "run_metrics",
    "storage_slots",
]
