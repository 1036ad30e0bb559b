"""Reads a failed run and its job's last runs from the API, and starts the run again; the rule is in `followup`."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterId,
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.followup import FOLLOWED, PastEnd
from prefect_cachewatch.tasks.prefect_api.labels import CAUSE_LABEL, LASTING_LABEL, TOLD_LABEL

RERUN_TAG = "cachewatch-rerun"
_MAX_RUNS = 100


@dataclass(frozen=True)
class FailedRun:
    """A failed generation and the runs before it."""

    run_id: UUID
    job: str
    deployment_id: UUID | None
    parameters: dict[str, Any]
    tags: tuple[str, ...]
    ends: tuple[PastEnd, ...]


def read_failed_run(flow_run_id: UUID, window_s: float) -> FailedRun:
    """Read a run that stalled or failed, and how the runs of the same job before it ended.

    Args:
        flow_run_id: the run.
        window_s: how far back to look, in seconds.

    Returns:
        The run, with the ends of its job's runs, itself first.

    Raises:
        InputError: there is no such run, or it ended otherwise.
    """
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(flow_run_id)
        except ObjectNotFound:
            raise InputError(f"there is no flow run {flow_run_id}: give the id of a generation that failed") from None
        if run.state_name not in FOLLOWED:
            raise InputError(
                f"flow run {for_terminal(run.name)} is {run.state_name}, not {' or '.join(FOLLOWED)}: "
                "there is nothing to follow up"
            )
        ended = run.end_time or datetime.datetime.now(datetime.UTC)
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(id=FlowFilterId(any_=[run.flow_id])),
            flow_run_filter=FlowRunFilter(
                name=FlowRunFilterName(any_=[run.name]),  # generate_cache names its runs after the job
                start_time=FlowRunFilterStartTime.model_validate(
                    {"after_": ended - datetime.timedelta(seconds=window_s), "before_": ended}
                ),
            ),
            sort=FlowRunSort.START_TIME_DESC,
            limit=_MAX_RUNS,
        )
        before = [one for one in runs if one.id != run.id and one.end_time is not None and one.end_time <= ended]
        return FailedRun(
            run_id=run.id,
            job=run.name,
            deployment_id=run.deployment_id,
            parameters=dict(run.parameters or {}),
            tags=tuple(run.tags),
            ends=(_end(run, _parent(client, run)), *(_end(one, None) for one in before)),
        )


@task(name="start-again", cache_policy=NO_CACHE)
def start_again(failed: FailedRun, delay_s: float) -> UUID:
    """Start a run of the same deployment with the same parameters; a second call starts no second run.

    Args:
        failed: the run.
        delay_s: pause before the new run, in seconds.

    Returns:
        Id of the new run.
    """
    assert failed.deployment_id is not None
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=delay_s)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(
            failed.deployment_id,
            parameters=failed.parameters,
            state=Scheduled(scheduled_time=when),
            tags=sorted({*failed.tags, RERUN_TAG}),
            # Automations act at least once: a second follow-up of the same run gets the same run.
            idempotency_key=f"{RERUN_TAG}-{failed.run_id}",
        )
    return run.id


def _parent(client: SyncPrefectClient, run: FlowRun) -> str | None:
    if run.parent_task_run_id is None:
        return None
    try:
        above = client.read_task_run(run.parent_task_run_id).flow_run_id
        return client.read_flow_run(above).name if above is not None else "another run"
    except ObjectNotFound:
        return "another run"


def _end(run: FlowRun, part_of: str | None) -> PastEnd:
    message = (run.state.message if run.state else None) or ""
    labels = (CAUSE_LABEL, TOLD_LABEL, LASTING_LABEL)
    category, told, lasting = (str(run.labels.get(label) or "") for label in labels)
    return PastEnd(
        run.state_name or "Unknown", message, run.end_time, RERUN_TAG in run.tags, part_of, category, told, lasting
    )
