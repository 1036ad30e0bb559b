"""The flow runs of a fleet's jobs in Prefect's API: tags, states, records, cancellation.

Where the API allows it, one request serves all jobs of a fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
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
    # Sorted by id: pages sorted by a time that several runs share may repeat one run and omit another.
    runs = _all_pages(client, wanted, FlowRunSort.ID_DESC)
    return sorted(runs, key=lambda run: run.created.timestamp() if run.created else 0.0)


def completed_before(
    client: SyncPrefectClient, fleet: str, flow_name: str, digests: Sequence[str]
) -> dict[str, FlowRun]:
    """Find the jobs that an earlier run of the fleet completed, since the last run that completed all of them.

    Args:
        client: client of Prefect's API.
        fleet: name of the fleet.
        flow_name: name of the fleet's flow.
        digests: digests of the jobs in question.

    Returns:
        Digest to the newest completed run.
    """
    whole = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
        flow_run_filter=FlowRunFilter(
            tags=FlowRunFilterTags(all_=[fleet_tag(fleet)]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED])),
        ),
        sort=FlowRunSort.END_TIME_DESC,
        limit=1,
    )
    since = whole[0].end_time if whole else None
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[fleet_tag(fleet)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.COMPLETED])),
        start_time=FlowRunFilterStartTime.model_validate({"after_": since}) if since else None,
    )
    found: dict[str, FlowRun] = {}
    asked = {job_tag(digest): digest for digest in digests}
    for run in _all_pages(client, wanted, FlowRunSort.END_TIME_DESC):
        for tag in run.tags:
            if tag in asked:
                found.setdefault(asked[tag], run)
    return found


def cancel_run(client: SyncPrefectClient, run_id: UUID) -> None:
    """Ask for the end of a run: one that has not begun is cancelled at once, another by the process that runs it.

    Args:
        client: client of Prefect's API.
        run_id: id of the run.
    """
    client.set_flow_run_state(run_id, Cancelling(message="The fleet stops this run."))


def _all_pages(client: SyncPrefectClient, wanted: FlowRunFilter, sort: FlowRunSort) -> list[FlowRun]:
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(flow_run_filter=wanted, sort=sort, limit=_PAGE, offset=len(runs))
        runs += page
        if len(page) < _PAGE:
            return runs
