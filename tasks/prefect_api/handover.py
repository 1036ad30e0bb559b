"""Hands a run back to its work pool between two attempts, and finds what the process before has left about it."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterator
from typing import Any

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import AwaitingRetry

from prefect_cachewatch.run.bad_ends import GENERATION_FLOW
from prefect_cachewatch.run.handover import Earlier, read_earlier
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger, try_until
from prefect_cachewatch.tasks.prefect_api.origin import this_run

HANDOVER_LABEL = "cachewatch.handover"
_PATIENCE_S = 30.0
_REQUEST_S = 10.0


def earlier_attempts() -> Earlier:
    """Read what the process before this one has left about the attempts of this run; none if it was not handed over."""
    run = this_run()
    text = run.labels.get(HANDOVER_LABEL) if run is not None else None
    return read_earlier(text, run.run_count) if run is not None and isinstance(text, str) else Earlier()


def why_not_elsewhere() -> str:
    """Say why this run cannot be handed to another worker; empty if it can."""
    context, run = FlowRunContext.get(), this_run()
    if run is None or run.deployment_id is None:
        return "it is no run of a deployment"
    if run.work_pool_name is None:
        return "its deployment has no work pool"
    if context is None or context.flow is None or context.flow.name != GENERATION_FLOW:
        return "it is a part of another flow"
    return ""


def hand_over(attempts: Earlier, pause_s: float, message: str, logger: AnyLogger) -> State[Any] | None:
    """Put this run back into its work pool: the state AwaitingRetry, which a free worker takes when it is due.

    The flow must release what it holds and leave Prefect's engine by `Pause` right after that.

    Args:
        attempts: all that were made.
        pause_s: seconds until the next one, from the moment at which Prefect takes it.
        message: of the state.
        logger: the run's logger.

    Returns:
        The state that the run has now; None if it was not handed over, or that is not known (`taken_meanwhile`).
    """
    run = this_run()
    if run is None:
        return None
    problem = "the run could not be handed to another worker, and goes on here"
    answer = try_until(lambda: _ask(run, attempts, pause_s, message), problem, time.monotonic() + _PATIENCE_S, logger)
    if isinstance(answer, State):
        return answer
    if isinstance(answer, str):
        logger.warning("%s: %s", problem, answer)
        with contextlib.suppress(Exception), _client() as client:
            _forget(client, run)
    return None


def taken_meanwhile() -> State[Any] | None:
    """Read once more whether Prefect has taken this run back although no answer came; the state that it has then."""
    run = this_run()
    if run is not None:
        with contextlib.suppress(Exception), _client() as client:
            if (state := _state_elsewhere(client, run)) is not None:
                return state
            _forget(client, run)
    return None


def _forget(client: SyncPrefectClient, run: FlowRun) -> None:
    """Take the count of attempts back, for a later Retry by hand, which begins anew."""
    client.update_flow_run_labels(run.id, {HANDOVER_LABEL: ""})


def _ask(run: FlowRun, attempts: Earlier, pause_s: float, message: str) -> State[Any] | str:
    """Ask once; returns the run's new state, or why Prefect refuses."""
    with _client() as client:
        now = client.read_flow_run(run.id)
        if (state := _state_elsewhere(client, run, now)) is not None:
            return state  # it was handed over, and maybe taken by a worker: the answer was lost
        if now.state is None or not now.state.is_running():
            return f"it is {now.state_name} already"
        if now.empirical_policy.retry_type == "in_process":  # no worker asks for such a run
            return "one of Prefect's own retries of it is under way"
        client.update_flow_run_labels(run.id, {HANDOVER_LABEL: attempts.to_json(run.run_count)})
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=pause_s)
        # Not forced: Prefect keeps a cancellation that comes first, and gives back the deployment's concurrency slot.
        answer: OrchestrationResult[Any] = client.set_flow_run_state(
            run.id, AwaitingRetry(message=message, scheduled_time=due)
        )
        # Prefect refuses what it has done already: the run itself says which it is.
        state = _state_elsewhere(client, run)
        return state or f"Prefect refuses it ({answer.status.value.lower()})"


def _state_elsewhere(client: SyncPrefectClient, run: FlowRun, now: FlowRun | None = None) -> State[Any] | None:
    """Return the state of a run that is in its pool again, or in another process; None if it is still this one's."""
    now = client.read_flow_run(run.id) if now is None else now
    if now.state is not None and now.state.is_scheduled():
        # With a process noted, a run that waits would be cancelled by nobody: Prefect leaves that to the one that has it.
        with contextlib.suppress(Exception):
            client.request(
                "PATCH", "/flow_runs/{id}", path_params={"id": run.id}, json={"infrastructure_pid": None}
            ).raise_for_status()
        return now.state
    taken = now.state is not None and (now.state.is_pending() or now.run_count > run.run_count)
    return now.state if taken else None


@contextlib.contextmanager
def _client() -> Iterator[SyncPrefectClient]:
    """Open a client that asks once and soon gives up: each further try reads the run first."""
    settings: dict[Any, Any] = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: _REQUEST_S}
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client
