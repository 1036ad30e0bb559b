"""Admission of a generation to its storage: slots before each attempt, a record of the run after the last.

The slots are those of a Prefect global concurrency limit; what they are worth is the planner's matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext

from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.tasks.artifacts import AnyLogger
from prefect_cachewatch.tasks.run_records import store_run_record
from prefect_cachewatch.tasks.storage_slots import require_limit, storage_slot, storage_weight
from prefect_cachewatch.watch import Outcome

__all__ = ["Admission"]


class Admission:
    """One run's share of a storage; with no storage named it admits at once and records nothing.

    Args:
        storage: name of the storage and of its global concurrency limit, or None.
        slots: slots an attempt occupies; None for what `plan_capacity` stored.
        job: name of the job.
    """

    def __init__(self, storage: str | None, slots: int | None, job: str) -> None:
        self.storage, self.job = storage, job
        self.outcomes: list[Outcome] = []
        self.waited_s = 0.0
        self._slots = slots
        self._started_s = time.time()

    def check(self) -> None:
        """See that the limit is there and admits this job, before anything is touched.

        Raises:
            InputError: it is missing, or smaller than what the job occupies.
        """
        if self.storage is not None:
            if self._slots is None:
                self._slots = storage_weight(self.storage)
            require_limit(self.storage, self._slots)

    @contextmanager
    def slots(self, logger: AnyLogger) -> Iterator[None]:
        """Hold the slots for an attempt, waiting for them with a log line.

        Args:
            logger: of the run.
        """
        if self.storage is None:
            yield
            return
        context = FlowRunContext.get()
        run_id = context.flow_run.id if context and context.flow_run else None
        with storage_slot(self.storage, self._slots, logger, flow_run_id=run_id) as waited_s:
            self.waited_s += waited_s
            yield

    def record(self, state: State[Any], logger: AnyLogger) -> None:
        """Store what the run was like, for `check_capacity`; best effort.

        Args:
            state: how it ended.
            logger: of the run.
        """
        context = FlowRunContext.get()
        if self.storage is None or not self.outcomes or context is None or context.flow_run is None:
            return
        last, first_write_s = self.outcomes[-1], self.outcomes[0].first_write_s
        record = RunRecord(
            run_id=str(context.flow_run.id),
            storage=self.storage,
            job=self.job,
            started_s=self._started_s,
            ended_s=time.time(),
            slot_wait_s=self.waited_s,
            bytes_written=sum(outcome.growth.bytes_written for outcome in self.outcomes),
            longest_pause_s=max(outcome.longest_pause_s for outcome in self.outcomes),
            first_write_s=first_write_s,
            state=state.name or last.name,
            slots=self._slots or 1,
            attempts=len(self.outcomes),
        )
        try:
            store_run_record(record)
        except Exception as error:  # noqa: BLE001 - the record is for statistics; the run's own end counts
            logger.warning("the run record for %s was not stored: %s", self.storage, type(error).__name__)
