"""Two flows of the planner: `plan_capacity` sets a concurrency limit, `check_capacity` compares past runs with it.

The engine has the rules (`prefect_cachewatch.capacity`); the flows run, show and apply them.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import datetime
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed
from pydantic import Field

from prefect_cachewatch.capacity.charts import plan_charts
from prefect_cachewatch.capacity.history import RunRecord
from prefect_cachewatch.capacity.history_check import check_history, unplanned_history
from prefect_cachewatch.capacity.markdown import check_markdown, plan_markdown, plan_rows
from prefect_cachewatch.capacity.model.agreement import with_simulation
from prefect_cachewatch.capacity.model.inputs import Policy, WorkloadClass
from prefect_cachewatch.capacity.model.planning import plan
from prefect_cachewatch.capacity.model.profile import LinkProfile, StorageProfile
from prefect_cachewatch.capacity.model.results import HistoryCheck, LimitPlan, as_json
from prefect_cachewatch.capacity.planfile import PlanInput, read_plan, read_storage
from prefect_cachewatch.capacity.probe.report import ProbeSettings
from prefect_cachewatch.capacity.probe.run import check_probe
from prefect_cachewatch.capacity.rollout import decide_limit
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config.quantities import DURATION
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.tasks.capacity import measure_storage, set_storage_limit
from prefect_cachewatch.tasks.prefect_api.origin import GENERATION_FLOW
from prefect_cachewatch.tasks.run_records import read_run_records

_Window = Annotated[float, Field(gt=0, le=366 * 86400), DURATION]


@flow(name="plan-capacity", log_prints=False)
def plan_capacity(
    plan_file: Path | None = None,
    storage: StorageProfile | None = None,
    workloads: list[WorkloadClass] | None = None,
    link: LinkProfile | None = None,
    policy: Policy | None = None,
    probe_dir: Path | None = None,
    probe_settings: ProbeSettings | None = None,
    profile_path: Path | None = None,
    simulate: bool = True,
    apply: bool = False,
    force: bool = False,
    limit_name: str | None = None,
) -> dict[str, Any] | State[Any]:
    """Plan how many jobs a storage carries at once, and set the concurrency limit when asked to.

    Probes the storage if `probe_dir` is given, plans, simulates, and writes the plan as artifacts
    (`cachewatch-plan-*`). Without `apply` nothing is changed. The limit is never set to 0, and
    not above the largest concurrency measured unless forced.

    Args:
        plan_file: PLAN.yaml on the worker's machine: storage, link, workloads and policy.
        storage: The storage, instead of the plan file's.
        workloads: Classes of jobs, instead of the plan file's.
        link: The link between jobs and storage, instead of the plan file's; default none.
        policy: What counts as too slow, instead of the plan file's.
        probe_dir: A directory on the storage to measure first, which slows its other users; default no probe.
        probe_settings: What the probe may take: streams, bytes, time.
        profile_path: With probe_dir, the file that the measured profile is written to; without, the profile to
            plan with.
        simulate: Check the answer by a simulation of the same jobs.
        apply: Set the concurrency limit and the weights; off is a dry run that says what would change.
        force: Set the limit even beyond the concurrency measured, or for a storage that was never measured.
        limit_name: Name of the concurrency limit; default the storage's name.

    Returns:
        `answer`, `limit`, `slots`, `change` and the whole `plan` as plain values; or a state of type
        FAILED named `Refused` with one sentence, if the input cannot be acted on.
    """
    logger = get_run_logger()
    try:
        given = _given(
            plan_file,
            storage,
            workloads,
            link,
            policy,
            needs_storage=probe_dir is None and profile_path is None,
        )
        notes: tuple[str, ...] = ()
        if probe_dir is not None:
            name = given.storage.name if given.storage else probe_dir.name
            settings = probe_settings or ProbeSettings()
            check_probe(probe_dir, settings)  # checked here: bad input gives a sentence, not a traceback of a task
            _, measured = measure_storage(probe_dir, name, settings, profile_path)
            notes = tuple(measured.notes)
            given = given.with_storage(measured)
        elif profile_path is not None:
            given = given.with_storage(read_storage(profile_path))
        inputs = given.complete(force)
        limit_plan = _planned(inputs, simulate)
        logger.info(limit_plan.answer)
        decision = _decided(limit_plan, limit_name, force, apply)
        if isinstance(decision, str):
            change: dict[str, Any] = {"applied": False, "sentence": f"Nothing would be set: {decision}"}
            logger.warning(change["sentence"])
        else:
            change = as_json(set_storage_limit(decision, apply))
    except CachewatchError as error:
        return _refused(error)
    key = slugify(limit_plan.storage, most=200, other="unnamed")
    create_markdown_artifact(
        key=f"cachewatch-plan-{key}",
        markdown=plan_markdown(limit_plan, change["sentence"], plan_charts(limit_plan), notes),
        description=f"How many at once on {limit_plan.storage}",
    )
    create_table_artifact(
        key=f"cachewatch-plan-table-{key}",
        table=plan_rows(limit_plan),
        description=f"The plan of {limit_plan.storage}",
    )
    return {
        "answer": limit_plan.answer,
        "limit": limit_plan.limit,
        "slots": limit_plan.slots,
        "change": change,
        "plan": as_json(limit_plan),
    }


@flow(name="check-capacity", log_prints=False)
def check_capacity(
    plan_files: list[Path] | None = None,
    storage: StorageProfile | None = None,
    workloads: list[WorkloadClass] | None = None,
    link: LinkProfile | None = None,
    policy: Policy | None = None,
    window_s: _Window = 7 * 86400,
    until: datetime.datetime | None = None,
    generation_flow: str = GENERATION_FLOW,
) -> list[dict[str, Any]] | State[Any]:
    """Compare past generations with the plan: Little's law, rates, burst times, by storage and hour.

    Reads runs from the Prefect API, changes nothing, and writes one artifact for each storage
    (`cachewatch-check-*`) with the verdict, the calibrated derate and a suggested stall window.

    Args:
        plan_files: PLAN.yaml files on the worker's machine, one for each storage to compare with its plan.
        storage: The storage of a plan given here instead of in a file.
        workloads: Classes of jobs of the plan given here.
        link: Link of the plan given here.
        policy: Policy of the plan given here.
        window_s: How far to look back.
        until: End of the window; default now.
        generation_flow: Name of the flow whose runs are read.

    Returns:
        One check for each storage planned or met, as plain values; or a state of type FAILED named
        `Refused` with one sentence, if the input cannot be acted on.
    """
    logger = get_run_logger()
    end = until or datetime.datetime.now(datetime.UTC)
    end = end if end.tzinfo else end.replace(tzinfo=datetime.UTC)
    start = end - datetime.timedelta(seconds=window_s)
    try:
        plans = [read_plan(path) for path in plan_files or []]
        if storage is not None or workloads is not None:
            plans.append(_given(None, storage, workloads, link, policy, needs_storage=True).complete())
        records = read_run_records(start, end, generation_flow)
        checks = [_checked(inputs, records, start.timestamp(), end.timestamp()) for inputs in plans]
        planned = {check.storage for check in checks}
        checks += [
            unplanned_history(name, [r for r in records if r.storage == name], start.timestamp(), end.timestamp())
            for name in sorted({record.storage for record in records} - planned)
        ]
        if not checks:
            raise InputError(
                f"no run of {generation_flow} names a storage in the last {format_duration(window_s)}, and no "
                "plan was given: run generations with storage=, or give plan_files"
            )
    except CachewatchError as error:
        return _refused(error)
    for check in checks:
        say = logger.warning if check.verdict in ("slower", "faster") else logger.info
        say("%s: %s (%s)", check.storage, check.verdict, check.reason)
        create_markdown_artifact(
            key=f"cachewatch-check-{slugify(check.storage, most=200, other='unnamed')}",
            markdown=check_markdown(check),
            description=f"{check.storage} against its plan: {check.verdict}",
        )
    return [as_json(check) for check in checks]


class _Given:
    """The inputs given so far; the storage may come later, from a probe."""

    def __init__(
        self,
        storage: StorageProfile | None,
        link: LinkProfile,
        workloads: tuple[WorkloadClass, ...],
        policy: Policy,
    ) -> None:
        self.storage, self.link, self.workloads, self.policy = storage, link, workloads, policy

    def with_storage(self, storage: StorageProfile) -> "_Given":
        if self.storage is not None and not storage.codecs:
            storage = storage.model_copy(update={"codecs": self.storage.codecs})
        return _Given(storage, self.link, self.workloads, self.policy)

    def complete(self, beyond_measured: bool = False) -> PlanInput:
        if self.storage is None:
            raise InputError("storage is missing: give storage, plan_file, profile_path or probe_dir")
        beyond = beyond_measured or self.policy.beyond_measured
        policy = self.policy.model_copy(update={"beyond_measured": beyond})
        return PlanInput(self.storage, self.link, self.workloads, policy)


def _given(
    plan_file: Path | None,
    storage: StorageProfile | None,
    workloads: list[WorkloadClass] | None,
    link: LinkProfile | None,
    policy: Policy | None,
    *,
    needs_storage: bool,
) -> _Given:
    base = read_plan(plan_file) if plan_file is not None else None
    if base is None and not workloads:
        raise InputError("workloads is missing: give workloads, or a plan_file with them")
    if base is None and storage is None and needs_storage:
        raise InputError("storage is missing: give storage, plan_file, profile_path or probe_dir")
    return _Given(
        storage or (base.storage if base else None),
        link or (base.link if base else LinkProfile()),
        tuple(workloads or (base.workloads if base else ())),
        policy or (base.policy if base else Policy()),
    )


def _planned(inputs: PlanInput, simulate: bool) -> LimitPlan:
    limit_plan = plan(inputs.storage, inputs.link, inputs.workloads, inputs.policy)
    if not simulate:
        return limit_plan
    return with_simulation(limit_plan, inputs.storage, inputs.link, inputs.workloads, inputs.policy)


def _decided(limit_plan: LimitPlan, name: str | None, force: bool, apply: bool) -> Any:
    try:
        return decide_limit(limit_plan, name=name, force=force)
    except InputError as error:
        if apply:
            raise
        return error.message  # a dry run still shows the plan


def _checked(inputs: PlanInput, records: list[RunRecord], start_s: float, end_s: float) -> HistoryCheck:
    def replan(derate: float) -> LimitPlan:
        policy = inputs.policy.model_copy(update={"derate": derate})
        return plan(inputs.storage, inputs.link, inputs.workloads, policy)

    here = [record for record in records if record.storage == inputs.storage.name]
    return check_history(here, replan(inputs.policy.derate), start_s, end_s, band=inputs.policy.band, replan=replan)


def _refused(error: CachewatchError) -> State[Any]:
    return Failed(name="Refused", message=error.message)
