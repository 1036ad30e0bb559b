"""`generate_fleet`: many generations in one run, over the workers of a deployment or in processes of this host.

Each job is a run of generate-cache below the fleet's run, with its own guard, attempts and artifacts. The fleet ends
Completed if every cache is there, else of type FAILED: `PartlyFailed`, `FleetFailed`, or `Refused` for bad input.
With bad input no job is started.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.common.aside import Aside, Files
from prefect_cachewatch.common.statedir import open_run_directory
from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.host import check_host, missing_caches, whole_caches
from prefect_cachewatch.fleet.jobs import FleetJob, FleetPlan, FleetPolicy
from prefect_cachewatch.fleet.jobsfile import plan_of_jobs, read_jobs_file
from prefect_cachewatch.fleet.outcome import count_rows, fleet_end
from prefect_cachewatch.fleet.rows import JobRow
from prefect_cachewatch.flows.context import ContextValue
from prefect_cachewatch.flows.fleet.executor import Executor, Fleet
from prefect_cachewatch.flows.fleet.loop import SHOWN, FleetLoop, FleetView
from prefect_cachewatch.flows.fleet.processes import LocalExecutor
from prefect_cachewatch.flows.fleet.workers import WorkerExecutor
from prefect_cachewatch.flows.generation import final_state
from prefect_cachewatch.run.delivery import describe_publication
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.fleet_checks import check_deployments, check_limits
from prefect_cachewatch.tasks.prefect_api.fleet_runs import FINAL, cancel_run, children_of, fleet_tag
from prefect_cachewatch.tasks.prefect_api.logs import outlive_readers

# What shows the fleet in a terminal while it runs; set by the command.
fleet_view: ContextValue[FleetView | None] = ContextValue("fleet_view", None)


class JobResult(BaseModel):
    """How one job of a fleet ended."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Name of the job.")
    state: str = Field(description="Final state's name; Cached where there was nothing to do.")
    bytes_present: int | None = Field(description="Size of the cache, where it is known.")
    run_id: str | None = Field(description="Its flow run; null where none was started.")


class FleetSummary(BaseModel):
    """The result of a fleet whose caches are all there."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Name of the fleet.")
    jobs: list[JobResult] = Field(description="Its jobs, in the order in which they started.")


def cancel_jobs(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:
    """Cancel a cancelled fleet's jobs on workers; the worker calls this when the fleet's process has gone.

    Args:
        flow: the fleet's flow.
        flow_run: its run.
        state: Cancelling.
    """
    with get_client(sync_client=True) as client:
        for run in children_of(client, flow_run.id):
            # Jobs in processes of the fleet's own host end with the fleet by themselves.
            if run.deployment_id is not None and run.state_type not in FINAL:
                with contextlib.suppress(Exception):
                    cancel_run(client, run.id)


@flow(name="generate-fleet", validate_parameters=True, on_cancellation=[cancel_jobs])
def generate_fleet(
    jobs: Path | list[FleetJob],
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None,
    deployment: str | None = None,
    policy: FleetPolicy | None = None,
) -> State[Any]:
    """Generate many caches under guard, each as a run of its own below this one.

    Args:
        jobs: A jobs.yaml on the machine that runs the fleet, or the jobs themselves.
        name: Name of the fleet, for its table; default what the file says, else the file's name.
        deployment: Deployment that runs the jobs which name none, as flow/name; without any they run on the fleet's own
            host, each in a process of its own.
        policy: Parallelism, failures, missing limits; what is set here goes before the file's.
    """
    logger = get_run_logger()
    outlive_readers()
    try:
        if isinstance(jobs, Path):
            given = policy.model_dump(exclude_unset=True) if policy is not None else {}
            plan = read_jobs_file(jobs, name=name, deployment=deployment, policy=given)
        else:
            plan = plan_of_jobs(jobs, name=name, deployment=deployment, policy=policy)
        with get_client(sync_client=True) as client, contextlib.ExitStack() as stack:
            return final_state(_run_fleet(client, plan, logger, stack))
    except InputError as error:
        return final_state(Failed(name="Refused", message=error.message))


def _run_fleet(
    client: SyncPrefectClient, plan: FleetPlan, logger: AnyLogger, stack: contextlib.ExitStack
) -> State[Any]:
    jobs, context = plan.in_order(), FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    run_id = context.flow_run.id
    over_workers = jobs[0].deployment is not None
    deployments = check_deployments(client, jobs, logger)
    if not over_workers:
        check_host(jobs)
    unprotected = check_limits(client, jobs, plan.policy, logger)
    jobs = [job.model_copy(update={"storage": None}) if job.storage_name in unprotected else job for job in jobs]
    # By the tag people find the runs of a fleet and of its jobs.
    client.update_flow_run(run_id, name=plan.name, tags=[*{*context.flow_run.tags, fleet_tag(plan.name)}])
    files = stack.enter_context(contextlib.closing(Aside.spawn()))
    held = stack.enter_context(contextlib.closing(open_run_directory(files, plan.name, str(run_id), "fleets")))
    fleet = Fleet(client, plan.name, run_id, held.path, plan.policy.poll_s, files)
    executor: Executor = WorkerExecutor(fleet, deployments) if over_workers else LocalExecutor(fleet)
    loop = FleetLoop(fleet, jobs, plan.policy, executor, logger, fleet_view.get())
    loop.take_up(lambda done: _gone(done, files, over_workers, logger))
    if not over_workers:
        # Workers may mount another store at the same path: each job's own run looks for its cache.
        _skip_whole(loop, jobs)
        logger.info("The jobs' own output goes to %s", fleet.directory)
    rows = loop.drive()
    end = fleet_end(plan.name, rows)
    if end.state != "Completed":
        logger.error(end.message, extra={SHOWN: fleet_view.get() is not None})
        return Failed(name=end.state, message=end.message)
    logger.info("%s (%s)", end.message, count_rows(rows))
    results = [
        JobResult(name=row.name, state=row.state, bytes_present=row.bytes_present, run_id=row.run_id) for row in rows
    ]
    return Completed(message=end.message, data=FleetSummary(name=plan.name, jobs=results))


def _skip_whole(loop: FleetLoop, jobs: Sequence[FleetJob]) -> None:
    for name, found in whole_caches(jobs).items():
        cause = describe_publication(name, found)
        loop.skip(name, JobRow(name, "Cached", "done", bytes_present=found.total_bytes, cause=cause))


def _gone(done: Sequence[FleetJob], files: Files, over_workers: bool, logger: AnyLogger) -> Collection[str]:
    """Return the jobs that are recorded as completed and whose cache is missing."""
    missing = missing_caches(done, files, elsewhere=over_workers)
    for name, why in missing.items():
        logger.warning("%s was completed before and is run again: %s", for_terminal(name, 100), for_terminal(why, 300))
    return missing
