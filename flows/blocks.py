"""`CacheGeneration`: a job and its policies as a Prefect block, which is configured in the UI and run anywhere.

A run of it is a run of the flow `generate-cache` in a thread of this process. Inside a flow it is a subflow.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import signal
import threading
from typing import Annotated, Any

from prefect.blocks.abstract import JobBlock, JobRun
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from pydantic import Field

from prefect_cachewatch.config import CacheJob, Outputs, RetryPolicy, StallPolicy, StopPolicy, Storage
from prefect_cachewatch.config.forms import OFF
from prefect_cachewatch.engine.front import AWAKE_S, Front
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobs import MODELS
from prefect_cachewatch.flows.attempts import wait_awake
from prefect_cachewatch.flows.generation import CacheGenerationError, GenerationSummary, generate_cache
from prefect_cachewatch.flows.telling import Telling, whom_to_tell
from prefect_cachewatch.metrics.settings import Metrics
from prefect_cachewatch.report.report import Report
from prefect_cachewatch.store.policy import PublishPolicy

_CLEARED_S = 30.0  # beyond the grace period; a worker gives a cancelled run the same


class _Course(Telling):
    """The state of a run, and the way to end it from another thread."""

    def __init__(self) -> None:
        super().__init__()
        self._ended_by: str | None = None

    def end(self, why: str) -> None:
        """Have the generator stopped, and start no further one."""
        self._ended_by = why
        if (front := self.front) is not None:
            front.engine.cancel(why)

    def work(self, front: Front | None = None) -> None:
        """Note the step that the run is at; if an end was asked for, raise it in the flow as a signal would."""
        if self._ended_by is not None and self.has_begun:
            raise TerminationSignal(signal.SIGTERM)
        super().work(front)
        if self._ended_by is not None and front is not None:  # an end was asked for between the two checks
            front.engine.cancel(self._ended_by)


class CacheGenerationRun(JobRun[GenerationSummary]):
    """A generation that was triggered; it lives as long as this process, and the caller has to wait for it.

    Args:
        block: what to run.
    """

    def __init__(self, block: CacheGeneration) -> None:
        self._course, self._grace_s = _Course(), block.stop.grace_s
        self._ended: concurrent.futures.Future[State[Any]] = concurrent.futures.Future()
        self._ended.set_running_or_notify_cancel()
        context = contextvars.copy_context()  # of the surrounding flow
        # A daemon thread: if the process ends for another reason, the generator ends with it.
        thread = threading.Thread(target=context.run, args=(self._run, block), name="cachewatch-block", daemon=True)
        thread.start()

    @property
    def report(self) -> Report | None:
        """The report of the last attempt that has ended."""
        return self._course.report

    async def await_for_completion(self) -> None:
        """Wait until the run has ended.

        Raises:
            CacheGenerationError: the run failed; `data["state"]` is the name of the flow run's final state, and
                `data["report"]` the report of its last attempt.
            BaseException: what interrupted the wait; the generator has been stopped before it is raised.
        """
        ended = asyncio.wrap_future(self._ended)
        try:
            while not ended.done():  # in short pieces, as `wait_awake` does
                await asyncio.wait([ended], timeout=AWAKE_S)
            await ended
        except asyncio.CancelledError:
            await asyncio.to_thread(self._break_off, "the wait for it was cancelled")
            raise
        except BaseException as error:
            self._break_off(type(error).__name__)
            raise
        self._summary()

    def wait_for_completion(self) -> None:  # type: ignore[override]
        """Wait until the run has ended; see `await_for_completion`."""
        self.outcome()

    async def afetch_result(self) -> GenerationSummary:
        """Return the summary of the run.

        Returns:
            The summary that the flow returns.

        Raises:
            CacheGenerationError: the run failed.
            InputError: the run has not ended.
        """
        return self._summary()

    def fetch_result(self) -> GenerationSummary:  # type: ignore[override]
        """Say what was generated; see `afetch_result`."""
        return self._summary()

    def outcome(self) -> GenerationSummary:
        """Wait for the end in this thread, and return the summary; raises as these two steps do."""
        ended = threading.Event()
        self._ended.add_done_callback(lambda _: ended.set())
        try:
            wait_awake(ended)
            self._ended.result()
        except BaseException as error:
            self._break_off(type(error).__name__)
            raise
        return self._summary()

    def _run(self, block: CacheGeneration) -> None:
        whom_to_tell.set(self._course)
        try:
            state: Any = generate_cache(
                block.job,
                **{name: getattr(block, name) for name in MODELS},
                return_state=True,
            )
            self._ended.set_result(state)
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._ended.set_exception(error)

    def _break_off(self, why: str) -> None:
        self._course.end(why)
        concurrent.futures.wait([self._ended], timeout=self._grace_s + _CLEARED_S)

    def _summary(self) -> GenerationSummary:
        if not self._ended.done():
            raise InputError("the generation has not ended: wait_for_completion() comes before fetch_result()")
        state = self._ended.result()
        if not state.is_completed():
            raise CacheGenerationError(f"{state.name}: {state.message}", state=state.name, report=self.report)
        summary: Any = state.result(_sync=True)  # type: ignore[call-overload]  # the caller may be async code
        assert isinstance(summary, GenerationSummary)
        return summary


class CacheGeneration(JobBlock[GenerationSummary]):
    """A guarded generation of a tensor cache: what to run, when silence is a stall, where the cache goes.

    Example:
        ```python
        from prefect_cachewatch import CacheGeneration

        summary = CacheGeneration.load("llama-n150").run()
        ```
    """

    _block_type_name = "Cache Generation"
    _description = (
        "Generates a tensor cache under guard: watches the bytes grow, stops a stalled generator's whole process tree, "
        "and says why."
    )

    job: CacheJob = Field(description="What to run, and which directories must grow.")
    stall: StallPolicy = Field(default=StallPolicy(), description="When silence is a stall.")
    stop: StopPolicy = Field(default=StopPolicy(), description="How the process tree is stopped.")
    retry: RetryPolicy = Field(default=RetryPolicy(), description="Whether and when a failed attempt is made again.")
    publish: Annotated[PublishPolicy | None, OFF] = Field(
        default=None,
        description="The store: how the finished cache is verified and published; without it, it is only generated.",
    )
    outputs: Outputs = Field(
        default=Outputs(), description="What is left beside the cache: report, log, post-mortem, recording."
    )
    storage: Annotated[Storage | None, OFF] = Field(
        default=None, description="Storage that the cache lies on, whose slots each attempt waits for."
    )
    metrics: Annotated[Metrics | None, OFF] = Field(
        default=None, description="Prometheus metrics of the run; default none."
    )

    async def atrigger(self) -> CacheGenerationRun:
        """Start the generation in this process.

        Returns:
            The run, which the caller has to wait for.
        """
        return CacheGenerationRun(self)

    def trigger(self) -> CacheGenerationRun:  # type: ignore[override]
        """Start the generation in this process; see `atrigger`."""
        return CacheGenerationRun(self)

    async def arun(self) -> GenerationSummary:
        """Generate the cache, and wait for the end.

        Returns:
            The summary of the run.

        Raises:
            CacheGenerationError: the run failed; see `CacheGenerationRun.await_for_completion`.
        """
        run = await self.atrigger()
        await run.await_for_completion()
        return await run.afetch_result()

    def run(self) -> GenerationSummary:
        """Generate the cache, and wait for the end; see `arun`."""
        return CacheGenerationRun(self).outcome()
