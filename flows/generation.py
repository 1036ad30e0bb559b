"""`generate_cache`: the guarded generation as a Prefect flow.

Per attempt two sibling tasks run side by side, `generate-N` and `monitor-N`. Attempts are made in
the flow's body, so that each is a bar in the UI, and the flow ends by returning a state: Completed,
or of type FAILED and named `Stalled`, `GeneratorFailed`, `FilesystemUnresponsive`,
`DeadlineExceeded` or `Refused`. With a publish policy the cache is verified and published after it:
Completed named `Cached` where it is whole already, `VerificationFailed` where the checks refuse it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from prefect import flow, get_run_logger
from prefect.blocks.system import Secret
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.config import CACHE_DIR_PLACEHOLDER, CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.delivery import Delivery, Publication
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.examination import Examiner, secret_values
from prefect_cachewatch.flows.publishing import begin_build, deliver_build, find_cached, prepare_retry, resume_build
from prefect_cachewatch.output import OutputPump
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.report import Report, build_report, check_report_path, write_report
from prefect_cachewatch.retry import decide_retry
from prefect_cachewatch.rundir import make_run_directory
from prefect_cachewatch.runhistory import history_path, past_runs, remember_run
from prefect_cachewatch.site import CacheSite, check_command
from prefect_cachewatch.stall import effective_poll_s
from prefect_cachewatch.tasks.artifacts import AnyLogger, publish_completion, publish_failure
from prefect_cachewatch.tasks.events import describe_end, emit_generation_event
from prefect_cachewatch.tasks.generation import Attempt, monitor_growth, run_generator
from prefect_cachewatch.tasks.logs import drop_empty_tracebacks
from prefect_cachewatch.tasks.reporter import LOG_EVERY_S, Reporter
from prefect_cachewatch.text import redact
from prefect_cachewatch.units import format_duration
from prefect_cachewatch.watch import Outcome, Watch

__all__ = [
    "CacheGenerationError",
    "GenerationSummary",
    "View",
    "final_state",
    "generate_cache",
    "live_view",
    "show_output",
]

# Whether the generator's output is copied to this process's own: the command does so, a worker does not.
show_output: ContextVar[bool] = ContextVar("show_output", default=False)

_TASKS_END_S = 20.0


class View(Protocol):
    """Shows an attempt to a person; see `prefect_cachewatch.cli.progress.ProgressLine`."""

    def sampled(self, watch: Watch) -> None:
        """Take in a measurement."""

    def clear(self) -> None:
        """Leave the screen to somebody else for a moment."""

    def close(self) -> None:
        """Leave the screen."""


# What shows an attempt in a terminal while it runs; the command sets it.
live_view: ContextVar[View | None] = ContextVar("live_view", default=None)


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


@dataclass(frozen=True)
class _Inputs:
    job: CacheJob
    stall: StallPolicy
    stop: StopPolicy
    env: dict[str, str]
    secrets: tuple[str, ...]
    run_dir: Path
    report: Path | None
    log: Path | None
    bundle_dir: Path | None
    bundle: bool
    logger: AnyLogger
    delivery: Delivery | None = None


@flow(name="generate-cache", flow_run_name="{job.name}", validate_parameters=True)
def generate_cache(
    job: CacheJob,
    stall: StallPolicy = StallPolicy(),  # noqa: B008 - frozen, and the UI's form shows the defaults
    stop: StopPolicy = StopPolicy(),  # noqa: B008
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008
    report: Path | None = None,
    log: Path | None = None,
    bundle_dir: Path | None = None,
    bundle: bool = True,
    publish: PublishPolicy | None = None,
) -> State[Any]:
    """Generate a tensor cache under guard; on a stall stop the generator's whole tree and say why.

    Args:
        job: What to run, and which directories must grow.
        stall: When silence is a stall.
        stop: How the process tree is stopped.
        retry: Whether and when a failed attempt is made again.
        report: File for the last attempt's report as JSON, on the machine that runs the flow.
        log: File for the generator's output; default in the run directory.
        bundle_dir: Where the post-mortem of a stall goes; default in the user's state directory.
        bundle: Whether a post-mortem bundle is written.
        publish: How the finished cache is verified and published; without it, it is only generated.
    """
    logger = get_run_logger()
    drop_empty_tracebacks()
    try:
        delivery = Delivery(job, publish) if publish is not None else None
        inputs = _prepare(job, stall, stop, report, log, bundle_dir, bundle, logger, delivery)
        clean = retry.on_retry == "clean"
        with contextlib.ExitStack() as stack:
            if delivery is not None:
                if (cached := find_cached(delivery, job)) is not None:
                    return _cached(inputs, cached)
                stack.enter_context(delivery)
                job, told = begin_build(delivery, job, clean=clean, logger=logger)
                inputs = replace(inputs, job=job, env=inputs.env | told)
            site = CacheSite(job.cache_dirs, ignore=job.ignore, expected_bytes=job.expected_bytes)
            stack.enter_context(site)
            if delivery is not None:
                resume_build(delivery, window_s=stall.stall_after_s, clean=clean, logger=logger)
            state = _run_attempts(inputs, site, retry)
    except InputError as error:
        state = Failed(name="Refused", message=error.message)
    return final_state(state)


def final_state(state: State[Any]) -> State[Any]:
    """Give a state back to Prefect in the way that its own flow retries need.

    Args:
        state: how the run ended.

    Returns:
        The same state.

    Raises:
        CacheGenerationError: it is a failure, and Prefect is to run the flow again.
    """
    # A returned Failed state is never retried by Prefect (in a worker it even crashes the run): where the user has
    # asked for flow retries, all runs but the last must raise.
    context = FlowRunContext.get()
    if state.is_failed() and context is not None and context.flow_run is not None:
        retries = (context.flow.retries if context.flow else None) or 0
        if context.flow_run.run_count <= retries:
            raise CacheGenerationError(f"{state.name}: {state.message}")
    return state


def _prepare(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    report: Path | None,
    log: Path | None,
    bundle_dir: Path | None,
    bundle: bool,
    logger: AnyLogger,
    delivery: Delivery | None,
) -> _Inputs:
    """Check all that can be checked before anything is touched; raises InputError."""
    if delivery is None and any(CACHE_DIR_PLACEHOLDER in str(path) for path in job.cache_dirs):
        raise InputError("the job names no cache_dirs: name the directory that must grow, or publish into a store")
    secrets: dict[str, str] = {}
    for variable, block in job.env_secrets.items():
        try:
            loaded: Any = Secret.load(block)
        except ValueError as error:
            raise InputError(
                f"Prefect Secret block {block!r} (env_secrets.{variable}) does not exist: create it under Blocks in the UI"
            ) from error
        secrets[variable] = str(loaded.get())
    env = dict(os.environ) | job.env | secrets
    for command in (job.command, delivery.policy.check_command if delivery else None):
        if command:
            check_command(command, env, str(job.cwd) if job.cwd else None)
    if report is not None:
        check_report_path(report)
    poll_s = effective_poll_s(stall)
    if poll_s < stall.poll_s:
        logger.info(
            "the poll of %s does not fit twice into the shortest window: measuring every %s",
            format_duration(stall.poll_s),
            format_duration(poll_s),
        )
    context = FlowRunContext.get()
    run_id = str(context.flow_run.id) if context and context.flow_run else str(uuid4())
    run_dir = make_run_directory(job.name, run_id)
    hidden = tuple({*secrets.values(), *secret_values(env)})
    return _Inputs(job, stall, stop, env, hidden, run_dir, report, log, bundle_dir, bundle, logger, delivery)


def _run_attempts(inputs: _Inputs, site: CacheSite, retry: RetryPolicy) -> State[Any]:
    logger, outcomes = inputs.logger, list[Outcome]()
    start_bytes: int | None = None
    while True:
        number = len(outcomes) + 1
        outcome, report = _run_attempt(inputs, site, number)
        outcomes.append(outcome)
        if start_bytes is None:
            start_bytes = outcome.samples[0].bytes_present if outcome.samples else 0
        if outcome.name == "completed":
            logger.info(outcome.message)
            if inputs.delivery is not None:
                return _deliver(inputs, inputs.delivery, outcomes, report)
            return Completed(message=outcome.message, data=_summary(inputs, outcomes))
        logger.error(outcome.message)
        decision = decide_retry(retry, outcomes, start_bytes, inputs.stall.min_growth_bytes)
        if not decision.again:
            if number > 1 or retry.attempts > 1:
                logger.info("no further attempt: %s", decision.reason)
            return Failed(name=_state_name(outcome), message=outcome.message)
        if retry.on_retry == "clean":
            cleaned = site.clean()
            logger.info("removed %s files of the attempts so far", f"{cleaned['removed']:,}")
        elif inputs.delivery is not None:
            prepare_retry(inputs.delivery, report, window_s=inputs.stall.stall_after_s, logger=logger)
        pause_s = retry.backoff_before(number + 1, random.random())  # noqa: S311 - jitter, not a secret
        logger.warning("%s; next attempt in %s", decision.reason, format_duration(pause_s))
        time.sleep(pause_s)


def _cached(inputs: _Inputs, report: Report) -> State[Any]:
    _write(inputs, report, "report.json")
    inputs.logger.info(report.message)
    return Completed(name="Cached", message=report.message, data=_summary(inputs, [], report.publication))


def _deliver(inputs: _Inputs, delivery: Delivery, outcomes: list[Outcome], report: Report) -> State[Any]:
    state, report = deliver_build(delivery, inputs.env, inputs.secrets, outcomes, report, inputs.logger)
    _write(inputs, report, f"report-{report.attempt}.json")
    if state.is_failed():
        return state
    return Completed(message=state.message, data=_summary(inputs, outcomes, report.publication))


def _run_attempt(inputs: _Inputs, site: CacheSite, number: int) -> tuple[Outcome, Report]:
    """Run `generate-N` and `monitor-N` side by side; the tree is gone when this returns or raises."""
    view = live_view.get()
    pump = OutputPump(
        inputs.log or inputs.run_dir / f"generator-{number}.log",
        pass_through=show_output.get(),
        before_write=view.clear if view else None,
    )
    examiner = Examiner(secrets=inputs.secrets, bundles=inputs.bundle, bundle_root=inputs.bundle_dir)

    def on_sample(watch: Watch) -> None:
        examiner.sampled(watch)
        if view is not None:
            view.sampled(watch)

    watch = Watch(
        site, inputs.job, inputs.stall, inputs.stop, env=inputs.env, output=pump,
        on_sample=on_sample, before_stop=examiner.before_stop,
    )  # fmt: skip
    attempt = Attempt(watch)
    history = past_runs(history_path(inputs.job.name, site.paths))
    reporter = Reporter(watch, inputs.logger, inputs.secrets, LOG_EVERY_S, attempt=number, history=history)
    futures = []
    try:
        futures.append(run_generator.with_options(task_run_name=f"generate-{number}").submit(attempt))
        futures.append(monitor_growth.with_options(task_run_name=f"monitor-{number}").submit(attempt))
        attempt.ready.wait()
        if attempt.failure is None:
            reporter.start()
        for future in futures:
            future.wait()
    finally:
        # Also the way out of a cancellation, which arrives here as a TerminationSignal: the flow process does not
        # leave before the tree has gone, and a tree that will not go holds it for no longer than this.
        reporter.close()
        if watch.guard is not None and not watch.guard.gone.is_set():
            watch.cancel("the flow run was cancelled")
            watch.guard.wait(inputs.stop.grace_s + _TASKS_END_S)
        for future in futures:  # the monitor makes one last scan; the site must not be closed under it
            future.wait(_TASKS_END_S)
    if attempt.failure is not None:
        raise attempt.failure
    if watch.error is not None:
        raise watch.error
    if view is not None:
        view.close()
    outcome = examiner.conclude(watch, watch.finish())
    return outcome, _report(inputs, outcome, examiner, pump, number)


def _report(inputs: _Inputs, outcome: Outcome, examiner: Examiner, pump: OutputPump, number: int) -> Report:
    """Write the report to disk first, then publish; neither failure hides the outcome."""
    report: Report = build_report(
        outcome,
        name=inputs.job.name,
        command=inputs.job.command,
        log_tail=[redact(line, inputs.secrets) for line in pump.tail_lines(50)],
        attempt=number,
        secrets=inputs.secrets,
    )
    if inputs.delivery is not None:
        report = replace(report, publication=inputs.delivery.unfinished())
    report = examiner.write_bundle(report, pump)
    _write(inputs, report, f"report-{number}.json")
    if report.bundle is not None:
        inputs.logger.info("post-mortem: cachewatch report %s", report.bundle)
    emit_generation_event(*describe_end(report))
    if outcome.name == "completed":
        path = history_path(report.name, report.cache_dirs)
        remember_run(path, report)
        publish_completion(report, past_runs(path), inputs.stall, inputs.logger)
    elif outcome.name != "cancelled":
        publish_failure(report, inputs.logger)
    return report


def _write(inputs: _Inputs, report: Report, name: str) -> None:
    for path in (inputs.run_dir / name, inputs.report):
        if path is not None:
            try:
                write_report(report, path)
            except InputError as error:
                inputs.logger.warning(error.message)


def _state_name(outcome: Outcome) -> str:
    if outcome.kind == "filesystem_unresponsive":
        return "FilesystemUnresponsive"
    return {"stalled": "Stalled", "deadline_exceeded": "DeadlineExceeded"}.get(outcome.name, "GeneratorFailed")


def _summary(inputs: _Inputs, outcomes: list[Outcome], publication: Publication | None = None) -> GenerationSummary:
    last = outcomes[-1] if outcomes else None
    found = publication if last is None else None
    return GenerationSummary(
        name=inputs.job.name,
        attempts=len(outcomes),
        bytes_written=last.growth.bytes_written if last else 0,
        bytes_present=last.growth.bytes_present if last else found.total_bytes if found else 0,
        files_present=last.growth.files_present if last else found.total_files if found else 0,
        duration_s=round(last.duration_s, 3) if last else 0.0,
        first_write_s=round(last.first_write_s, 3) if last and last.first_write_s is not None else None,
        longest_pause_s=round(last.longest_pause_s, 3) if last else 0.0,
        cache_dirs=list(last.paths) if last else [found.path] if found else [],
        run_dir=str(inputs.run_dir),
        publication=publication,
    )
