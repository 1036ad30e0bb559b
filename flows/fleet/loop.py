"""One run of a fleet: start jobs, collect those that have ended, act on failures, update the table.

The rules are in the engine's `fleet`; an executor runs the jobs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun

from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.fleet.jobs import FleetJob, FleetPolicy
from prefect_cachewatch.fleet.outcome import count_rows, describe_row, what_now
from prefect_cachewatch.fleet.rows import JobRow, advice_for, kind_of
from prefect_cachewatch.flows.fleet.executor import Executor, Fleet
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.fleet_rows import FleetTable, final_row, run_url
from prefect_cachewatch.tasks.prefect_api.fleet_runs import children_of, job_tag
from prefect_cachewatch.tasks.run_records import stored_records

# Attribute of log records whose content is in the view as well.
SHOWN = "cachewatch_shown"

_TOO_MANY = "too many of the other jobs had failed"
_STARTS_AT_ONCE = 20  # then collect ended runs: hundreds of starts take minutes
_VIEW_S = 1.0
_FIRST_TABLE_S = 5.0


class FleetView(Protocol):
    """Shows a fleet to a person; see `prefect_cachewatch.cli.fleet_view`."""

    def show(self, name: str, rows: Sequence[JobRow]) -> None:
        """Take in the state of the jobs; called about once a second."""

    def changed(self, row: JobRow) -> None:
        """Take in that a job has ended, or will not run."""


@dataclass
class _Slot:
    job: FleetJob
    row: JobRow
    number: int = 1
    run_id: UUID | None = None
    began_s: float = 0.0  # monotonic


class FleetLoop:
    """Runs the jobs of a fleet from the first to the last.

    Args:
        fleet: the data that all its runs share.
        jobs: the jobs in the order in which they start.
        policy: the fleet's policy.
        executor: runs the jobs.
        logger: logger of the fleet's run.
        view: shows the jobs; None: no view.
    """

    def __init__(
        self,
        fleet: Fleet,
        jobs: Sequence[FleetJob],
        policy: FleetPolicy,
        executor: Executor,
        logger: AnyLogger,
        view: FleetView | None = None,
    ) -> None:
        self._fleet, self._policy, self._executor, self._logger, self._view = fleet, policy, executor, logger, view
        self._slots = [_Slot(job, JobRow(job.name, "Waiting", "waiting")) for job in jobs]
        self._waiting: deque[_Slot] = deque(self._slots)
        self._running: dict[UUID, _Slot] = {}
        self._recalled: set[UUID] = set()
        self._verdict = "go_on"
        self._table = FleetTable(fleet.name, logger)
        self._table_due_s = time.monotonic() + min(_FIRST_TABLE_S, policy.table_every_s)
        self._away = False

    @property
    def rows(self) -> list[JobRow]:
        """The present state of the jobs."""
        return [self._live(slot) for slot in self._slots]

    def take_up(self, gone: Callable[[Sequence[FleetJob]], Collection[str]]) -> None:
        """Find the runs that an earlier process of this same run had started, after a restart or the UI's Retry.

        Args:
            gone: names of jobs that Prefect has recorded as completed and that are to be run again.
        """
        by_tag: dict[str, list[FlowRun]] = {}
        for run in children_of(self._fleet.client, self._fleet.run_id):
            for tag in run.tags:
                by_tag.setdefault(tag, []).append(run)
        done: list[tuple[_Slot, FlowRun]] = []
        for slot in self._slots:
            runs = by_tag.get(job_tag(slot.job.digest), [])
            if not runs:
                continue
            last, slot.number = runs[-1], len(runs) + 1
            if last.state is not None and last.state.is_completed():
                done.append((slot, last))
            elif last.state is None or not last.state.is_final():
                self._executor.adopt(last.id)
                if self._executor.outlives:
                    self._run(slot, last.id)
        missing = gone([slot.job for slot, _ in done])
        ended = [(slot, run) for slot, run in done if slot.job.name not in missing]
        for slot, run in ended:
            slot.run_id = run.id
        if by_tag:
            self._logger.info(
                "%d jobs were done and %d under way when this run began again", len(ended), len(self._running)
            )
        self._take_in(ended)

    def skip(self, name: str, row: JobRow) -> None:
        """Leave a job out, since its cache is there.

        Args:
            name: name of the job.
            row: its row in the table.
        """
        for slot in self._slots:
            if slot.job.name == name and slot.row.kind == "waiting" and slot.run_id is None:
                self._end(slot, row)

    def drive(self) -> list[JobRow]:
        """Run the jobs that are left.

        Returns:
            The state of all jobs at the end.
        """
        try:
            while True:
                started = self._start_some()
                if not self._running and not self._waiting:
                    break
                self._wait(0.0 if started == _STARTS_AT_ONCE else self._pause_s())
                self._obey()
                self._show()
        except BaseException:
            self._logger.warning("The fleet is to end: stopping %d jobs", len(self._running))
            self._executor.close()
            for slot in self._slots:
                if slot.row.kind in ("waiting", "running"):
                    slot.row = replace(
                        self._live(slot), state="Cancelled", kind="cancelled", cause="The fleet was stopped."
                    )
            self._table.publish(self.rows)
            raise
        self._show()
        self._table.publish(self.rows)
        return self.rows

    def _start_some(self) -> int:
        started = 0
        most = self._policy.max_parallel or self._executor.usual_parallel
        while self._waiting and started < _STARTS_AT_ONCE and (most is None or len(self._running) < most):
            slot = self._waiting[0]
            if slot.row.kind != "waiting" or slot.run_id is not None:  # left out, or started by an earlier process
                self._waiting.popleft()
                continue
            try:
                self._run(slot, self._executor.start(slot.job, slot.number))
            except httpx.HTTPError as error:
                status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
                if not 400 <= status < 500 or status in (408, 429):
                    self._missed(error)
                    return started
                self._end(slot, replace(slot.row, state="Refused", kind="failed", cause=_said(error)))
            except CachewatchError as error:
                self._end(slot, replace(slot.row, state="Crashed", kind="failed", cause=error.message))
            self._waiting.popleft()
            started += 1
        return started

    def _run(self, slot: _Slot, run_id: UUID) -> None:
        slot.run_id, slot.began_s = run_id, time.monotonic()
        slot.row = replace(slot.row, state="Running", kind="running", run_id=str(run_id), url=run_url(run_id))
        self._running[run_id] = slot

    def _pause_s(self) -> float:
        if self._view is not None and not self._executor.outlives:
            return _VIEW_S
        return min(self._policy.poll_s, max(0.1, self._table_due_s - time.monotonic()) + 0.1)

    def _wait(self, pause_s: float) -> None:
        try:
            found = self._executor.ended(pause_s)
        except httpx.HTTPError as error:
            self._missed(error)
            return
        if self._away:
            self._away = False
            self._logger.info("The Prefect API answers again")
        self._take_in([(self._running.pop(run_id), run) for run_id, run in found.items() if run_id in self._running])

    def _missed(self, error: Exception) -> None:
        """Wait while the API is away: the jobs run on, and no job is started twice."""
        if not self._away:
            self._away = True
            self._logger.warning("The Prefect API does not answer (%s): the fleet waits for it", type(error).__name__)
        time.sleep(min(self._policy.poll_s, 5.0))

    def _take_in(self, ended: Sequence[tuple[_Slot, FlowRun | None]]) -> None:
        if not ended:
            return
        try:
            records = stored_records(self._fleet.client, [run.id for _, run in ended if run is not None])
        except httpx.HTTPError:
            records = {}  # the states are known; the records only fill the table
        for slot, run in ended:
            if run is None:
                self._end(
                    slot, replace(slot.row, state="Deleted", kind="cancelled", cause="Somebody deleted its flow run.")
                )
                continue
            row = final_row(slot.job.name, run, records.get(run.id))
            if run.id in self._recalled and row.kind == "cancelled":
                row = replace(
                    row, state="NotStarted", kind="not_started", cause=_TOO_MANY, advice=advice_for("NotStarted")
                )
            self._end(slot, row)

    def _end(self, slot: _Slot, row: JobRow) -> None:
        slot.row = row if row.advice or row.kind == "done" else replace(row, advice=advice_for(row.state))
        level = self._logger.info if row.kind == "done" else self._logger.warning
        tally = count_rows([slot.row for slot in self._slots])
        level("%s (%s)", describe_row(row), tally, extra={SHOWN: self._view is not None})
        if self._view is not None:
            self._view.changed(slot.row)

    def _obey(self) -> None:
        """Do what the policy says about the failures so far."""
        failed = sum(slot.row.kind == "failed" for slot in self._slots)
        verdict = what_now(self._policy, failed)
        if verdict in ("go_on", self._verdict):
            return
        self._verdict = verdict
        self._logger.error("%d jobs have failed: %s", failed, verdict.replace("_", " "))
        while self._waiting:
            slot = self._waiting.popleft()
            if slot.row.kind == "waiting" and slot.run_id is None:
                self._end(slot, replace(slot.row, state="NotStarted", kind="not_started", cause=_TOO_MANY))
        try:
            if verdict == "fail_fast":
                self._executor.stop(list(self._running))
            else:
                self._recalled.update(self._executor.recall(list(self._running)))
        except httpx.HTTPError as error:
            self._verdict = "go_on"  # tried again at the next turn
            self._missed(error)

    def _refresh(self) -> None:
        """Find out which of the jobs given to workers wait for one; asked once per table, not at each turn."""
        try:
            states = self._executor.states()
        except httpx.HTTPError:
            return  # the next turn notices that the API is away
        for run_id, slot in self._running.items():
            if (state := states.get(run_id)) is not None:
                slot.row = replace(
                    slot.row, state=state.name or state.type.value.title(), kind=kind_of(state.type.value)
                )

    def _live(self, slot: _Slot) -> JobRow:
        if slot.row.kind != "running" or slot.run_id is None:
            return slot.row
        row = replace(slot.row, duration_s=time.monotonic() - slot.began_s)
        status = self._executor.status(slot.run_id)
        if status is None:
            return row
        return replace(
            row,
            bytes_present=status.bytes_present,
            rate_bytes_per_s=status.rate_bytes_per_s,
            pause_s=status.pause_s + max(0.0, time.time() - status.at_s),
            cause=status.suspicion or "",
            suspected=status.suspicion is not None,
        )

    def _show(self) -> None:
        if self._view is not None:
            self._view.show(self._fleet.name, self.rows)
        if time.monotonic() >= self._table_due_s:
            self._refresh()
            self._table.publish(self.rows)
            self._table_due_s = time.monotonic() + self._policy.table_every_s


def _said(error: Exception) -> str:
    body = error.response.text if isinstance(error, httpx.HTTPStatusError) else str(error)
    return f"Prefect refused to start this job: {' '.join(body.split())[:300]}"
