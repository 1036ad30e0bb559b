"""A watch over a process that cachewatch did not start, as one Prefect task; thin.

Reports of stalls go to the flow through a queue: publishing them takes API calls, and the monitor never makes any.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from prefect_cachewatch.config import AttachJob
from prefect_cachewatch.errors import CachewatchError
from prefect_cachewatch.postmortem.report import Report
from prefect_cachewatch.run.attached import AttachedRun
from prefect_cachewatch.watching.attempt import Outcome
from prefect_cachewatch.watching.headline import headline_of
from prefect_cachewatch.watching.outcomes import ending_of, is_failure


class Observation:
    """The data that task and flow share: the run, its reports, and how it ended.

    Args:
        attach: the process to watch.
        options: further arguments of `AttachedRun`, except its two hooks.
        more: as `options`.

    Raises:
        InputError: the process may not be watched, or a directory cannot be used.
    """

    def __init__(self, attach: AttachJob, *options: Any, **more: Any) -> None:
        self.reported: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.measured = threading.Event()
        self.finished = threading.Event()
        self.outcome: Outcome | None = None
        self.report: Report | None = None
        self.failure: CachewatchError | None = None
        self.run = AttachedRun(
            attach, *options, on_sample=lambda watch: self.measured.set(), on_stall=self.reported.put, **more
        )

    def observe(self) -> None:
        """Watch to the end; keep a failure for the flow."""
        try:
            self.outcome, self.report = self.run.run()
        except CachewatchError as error:
            self.failure = error
            raise
        finally:
            self.finished.set()


@task(name="watch-process", cache_policy=NO_CACHE, persist_result=False)
def watch_process(observation: Observation) -> State[Any]:
    """Watch a process until it ends, is stopped on a stall, or the watch is ended.

    Args:
        observation: shared with the flow.

    Returns:
        Completed; or Failed, named `StallDetected`, `DeadlineExceeded`, `GeneratorFailed`, `NothingWritten` or `Refused`.
    """
    attach, watch = observation.run.watch.attach, observation.run.watch
    get_run_logger().info("watching %s in %s; on a stall: %s", watch.subject.who, watch.site.paths, attach.on_stall)
    try:
        observation.observe()
    except CachewatchError as error:
        return Failed(name="Refused", message=error.message)
    outcome = observation.outcome
    assert outcome is not None
    if is_failure(outcome.name):
        name = "StallDetected" if outcome.name == "stalled" else ending_of(outcome.name).state
        return Failed(name=name, message=headline_of(outcome.message))
    if watch.stalls:
        return Failed(name="StallDetected", message=headline_of(watch.stalls[-1].message))
    return Completed(message=outcome.message)
