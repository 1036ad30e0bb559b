"""The planner as Prefect sees it: past runs read, limits set, profiles measured; the rules are the engine's.

Generations import `storage_slot` and `store_run_record` from here.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import task
from prefect.artifacts import create_markdown_artifact
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
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.variables import Variable
from prefect_cachewatch.tasks.storage_slots import storage_slot, storage_weight

from prefect_cachewatch.capacity.history import RunRecord, read_run_record, run_record_json
from prefect_cachewatch.capacity.probe import ProbeReport, ProbeSettings, run_probe
from prefect_cachewatch.capacity.profile import StorageProfile
from prefect_cachewatch.capacity.rollout import LimitDecision, weights_variable
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.text import for_terminal

__all__ = [
    "RUN_RECORD_PREFIX",
    "LimitChange",
    "measure_storage",
    "read_run_records",
    "run_record_key",
    "set_storage_limit",
    "slug",
    "storage_slot",
    "storage_weight",
    "store_run_record",
]

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
    return RUN_RECORD_PREFIX + slug(job)


def slug(name: str) -> str:
    """Turn a name into what Prefect takes as an artifact's key.

    Args:
        name: any name.

    Returns:
        Small letters, digits and single dashes, at most 200.

    Example:
        >>> slug("NFS  a/b")
        'nfs-a-b'
    """
    plain = "".join(char if char.isascii() and char.isalnum() else "-" for char in name.lower())
    return "-".join(filter(None, plain.split("-")))[:200] or "unnamed"


def store_run_record(record: RunRecord) -> UUID:
    """Store a run's record as an artifact of the flow run under way, for `check_capacity`.

    Args:
        record: the run as it went.

    Returns:
        The artifact's id.
    """
    stored = create_markdown_artifact(
        key=run_record_key(record.job),
        markdown=f"```json\n{run_record_json(record)}\n```",
        description=f"Record of {for_terminal(record.job)} on {for_terminal(record.storage)}",
    )
    assert isinstance(stored, UUID)  # noqa: S101 - a coroutine only inside an event loop
    return stored


@task(name="read-past-runs", cache_policy=NO_CACHE)
def read_run_records(
    start: datetime.datetime, end: datetime.datetime, flow_name: str = "generate-cache"
) -> list[RunRecord]:
    """Read the runs of the generation flow that touch a window.

    Args:
        start: begin of the window; runs that began up to two days before it are looked at too.
        end: its end.
        flow_name: name of the flow.

    Returns:
        One record a run: what the run stored, or, where it stored nothing (killed, crashed, still
        running), its times as Prefect knows them and the storage from its parameters or its tag
        `storage:NAME`; runs that name no storage are left out.
    """
    with get_client(sync_client=True) as client:
        runs = _flow_runs(client, start, end, flow_name)
        stored = _stored_records(client, [run.id for run in runs])
    records = []
    for run in runs:
        record = stored.get(run.id) or _bare_record(run)
        if record is not None and (run.end_time is None or run.end_time >= start):
            records.append(record)
    return records


class LimitChange(dict[str, Any]):
    """What was, or would be, changed: `name`, `before`, `after`, the weights before and after, a sentence."""


@task(name="set-storage-limit", cache_policy=NO_CACHE)
def set_storage_limit(decision: LimitDecision, apply: bool) -> LimitChange:
    """Set a storage's global concurrency limit and the weights of its classes, or say what would be set.

    Args:
        decision: what `decide_limit` decided.
        apply: False looks only.

    Returns:
        From what to what, and a sentence that says so.
    """
    logger = get_run_logger()
    variable = weights_variable(decision.name)
    with get_client(sync_client=True) as client:
        try:
            found = client.read_global_concurrency_limit_by_name(decision.name)
        except ObjectNotFound:
            found = None
        before = found.limit if found else None
        stored = Variable.get(variable, default=None)
        weights_before = stored.get("weights") if isinstance(stored, dict) else None
        if apply:
            client.upsert_global_concurrency_limit_by_name(decision.name, decision.slots)
            Variable.set(variable, {"slots": decision.slots, "weights": decision.weights}, overwrite=True)
    shown = for_terminal(decision.name)
    was = "no limit" if before is None else str(before)
    if before == decision.slots and weights_before == decision.weights:
        sentence = f"The limit of {shown} stays at {before}"
    else:
        done = "was changed" if apply else "would change"
        sentence = f"The limit of {shown} {done} from {was} to {decision.slots}"
        if weights_before != decision.weights:
            sentence += f", and its weights from {_weights(weights_before)} to {_weights(decision.weights)}"
    sentence += f" ({decision.sentence})"
    if not apply:
        sentence += "; this is a dry run: apply=True sets it"
    if found is not None and not found.active:
        sentence += "; the limit is switched off, and stays so until prefect gcl enable"
    logger.info(sentence)
    return LimitChange(
        name=decision.name,
        before=before,
        after=decision.slots,
        weights_before=weights_before,
        weights=decision.weights,
        applied=apply,
        sentence=sentence,
    )


@task(name="probe-storage", cache_policy=NO_CACHE)
def measure_storage(
    directory: Path, name: str, settings: ProbeSettings, profile_path: Path | None
) -> tuple[ProbeReport, StorageProfile]:
    """Probe a storage, and keep what was measured in a file if one is named.

    Args:
        directory: the directory to probe, on the machine of the worker.
        name: what the storage is called.
        settings: caps of the probe.
        profile_path: where the profile goes; while it measures, `*.partial.yaml` beside it.

    Returns:
        The report and the profile.
    """
    from prefect_cachewatch.capacity.probe_profile import (  # noqa: PLC0415 - yaml, where it is used
        profile_from_report,
        profile_yaml,
        write_atomically,
    )

    logger = get_run_logger()
    partial = profile_path.with_name(f"{profile_path.stem}.partial.yaml") if profile_path else None
    said = [""]

    def progress(step: Any) -> None:
        what = step.text.partition(",")[0]
        if what != said[0] and what.startswith("n ="):
            said[0] = what
            logger.info(
                "Probing %s: %s (%d of %d runs done)",
                for_terminal(str(directory)),
                what,
                step.done,
                step.total,
            )

    def save(report: ProbeReport) -> None:
        if partial is not None:
            write_atomically(partial, profile_yaml(profile_from_report(report, name)))

    report = run_probe(directory, settings, on_progress=progress, on_level=save)
    profile = profile_from_report(report, name)
    if profile_path is not None and partial is not None:
        write_atomically(profile_path, profile_yaml(profile))
        partial.unlink(missing_ok=True)
        logger.info("Profile of %s written to %s", for_terminal(name), for_terminal(str(profile_path)))
    for note in profile.notes:
        logger.warning("Probe of %s: %s", for_terminal(name), note)
    return report, profile


def _weights(weights: Any) -> str:
    if not isinstance(weights, dict) or not weights:
        return "none"
    return ", ".join(f"{for_terminal(str(name))} {slots}" for name, slots in sorted(weights.items()))


def _flow_runs(
    client: SyncPrefectClient, start: datetime.datetime, end: datetime.datetime, flow_name: str
) -> list[FlowRun]:
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow_name])),
            flow_run_filter=FlowRunFilter(
                start_time=FlowRunFilterStartTime.model_validate(
                    {"after_": start - _LOOKBACK, "before_": end}
                )
            ),
            sort=FlowRunSort.START_TIME_ASC,
            limit=_PAGE,
            offset=len(runs),
        )
        runs += page
        if len(page) < _PAGE:
            return runs
        if len(runs) >= _MAX_RUNS:
            raise InputError(
                f"there are more than {_MAX_RUNS} runs of {flow_name} in the window: take a shorter one"
            )


def _stored_records(client: SyncPrefectClient, ids: Sequence[UUID]) -> dict[UUID, RunRecord]:
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
                    # A run that was retried stores one each time: the last to end stands.
                    earlier = records.get(artifact.flow_run_id)
                    if earlier is None or (record.ended_s or 0) >= (earlier.ended_s or 0):
                        records[artifact.flow_run_id] = record
            offset += len(page)
            if len(page) < _PAGE:
                break
    return records


def _bare_record(run: FlowRun) -> RunRecord | None:
    storage = (run.parameters or {}).get("storage")
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
