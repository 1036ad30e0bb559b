"""`generate_cache`: the guarded generation as a Prefect flow.

Per attempt two sibling tasks run side by side, `generate-N` and `monitor-N`. Attempts are made in
the flow's body, so that each is a bar in the UI, and the flow ends by returning a state: Completed,
or of type FAILED and named `Stalled`, `GeneratorFailed`, `FilesystemUnresponsive`,
`DeadlineExceeded` or `Refused`.
"""

from __future__ import annotations

import os
import random
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from prefect import flow, get_run_logger
from prefect.blocks.system import Secret
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.examination import Examiner, secret_values
from prefect_cachewatch.output import OutputPump
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

__all__ = ["CacheGenerationError", "GenerationSummary", "View", "generate_cache", "live_view", "show_output"]

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
    """
    logger = get_run_logger()
    drop_empty_tracebacks()
    try:
        inputs = _prepare(job, stall, stop, report, log, bundle_dir, bundle, logger)
        with CacheSite(job.cache_dirs, ignore=job.ignore, expected_bytes=job.expected_bytes) as site:
            state = _run_attempts(inputs, site, retry)
    except InputError as error:
        state = Failed(name="Refused", message=error.message)
    return _final(state)


def _final(state: State[Any]) -> State[Any]:
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
) -> _Inputs:
    """Check all that can be checked before anything is touched; raises InputError."""
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
    check_command(job.command, env, str(job.cwd) if job.cwd else None)
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
    return _Inputs(job, stall, stop, env, hidden, run_dir, report, log, bundle_dir, bundle, logger)


def _run_attempts(inputs: _Inputs, site: CacheSite, retry: RetryPolicy) -> State[Any]:
    logger, outcomes = inputs.logger, list[Outcome]()
    start_bytes: int | None = None
    while True:
        number = len(outcomes) + 1
        outcome = _run_attempt(inputs, site, number)
        outcomes.append(outcome)
        if start_bytes is None:
            start_bytes = outcome.samples[0].bytes_present if outcome.samples else 0
        if outcome.name == "completed":
            logger.info(outcome.message)
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
        pause_s = retry.backoff_before(number + 1, random.random())  # noqa: S311 - jitter, not a secret
        logger.warning("%s; next attempt in %s", decision.reason, format_duration(pause_s))
        time.sleep(pause_s)


def _run_attempt(inputs: _Inputs, site: CacheSite, number: int) -> Outcome:
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
    _report(inputs, outcome, examiner, pump, number)
    return outcome


def _report(inputs: _Inputs, outcome: Outcome, examiner: Examiner, pump: OutputPump, number: int) -> None:
    """Write the report to disk first, then publish; neither failure hides the outcome."""
    report: Report = build_report(
        outcome,
        name=inputs.job.name,
        command=inputs.job.command,
        log_tail=[redact(line, inputs.secrets) for line in pump.tail_lines(50)],
        attempt=number,
        secrets=inputs.secrets,
    )
    report = examiner.write_bundle(report, pump)
    for path in (inputs.run_dir / f"report-{number}.json", inputs.report):
        if path is not None:
            try:
                write_report(report, path)
            except InputError as error:
                inputs.logger.warning(error.message)
    if report.bundle is not None:
        inputs.logger.info("post-mortem: cachewatch report %s", report.bundle)
    emit_generation_event(*describe_end(report))
    if outcome.name == "completed":
        path = history_path(report.name, report.cache_dirs)
        remember_run(path, report)
        publish_completion(report, past_runs(path), inputs.stall, inputs.logger)
    elif outcome.name != "cancelled":
        publish_failure(report, inputs.logger)


def _state_name(outcome: Outcome) -> str:
    if outcome.kind == "filesystem_unresponsive":
        return "FilesystemUnresponsive"
    return {"stalled": "Stalled", "deadline_exceeded": "DeadlineExceeded"}.get(outcome.name, "GeneratorFailed")


def _summary(inputs: _Inputs, outcomes: list[Outcome]) -> GenerationSummary:
    last = outcomes[-1]
    return GenerationSummary(
        name=inputs.job.name,
        attempts=len(outcomes),
        bytes_written=last.growth.bytes_written,
        bytes_present=last.growth.bytes_present,
        files_present=last.growth.files_present,
        duration_s=round(last.duration_s, 3),
        first_write_s=None if last.first_write_s is None else round(last.first_write_s, 3),
        longest_pause_s=round(last.longest_pause_s, 3),
        cache_dirs=list(last.paths),
        run_dir=str(inputs.run_dir),
    )
