"""The two sides of a guarded attempt as Prefect tasks, and a monitor for work that another task does.

`run_generator` and `monitor_growth` run side by side and share one `Watch`. They return states, so that the
task's name tells how it ended; neither makes an API call while it waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from prefect_cachewatch.common.secrets import redact, secret_values
from prefect_cachewatch.config import DEFAULT_IGNORE, StallPolicy
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.report.headline import how_long
from prefect_cachewatch.watching.attempt import Watch
from prefect_cachewatch.watching.emptiness import holds_nothing
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.outcomes import describe_growth, describe_nothing, describe_stall, ending_of
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import StallRule

_START_TIMEOUT_S = 300.0


class Attempt:
    """What the two tasks of an attempt share: the watch, and whether it has been started.

    Args:
        watch: the attempt, not started yet.
        secrets: values that no message may contain, not even as the name of a file.
    """

    def __init__(self, watch: Watch, secrets: tuple[str, ...] = ()) -> None:
        self.watch, self.secrets = watch, secrets
        self.ready = threading.Event()
        self.failure: CachewatchError | None = None

    def start(self) -> None:
        """Start the watch; keep a failure for the flow."""
        try:
            self.watch.start()
        except CachewatchError as error:
            self.failure = error
            raise
        finally:
            self.ready.set()


@task(name="generate", cache_policy=NO_CACHE, persist_result=False)
def run_generator(attempt: Attempt) -> State[Any]:
    """Start the generator under guard and wait until its whole process tree is gone.

    Args:
        attempt: shared with `monitor_growth`.

    Returns:
        Completed, named `Ready` for a server that became ready; or Failed, named `Terminated` if it was stopped,
        `GeneratorFailed` if it failed by itself, `Refused` if it could not be started.
    """
    logger = get_run_logger()
    watch = attempt.watch
    try:
        attempt.start()
    except CachewatchError as error:
        return Failed(name="Refused", message=error.message)
    assert watch.supervisor is not None
    if watch.job.container is None:
        logger.info("generator started as pid %s under guard %s", watch.supervisor.pid, watch.supervisor.root_pids)
    else:
        logger.info("generator started in a container of %s, pid %s", watch.job.container.image, watch.supervisor.pid)
    report = watch.supervise()
    if watch.serving is not None and watch.serving.ends_well(report):
        server = watch.serving.handed_over
        then = f"was left running as {server.record.who}" if server else "has ended"
        return Completed(name="Ready", message=f"The server was ready, and {then}.")
    if report.why == "exited":
        early = " before it was ready" if watch.serving is not None and watch.serving.ready_s is None else ""
        if report.exit_code == 0 and watch.serving is None:
            return Completed(message="The generator ended with exit code 0.")
        what = f"signal {report.signal}" if report.signal is not None else f"exit code {report.exit_code}"
        return Failed(name="GeneratorFailed", message=f"The generator ended with {what}{early}.")
    return Failed(
        name="Terminated",
        message=f"The generator was stopped: its process tree was gone after {report.gone_after_s:.2f} s "
        f"({len(report.terminated)} terminated, {len(report.killed)} killed, {len(report.survivors)} left).",
    )


@task(name="monitor", cache_policy=NO_CACHE, persist_result=False)
def monitor_growth(attempt: Attempt) -> State[Any]:
    """Measure the growth of an attempt's cache until the attempt ends; have it stopped on a stall.

    Args:
        attempt: shared with `run_generator`, which starts it.

    Returns:
        Completed, named `StallReported` if stalls were only reported; or Failed, named `StallDetected` if the attempt was stopped for its silence,
        `DeadlineExceeded` if for its duration.
    """
    watch = attempt.watch
    if not attempt.ready.wait(_START_TIMEOUT_S) or attempt.failure is not None:
        return Completed(name="NotStarted", message="The generator was not started.")
    watch.monitor()
    verdict = watch.verdict
    growth = watch.state.growth
    summary = describe_growth(growth.bytes_present, growth.files_present, watch.state.last_path)
    if stalls := watch.would_be_stops:
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        return Completed(
            name="StallReported", message=redact(f"{summary}; it would have been stopped {times}.", attempt.secrets)
        )
    if verdict is None:
        return Completed(message=redact(f"{summary}; no stall.", attempt.secrets))
    name = "StallDetected" if verdict.status == "stalled" else "DeadlineExceeded"
    # The flow's message has the whole sentence.
    lasted = how_long(verdict.kind, verdict.pause_s) if verdict.status == "stalled" else "The time limit is over"
    why = f", and {watch.serving.unready}" if watch.serving is not None and verdict.kind == "never_ready" else ""
    return Failed(name=name, message=redact(f"{lasted}{why}; {summary}.", attempt.secrets))


@task(name="monitor-cache", cache_policy=NO_CACHE, persist_result=False)
def monitor_cache(
    cache_dirs: Sequence[Path],
    finished: threading.Event,
    stall: StallPolicy | None = None,
    on_stall: Callable[[str], None] | None = None,
    ignore: Sequence[str] = DEFAULT_IGNORE,
    allow_empty: bool = False,
) -> State[Any]:
    """Watch directories that another task writes to, until that work has finished.

    Args:
        cache_dirs: absolute paths; growth in any of them is progress.
        finished: set by the caller when the work has ended.
        stall: when silence is a stall.
        on_stall: called once with the message, in this task's thread; it should stop the work.
        ignore: globs of files that never count.
        allow_empty: whether directories that were empty may be empty at the end.

    Returns:
        Completed with the growth in the message; or Failed, named `StallDetected` (within its window + one scan) or
        `NothingWritten` if directories that were empty are still empty when the work has finished.

    Raises:
        CacheDirectoryError: a directory cannot be watched.
        InputError: the policy asks for learned windows.
    """
    policy = stall or StallPolicy()
    refuse_learned(policy)
    with CacheDirectories([Path(path) for path in cache_dirs], ignore=ignore, lock=False) as site:
        baseline = site.begin()
        began_empty = holds_nothing(Growth(**baseline["growth"]))
        monitor = GrowthMonitor(site, StallRule(policy, time.monotonic()), time.monotonic, baseline)
        verdict = monitor.run(finished.wait, finished.is_set)
        growth = redact(
            describe_growth(monitor.growth.bytes_present, monitor.growth.files_present, monitor.last_path),
            secret_values(os.environ),
        )
        if not verdict.final and not allow_empty and began_empty and holds_nothing(monitor.growth):
            told = describe_nothing(site.paths, monitor.growth.bytes_written)
            return Failed(name="NothingWritten", message=f"{told}. {ending_of('nothing_written').advice}")
        if not verdict.final:
            return Completed(message=f"{growth}; no stall.")
        message = describe_stall(verdict, site.paths, growth, problem=monitor.problem, touched=monitor.touched_in_pause)
    if on_stall is not None:
        on_stall(message)
    return Failed(name="StallDetected", message=message)
