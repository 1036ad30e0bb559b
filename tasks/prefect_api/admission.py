"""Admission of a generation to its storage: slots before each attempt, a record of the run after the last.

The slots are those of a Prefect global concurrency limit; the planner computes the limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from prefect.client.schemas.objects import State

from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.config import Storage
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.fleet_runs import is_fleet_job
from prefect_cachewatch.tasks.prefect_api.origin import this_run
from prefect_cachewatch.tasks.prefect_api.storage_slots import require_limit, storage_slot
from prefect_cachewatch.tasks.run_records import store_run_record
from prefect_cachewatch.watching.outcomes import ending_of


class StorageSlots:
    """One run's share of a storage; without a storage it admits at once and records nothing.

    Args:
        storage: the run's storage, or None.
        job: name of the job.
    """

    def __init__(self, storage: Storage | None, job: str) -> None:
        self.storage = storage.name if storage is not None else None
        self.weight = storage.slots if storage is not None else 1  # slots that an attempt occupies
        self.job = job
        self.reports: list[Report] = []
        """Of the attempts so far."""
        self.waited_s = 0.0
        self._started_s = time.time()

    def check(self) -> None:
        """Check that the limit exists and admits this job, before anything is changed.

        Raises:
            InputError: the limit is missing, or smaller than the job's slots.
        """
        if self.storage is not None:
            require_limit(self.storage, self.weight)

    @contextmanager
    def slots(self, logger: AnyLogger) -> Iterator[None]:
        """Hold the slots for an attempt; while it waits for them it writes log lines.

        Args:
            logger: the run's logger.
        """
        if self.storage is None:
            yield
            return
        run = this_run()
        run_id = run.id if run is not None else None
        with ExitStack() as held:
            waited_s = held.enter_context(storage_slot(self.storage, self.weight, logger, flow_run_id=run_id))
            self.waited_s += waited_s
            yield

    def record(self, state: State[Any], logger: AnyLogger) -> None:
        """Store the run's record, for `check_capacity` and for a fleet's table; best effort.

        Args:
            state: the run's final state.
            logger: the run's logger.
        """
        if (run := this_run()) is None:
            return
        if not is_fleet_job(run.tags) and (self.storage is None or not self.reports):
            return
        try:
            store_run_record(self._record(str(run.id), state))
        except Exception as error:  # noqa: BLE001 - the record is for statistics; the run's own end counts
            logger.warning("the run record of %s was not stored: %s", self.job, type(error).__name__)

    def _record(self, run_id: str, state: State[Any]) -> RunRecord:
        last = self.reports[-1] if self.reports else None
        diagnosis = last.diagnosis if last is not None else None
        advice = diagnosis.resolution if diagnosis else ending_of(last.outcome, last.stall.kind).advice if last else ""
        if last is not None:
            bytes_present: int | None = last.growth.bytes_present
        else:  # nothing was run: the summary has the figures of a cached build
            bytes_present = getattr(state.data, "bytes_present", None)
        return RunRecord(
            run_id=run_id,
            storage=self.storage or "",
            job=self.job,
            started_s=self._started_s,
            ended_s=time.time(),
            slot_wait_s=self.waited_s,
            bytes_written=sum(report.growth.bytes_written for report in self.reports),
            longest_pause_s=max((s for s in map(_silence_s, self.reports) if s is not None), default=None),
            first_write_s=self.reports[0].growth.first_write_s if self.reports else None,
            state=state.name or (last.outcome if last else "Unknown"),
            slots=self.weight,
            attempts=len(self.reports),
            bytes_present=bytes_present,
            rate_bytes_per_s=_rate(last) if last is not None else None,
            cause=self._told(state) or None,
            advice=None if state.is_completed() else advice or None,
        )

    def _told(self, state: State[Any]) -> str:
        """The cause in short; of a run that completed, the stalls that were only reported."""
        report = self.reports[-1] if self.reports else None
        if state.is_completed():
            return report.told if report is not None else ""
        ended_so = report is not None and ending_of(report.outcome, report.stall.kind).state == state.name
        return report.told if report is not None and ended_so else state.message or ""


def _silence_s(report: Report) -> float | None:
    """The longest silence of an attempt once it wrote, the one at its end included."""
    growth = report.growth
    if growth.last_growth_s is None:
        return None
    at_end_s = report.stall.pause_s
    return max(growth.longest_pause_s, report.duration_s - growth.last_growth_s if at_end_s is None else at_end_s)


def _rate(report: Report) -> float | None:
    growth = report.growth
    if growth.first_write_s is None or growth.last_growth_s is None or growth.last_growth_s <= growth.first_write_s:
        return None
    return growth.bytes_written / (growth.last_growth_s - growth.first_write_s)
