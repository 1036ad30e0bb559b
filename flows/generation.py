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

import contextlib
import os
from dataclasses import replace
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.common.secrets import hide, secret_values
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.config.profiles import read_profile
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.flows.attempts import (
    Inputs,
    check_retry,
    is_output_shown,
    live_view,
    prepare,
    run_attempt,
    with_history,
    write_reports,
)
from prefect_cachewatch.flows.retrying import Retrying
from prefect_cachewatch.flows.telling import note_end, note_work, whom_to_tell
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.run.exposure import check_exposure
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.tasks.prefect_api.admission import StorageSlots
from prefect_cachewatch.tasks.prefect_api.labels import label_cause
from prefect_cachewatch.tasks.prefect_api.logs import outlive_readers
from prefect_cachewatch.tasks.prefect_api.origin import GENERATION_FLOW
from prefect_cachewatch.tasks.prefect_api.run_metrics import FlowMetrics
from prefect_cachewatch.tasks.publication import deliver_build, find_cached
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.outcomes import ending_of
from prefect_cachewatch.watching.sections import Publication, Readiness
from prefect_cachewatch.watching.site import CacheDirectories


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
        outputs: Files to write beside the cache: report, log, post-mortem, trace.
        storage: Storage that the cache lies on; each attempt waits for its slots.
        metrics: Prometheus metrics of this run; default none.
        profile: Profile of a known generator: its name and its parameters; job and stall take precedence.
    """
    logger = get_run_logger()
    note_work()
    outlive_readers()
    admission = StorageSlots(storage, job.name)
    run_metrics = FlowMetrics(metrics, job, logger)
    with contextlib.closing(Aside.spawn()) as files:
        try:
            warning = check_exposure({"job": job, "publish": publish, "profile": profile})
            if warning is not None and not is_output_shown():  # a command has printed it on standard error
                logger.warning(warning)
            admission.metrics = exporter = run_metrics.open(files)
            job, stall, key = _with_profile(profile, job, stall)
            admission.check()
            delivery = PublishSession(job, publish.with_key(key), logger, files) if publish is not None else None
            clean, cleaned = retry.on_retry == "clean", ""
            with contextlib.ExitStack() as stack:
                inputs = prepare(job, stall, stop, outputs, logger, delivery, exporter, files=files, stack=stack)
                check_retry(inputs, retry)
                if delivery is not None:
                    stack.enter_context(delivery)
                    if (cached := find_cached(delivery, job, clean=clean, limit_s=stall.max_duration_s)) is not None:
                        state = run_metrics.ended(_cached(inputs, cached))
                        admission.record(state, logger)
                        return state
                    job, job_env = delivery.told()
                    inputs = inputs.with_build_directory(job, job_env)
                    # Before the look at the directory: what a dead run left may be what fills the disk.
                    cleaned = delivery.resume(clean=clean, window_s=stall.stall_after_s)
                job = inputs.job
                site = stack.enter_context(inputs.place.open_site(files=files))
                site.to_clean = clean and (retry.attempts > 1 or stall.learned)
                if delivery is not None:
                    site.own_build, site.growth_mark, site.cleaned = site.paths[0], delivery.target.record, cleaned
                inputs = with_history(inputs, site)
                state = _run_attempts(inputs, site, retry, admission)
                _remember(inputs, admission.outcomes, state)
        except InputError as error:
            state = _refused(job, error)
        except BaseException as error:
            run_metrics.abandon(error)
            if (telling := whom_to_tell.get()) is None or not isinstance(error, TerminationSignal):
                raise
            # A signal to `cachewatch generate`: Prefect would make what is raised Crashed, a fault that needs a person.
            last = telling.report
            telling.interrupted = telling.since_s is None
            note_end()
            ran = last is not None and last.outcome == "cancelled"
            return Cancelled(message=last.message if last and ran else "Cancelled while no generator was running.")
        note_end()
        admission.record(state, logger)
        return final_state(run_metrics.ended(state))


def _with_profile(
    profile: dict[str, Any] | None, job: CacheJob, stall: StallPolicy
) -> tuple[CacheJob, StallPolicy, dict[str, str]]:
    if profile is None:
        return job, stall, {}
    known = read_profile(profile)
    return known.under_job(job), known.under_stall(stall), dict(known.key)


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


def _run_attempts(inputs: Inputs, site: CacheDirectories, retry: RetryPolicy, admission: StorageSlots) -> State[Any]:
    logger, retrying = inputs.logger, Retrying(retry, inputs, site)
    while True:
        number = retrying.made + 1
        note_work()
        live_view.get().attempt_begins(number, retrying.most)
        with admission.slots(logger):  # given back during the backoff
            outcome, report = run_attempt(inputs, site, number, retrying.decide, retrying.most, admission)
        note_work()  # from here on the flow decides, waits and publishes by itself
        admission.outcomes.append(outcome)
        admission.report = report
        if outcome.name == "completed":
            logger.info(outcome.message)
            if inputs.delivery is not None:
                return _deliver(inputs, inputs.delivery, retrying.outcomes, report)
            name = "Ready" if outcome.ready is not None and outcome.ready.left_running else None
            return Completed(name=name, message=outcome.message, data=_summary(inputs, number, report))
        logger.error(outcome.message)
        state, following = ending_of(outcome.name, outcome.kind).state, report.retry
        if following is None or not following.again:
            if following is not None and (number > 1 or retry.attempts > 1):
                logger.info(following.sentence)
            label_cause(report, retrying.lasting, logger)
            if inputs.delivery is not None:
                inputs.delivery.leave()
            return Failed(name=state, message=outcome.message)
        try:
            if (problem := retrying.prepare(outcome, following)) is not None:
                logger.error(problem)
                return Failed(name=state, message=f"{outcome.message} {problem}")
        except InputError as error:  # no attempt beside files that may be cut and cannot be removed
            told = f"No further attempt: {error.message}."
            logger.error("no further attempt: %s", error.message)
            write_reports(inputs, replace(report, facts=f"{report.facts} {told}"), f"report-{number}.json")
            if inputs.delivery is not None:
                inputs.delivery.leave()
            return Failed(name=state, message=f"{outcome.message} {told}")
        retrying.pause(outcome, following)


def _remember(inputs: Inputs, outcomes: list[Outcome], state: State[Any]) -> None:
    """Add the run to the job's history."""
    if inputs.history is not None and outcomes:
        refused = outcomes[-1].name == "completed" and state.is_failed()
        inputs.history.remember(outcomes, "not_published" if refused else None)


def _cached(inputs: Inputs, report: Report) -> State[Any]:
    write_reports(inputs, report, "report.json")
    inputs.logger.info(report.message)
    return Completed(name="Cached", message=report.message, data=_summary(inputs, 0, report))


def _deliver(inputs: Inputs, delivery: PublishSession, outcomes: list[Outcome], report: Report) -> State[Any]:
    state, report = deliver_build(delivery, inputs.env, inputs.secrets, outcomes, report)
    write_reports(inputs, report, f"report-{report.attempt}.json")
    if state.is_failed():
        return state
    return Completed(message=state.message, data=_summary(inputs, report.attempt, report))


def _summary(inputs: Inputs, attempts: int, report: Report) -> GenerationSummary:
    growth = report.growth
    return GenerationSummary(
        name=inputs.job.name,
        attempts=attempts,
        bytes_written=growth.bytes_written,
        bytes_present=growth.bytes_present,
        files_present=growth.files_present,
        duration_s=report.duration_s if attempts else 0.0,
        first_write_s=growth.first_write_s,
        longest_pause_s=growth.longest_pause_s,
        cache_dirs=report.cache_dirs,
        run_dir=str(inputs.run_dir),
        publication=report.publication,
        ready=report.ready,
    )
