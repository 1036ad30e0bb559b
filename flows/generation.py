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
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect import flow, get_run_logger
from prefect.blocks.system import Secret
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed, State
from prefect_cachewatch.tasks.artifacts import AnyLogger, publish_failure
from prefect_cachewatch.tasks.generation import Attempt, monitor_growth, run_generator
from prefect_cachewatch.tasks.logs import drop_empty_tracebacks
from prefect_cachewatch.tasks.publication import collect_builds, publisher_of, verify_build
from prefect_cachewatch.tasks.reporter import LOG_EVERY_S, Reporter
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.config import CacheJob, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.delivery import Delivery, Publication, describe_publication, growth_summary
from prefect_cachewatch.errors import CachewatchError, InputError
from prefect_cachewatch.output import OutputPump
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.publish.suspects import Suspect
from prefect_cachewatch.report import (
    Report,
    build_report,
    cached_report,
    check_report_path,
    suspected_paths,
    write_report,
)
from prefect_cachewatch.retry import decide_retry
from prefect_cachewatch.rundir import make_run_directory
from prefect_cachewatch.site import CacheSite, check_command
from prefect_cachewatch.stall import effective_poll_s
from prefect_cachewatch.text import for_terminal, redact
from prefect_cachewatch.units import format_duration
from prefect_cachewatch.watch import Outcome, Watch

__all__ = ["CacheGenerationError", "GenerationSummary", "final_state", "generate_cache", "show_output"]

# Whether the generator's output is copied to this process's own: the command does so, a worker does not.
show_output: ContextVar[bool] = ContextVar("show_output", default=False)

_TASKS_END_S = 20.0


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
        publish: How the finished cache is verified and published; without it, it is only generated.
    """
    logger = get_run_logger()
    drop_empty_tracebacks()
    try:
        inputs = _prepare(job, stall, stop, report, log, logger, publish)
        with contextlib.ExitStack() as stack:
            if inputs.delivery is not None:
                stack.enter_context(inputs.delivery)
                if (cached := _cached(inputs)) is not None:
                    return cached
                inputs = _begin_delivery(inputs, clean=retry.on_retry == "clean")
            job = inputs.job
            site = CacheSite(job.cache_dirs, ignore=job.ignore, expected_bytes=job.expected_bytes)
            state = _run_attempts(inputs, stack.enter_context(site), retry)
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
        retries = context.flow.retries or 0
        if context.flow_run.run_count <= retries:
            raise CacheGenerationError(f"{state.name}: {state.message}")
    return state


def _prepare(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    report: Path | None,
    log: Path | None,
    logger: AnyLogger,
    publish: PublishPolicy | None,
) -> _Inputs:
    """Check all that can be checked before anything is touched; raises InputError."""
    if not job.cache_dirs and publish is None:
        raise InputError("the job has no cache_dirs: name the directory that must grow, or publish into a store")
    delivery = Delivery(job, publish) if publish is not None else None
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
    if publish is not None and publish.check_command:
        check_command(publish.check_command, env, str(job.cwd) if job.cwd else None)
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
    return _Inputs(job, stall, stop, env, tuple(secrets.values()), run_dir, report, log, logger, delivery)


def _cached(inputs: _Inputs) -> State[Any] | None:
    """The end of a run whose cache is whole already; None where it has to be generated."""
    started_s = time.time()
    assert inputs.delivery is not None
    found = inputs.delivery.find_cached()
    if found is None:
        inputs.delivery.require_space()
        return None
    message = describe_publication(inputs.job.name, found)
    report = cached_report(
        found, name=inputs.job.name, command=inputs.job.command, message=message, started_s=started_s
    )
    _write(inputs, report, "report.json")
    inputs.logger.info(message)
    return Completed(name="Cached", message=message, data=_summary(inputs, [], found))


def _begin_delivery(inputs: _Inputs, *, clean: bool) -> _Inputs:
    """Take the build's directory; the job goes on with its path."""
    delivery = inputs.delivery
    assert delivery is not None
    if not delivery.store:  # checked and made before the marker goes
        CacheSite(inputs.job.cache_dirs, expected_bytes=inputs.job.expected_bytes).close()
    removed = delivery.begin(clean=clean, window_s=inputs.stall.stall_after_s)
    _log_suspects(inputs, removed)
    inputs.logger.info("generating build %s at %s", delivery.target.build_id, delivery.target.path)
    visible = {name: value for name, value in delivery.env.items() if name not in inputs.job.env_secrets}
    return replace(inputs, job=delivery.job, env=inputs.env | visible)


def _log_suspects(inputs: _Inputs, removed: Sequence[Suspect]) -> None:
    if removed:
        names = ", ".join(for_terminal(suspect.path, 100) for suspect in removed[:5])
        more = f" and {len(removed) - 5} more" if len(removed) > 5 else ""
        inputs.logger.warning("removed %d files that may be cut, before resuming: %s%s", len(removed), names, more)


def _deliver(inputs: _Inputs, outcomes: list[Outcome], report: Report) -> State[Any]:
    """Verify, publish and activate what a completed attempt wrote."""
    delivery = inputs.delivery
    assert delivery is not None
    verified: State[Any] = verify_build(delivery, inputs.env, inputs.secrets, return_state=True)
    state = verified
    if verified.is_completed():
        growth = growth_summary(outcomes[-1], len(outcomes))
        state = publisher_of(delivery)(delivery, growth, return_state=True)
    done = delivery.publication or delivery.unfinished()
    published = state.is_completed()
    message = state.message or "the build was not published"
    name = "completed" if published else "verification_failed"
    _write(inputs, replace(report, outcome=name, message=message, publication=done), f"report-{report.attempt}.json")
    if not published:
        inputs.logger.error(message)
        return Failed(name="VerificationFailed", message=message)
    inputs.logger.info(message)
    if done.current:
        collect_builds(delivery)
    return Completed(message=message, data=_summary(inputs, outcomes, done))


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
                return _deliver(inputs, outcomes, report)
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
            _log_suspects(inputs, inputs.delivery.prepare_retry(inputs.stall.stall_after_s, suspected_paths(report)))
        pause_s = retry.backoff_before(number + 1, random.random())  # noqa: S311 - jitter, not a secret
        logger.warning("%s; next attempt in %s", decision.reason, format_duration(pause_s))
        time.sleep(pause_s)


def _run_attempt(inputs: _Inputs, site: CacheSite, number: int) -> tuple[Outcome, Report]:
    """Run `generate-N` and `monitor-N` side by side; the tree is gone when this returns or raises."""
    pump = OutputPump(inputs.log or inputs.run_dir / f"generator-{number}.log", pass_through=show_output.get())
    watch = Watch(site, inputs.job, inputs.stall, inputs.stop, env=inputs.env, output=pump)
    attempt = Attempt(watch)
    reporter = Reporter(watch, inputs.logger, inputs.secrets, LOG_EVERY_S)
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
    if attempt.failure is not None:
        raise attempt.failure
    if watch.error is not None:
        raise watch.error
    outcome = watch.finish()
    return outcome, _report(inputs, outcome, pump, number)


def _report(inputs: _Inputs, outcome: Outcome, pump: OutputPump, number: int) -> Report:
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
    _write(inputs, report, f"report-{number}.json")
    if outcome.name not in ("completed", "cancelled"):
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
