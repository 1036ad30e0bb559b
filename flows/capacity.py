"""Two flows of the planner: `plan_capacity` sets a concurrency limit, `check_capacity` compares past runs with the plan.

The engine has the rules (`prefect_cachewatch.capacity`); the flows run, show and apply them.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import dataclasses
import datetime
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed
from pydantic import Field

from prefect_cachewatch.capacity.against import check_history, check_markdown
from prefect_cachewatch.capacity.inputs import PlanInput
from prefect_cachewatch.capacity.picture import draw
from prefect_cachewatch.capacity.planfile import read_plan
from prefect_cachewatch.capacity.planning import plan
from prefect_cachewatch.capacity.wording import headline, markdown
from prefect_cachewatch.common.text import slugify
from prefect_cachewatch.config.quantities import DURATION
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.tasks.capacity import set_storage_limit
from prefect_cachewatch.tasks.prefect_api.origin import GENERATION_FLOW
from prefect_cachewatch.tasks.run_records import read_run_records

_Window = Annotated[float, Field(gt=0, le=366 * 86400), DURATION]


@flow(name="plan-capacity", log_prints=False)
def plan_capacity(
    plan_file: Path | None = None,
    given: PlanInput | None = None,
    apply: bool = False,
) -> dict[str, Any] | State[Any]:
    """Plan how many jobs a storage carries at once, and set the concurrency limit when asked to.

    Writes the plan as the artifact `cachewatch-plan-STORAGE`. Without `apply` nothing is changed. The limit is named like
    the storage (like storage and class where each class has one of its own), is never 0, and not beyond what was measured.

    Args:
        plan_file: PLAN.yaml on the worker's machine: storage, link, workloads and policy.
        given: The same, given here instead.
        apply: Set the concurrency limit; off is a dry run that says what would change.

    Returns:
        `answer`, `limits`, `changes` and the whole `plan` as plain values; or a state of type FAILED named `Refused`
        with one sentence, if the input cannot be acted on.
    """
    logger = get_run_logger()
    try:
        inputs = _inputs(plan_file, given)
        answer = plan(inputs)
        changes = [set_storage_limit(each.name, _limit(each.n, answer.measured), apply) for each in answer.answers]
    except CachewatchError as error:
        return _refused(error)
    for each in answer.answers:
        logger.info(headline(answer, each))
    create_markdown_artifact(
        key=f"cachewatch-plan-{slugify(answer.storage, most=200, other='unnamed')}",
        markdown=markdown(answer, " ".join(changes), draw(answer, answer.answers[0])),
        description=f"How many at once on {answer.storage}",
    )
    return {
        "answer": " ".join(headline(answer, each) for each in answer.answers),
        "limits": {each.name: each.n for each in answer.answers},
        "changes": changes,
        "plan": dataclasses.asdict(answer),
    }


@flow(name="check-capacity", log_prints=False)
def check_capacity(
    plan_files: list[Path] | None = None,
    given: PlanInput | None = None,
    window_s: _Window = 7 * 86400,
    generation_flow: str = GENERATION_FLOW,
) -> list[dict[str, Any]] | State[Any]:
    """Compare past generations with the plan: "planned 24 s a burst, got 27 s over 312 runs", and Little's law.

    Reads runs from the Prefect API, changes nothing, and writes one artifact for each storage
    (`cachewatch-check-STORAGE`) with the verdict, and past runs on the plan's picture.

    Args:
        plan_files: PLAN.yaml files on the worker's machine, one for each storage to compare with its plan.
        given: A plan given here instead of in a file.
        window_s: How far to look back.
        generation_flow: Name of the flow whose runs are read.

    Returns:
        One check for each plan, as plain values; or a state of type FAILED named `Refused` with one sentence, if the
        input cannot be acted on.
    """
    logger = get_run_logger()
    end = datetime.datetime.now(datetime.UTC)
    start = end - datetime.timedelta(seconds=window_s)
    checks = []
    try:
        plans = [*map(read_plan, plan_files or []), *([given] if given is not None else [])]
        if not plans:
            raise InputError("there is no plan to compare with: give plan_files, or a plan here")
        records = read_run_records(start, end, generation_flow)
        for inputs in plans:
            check = check_history(records, inputs, start.timestamp(), end.timestamp())
            checks.append((check, plan(inputs)))
    except CachewatchError as error:
        return _refused(error)
    for check, answer in checks:
        say = logger.warning if check.verdict in ("slower", "faster") else logger.info
        say("%s: %s (%s)", check.storage, check.verdict, check.reason)
        create_markdown_artifact(
            key=f"cachewatch-check-{slugify(check.storage, most=200, other='unnamed')}",
            markdown=check_markdown(check, draw(answer, answer.answers[0], check.met)),
            description=f"{check.storage} against its plan: {check.verdict}",
        )
    return [dataclasses.asdict(check) for check, _ in checks]


def _inputs(plan_file: Path | None, given: PlanInput | None) -> PlanInput:
    if (plan_file is None) == (given is None):
        raise InputError("give either plan_file or a plan here, and not both")
    return read_plan(plan_file) if plan_file is not None else given  # type: ignore[return-value]


def _limit(n: int, measured: bool) -> int | str:
    """The limit to set, or why none is."""
    if not n:
        return "not even one job is within what was measured: measure more streams"
    return n if measured else "its figures were not measured: run cachewatch probe"


def _refused(error: CachewatchError) -> State[Any]:
    return Failed(name="Refused", message=error.message)
