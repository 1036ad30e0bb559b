"""The runners of a fleet's jobs: the interface, and the data that all runs of a fleet share.

An executor starts a job as a child run of the fleet's run, reports which runs have ended, and ends them. There are two:
`processes` on the fleet's own host, and `workers` over a deployment. `loop` decides what an end means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from prefect import Task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Pending

from prefect_cachewatch.common.aside import Files
from prefect_cachewatch.engine.status import JobStatus
from prefect_cachewatch.fleet.jobs import FleetJob


@dataclass(frozen=True)
class Fleet:
    """The data that all runs of the fleet's jobs share."""

    client: SyncPrefectClient
    name: str
    run_id: UUID
    #: Directory of the fleet's run on this host.
    directory: Path
    poll_s: float
    #: The helper process that reads and writes in it.
    files: Files


class Executor(Protocol):
    """The interface of a runner of jobs."""

    #: How many jobs may run at once unless the policy sets it; None: the deployments have limits of their own.
    usual_parallel: int | None
    #: Whether a run outlives the fleet's process and can be found again by the next one.
    outlives: bool

    def start(self, job: FleetJob, number: int) -> UUID:
        """Start a job; the same number of the same job gives the same run."""
        ...

    def ended(self, timeout_s: float) -> dict[UUID, FlowRun | None]:
        """Wait until a run has ended, or the time is over; return final states, None for a run that was deleted."""
        ...

    def states(self) -> dict[UUID, State[Any]]:
        """Return the states of runs that have not ended, for executors that must ask for them."""
        ...

    def adopt(self, run_id: UUID) -> None:
        """Take up a run that an earlier process of this fleet started."""

    def status(self, run_id: UUID) -> JobStatus | None:
        """Return what a running job reports of itself, if that is known."""

    def stop(self, run_ids: Sequence[UUID]) -> None:
        """Ask for the end of runs; `ended` reports when they have ended."""

    def recall(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Cancel the runs that have not begun; return those that were cancelled."""
        ...

    def close(self) -> None:
        """End all runs that are still under way, when the fleet itself has to end."""


def make_tracking_task(fleet: Fleet, job: FleetJob, number: int, name: str) -> UUID:
    """Make the task run by which Prefect's UI shows a job's run below the fleet's run.

    Its key is the job's own. A fleet that is started again finds the run of each job by it, whatever the order.

    Args:
        fleet: the fleet.
        job: its job.
        number: number of the job's run, from 1.
        name: name of the flow or deployment.

    Returns:
        The id of the task run.
    """
    task = Task(fn=_nothing, name=name)
    made = fleet.client.create_task_run(
        task=task, flow_run_id=fleet.run_id, dynamic_key=f"{job.digest}-{number}", name=job.name, state=Pending()
    )
    return made.id


def _nothing() -> None:
    """Stands for a subflow in Prefect's records; never called."""
