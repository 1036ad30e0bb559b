"""`generate_cache`: the guarded generation as a Prefect flow.

In each attempt two sibling tasks run side by side, `generate-N` and `monitor-N`. Attempts are made in
the flow's body, so that each is a bar in the UI. The flow ends by returning a state: Completed,
Completed named `Ready` if a server was left running, or of type FAILED and named `Stalled`,
`GeneratorFailed`, `FilesystemUnresponsive`, `DeadlineExceeded` or `Refused`. With a publish policy
the cache is then verified and published: Completed named `Cached` if it was whole already,
`VerificationFailed` if the checks refuse it.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import os
import signal
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.common.secrets import hide, secret_values
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.config.profiles import read_profile
from prefect_cachewatch.engine.front import error_of
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.flows.attempts import (
    ShownRun,
    Told,
    count_refusal,
    is_output_shown,
    require_absolute,
    start_engine,
)
from prefect_cachewatch.flows.context import live_view
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.run.exposure import check_exposure
from prefect_cachewatch.run.placement import require_directories
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.tasks.prefect_api.admission import StorageSlots
from prefect_cachewatch.tasks.prefect_api.artifacts import AnyLogger
from prefect_cachewatch.tasks.prefect_api.labels import label_cause
from prefect_cachewatch.tasks.prefect_api.logs import outlive_readers
from prefect_cachewatch.tasks.prefect_api.origin import GENERATION_FLOW
from prefect_cachewatch.watching.outcomes import ending_of
from prefect_cachewatch.watching.sections import Publication, Readiness


class CacheGenerationError(CachewatchError):
    """A failed run that Prefect's own flow retries are to run again."""


class GenerationSummary(BaseModel):
    """The result of a completed run."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Name of the job.")
    attempts: int = Field(description="Attempts made, the successful one included.")
    bytes_written: int = Field(description="Growth of apparent sizes in the last attempt.")
    bytes_present: int = Field(description="Apparent bytes in the cache directories at the end.")
    files_present: int = Field(description="Files in them.")
    duration_s: float = Field(description="Duration of the last attempt.")
    first_write_s: float | None = Field(description="When its first byte came; null for a warm cache.")
    longest_pause_s: float = Field(description="Its longest pause between two growths.")
    cache_dirs: list[str] = Field(description="The directories, resolved.")
    run_dir: str = Field(description="Where the report and the generator's log lie, on the machine that ran it.")
    publication: Publication | None = Field(default=None, description="What became of the build; null without a store.")
    ready: Readiness | None = Field(
        default=None,
        description="When its server was ready, and how it is stopped; null for a job that is done when it exits.",
    )


@flow(name=GENERATION_FLOW, flow_run_name="{job.name}", validate_parameters=True)
def generate_cache(
    job: CacheJob,
    stall: StallPolicy = StallPolicy(),  # noqa: B008 - frozen, and the UI's form shows the defaults
    stop: StopPolicy = StopPolicy(),  # noqa: B008
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008
    publish: Annotated[PublishPolicy | None, OFF] = None,
    outputs: Outputs = Outputs(),  # noqa: B008
    storage: Annotated[Storage | None, OFF] = None,
    metrics: Annotated[Metrics | None, OFF] = None,
    profile: Annotated[dict[str, Any] | None, OFF] = None,
) -> State[Any]:
    """Generate a tensor cache under guard; on a stall, stop the generator's whole process tree and name the cause.

    Args:
        job: What to run, and which directories must grow.
        stall: When silence is a stall.
        stop: How the process tree is stopped.
        retry: Whether and when a failed attempt is made again.
        publish: How the finished cache is verified and published; without it, it is only generated.
        outputs: Files to write beside the cache: report, log, post-mortem, recording.
        storage: Storage that the cache lies on; each attempt waits for its slots.
        metrics: Prometheus metrics of this run; default none.
        profile: Profile of a known generator: its name and its parameters; job and stall take precedence.
    """
    logger = get_run_logger()
    view = live_view.get()
    view.begin()
    outlive_readers()
    admission, front, shown, counted = StorageSlots(storage, job.name), None, None, None
    try:
        require_absolute(metrics)
        counted = metrics
        warning = check_exposure({"job": job, "publish": publish, "profile": profile})
        if warning is not None and not is_output_shown():  # a command has printed it on standard error
            logger.warning(warning)
        known = None if profile is None else read_profile(profile)
        if known is not None:
            job, stall, stop, retry = known.under_job(job), known.under(stall), known.under(stop), known.under(retry)
        admission.check()
        if publish is None:
            require_directories(job)
        keyed = publish if publish is None or known is None else publish.with_key(known.key)
        front = start_engine(job, stall, stop, retry, keyed, outputs, admission.storage, metrics)
        shown = ShownRun(front, job, stall, stop, publishes=publish is not None, admission=admission, logger=logger)
        told = shown.follow()
        if told.refused is not None:
            raise error_of(told.refused)
        state = _state_of(told, retry, logger)
    except InputError as error:
        if front is None and counted is not None:
            count_refusal(job, counted, error.message)
        state = _refused(job, error)
    except TerminationSignal:
        if not is_output_shown():
            raise
        # A signal to `cachewatch generate`: Prefect would make what is raised Crashed, a fault that needs a person.
        last = shown.told.report if shown is not None else None
        ran = last is not None and last.outcome == "cancelled"
        return Cancelled(message=last.message if last and ran else "Cancelled while no generator was running.")
    finally:
        if front is not None:
            front.close()
        view.end()
    admission.record(state, logger)
    return final_state(state)


def _refused(job: CacheJob, error: InputError) -> State[Any]:
    message = hide(error.message, secret_values(dict(os.environ) | job.env))
    get_run_logger().error(message)
    return Failed(name="Refused", message=message)


def final_state(state: State[Any]) -> State[Any]:
    """Return a state to Prefect in the form that its own flow retries need.

    Args:
        state: the final state of the run.

    Returns:
        The same state.

    Raises:
        CacheGenerationError: the run failed, and Prefect is to run the flow again.
    """
    # Prefect never retries a returned Failed state (in a worker it even crashes the run). If the user has asked for
    # flow retries, all runs but the last must raise.
    context = FlowRunContext.get()
    if state.is_failed() and context is not None and context.flow_run is not None:
        retries = (context.flow.retries if context.flow else None) or 0
        if context.flow_run.run_count <= retries:
            raise CacheGenerationError(f"{state.name}: {state.message}")
    return state


def _state_of(told: Told, retry: RetryPolicy, logger: AnyLogger) -> State[Any]:
    """Return the state of a run that has ended, by what is left of it."""
    bye, report = told.bye, told.report
    assert bye is not None, "a run that was not refused has an end"
    if bye.outcome == "cancelled":  # a signal asked for it
        raise TerminationSignal(signal.SIGTERM)
    assert report is not None, "a run that was not cancelled before its first attempt has a report"
    if bye.outcome == "cached":
        return Completed(name="Cached", message=bye.message, data=_summary(told, 0, report))
    if bye.outcome == "completed":
        name = "Ready" if report.ready is not None and report.ready.left_running else None
        return Completed(name=name, message=bye.message, data=_summary(told, report.attempt, report))
    if bye.outcome == "not_published":
        logger.error(bye.message)
        return Failed(name="VerificationFailed", message=bye.message)
    if report.retry is not None and not report.retry.again:
        if report.attempt > 1 or retry.attempts > 1:
            logger.info(report.retry.sentence)
        label_cause(report, bye.lasting, logger)
    return Failed(name=ending_of(report.outcome, report.stall.kind).state, message=bye.message)


def _summary(told: Told, attempts: int, report: Report) -> GenerationSummary:
    growth = report.growth
    return GenerationSummary(
        name=report.name,
        attempts=attempts,
        bytes_written=growth.bytes_written,
        bytes_present=growth.bytes_present,
        files_present=growth.files_present,
        duration_s=report.duration_s if attempts else 0.0,
        first_write_s=growth.first_write_s,
        longest_pause_s=growth.longest_pause_s,
        cache_dirs=report.cache_dirs,
        run_dir=told.run_dir,
        publication=report.publication,
        ready=report.ready,
    )
