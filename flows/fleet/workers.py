"""A fleet's jobs over the workers of deployments."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Scheduled

from prefect_cachewatch.engine.status import JobStatus
from prefect_cachewatch.fleet.jobs import FleetJob
from prefect_cachewatch.flows.fleet.executor import Fleet, make_tracking_task
from prefect_cachewatch.tasks.prefect_api.fleet_runs import FINAL, cancel_run, children_of, job_tags

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse


class WorkerExecutor:
    """Has each job run by the workers of a deployment.

    Does what `prefect.deployments.run_deployment` does for a subflow, with fewer requests, and with a tracking task
    whose key is the job's own. A fleet that is started again finds the run of each job by it, whatever the order.

    Args:
        fleet: the data that all its runs share.
        deployments: the deployments by name.
    """

    usual_parallel: int | None = None
    outlives = True

    def __init__(self, fleet: Fleet, deployments: Mapping[str, DeploymentResponse]) -> None:
        self._fleet, self._deployments = fleet, deployments
        self._open: set[UUID] = set()
        self._ended: set[UUID] = set()
        self._deleted: set[UUID] = set()

    def start(self, job: FleetJob, number: int) -> UUID:
        """Make a run of the deployment; for the same number Prefect returns the same run."""
        fleet = self._fleet
        assert job.deployment is not None
        run = fleet.client.create_flow_run_from_deployment(
            self._deployments[job.deployment].id,
            parameters=job.parameters(),
            state=Scheduled(),
            name=job.name,
            tags=job_tags(fleet.name, fleet.run_id, job.digest, job.storage_name),
            idempotency_key=f"cachewatch-{fleet.run_id}-{job.digest}-{number}",
            parent_task_run_id=make_tracking_task(fleet, job, number, job.deployment),
            work_queue_name=job.work_queue,
        )
        self._open.add(run.id)
        return run.id

    def ended(self, timeout_s: float) -> dict[UUID, FlowRun | None]:
        """Sleep, then ask once for all runs that have ended meanwhile."""
        if timeout_s > 0:
            time.sleep(timeout_s)
        final = children_of(self._fleet.client, self._fleet.run_id, types=FINAL, known=self._ended)
        found: dict[UUID, FlowRun | None] = {run.id: run for run in final if run.id in self._open}
        found |= dict.fromkeys(self._deleted & self._open)
        self._deleted.clear()
        self._ended.update(run.id for run in final)
        self._open -= found.keys()
        return found

    def states(self) -> dict[UUID, State[Any]]:
        """Read the states of the runs that wait for a worker, or are running."""
        runs = {run.id: run.state for run in children_of(self._fleet.client, self._fleet.run_id, known=self._ended)}
        # Read together with the final states: a run that is on none of the pages was deleted.
        self._deleted = self._open - runs.keys()
        return {run_id: state for run_id, state in runs.items() if state is not None and not state.is_final()}

    def adopt(self, run_id: UUID) -> None:
        """Wait for a run again."""
        self._open.add(run_id)

    def status(self, run_id: UUID) -> JobStatus | None:
        """Return nothing: the job runs on another host."""
        return None

    def stop(self, run_ids: Sequence[UUID]) -> None:
        """Ask the workers to end the runs, through the API."""
        for run_id in run_ids:
            cancel_run(self._fleet.client, run_id)

    def recall(self, run_ids: Sequence[UUID]) -> list[UUID]:
        """Cancel the runs that no worker has taken yet."""
        scheduled = children_of(self._fleet.client, self._fleet.run_id, types=[StateType.SCHEDULED])
        # One that was handed over between two attempts has begun, and waits as well.
        found = [run.id for run in scheduled if run.id in set(run_ids) and not run.run_count]
        self.stop(found)
        return found

    def close(self) -> None:
        """Ask for the end of all runs; each worker ends its own."""
        for run_id in self._open:
            with contextlib.suppress(Exception):  # the others are cancelled all the same
                cancel_run(self._fleet.client, run_id)
