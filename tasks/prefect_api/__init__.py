"""Requests of flows and tasks to Prefect's API, and what they store there; no module here has a task."""
