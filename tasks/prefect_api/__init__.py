"""What flows and tasks ask of Prefect's API and leave there; no task is in here."""

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
