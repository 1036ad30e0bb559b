"""A run of the engine as Prefect shows it: slots, the two tasks of each attempt, log lines, artifacts and events.

`generation` starts the engine and decides in which state the flow ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect.blocks.system import Secret
from prefect.futures import PrefectFuture

from prefect_cachewatch.common.text import for_terminal
from prefect_cachewatch.common.within import within
from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.engine.client import is_silent, silence
from prefect_cachewatch.engine.events import (
    AttemptWanted,
    Bye,
    Checked,
    Event,
    Note,
    Output,
    Phase,
    Published,
    Ready,
    Refused,
    Reported,
    Retry,
    Started,
    Suspected,
)
from prefect_cachewatch.engine.front import Front, ToldAttempt, mourn
from prefect_cachewatch.engine.spec import make_spec
from prefect_cachewatch.errors import GuardError, InputError
from prefect_cachewatch.flows.context import live_view, output_streams, status_file
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.report.report import Report, read_report
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.supervise.caller_signals import inherited_signals
from prefect_cachewatch.tasks.generation import monitor_growth, run_generator
from prefect_cachewatch.tasks.prefect_api.admission import StorageSlots
from prefect_cachewatch.tasks.prefect_api.artifacts import (
    PATIENCE_S,
    AnyLogger,
    publish_completion,
    publish_failure,
)
from prefect_cachewatch.tasks.prefect_api.events import describe_end, emit_generation_event, storage_resource
from prefect_cachewatch.tasks.prefect_api.logs import log_output, streams_output
from prefect_cachewatch.tasks.prefect_api.origin import this_origin, this_run
from prefect_cachewatch.tasks.prefect_api.reporter import LOG_EVERY_S, Reporter
from prefect_cachewatch.tasks.publication import emit_published, publisher_of, verify_build

_TASKS_END_S = 20.0
_STALL_PATIENCE_S = 10.0  # for the artifacts of a stall that stops nothing: the attempt's next events wait meanwhile
# A cancelled run is killed 30 s after SIGTERM; by then its grace period is over.
CANCELLED_PATIENCE_S = 3.0


def is_output_shown() -> bool:
    """Say whether a command shows the run on its terminal, so that log lines need not repeat it."""
    return output_streams.get() is not None


def require_absolute(metrics: Metrics | None) -> None:
    """Refuse metrics whose directory would be below whatever directory the worker stands in; raises InputError."""
    target = metrics.target if metrics is not None else None
    if isinstance(target, str) and not Path(target).is_absolute():
        raise InputError(
            f"metrics directory {for_terminal(target)} is not an absolute path: write it from / on, "
            "as in file:/var/lib/prometheus/node-exporter"
        )


def start_engine(
    job: CacheJob,
    stall: StallPolicy,
    stop: StopPolicy,
    retry: RetryPolicy,
    publish: PublishPolicy | None,
    outputs: Outputs,
    storage: str | None,
    metrics: Metrics | None,
) -> Front:
    """Start the engine of a run; it makes no attempt before it is told to.

    Args:
        job: what to run.
        stall: when silence is a stall.
        stop: how the tree is stopped.
        retry: the attempts.
        publish: how the cache is published, with the whole key.
        outputs: files to write beside the cache.
        storage: name of the storage.
        metrics: destination of the metrics.

    Raises:
        InputError: a Secret block does not exist.
    """
    streams, run, origin = output_streams.get(), this_run(), this_origin()
    spec = make_spec(
        front="process of the flow run",
        job=job,
        stall=stall,
        stop=stop,
        retry=retry,
        publish=publish,
        outputs=outputs,
        secrets=_load_secrets(job),
        metrics=metrics.to if metrics is not None else None,
        run_id=str(run.id if run is not None else uuid4()),
        storage=storage,
        origin={"worker": origin.worker, "flow_run": origin.flow_run},
        streams=streams,
        output_every_s=LOG_EVERY_S,
        streams_output=streams_output(outputs.stream_output, is_shown=streams is not None),
        status=status_file.get(),
        signals=inherited_signals(),
    )
    passed = tuple(fd for fd in streams or () if fd > 2)
    view = live_view.get()

    def show(event: Event, at: float) -> None:
        if not isinstance(event, Note):  # the run's logger says it
            view.take(event, at)
        if isinstance(event, Reported):
            view.close()

    return Front(spec, job.name, passed, show)


def count_refusal(job: CacheJob, metrics: Metrics, message: str) -> None:
    """Have a run counted that was refused before it had an engine."""
    asked = make_spec(
        job=job, stall=StallPolicy(), stop=StopPolicy(), outputs=Outputs(), metrics=metrics.to, refusal=message
    )
    front = Front(asked, job.name)
    with contextlib.closing(front), contextlib.suppress(TimeoutError):
        while front.next(_TASKS_END_S) is not None:
            pass


def _load_secrets(job: CacheJob) -> dict[str, str]:
    secrets: dict[str, str] = {}
    for variable, block in job.env_secrets.items():
        try:
            loaded: Any = Secret.load(block)
        except ValueError as error:
            raise InputError(
                f"Prefect Secret block {block!r} (env_secrets.{variable}) does not exist: create it under Blocks in the UI"
            ) from error
        secrets[variable] = str(loaded.get())
    return secrets


@dataclass
class Told:
    """What is left of a run when it has ended."""

    bye: Bye | None = None
    refused: Refused | None = None
    reports: list[Report] = field(default_factory=list)
    """The last one of each attempt."""
    run_dir: str = ""

    @property
    def report(self) -> Report | None:
        """The report of the last attempt."""
        return self.reports[-1] if self.reports else None


class ShownRun:
    """Shows an engine's run in Prefect, to its end.

    Args:
        front: of the engine.
        job: the job, as it was given.
        stall: its policy.
        stop: how the tree is stopped.
        publishes: whether the cache is published.
        admission: the run's share of its storage.
        logger: the run's logger.
    """

    def __init__(
        self,
        front: Front,
        job: CacheJob,
        stall: StallPolicy,
        stop: StopPolicy,
        *,
        publishes: bool,
        admission: StorageSlots,
        logger: AnyLogger,
    ) -> None:
        self.told = Told()
        self._front, self._job, self._stall, self._stop = front, job, stall, stop
        self._publishes, self._admission, self._logger = publishes, admission, logger
        self._ready = Ready(job.name)
        self._resource: dict[str, str] | None = None
        self._futures: list[PrefectFuture[Any]] = []
        self._slots = contextlib.ExitStack()
        self._reporter: Reporter | None = None
        self._attempt: ToldAttempt | None = None
        self._is_read_out = False

    def follow(self) -> Told:
        """Show all events, to the last one.

        Raises:
            GuardError: the engine has died, or has gone silent.
            BaseException: what interrupted this thread; the tree has been stopped before it is raised.
        """
        try:
            while (event := self._front.next()) is not None:
                if is_silent(event):
                    self._is_read_out = True
                    raise silence(self._front.engine)
                self._show(event)
            self._is_read_out = True
            if self.told.bye is None and self.told.refused is None:
                raise GuardError(mourn(self._front.token))
        except BaseException:
            # A cancellation arrives here as a TerminationSignal. The flow process waits until the tree has gone, and for
            # a bounded time if the tree does not go.
            self._break_off()
            self._front.close()  # nothing more is told to the tasks, which end then
            raise
        finally:
            try:
                self._close_reporter()
                self._wait_for_tasks()
                self._slots.close()
            finally:
                self._front.close()
        return self.told

    def _show(self, event: Event) -> None:
        match event:
            case Ready():
                self._ready = event
                self._resource = storage_resource(self._admission.storage, event.paths)
                self.told.run_dir = event.run_dir or ""
            case AttemptWanted():
                self._begin()
            case Started():
                if self._reporter is not None:
                    self._reporter.start()
            case Note(text=text, fault=fault):
                (self._logger.warning if fault else self._logger.info)("%s", text)
            case Output(lines=lines):
                log_output(lines, is_shown=is_output_shown())
            case Suspected() | Phase():
                if self._reporter is not None:
                    self._reporter.tell(event)
            case Reported(final=True):
                self._report(event)
            case Reported(report=report):
                self._tell_stall(read_report(report))
            case Retry(why=why):
                last = self.told.report
                made, most = (last.attempt, last.where.attempts if last.where else None) if last else (0, None)
                ended = last.outcome if last is not None else ""
                self._logger.warning("attempt %s of %s ended %s: %s", made, most, ended, why)
            case Checked(is_good=True):
                path = self._ready.current or ""
                self._futures.append(publisher_of(self._job.name, path).submit(self._front))
            case Published() if event.publication["status"] == "cached":
                emit_published(self._job.name, event)
            case Bye():
                self.told.bye = event
            case Refused():
                self.told.refused = event

    def _begin(self) -> None:
        """Take the slots, let the attempt begin, and start its tasks."""
        self._attempt = attempt = self._front.attempt
        assert attempt is not None
        self._slots.enter_context(self._admission.slots(self._logger))  # given back during the backoff
        self._reporter = Reporter(self._job, attempt, self._logger, LOG_EVERY_S, self._resource)
        self._futures = [
            run_generator.with_options(task_run_name=f"generate-{attempt.number}").submit(self._front, attempt),
            monitor_growth.with_options(task_run_name=f"monitor-{attempt.number}").submit(self._front, attempt),
        ]
        self._front.engine.go()

    def _tell_stall(self, report: Report) -> None:
        """Tell of a stall that stopped nothing."""
        emit_generation_event("stall_reported", report.name, describe_end(report)[2], self._resource)
        self._logger.error(report.message)
        self._name_bundle(report)
        # In a thread, which is left behind: this one has to go on reading, and a request to a mute API takes minutes.
        with contextlib.suppress(TimeoutError):
            within(
                _STALL_PATIENCE_S,
                contextvars.copy_context().run,
                publish_failure,
                report,
                self._logger,
                _STALL_PATIENCE_S,
            )

    def _name_bundle(self, report: Report) -> None:
        if report.bundle is not None:
            self._logger.info("post-mortem: cachewatch report %s", report.bundle)

    def _report(self, event: Reported, patience_s: float = PATIENCE_S) -> None:
        """Take in the report of an attempt, or its change by what came after it."""
        # Not the front's: a thread reads on, and may know of the next attempt by now.
        report, attempt = read_report(event.report), self._attempt
        if (
            attempt is None or attempt.reported is not event
        ):  # of a run that had nothing to do, or once more, with what became of the build
            self.told.reports = [*(one for one in self.told.reports if one.attempt != report.attempt), report]
            return
        self._close_reporter()
        self._wait_for_tasks()
        self.told.reports.append(report)
        self._admission.reports = self.told.reports
        self._name_bundle(report)
        emit_generation_event(*describe_end(report), self._resource)
        if report.outcome == "completed":
            publish_completion(report, event.past_pauses_s, self._stall, self._logger)
            self._logger.info(report.message)
            if self._publishes:
                self._futures = [verify_build.submit(self._front, self._job.name)]
        else:
            (self._logger.warning if report.outcome == "cancelled" else self._logger.error)(report.message)
            publish_failure(report, self._logger, patience_s)
        self._slots.close()  # last: an API that does not answer must not hold up what is told of the end

    def _close_reporter(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None

    def _wait_for_tasks(self) -> None:
        for future in self._futures:
            future.wait(_TASKS_END_S)
        self._futures = []

    def _break_off(self) -> None:
        """Have the run ended, and show that end; it is bounded, since the worker kills this process soon."""
        if self._is_read_out:
            return
        self._front.engine.cancel("the flow run was cancelled")
        end_s = time.monotonic() + self._stop.grace_s + _TASKS_END_S
        try:
            while (event := self._front.next(end_s - time.monotonic())) is not None:
                if isinstance(event, Reported) and event.final:
                    self._report(event, CANCELLED_PATIENCE_S)
                elif not isinstance(event, AttemptWanted | Started) and not is_silent(event):
                    self._show(event)
        except Exception as error:  # noqa: BLE001 - a report that fails does not make a cancelled run a crashed one
            self._logger.warning("the run was cancelled, and its end is not known: %s", type(error).__name__)
        bye = self.told.bye
        if bye is not None and bye.outcome == "cancelled" and bye.headline:
            self._logger.warning(bye.message)
            made = self.told.report.attempt if self.told.report is not None else 0
            payload = {"attempt": made, "outcome": "cancelled", "message": bye.message, "headline": bye.headline}
            emit_generation_event("cancelled", self._job.name, payload)
