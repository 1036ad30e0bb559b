"""The two sides of a guarded attempt as Prefect tasks, and a monitor for work that another task does.

`run_generator` and `monitor_growth` run side by side and read what the engine tells. They return states, so that the
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
from prefect_cachewatch.engine.front import Front, ToldAttempt
from prefect_cachewatch.measure.growth import Growth
from prefect_cachewatch.report.sections import how_long
from prefect_cachewatch.watching.emptiness import holds_nothing
from prefect_cachewatch.watching.learned import refuse_learned
from prefect_cachewatch.watching.monitor import GrowthMonitor
from prefect_cachewatch.watching.outcomes import describe_growth, describe_nothing, describe_stall, ending_of
from prefect_cachewatch.watching.site import CacheDirectories
from prefect_cachewatch.watching.stall import StallRule


@task(name="generate", cache_policy=NO_CACHE, persist_result=False)
def run_generator(front: Front, attempt: ToldAttempt) -> State[Any]:
    """Wait until the generator's whole process tree is gone, and say how it ended.

    Args:
        front: of the engine that runs it.
        attempt: which attempt.

    Returns:
        Completed, named `Ready` for a server that became ready; or Failed, named `Terminated` if it was stopped,
        `GeneratorFailed` if it failed by itself, `Refused` if it could not be started.
    """
    front.wait(lambda: attempt.started is not None)
    if attempt.started is None:
        return Failed(name="Refused", message="The generator was not started.")
    get_run_logger().info("generator started as pid %s", attempt.started.pid)
    front.wait(lambda: attempt.gone is not None)
    gone = attempt.gone
    if gone is None:
        return Failed(name="Terminated", message="The engine of this run has died.")
    if gone.ready:
        then = f"was left running as {gone.left_running}" if gone.left_running else "has ended"
        return Completed(name="Ready", message=f"The server was ready, and {then}.")
    if gone.why == "exited":
        is_server = attempt.started.windows.get("warmup_within_s") is not None
        if gone.exit_code == 0 and not is_server:
            return Completed(message="The generator ended with exit code 0.")
        what = f"signal {gone.signal}" if gone.signal is not None else f"exit code {gone.exit_code}"
        return Failed(
            name="GeneratorFailed",
            message=f"The generator ended with {what}{' before it was ready' if is_server else ''}.",
        )
    return Failed(
        name="Terminated",
        message=f"The generator was stopped: its process tree was gone after {gone.gone_after_s:.2f} s "
        f"({gone.terminated} terminated, {gone.killed} killed, {len(gone.survivors)} left).",
    )


@task(name="monitor", cache_policy=NO_CACHE, persist_result=False)
def monitor_growth(front: Front, attempt: ToldAttempt) -> State[Any]:
    """Follow the measurements of an attempt until it has ended, and say what they showed.

    Args:
        front: of the engine that measures.
        attempt: which attempt.

    Returns:
        Completed, named `StallReported` if stalls were only reported; or Failed, named `StallDetected` if the attempt was
        stopped for its silence, `DeadlineExceeded` if for its duration.
    """
    front.wait(lambda: attempt.gone is not None)
    if attempt.started is None:
        return Completed(name="NotStarted", message="The generator was not started.")
    last, verdict = attempt.progress, attempt.verdict
    summary = describe_growth(last.bytes_present, last.files_present, last.last_file)
    if stalls := attempt.stalls:
        times = "once" if stalls == 1 else f"{stalls} times"
        return Completed(name="StallReported", message=f"{summary}; it would have been stopped {times}.")
    if verdict is None:
        return Completed(message=f"{summary}; no stall.")
    name = "StallDetected" if verdict.status == "stalled" else "DeadlineExceeded"
    # The flow's message has the whole sentence.
    lasted = how_long(verdict.kind, verdict.pause_s) if verdict.status == "stalled" else "The time limit is over"
    why = f", and {verdict.unready}" if verdict.unready else ""
    return Failed(name=name, message=f"{lasted}{why}; {summary}.")


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
