"""A fleet's rows out of what Prefect knows of a run, and what the run stored of itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.utilities.urls import url_for

from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.fleet.rows import JobRow, kind_of

__all__ = ["final_row", "run_url"]


def final_row(name: str, run: FlowRun, record: RunRecord | None) -> JobRow:
    """Make the row of a job that has ended.

    Args:
        name: of the job.
        run: of it, in a final state.
        record: what it stored of itself.

    Returns:
        The row.
    """
    state = run.state
    assert state is not None
    kind = kind_of(state.type.value)
    begun = run.start_time or run.end_time or datetime.now(UTC)
    due = run.expected_start_time or begun
    waited_s = max(0.0, begun.timestamp() - due.timestamp())
    row = JobRow(
        name=name,
        state=state.name or state.type.value.title(),
        kind=kind,
        waited_s=waited_s,
        duration_s=run.total_run_time.total_seconds() if run.total_run_time else None,
        cause="" if kind == "done" else state.message or "",
        run_id=str(run.id),
        url=run_url(run.id),
    )
    if record is None:
        return row
    return replace(
        row,
        bytes_present=record.bytes_present,
        rate_bytes_per_s=record.rate_bytes_per_s,
        waited_s=waited_s + record.slot_wait_s,
        attempts=record.attempts,
        cause=row.cause or record.cause or "",
        advice=record.advice or "",
    )


def run_url(run_id: UUID) -> str:
    """Say where the UI shows a run; empty where no UI is known."""
    return url_for("flow-run", obj_id=run_id) or ""
