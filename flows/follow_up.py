"""`follow_up_stall`: the flow that an automation starts when a generation has stalled or failed.

It looks at the cause and at the job's last runs. A single failure whose cause may end is run again after a pause, on any
free worker of the pool. The attempts within one run are made on one worker.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import datetime
from typing import Annotated, Any
from uuid import UUID

from prefect import State, flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.states import Failed
from pydantic import Field

from prefect_cachewatch.common.text import for_markdown, for_terminal, slugify
from prefect_cachewatch.config.quantities import DURATION
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.followup import Rerun, decide_follow_up
from prefect_cachewatch.tasks.follow_up import FailedRun, read_failed_run, start_again

_Delay = Annotated[float, Field(ge=0, le=7 * 86400), DURATION]
_Window = Annotated[float, Field(gt=0, le=366 * 86400), DURATION]
_ROWS = 20


@flow(name="follow-up-stall", flow_run_name="after-{flow_run_id}", log_prints=False)
def follow_up_stall(
    flow_run_id: UUID,
    rerun: Rerun = "never",
    delay_s: _Delay = 600,
    window_s: _Window = 7 * 86400,
) -> dict[str, Any] | State[Any]:
    """Look at a failed generation among its job's last runs; run it again if it is the first failure in a row and may pass.

    Args:
        flow_run_id: The flow run that stalled or failed; an automation fills it in: {{ flow_run.id | string }}.
        rerun: Whether a first failure is run again, with the same parameters; a second in a row and one that lasts never are.
        delay_s: Pause before it is run again: time for a device or a busy server to recover.
        window_s: How far back the job's runs are looked at.

    Returns:
        `run_again`, `failures_in_a_row`, `sentence` and `flow_run_id` of the run that was started; or a state of type
        FAILED named `Refused` with one sentence, if there is no such run or it ended otherwise.
    """
    logger = get_run_logger()
    try:
        failed = read_failed_run(flow_run_id, window_s)
    except InputError as error:
        return Failed(name="Refused", message=error.message)
    decision = decide_follow_up(failed.ends, rerun if failed.deployment_id is not None else "never")
    started = start_again(failed, delay_s) if decision.run_again else None
    logger.warning("%s: %s", for_terminal(failed.job), decision.sentence)
    create_markdown_artifact(
        key=f"cachewatch-follow-up-{slugify(failed.job)}",
        markdown=_markdown(failed, decision.sentence),
        description=f"After a failure of {for_markdown(failed.job)}",
    )
    return {
        "run_again": decision.run_again,
        "failures_in_a_row": decision.failures_in_a_row,
        "sentence": decision.sentence,
        "flow_run_id": str(started) if started is not None else None,
    }


def _markdown(failed: FailedRun, sentence: str) -> str:
    rows = [f"| {_time(end.ended_at)} | {for_markdown(end.state_name)} | {for_markdown(end.message, 300)} |" for end in failed.ends[:_ROWS]]  # fmt: skip
    return "\n".join(
        [
            f"**{for_markdown(failed.job)}**: {for_markdown(sentence, 1000)}",
            "",
            "| ended | state | message |",
            "|---|---|---|",
            *rows,
        ]
    )


def _time(when: datetime.datetime | None) -> str:
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC") if when else "–"
