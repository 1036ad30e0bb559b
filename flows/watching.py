"""`watch_cache`: the watch over a process that cachewatch did not start, as a Prefect flow.

The run lasts as long as the process. Each stall is published at once as an event, an artifact and an error in the log.
The final state tells the end: Completed, Completed named `Ended` if the exit code cannot be known, or FAILED named
`Stalled` (stopped), `StallReported` (left alone), `FilesystemUnresponsive`, `DeadlineExceeded`, `GeneratorFailed` or
`Refused`. Cancelling the run leaves the process alone.
"""

# No `from __future__ import annotations` here: flow.serve pickles the flow by value into each run's process. There,
# the names in annotations that are strings cannot be resolved, and every run fails.

import contextlib
import queue
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed
from pydantic import BaseModel, ConfigDict, Field

from prefect_cachewatch.common.aside import Aside
from prefect_cachewatch.common.statedir import open_run_directory
from prefect_cachewatch.config import AttachJob, StallPolicy, StopPolicy, WatchOutputs
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.flows.attempts import ASIDE_MODULES, CANCELLED_PATIENCE_S
from prefect_cachewatch.flows.generation import final_state
from prefect_cachewatch.tasks.prefect_api.artifacts import PATIENCE_S, AnyLogger, tell_failure
from prefect_cachewatch.tasks.prefect_api.events import describe_end, emit_generation_event
from prefect_cachewatch.tasks.prefect_api.logs import outlive_readers, tidy_run_logs
from prefect_cachewatch.tasks.prefect_api.origin import this_run
from prefect_cachewatch.tasks.prefect_api.reporter import ExpectedSize, Reporter
from prefect_cachewatch.tasks.watching import Observation, watch_process
from prefect_cachewatch.watching.outcomes import ending_of, is_failure, is_verdict

_TASK_ENDS_S = 20.0
_LOOK_S = 0.5


class WatchSummary(BaseModel):
    """The result of a watch that ended without a stall."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="Name of the cache.")
    pid: int | None = Field(description="The process that was watched; of a container null where it is not to be seen.")
    exit_code: int | None = Field(description="Its exit code; null if nobody but its parent can know it.")
    bytes_written: int = Field(description="Growth of apparent sizes since the watch began.")
    bytes_present: int = Field(description="Apparent bytes in the cache directories at the end.")
    files_present: int = Field(description="Files in them.")
    duration_s: float = Field(description="Duration of the watch.")
    cache_dirs: list[str] = Field(description="The directories, resolved.")
    run_dir: str = Field(description="Where the report lies, on the machine that ran the watch.")


@flow(name="watch-cache", flow_run_name="watch-{attach.subject}", validate_parameters=True)
def watch_cache(
    attach: AttachJob,
    stall: StallPolicy = StallPolicy(),  # noqa: B008 - frozen, and the UI's form shows the defaults
    stop: StopPolicy = StopPolicy(),  # noqa: B008
    outputs: WatchOutputs = WatchOutputs(),  # noqa: B008
) -> State[Any]:
    """Watch a process that is already running on this machine; report a stall, or stop the process on one.

    Args:
        attach: The process to watch, and which directories must grow.
        stall: When silence is a stall; the first-write window begins with the watch.
        stop: How the process is stopped, if on_stall is stop.
        outputs: Files to write on the machine that runs the flow: report, post-mortem.
    """
    logger = get_run_logger()
    outlive_readers()
    tidy_run_logs()
    run = this_run()
    run_id = str(run.id if run is not None else uuid4())
    try:
        with contextlib.ExitStack() as stack:
            files = stack.enter_context(contextlib.closing(Aside.spawn(ASIDE_MODULES)))
            held = open_run_directory(files, attach.name or attach.cache_dirs[0].name, run_id)
            run_dir = stack.enter_context(contextlib.closing(held)).path
            observation = Observation(
                attach,
                stall,
                stop,
                report=outputs.report or run_dir / "report.json",
                bundles=outputs.bundle,
                bundle_root=outputs.bundle_dir,
                files=files,
            )
            stack.enter_context(observation.run)
            _observe(observation, logger)
    except InputError as error:
        return final_state(Failed(name="Refused", message=error.message))
    if observation.failure is not None:
        return final_state(Failed(name="Refused", message=observation.failure.message))
    return final_state(_conclude(observation, run_dir))


def _observe(observation: Observation, logger: AnyLogger) -> None:
    """Run the task, and publish its reports meanwhile; the process is released however this ends."""
    watch, expected = observation.run.watch, observation.run.watch.attach.expected_bytes
    reporter = Reporter(watch, logger, expected=ExpectedSize(expected, "") if expected else None)
    future = watch_process.with_options(task_run_name=f"watch-{watch.attach.subject}").submit(observation)
    started = False
    try:
        while not observation.finished.wait(_LOOK_S):
            if observation.measured.is_set() and not started:
                started = True
                reporter.start()
            _tell_stalls(observation, logger)
        future.wait()
    except BaseException:
        # A cancellation arrives here as a TerminationSignal, and leaves its report before the worker's patience is over.
        _end(observation, reporter, future)
        _tell_end(observation, logger, CANCELLED_PATIENCE_S)
        raise
    _end(observation, reporter, future)
    _tell_stalls(observation, logger)
    _tell_end(observation, logger)


def _end(observation: Observation, reporter: Reporter, future: PrefectFuture[Any]) -> None:
    """Wait, for a bounded time, until the process is released and the task has ended."""
    watch = observation.run.watch
    reporter.close()
    if not observation.finished.is_set():
        watch.cancel("the flow run was cancelled")
        observation.finished.wait(watch.stop_policy.grace_s + _TASK_ENDS_S)
    future.wait(_TASK_ENDS_S)


def _tell_end(observation: Observation, logger: AnyLogger, patience_s: float = PATIENCE_S) -> None:
    final = observation.report
    if final is not None:
        for problem in (*observation.run.problems, *final.notes):
            logger.warning(problem)
        emit_generation_event(*describe_end(final))
        if is_failure(final.outcome):
            tell_failure(final, logger, patience_s)
        else:
            logger.info(final.message)


def _tell_stalls(observation: Observation, logger: AnyLogger) -> None:
    while True:
        try:
            report = observation.reported.get_nowait()
        except queue.Empty:
            return
        emit_generation_event(*describe_end(report))
        tell_failure(report, logger)


def _conclude(observation: Observation, run_dir: Path) -> State[Any]:
    outcome, stalls = observation.outcome, observation.run.watch.stalls
    if outcome is None:
        return Failed(name="GeneratorFailed", message="The watch ended without an outcome; see the log.")
    name = ending_of(outcome.name, outcome.kind).state
    if stalls and not is_verdict(outcome.name):
        count = "A stall was" if len(stalls) == 1 else f"{len(stalls)} stalls were"
        return Failed(name="StallReported", message=f"{count} reported, and it was left alone. {outcome.message}")
    if is_failure(outcome.name) or outcome.name == "detached":
        return Failed(name=name, message=outcome.message)
    growth = outcome.growth
    summary = WatchSummary(
        name=observation.run.watch.job.name,
        pid=observation.run.watch.subject.pid,
        exit_code=outcome.exit_code,
        bytes_written=growth.bytes_written,
        bytes_present=growth.bytes_present,
        files_present=growth.files_present,
        duration_s=round(outcome.duration_s, 3),
        cache_dirs=list(outcome.paths),
        run_dir=str(run_dir),
    )
    return Completed(name=name, message=outcome.message, data=summary)
