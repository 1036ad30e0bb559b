"""Checks before a fleet's first job starts: limits of its storages, deployments, work queues.

Each missing part gives one sentence with the command that makes it; no job has been started by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import FleetJob, FleetPolicy
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.storage_slots import read_limit, require_limit

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse


def check_limits(
    client: SyncPrefectClient, jobs: Sequence[FleetJob], policy: FleetPolicy, logger: AnyLogger
) -> frozenset[str]:
    """Check that each storage has a concurrency limit that admits every job.

    Args:
        client: client of Prefect's API.
        jobs: the fleet's jobs.
        policy: says what to do about a missing limit.
        logger: the run's logger.

    Returns:
        Storages whose jobs run without a limit, since it is missing and the policy allows that.

    Raises:
        InputError: a limit is missing, or too small; the sentence has the command to run.
    """
    storages: dict[str, list[FleetJob]] = {}
    for job in jobs:
        if job.storage is not None:
            storages.setdefault(job.storage.name, []).append(job)
    unprotected = set()
    for storage, users in storages.items():
        if read_limit(client, storage) is None:
            shown = for_terminal(storage)
            if policy.missing_limit == "error":
                raise InputError(
                    f"there is no concurrency limit for the storage {shown} of {_named(users)}: create it with "
                    f"`prefect gcl create {shown} --limit N`, let the flow plan-capacity set it with apply, "
                    "or start the fleet with missing_limit create:N or ignore"
                )
            if policy.created_limit is None:
                logger.warning("No concurrency limit for the storage %s: its jobs run unprotected", shown)
                unprotected.add(storage)
                continue
            _create(client, storage, policy.created_limit)
            logger.info("Made a concurrency limit of %d slots for the storage %s", policy.created_limit, shown)
        require_limit(storage, max(job.storage.slots for job in users if job.storage is not None))
    return frozenset(unprotected)


def check_deployments(
    client: SyncPrefectClient, jobs: Sequence[FleetJob], logger: AnyLogger
) -> dict[str, DeploymentResponse]:
    """Check that the deployments and work queues of a fleet exist and can take a job.

    Args:
        client: client of Prefect's API.
        jobs: the fleet's jobs.
        logger: warned if no worker seems to be there.

    Returns:
        The deployments by name.

    Raises:
        InputError: one is missing, or cannot run a cache job.
    """
    found: dict[str, DeploymentResponse] = {}
    queues: set[tuple[str, str]] = set()
    for job in jobs:
        name = job.deployment
        if name is None:
            continue
        if name not in found:
            found[name] = _deployment(client, name, job, logger)
        if job.work_queue is not None:
            pool = found[name].work_pool_name
            if pool is None:
                raise InputError(
                    f"the deployment {for_terminal(name)} has no work pool, so the work_queue of {_named([job])} means nothing: "
                    "leave it out, or deploy to a work pool"
                )
            if (pool, job.work_queue) not in queues:
                _check_queue(client, pool, job)
                queues.add((pool, job.work_queue))
    return found


def _deployment(client: SyncPrefectClient, name: str, job: FleetJob, logger: AnyLogger) -> DeploymentResponse:
    shown = for_terminal(name)
    try:
        deployment = client.read_deployment_by_name(name)
    except ObjectNotFound:
        raise InputError(
            f"there is no deployment {shown}, which {_named([job])} names: see `prefect deployment ls`, or make it with "
            "`prefect deploy`"
        ) from None
    parameters = (deployment.parameter_openapi_schema or {}).get("properties", {})
    if "job" not in parameters:
        raise InputError(
            f"the deployment {shown} runs a flow without a parameter named job: name one of generate-cache or deploy-cache"
        )
    if deployment.paused:
        logger.warning("The deployment %s is paused: that stops its schedules, not the fleet", shown)
    _check_own_limit(deployment, shown, logger)
    pool = deployment.work_pool_name
    if pool is not None:
        try:
            if client.read_work_pool(pool).is_paused:
                logger.warning(
                    "The work pool %s is paused: jobs wait for `prefect work-pool resume`", for_terminal(pool)
                )
        except ObjectNotFound:
            raise InputError(
                f"the deployment {shown} names the work pool {for_terminal(pool)}, which is not there: create it with "
                f"`prefect work-pool create {for_terminal(pool)} --type process` and deploy again"
            ) from None
    if deployment.status is not None and str(deployment.status.value) == "NOT_READY":
        start = f"`prefect worker start --pool {for_terminal(pool)}`" if pool else "serving it"
        logger.warning("No worker answers for the deployment %s: jobs wait until one is started with %s", shown, start)
    return deployment


def _check_own_limit(deployment: DeploymentResponse, shown: str, logger: AnyLogger) -> None:
    """A deployment's own concurrency limit, made for its schedule, may be too small for a fleet."""
    limit = deployment.global_concurrency_limit
    if limit is None:
        return
    options = deployment.concurrency_options
    if options is not None and options.collision_strategy == ConcurrencyLimitStrategy.CANCEL_NEW:
        raise InputError(
            f"the deployment {shown} cancels what exceeds its concurrency limit of {limit.limit}, which most of a fleet's "
            "jobs would: name a deployment without one, such as `prefect deploy` makes without concurrency_limit"
        )
    logger.warning("The deployment %s has a concurrency limit: no more than %d jobs at once", shown, limit.limit)


def _check_queue(client: SyncPrefectClient, pool: str, job: FleetJob) -> None:
    assert job.work_queue is not None
    try:
        client.read_work_queue_by_name(job.work_queue, work_pool_name=pool)
    except ObjectNotFound:
        queue, shown = for_terminal(job.work_queue), for_terminal(pool)
        raise InputError(
            f"there is no work queue {queue} in the work pool {shown}, which {_named([job])} names: create it with "
            f"`prefect work-queue create {queue} --pool {shown} --priority 1`"
        ) from None


def _create(client: SyncPrefectClient, storage: str, slots: int) -> None:
    try:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=storage, limit=slots))
    except ObjectAlreadyExists:
        return  # another fleet has made the limit meanwhile


def _named(jobs: Sequence[FleetJob]) -> str:
    first = f"the job '{for_terminal(jobs[0].name, 100)}'"
    return first if len(jobs) == 1 else f"{first} and {len(jobs) - 1} more"
