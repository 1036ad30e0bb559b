"""Run records: a generation stores its figures as an artifact, and `check_capacity` reads them back.

The fields and the arithmetic are in `prefect_cachewatch.capacity.history`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from uuid import UUID

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterStartTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

from prefect_cachewatch.capacity.history import RunRecord, read_run_record, run_record_json
from prefect_cachewatch.common.text import for_terminal, slugify
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.tasks.prefect_api.artifacts import create_artifact
from prefect_cachewatch.tasks.prefect_api.origin import GENERATION_FLOW

RUN_RECORD_PREFIX = "cachewatch-run-"
_PAGE = 200
_RUNS_PER_ARTIFACT_QUERY = 50
_LOOKBACK = datetime.timedelta(days=2)
_MAX_RUNS = 20_000


def run_record_key(job: str) -> str:
    """Name the artifact that holds a job's run records.

    Args:
        job: name of the job.

    Returns:
        A key of small letters, digits and dashes.

    Example:
        >>> run_record_key("Llama 3/70b")
        'cachewatch-run-llama-3-70b'
    """
    return RUN_RECORD_PREFIX + slugify(job, most=200, other="unnamed")


def store_run_record(record: RunRecord) -> UUID:
    """Store a run's record as an artifact of the flow run under way, for `check_capacity`.

    Args:
        record: the run as it went.

    Returns:
        The artifact's id.
    """
    description = f"Record of {for_terminal(record.job)}"
    if record.storage:
        description += f" on {for_terminal(record.storage)}"
    text = f"```json\n{run_record_json(record)}\n```"
    return create_artifact("markdown", run_record_key(record.job), text, description)


@task(name="read-past-runs", cache_policy=NO_CACHE)
def read_run_records(
    start: datetime.datetime, end: datetime.datetime, flow_name: str = GENERATION_FLOW
) -> list[RunRecord]:
    """Read the runs of the generation flow that touch a window.

    Args:
        start: begin of the window; runs that began up to two days before it are looked at too.
        end: its end.
        flow_name: name of the flow.

    Returns:
        One record per run: the stored one, or, if the run stored none (killed, crashed, still
        running), its times from Prefect, and the storage from its parameters or its tag
        `storage:NAME`; runs without a storage are left out.
    """
    with get_client(sync_client=True) as client:
        runs = _flow_runs(client, start, end, flow_name)
        stored = stored_records(client, [run.id for run in runs])
    records = []
    for run in runs:
        record = stored.get(run.id) or _bare_record(run)
        if record is not None and record.storage and (run.end_time is None or run.end_time >= start):
            records.append(record)
    return records


def _flow_runs(
    client: SyncPrefectClient, start: datetime.datetime, end: datetime.datetime, flow_name: str
) -> list[FlowRun]:
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
            flow_run_filter=FlowRunFilter(
                start_time=FlowRunFilterStartTime.model_validate({"after_": start - _LOOKBACK, "before_": end})
            ),
            sort=FlowRunSort.START_TIME_ASC,
            limit=_PAGE,
            offset=len(runs),
        )
        runs += page
        if len(page) < _PAGE:
            return runs
        if len(runs) >= _MAX_RUNS:
            raise InputError(f"there are more than {_MAX_RUNS} runs of {flow_name} in the window: take a shorter one")


def stored_records(client: SyncPrefectClient, ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
    """Read the records that runs stored, 50 runs per request.

    Args:
        client: client of Prefect's API.
        ids: ids of the flow runs.

    Returns:
        A record for each run that stored one.
    """
    records: dict[UUID, RunRecord] = {}
    for first in range(0, len(ids), _RUNS_PER_ARTIFACT_QUERY):
        some = list(ids[first : first + _RUNS_PER_ARTIFACT_QUERY])
        offset = 0
        while True:
            page = client.read_artifacts(
                artifact_filter=ArtifactFilter(
                    flow_run_id=ArtifactFilterFlowRunId(any_=some),
                    key=ArtifactFilterKey(like_=f"{RUN_RECORD_PREFIX}%"),
                ),
                limit=_PAGE,
                offset=offset,
            )
            for artifact in page:
                record = read_run_record(artifact.data)
                if record is not None and artifact.flow_run_id is not None:
                    # A run that was retried stores one each time: the one that ended last counts.
                    earlier = records.get(artifact.flow_run_id)
                    if earlier is None or (record.ended_s or 0) >= (earlier.ended_s or 0):
                        records[artifact.flow_run_id] = record
            offset += len(page)
            if len(page) < _PAGE:
                break
    return records


def _bare_record(run: FlowRun) -> RunRecord | None:
    given = (run.parameters or {}).get("storage")
    storage = given.get("name") if isinstance(given, dict) else given
    if not isinstance(storage, str):
        storage = next((tag.partition(":")[2] for tag in run.tags if tag.startswith("storage:")), "")
    if not storage or run.start_time is None:
        return None
    job = (run.parameters or {}).get("job")
    name = job.get("name") if isinstance(job, dict) else None
    return RunRecord(
        run_id=str(run.id),
        storage=storage,
        job=name if isinstance(name, str) else run.name,
        started_s=run.start_time.timestamp(),
        ended_s=run.end_time.timestamp() if run.end_time else None,
        state=run.state_name or "Unknown",
    )
