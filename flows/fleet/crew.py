"""Who runs a fleet's jobs: what a crew can do, and what the runs of a fleet have in common.

A crew starts a job as a child run of the fleet's, says which runs have ended, and ends them. There are two:
`processes` on the fleet's own host, `workers` over a deployment. What an end means is `loop`'s matter.
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
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.fleet.status import JobStatus

__all__ = ["Crew", "Fleet", "make_tracking_task"]


@dataclass(frozen=True)
class Fleet:
    """What its jobs' runs have in common."""

    client: SyncPrefectClient
    name: str
    run_id: UUID
    #: Directory of the fleet's run on this host.
    directory: Path
    poll_s: float
    #: Who reads and writes in it.
    files: Files


class Crew(Protocol):
    """Whoever runs the jobs."""

    #: How many at once, unless the policy says so; None: they have limits of their own.
    usual_parallel: int | None
    #: Whether a run goes on when the fleet's process dies, and is found again by the next.
    outlives: bool

    def start(self, job: FleetJob, number: int) -> UUID:
        """Start a job; twice the same number of a job is the same run."""
        ...

    def ended(self, timeout_s: float) -> dict[UUID, FlowRun | None]:
        """Wait until a run has ended, or the time is over; final states, None for a run that somebody deleted."""
        ...

    def states(self) -> dict[UUID, State[Any]]:
        """The states of runs that have not ended, where those are not known anyway."""
        ...

    def adopt(self, run_id: UUID) -> None:
        """Take up a run that an earlier process of this fleet started."""

    def status(self, run_id: UUID) -> JobStatus | None:
        """What a running job says of itself, where that can be known."""

    def stop(self, run_ids: Sequence[UUID]) -> None:
        """Have runs ended; `ended` tells when they have."""

    def recall(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Take back what nobody has begun; says what could be."""
        ...

    def close(self) -> None:
        """End whatever still runs, when the fleet itself is to end."""


def make_tracking_task(fleet: Fleet, job: FleetJob, number: int, name: str) -> UUID:
    """Make the task run by which Prefect's UI shows a job's run below the fleet's.

    Its key is the job's own: a fleet that is started again finds each job's, and not the n-th one's.

    Args:
        fleet: whose job it is.
        job: of it.
        number: of the job's run, from 1.
        name: of the flow or deployment.

    Returns:
        Its id.
    """
    task = Task(fn=_nothing, name=name)
    task.task_key = f"cachewatch.fleet.{slugify(name)}"
    made = fleet.client.create_task_run(
        task=task, flow_run_id=fleet.run_id, dynamic_key=f"{job.digest}-{number}", name=job.name, state=Pending()
    )
    return made.id


def _nothing() -> None:
    """Stands for a sub-flow in Prefect's records; never called."""
