"""Hands a run back to its work pool between two attempts, and finds what the process before has left about it."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Any

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.context import FlowRunContext
from prefect.states import AwaitingRetry

from prefect_cachewatch.run.handover import Earlier, read_earlier
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger, try_until

__all__ = ["HANDOVER_LABEL", "earlier_attempts", "hand_over", "why_not_elsewhere"]

HANDOVER_LABEL = "cachewatch.handover"
_FLOW = "generate-cache"
_PATIENCE_S = 30.0


def earlier_attempts() -> Earlier:
    """Read what the process before this one has left about the attempts of this run; none if it was not handed over."""
    run = _run()
    text = run.labels.get(HANDOVER_LABEL) if run is not None else None
    return read_earlier(text, run.run_count) if run is not None and isinstance(text, str) else Earlier()


def why_not_elsewhere() -> str:
    """Say why this run cannot be handed to another worker; empty if it can."""
    context, run = FlowRunContext.get(), _run()
    if run is None or run.deployment_id is None:
        return "it is no run of a deployment"
    if run.work_pool_name is None:
        return "its deployment has no work pool"
    if context is None or context.flow is None or context.flow.name != _FLOW:
        return "it is a part of another flow"
    return ""


def hand_over(attempts: Earlier, pause_s: float, message: str, logger: AnyLogger) -> State[Any] | None:
    """Put this run back into its work pool: the state AwaitingRetry, which a free worker takes when it is due.

    The flow must release what it holds and leave Prefect's engine by `Pause` right after that.

    Args:
        attempts: all that were made.
        pause_s: seconds until the next one.
        message: of the state.
        logger: the run's logger.

    Returns:
        The state that the run has now; None if it was not handed over, and is to go on here.
    """
    run = _run()
    if run is None:
        return None
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=pause_s)
    state: State[Any] = AwaitingRetry(message=message, scheduled_time=due)
    problem = "the run could not be handed to another worker, and goes on here"
    answer = try_until(lambda: _ask(run, attempts, state), problem, time.monotonic() + _PATIENCE_S, logger)
    if isinstance(answer, str):
        logger.warning("%s: %s", problem, answer)
    return answer if isinstance(answer, State) else None


def _ask(run: FlowRun, attempts: Earlier, state: State[Any]) -> State[Any] | str:
    """Ask once; returns the run's new state, or why Prefect refuses."""
    with get_client(sync_client=True) as client:
        now = client.read_flow_run(run.id)
        if now.state is not None and (
            now.state.is_scheduled() or now.state.is_pending() or now.run_count > run.run_count
        ):
            return now.state  # it was handed over, and maybe taken by a worker: the answer was lost
        if now.state is None or not now.state.is_running():
            return f"it is {now.state_name} already"
        client.update_flow_run_labels(run.id, {HANDOVER_LABEL: attempts.to_json(run.run_count)})
        # Not forced: Prefect keeps a cancellation that comes first, and gives back the deployment's concurrency slot.
        answer = client.set_flow_run_state(run.id, state)
        if answer.status is not SetStateStatus.ACCEPT or answer.state is None:
            return f"Prefect refuses it ({answer.status.value.lower()})"
        # With a process noted, a run that waits would be cancelled by nobody: Prefect leaves that to the one that has it.
        with contextlib.suppress(Exception):
            client.request(
                "PATCH", "/flow_runs/{id}", path_params={"id": run.id}, json={"infrastructure_pid": None}
            ).raise_for_status()
        return answer.state


def _run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None
