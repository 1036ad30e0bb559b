"""A fleet's rows, from Prefect's flow runs and the records that they stored; and their table artifact.

The table is made once, then updated in place, so that a long fleet does not fill the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.utilities.urls import url_for

from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.fleet.outcome import describe_fleet, table_rows
from prefect_cachewatch.fleet.rows import JobRow, kind_of
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger, create_artifact, update_artifact


class FleetTable:
    """The table of a fleet's jobs, for the UI.

    Args:
        name: name of the fleet.
        logger: logger of its run.
    """

    def __init__(self, name: str, logger: AnyLogger) -> None:
        self._name, self._logger = name, logger
        self._artifact: UUID | None = None
        self._said: Any = None

    def publish(self, rows: Sequence[JobRow]) -> None:
        """Make or update the table; a failure is only logged, since the jobs do not depend on it.

        Args:
            rows: rows of all jobs.
        """
        table = table_rows(rows)
        if table == self._said:
            return
        text = describe_fleet(self._name, rows)
        try:
            if self._artifact is None:
                self._artifact = create_artifact("table", f"cachewatch-fleet-{slugify(self._name)}", table, text)
            else:
                update_artifact(self._artifact, table, text)
            self._said = table
        except Exception as error:  # noqa: BLE001 - any failure of the API
            self._logger.warning("the table of the fleet was not published: %s", type(error).__name__)


def final_row(name: str, run: FlowRun, record: RunRecord | None) -> JobRow:
    """Make the row of a job that has ended.

    Args:
        name: name of the job.
        run: its flow run, in a final state.
        record: the record that the run stored.

    Returns:
        The row.
    """
    state = run.state
    assert state is not None
    kind, message = kind_of(state.type.value), state.message or ""
    begun = run.start_time or run.end_time or datetime.now(UTC)
    due = run.expected_start_time or begun
    waited_s = max(0.0, begun.timestamp() - due.timestamp())
    row = JobRow(
        name=name,
        state=state.name or state.type.value.title(),
        kind=kind,
        waited_s=waited_s,
        duration_s=run.total_run_time.total_seconds() if run.total_run_time else None,
        cause="" if kind == "done" else message,
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
        cause=record.cause or row.cause,
        advice=record.advice or "",
    )


def run_url(run_id: UUID) -> str:
    """Return the address of a run in the UI; empty if no UI is known."""
    return url_for("flow-run", obj_id=run_id) or ""
