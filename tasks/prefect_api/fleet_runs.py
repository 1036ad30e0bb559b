"""The flow runs of a fleet's jobs in Prefect's API: tags, states, records, cancellation.

Where the API allows it, one request serves all jobs of a fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Cancelling

from prefect_cachewatch.common.text import slugify

FINAL = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)
_PAGE = 200  # the largest page that the API gives
_OF_FLEET, _OF_RUN, _OF_JOB = "cachewatch-fleet:", "cachewatch-fleet-run:", "cachewatch-job:"


def fleet_tag(name: str) -> str:
    """The tag of a fleet's own runs and of its jobs' runs.

    Example:
        >>> fleet_tag("Nightly caches")
        'cachewatch-fleet:nightly-caches'
    """
    return _OF_FLEET + slugify(name)


def job_tag(digest: str) -> str:
    """The tag of all runs of one job, as the job is written now."""
    return _OF_JOB + digest


def job_tags(fleet: str, fleet_run_id: UUID, digest: str, storage: str | None) -> list[str]:
    """The tags of a job's run: the fleet, its run, the job, and the storage if one is named."""
    tags = [fleet_tag(fleet), f"{_OF_RUN}{fleet_run_id}", job_tag(digest)]
    return [*tags, f"storage:{storage}"] if storage else tags


def is_fleet_job(tags: Iterable[str]) -> bool:
    """Say by its tags whether a flow run was started by a fleet.

    Example:
        >>> is_fleet_job(["cachewatch-fleet-run:1234"])
        True
    """
    return any(tag.startswith(_OF_RUN) for tag in tags)


def children_of(
    client: SyncPrefectClient,
    fleet_run_id: UUID,
    *,
    types: Sequence[StateType] | None = None,
    known: Iterable[UUID] = (),
) -> list[FlowRun]:
    """Read the runs of a fleet's jobs.

    Args:
        client: client of Prefect's API.
        fleet_run_id: id of the fleet's own run.
        types: states to ask for; None for all.
        known: runs that need not be read again.

    Returns:
        The runs, the oldest first; one request for each 200 of them.
    """
    wanted = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[fleet_run_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))) if types else None,
        id=FlowRunFilterId(not_any_=list(known)) if known else None,
    )
    runs: list[FlowRun] = []
    while True:
        # Sorted by id: pages sorted by a time that several runs share may repeat one run and omit another.
        page = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=len(runs))
        runs += page
        if len(page) < _PAGE:
            return sorted(runs, key=lambda run: run.created.timestamp() if run.created else 0.0)


def cancel_run(client: SyncPrefectClient, run_id: UUID) -> None:
    """Ask for the end of a run: one that has not begun is cancelled at once, another by the process that runs it.

    Args:
        client: client of Prefect's API.
        run_id: id of the run.
    """
    client.set_flow_run_state(run_id, Cancelling(message="The fleet stops this run."))
