"""One attempt of the guarded generation in Prefect: its inputs, its two tasks, and its outputs.

`generation` has the loop over attempts and decides how a run ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect.blocks.system import Secret
from prefect.futures import PrefectFuture

from prefect_cachewatch.common.aside import Files, InPlace, look_ahead
from prefect_cachewatch.common.secrets import secret_values, worth_hiding
from prefect_cachewatch.common.statedir import open_run_directory
from prefect_cachewatch.common.units import format_duration
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.engine.events import Stream
from prefect_cachewatch.engine.view import View
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.telling import ContextValue, note_report, note_work
from prefect_cachewatch.metrics.run import RunMetrics
from prefect_cachewatch.report.report import Report, write_report_within
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.run.learning import RunHistory
from prefect_cachewatch.run.output_lines import OutputLines
from prefect_cachewatch.run.outputs import check_outputs_ahead
from prefect_cachewatch.run.placement import Runtime, place_job, require_directories
from prefect_cachewatch.run.runner import Runner, told_to
from prefect_cachewatch.tasks.generation import Attempt, monitor_growth, run_generator
from prefect_cachewatch.tasks.prefect_api.admission import StorageSlots
from prefect_cachewatch.tasks.prefect_api.artifacts import (
    PATIENCE_S,
    AnyLogger,
    publish_completion,
    publish_failure,
)
from prefect_cachewatch.tasks.prefect_api.events import describe_end, emit_generation_event, storage_resource
from prefect_cachewatch.tasks.prefect_api.origin import this_origin, this_run
from prefect_cachewatch.tasks.prefect_api.output_log import OutputLog
from prefect_cachewatch.tasks.prefect_api.reporter import LOG_EVERY_S, ExpectedSize, Reporter
from prefect_cachewatch.watching.attempt import Outcome, Watch
from prefect_cachewatch.watching.sections import NextAttempt
from prefect_cachewatch.watching.site import CacheDirectories, check_command
from prefect_cachewatch.watching.stall import effective_poll_s

# Whether the generator's output is copied to this process's own: the command does so, a worker does not.
show_output: ContextValue[bool] = ContextValue("show_output", False)

Decide = Callable[[Outcome, Watch], NextAttempt | None]
_TASKS_END_S = 20.0
AWAKE_S = 1.0
# A cancelled run is killed 30 s after SIGTERM; by then its grace period is over.
CANCELLED_PATIENCE_S = 3.0


# What shows an attempt in a terminal while it runs; set by the command.
live_view: ContextValue[View] = ContextValue("live_view", View())


@dataclass(frozen=True)
class Inputs:
    """The checked inputs of a run, and where it writes."""

    job: CacheJob
    stall: StallPolicy
    stop: StopPolicy
    env: dict[str, str]
    secrets: tuple[str, ...]
    run_dir: Path
    outputs: Outputs
    logger: AnyLogger
    place: Runtime
    delivery: PublishSession | None = None
    stream: Stream = field(default_factory=Stream)
    metrics: RunMetrics | None = None
    files: Files = field(default_factory=InPlace)
    history: RunHistory | None = None

    def with_build_directory(self, job: CacheJob, env: dict[str, str]) -> Inputs:
        """Return the same inputs for a job that has been given its directories.

        Args:
            job: the job with its directories.
            env: variables to add to its environment.

        Returns:
            New inputs.
        """
        place = self.place.relocated(job)
        return replace(self, job=place.job, place=place, env=self.env | env)


def is_output_shown() -> bool:
    """Say whether a command shows the run on its terminal, so that log lines need not repeat it."""
    # A function of this module, since serve pickles the flow by value and a context variable cannot be pickled.
    return show_output.get()


def prepare(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    outputs: Outputs,
    logger: AnyLogger,
    delivery: PublishSession | None,
    metrics: RunMetrics | None,
    *,
    files: Files,
    stack: contextlib.ExitStack,
) -> Inputs:
    """Check all that can be checked before anything is changed.

    Args:
        job: the job to run.
        stall: the stall policy.
        stop: how the process tree is stopped.
        outputs: the files to write beside the cache.
        logger: the run's logger.
        delivery: the publication into a cache store, or None.
        metrics: the run's metrics, or None.
        files: the helper process that reads and writes for the run, since the run directory may be on a file system
            that hangs.
        stack: closes the run directory and the recording.

    Returns:
        The inputs, with their secrets loaded.

    Raises:
        InputError: an input cannot be used.
    """
    if delivery is None:
        require_directories(job)
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
    place = place_job(job, env, files)
    job = place.job
    if delivery is not None:
        delivery.know_image(place.image_id)
    if delivery is not None and delivery.policy.check_command:
        cwd = str(job.cwd) if job.cwd else None
        look_ahead(files, "check command", check_command, delivery.policy.check_command, env, cwd)
    left_out = delivery.policy.ignore if delivery is not None else None
    record = check_outputs_ahead(files, job, outputs, published=left_out)
    poll_s = effective_poll_s(stall)
    if poll_s < stall.poll_s:
        logger.info(
            "the poll of %s does not fit twice into the shortest window: measuring every %s",
            format_duration(stall.poll_s),
            format_duration(poll_s),
        )
    run = this_run()
    run_id = str(run.id if run is not None else uuid4())
    run_dir = stack.enter_context(contextlib.closing(open_run_directory(files, job.name, run_id))).path
    hidden = tuple({*worth_hiding(secrets.values()), *secret_values(env)})
    stream = stack.enter_context(told_to(live_view.get(), record, files, logger.warning))
    return Inputs(
        job, stall, stop, env, hidden, run_dir, outputs, logger, place, delivery, stream, metrics, files
    )  # fmt: skip


def with_history(inputs: Inputs, site: CacheDirectories) -> Inputs:
    """Return the same inputs with the job's history.

    Args:
        inputs: the run's inputs.
        site: the run's directories, open.
    """
    delivery = inputs.delivery
    # A staged build has another directory each time; the path that consumers open stays the same.
    paths, key = (site.paths, None) if delivery is None else ([delivery.current], delivery.recipe.key)
    history = RunHistory(inputs.job, inputs.stall, paths, inputs.files, inputs.logger.info, key)
    return replace(inputs, history=history)


def check_retry(inputs: Inputs, retry: RetryPolicy) -> None:
    """Check before the start what will be needed for a further attempt; raises InputError."""
    if retry.before_retry and (retry.attempts > 1 or inputs.stall.learned):
        cwd = str(inputs.job.cwd) if inputs.job.cwd else None
        look_ahead(inputs.files, "before_retry", check_command, retry.before_retry, inputs.env, cwd)


def wait_awake(event: threading.Event, seconds: float = math.inf) -> None:
    """Wait for an event in short pieces, in the main thread: a signal that the kernel gives to another one wakes nobody.

    Args:
        event: what is waited for.
        seconds: the longest wait.
    """
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and not event.wait(min(left_s, AWAKE_S)):
        pass


def run_attempt(
    inputs: Inputs,
    site: CacheDirectories,
    number: int,
    decide: Decide,
    most: int | None = None,
    storage: StorageSlots | None = None,
) -> tuple[Outcome, Report]:
    """Run `generate-N` and `monitor-N` side by side; the tree is gone when this returns or raises.

    Args:
        inputs: the run's inputs.
        site: the run's directories, locked.
        number: number of the attempt, from 1.
        decide: says what follows it, for its report.
        most: how many attempts there may be at most.
        storage: the run's share of its storage.

    Returns:
        How it ended, and its report, which has been written and published.

    Raises:
        CachewatchError: the attempt could not be started.
    """
    stalls: queue.SimpleQueue[Report] = queue.SimpleQueue()

    def stalled(report: Report) -> None:
        """Keep a stall that stops nothing; the reporter publishes it."""
        for path in (inputs.run_dir / f"report-{number}.json", inputs.outputs.report):
            runner.write(report, path)
        stalls.put(report)

    runner = Runner(
        inputs.files, inputs.secrets, attempt=number, bundles=inputs.outputs.bundle, bundle_root=inputs.outputs.bundle_dir,
        metrics=inputs.metrics, view=live_view.get(), tell=inputs.stream.tell,
        on_stall=stalled, attempts=most, origin=this_origin(),
        published=inputs.delivery is not None, own=(inputs.outputs.report, inputs.outputs.record),
    )  # fmt: skip
    size = _expected_size(inputs)
    watch = runner.watch(
        inputs.place, site, inputs.stall, inputs.stop, inputs.env,
        log=inputs.outputs.log or inputs.run_dir / f"generator-{number}.log", show_output=show_output.get(),
        expected_bytes=size.size_bytes if size else None, history=inputs.history,
    )  # fmt: skip
    note_work(watch)
    resource = storage_resource(storage.storage if storage is not None else None, site.paths)
    attempt = Attempt(watch, inputs.secrets)
    output = _output_log(inputs, watch)
    reporter = Reporter(
        watch, inputs.logger, LOG_EVERY_S, attempt=number, expected=size, stalls=stalls, output=output, storage=resource
    )
    futures: list[PrefectFuture[Any]] = []

    def end() -> None:
        """Wait, for a bounded time, until the tree is gone and both tasks have ended."""
        reporter.close()
        if watch.supervisor is None or not watch.supervisor.gone.is_set():
            watch.cancel("the flow run was cancelled")
        if watch.supervisor is not None:
            watch.supervisor.wait(inputs.stop.grace_s + _TASKS_END_S)
        for future in futures:  # the monitor makes one last scan; the site must stay open for it
            future.wait(_TASKS_END_S)
        runner.let_go(watch)
        for problem in runner.problems:
            inputs.logger.warning(problem)

    try:
        futures.append(run_generator.with_options(task_run_name=f"generate-{number}").submit(attempt))
        futures.append(monitor_growth.with_options(task_run_name=f"monitor-{number}").submit(attempt))
        wait_awake(attempt.ready)
        if attempt.failure is None:
            reporter.start()
        for future in futures:
            wait_awake(_ended(future))
            future.wait()
    except BaseException:
        # A cancellation arrives here as a TerminationSignal. The flow process waits until the tree has gone, and for a
        # bounded time if the tree does not go.
        end()
        _leave_cancelled(inputs, watch, runner, number, output, resource)
        raise
    end()
    if (failure := attempt.failure or watch.error) is not None:
        raise failure
    outcome = runner.conclude(watch, watch.finish())
    output.end(failed=outcome.name != "completed")
    if inputs.history is not None:
        inputs.history.note(outcome)
    section = decide(outcome, watch)
    return outcome, _report(inputs, watch, outcome, runner, number, resource, retry=section)


def _output_log(inputs: Inputs, watch: Watch) -> OutputLog:
    lines = OutputLines(watch.output, inputs.secrets)
    return OutputLog(lines, inputs.outputs.stream_output, is_shown=show_output.get())


def _ended(future: PrefectFuture[Any]) -> threading.Event:
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    return ended


def _leave_cancelled(
    inputs: Inputs, watch: Watch, runner: Runner, number: int, output: OutputLog, storage: dict[str, str] | None
) -> None:
    """Write the report and the event of an attempt that was broken off, before the worker's grace period is over."""
    if watch.monitor_state is None:
        return  # the attempt had not begun
    try:
        outcome = runner.conclude(watch, watch.finish())
        output.end(failed=True)
        inputs.logger.warning(outcome.message)
        _report(inputs, watch, outcome, runner, number, storage, CANCELLED_PATIENCE_S)
    except Exception as error:  # noqa: BLE001 - a report that fails does not make a cancelled run a crashed one
        inputs.logger.warning("attempt %s was cancelled, and left no report: %s", number, type(error).__name__)


def _report(
    inputs: Inputs,
    watch: Watch,
    outcome: Outcome,
    runner: Runner,
    number: int,
    storage: dict[str, str] | None,
    patience_s: float = PATIENCE_S,
    retry: NextAttempt | None = None,
) -> Report:
    """Write the report to disk, then publish it; neither failure hides the outcome."""
    publication = inputs.delivery.unfinished() if inputs.delivery is not None else None
    report = runner.report(watch, outcome, publication=publication, retry=retry)
    if inputs.delivery is not None:
        inputs.delivery.cut_files = runner.examiner.cut_files
    write_reports(inputs, report, f"report-{number}.json")
    if report.bundle is not None:
        inputs.logger.info("post-mortem: cachewatch report %s", report.bundle)
    emit_generation_event(*describe_end(report), storage)
    if outcome.name == "completed":
        past = inputs.history.past_runs() if inputs.history is not None else []
        pauses_s = [outcome.longest_silence_s, *(run.longest_pause_s for run in past)]
        publish_completion(report, [each for each in pauses_s if each is not None], inputs.stall, inputs.logger)
    else:
        publish_failure(report, inputs.logger, patience_s)
    return report


def _expected_size(inputs: Inputs) -> ExpectedSize | None:
    """Return the size that the job names, else that of the last published build, else of the last run here."""
    if inputs.job.expected_bytes:
        return ExpectedSize(inputs.job.expected_bytes, "")
    if inputs.delivery is not None and (published := inputs.delivery.last_bytes()):
        return ExpectedSize(published, ", as the last build")
    runs = inputs.history.past_runs() if inputs.history is not None else []
    return ExpectedSize(runs[0].bytes_present, ", as the last run") if runs else None


def write_reports(inputs: Inputs, report: Report, name: str) -> None:
    """Write a report into the run directory, and to the path that the caller asked for.

    Args:
        inputs: the run's inputs.
        report: the report.
        name: file name in the run directory.
    """
    again = report.retry is not None and report.retry.again
    note_report(report, last=not again and (inputs.delivery is None or report.outcome != "completed"))
    for path in (inputs.run_dir / name, inputs.outputs.report):
        if path is not None and (problem := write_report_within(inputs.files, report, path)):
            inputs.logger.warning(problem)
